//! Scenarios from files: a Rollout, its RouteTables, the controller's calls, and what the tables must be after each.
//!
//! A scenario runs over any [`RouteStore`](route_store::RouteStore): the calls go through a whole session of the plugin protocol into a
//! [`GlooRouter`](crate::GlooRouter) on top of the store of a [`Place`]. One file therefore says the same about the
//! memory store, in this crate's tests, and about a real API server, in `tests`.
//!
//! # A file
//!
//! ```yaml
//! # What it shows.
//! tables:                                # `namespace/name: spec`; the first is the one meant when none is named
//!   shop/shop: {http: [{name: r, forwardTo: {destinations: [reviews 80, legacy 20]}}]}
//! labels: {shop/shop: {app: shop}}       # of tables, optional
//! plugin: {routeTableSelector: {...}}    # the plugin block; by default it selects the first table
//! flags: {routeTableNamespaces: [shop]}  # the administrator's, optional
//! rollout: {spec: {...}}                 # merged into the base Rollout, see `testing/base.yaml`
//! calls:
//! - {setWeight: 25, name: w25, routes: {r: [reviews 60, reviews-canary 20, legacy 20]}}
//! - {setHeaderRoute: hdr, http: [...]}
//! - {removeManagedRoutes: true, same: w25}
//! - {setWeight: 0, restored: true}
//! ```
//!
//! Wherever destinations stand, `reviews 80` is short for `{ref: {name: reviews, namespace: shop}, port: {number: 80},
//! weight: 80}`, and `reviews` for the same without `weight`.
//!
//! What a call does, exactly one of:
//!
//! | key | value |
//! |---|---|
//! | `setWeight`, `verifyWeight` | the desired weight; with `additional: [[service, weight]]` |
//! | `setHeaderRoute`, `setMirrorRoute` | the step's content, or the name of a step's route: that step is current then |
//! | `removeManagedRoutes` | `true` |
//! | `updateHash` | `{canary, stable}` |
//! | `edit` | a JSON Patch by the owner of `table` |
//! | `reapply` | `true`: the owner applies the original spec of `table` over whatever is there |
//! | `status` | the table's status, as Gloo writes it |
//! | `delete` | `true`: the owner deletes `table` |
//! | `restart` | `true`: a new plugin process, over the same tables |
//! | `change` | `true`: only what stands beside it |
//!
//! Beside it: `rollout` is first merged into the Rollout, for this call and those after it; `as: ratings` calls for
//! another Rollout of that name, whose Services are `ratings` and `ratings-canary`; `meanwhile` is a JSON Patch that the
//! owner of `table` gets in between our read and our write; `once: true` is for a VerifyWeight that ends a pass, after
//! which the same question is another one.
//!
//! What is expected, at least one for every call of the controller:
//!
//! | key | the call succeeds and |
//! |---|---|
//! | `routes` | the first table is the original, but for the destinations of these routes, by name |
//! | `http` | the first table is the original, but for `http` |
//! | `tables` | these tables have these specs; the others are unchanged |
//! | `same` | all tables are as they were after the call with that `name` |
//! | `unchanged` | no table was written |
//! | `restored` | every table is byte-equal to the original in spec, labels and annotations |
//! | `clean` | besides: no table has an annotation of ours |
//! | `policies` | besides: there are so many MirrorPolicies; after `restored` there is none |
//! | `writes` | besides: so many writes reached the store |
//! | `verification` | VerifyWeight answers that |
//! | `error` | it fails instead, with a text that contains this, and no table is written |
//!
//! A route that carries our label shows as `ours: true`, without that label. The harness makes every call of the
//! controller twice: the second must have the same outcome and write nothing. A table that Gloo accepted before a call
//! must be valid after it, and an error must be one line without `%`.

mod expect;
mod place;
mod player;
mod scenario;

pub use place::Place;

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// Plays the scenario of a file, written in YAML, in `place`.
///
/// # Errors
/// The file makes no sense, or the first call after which something is not as expected.
pub async fn play(file: &str, place: &impl Place) -> Result<()> {
    let scenario = scenario::parse(file).context("not a scenario")?;
    player::play(&scenario, place).await
}

/// Name and text of every scenario in a folder, sorted by name.
///
/// # Errors
/// The folder cannot be read, or is empty.
pub fn scenarios(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        found.push((name.into_owned(), fs::read_to_string(&path)?));
    }
    found.sort();
    ensure!(!found.is_empty(), "{} is empty", folder.display());
    Ok(found)
}
