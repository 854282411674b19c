//! Scenarios: the routing behaviour of the plugin, written as YAML files.
//!
//! A scenario creates RouteTables, calls the plugin as the controller does, edits the tables as their owners do, and lists
//! the expected tables after each call. A new case is a new file and needs no Rust.
//!
//! Every file of `crates/gloo-router/tests/scenarios` is played over a store in memory (`tests/scenarios.rs` beside it) and
//! over a real API server (`tests/tests/cluster_scenarios.rs`). The calls go through a connection of the plugin protocol into
//! a [`GlooRouter`](gloo_router::GlooRouter), which works on the store of a [`Place`].
//!
//! # Example
//!
//! ```yaml
//! # The owner adds a destination during the rollout. It keeps its weight; stable and canary share the rest.
//! tables:
//!   shop/shop: {http: [{name: r, forwardTo: {destinations: [reviews]}}]}
//! calls:
//! - {setWeight: 25, routes: {r: [reviews 75, reviews-canary 25]}}
//! - edit: [{op: add, path: /spec/http/0/forwardTo/destinations/-, value: {ref: {name: dr, namespace: shop}, weight: 10}}]
//! - setWeight: 50
//!   routes: {r: [reviews 45, reviews-canary 45, {ref: {name: dr, namespace: shop}, weight: 10}]}
//! ```
//!
//! The table `shop` in namespace `shop` has one route `r`, which forwards to the Service `reviews`. The Rollout is the one in
//! `base.yaml`: its stable Service is `reviews`, its canary Service `reviews-canary`. The controller sets weight 25,
//! and route `r` must have these two destinations. Then the owner adds a destination with a JSON Patch. With the next
//! weight the three must sum to 100.
//!
//! Wherever destinations are listed, `reviews 80` is short for
//! `{ref: {name: reviews, namespace: shop}, port: {number: 80}, weight: 80}`, and `reviews` for the same without `weight`.
//! JSON Patches have no short forms. Anchors and aliases of YAML keep repeated routes short.
//!
//! # Keys of a file
//!
//! A file starts with a comment that says what it shows.
//!
//! | key | value |
//! |---|---|
//! | `tables` | the specs by `namespace/name`; required. A call without `table` applies to the first one |
//! | `newerGloo` | `true`: the tables have fields or values that only a newer Gloo knows |
//! | `labels` | labels of tables, by `namespace/name` |
//! | `services` | the `ports` of Services, by `namespace/name`; without it, the plugin finds no Service |
//! | `plugin` | the plugin block of the Rollout; by default it selects the first table |
//! | `flags` | the administrator's `routeTableNamespaces` and `destinationNamespaces` |
//! | `rollout` | merged into the Rollout of `base.yaml`; `null` removes a field |
//! | `calls` | what happens, in this order; required |
//!
//! # What a call does
//!
//! Exactly one of these. The first four rows are calls of the controller.
//!
//! | key | value |
//! |---|---|
//! | `setWeight`, `verifyWeight` | the desired weight; `additional: [[service, weight]]` beside it is a running experiment |
//! | `setHeaderRoute`, `setMirrorRoute` | the content of the step, or the name of a route: its step becomes the current one |
//! | `removeManagedRoutes` | `true` |
//! | `updateHash` | `{canary, stable}`, the Pod hashes |
//! | `edit` | a JSON Patch by the owner of `table` |
//! | `reapply` | `true`: the owner applies the original spec of `table` again |
//! | `status` | the status that Gloo writes to `table` |
//! | `delete` | `true`: the owner deletes `table` |
//! | `restart` | `true`: a new plugin process over the same tables |
//! | `change` | `true`: only the `rollout` of this entry is merged |
//!
//! Beside it:
//!
//! | key | value |
//! |---|---|
//! | `rollout` | merged into the Rollout, for this call and the later ones: a new step index, an abort |
//! | `as` | the name of another Rollout for which the call is made; for `ratings` its Services are `ratings` and `ratings-canary` |
//! | `table` | the table of `edit`, `reapply`, `status`, `delete` or `meanwhile` |
//! | `meanwhile` | a JSON Patch of the owner of `table` between the read and the write of the plugin |
//! | `once` | `true`: the call is not repeated, because its repetition has another outcome |
//! | `name` | a name for the tables after this call, for a later `same` |
//!
//! # What is expected
//!
//! Each call of the controller needs at least one of the first seven.
//!
//! | key | meaning |
//! |---|---|
//! | `routes` | the first table is the original, except for the destinations of these routes, by name |
//! | `http` | the first table is the original, except for `http` |
//! | `tables` | these tables have these specs; the specs of the others did not change |
//! | `same` | all tables are as after the call of that `name` |
//! | `unchanged` | no table was written |
//! | `restored` | every table equals the original byte for byte in spec, labels and annotations; there is no MirrorPolicy |
//! | `error` | the call fails with a text that contains this; no table is written, unless one of the others says so |
//! | `clean` | no table has an annotation of the plugin |
//! | `policies` | the number of MirrorPolicies |
//! | `writes` | the number of successful writes of this call |
//! | `verification` | the answer of VerifyWeight |
//!
//! In `routes`, `http` and `tables` a route with the plugin's labels has `ours: true` in their place.
//!
//! The player also checks three rules. It makes each call of the controller twice: the second one must have the same outcome
//! and write nothing. A table that was valid to Gloo before a call is valid after it. An error is one line without `%`.

mod expect;
mod place;
mod player;
mod scenario;

pub use place::{Memory, Place};

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// Parses a scenario, written in YAML, and plays it in `place`.
///
/// # Errors
/// Returns `Err` if the file is no scenario, or with the first call whose result is not as expected.
pub async fn play(file: &str, place: &impl Place) -> Result<()> {
    let scenario = scenario::parse(file).context("not a scenario")?;
    player::play(&scenario, place).await
}

/// Whether the tables of a scenario have fields or values that only a newer Gloo knows.
///
/// # Errors
/// Returns `Err` if the file is no scenario.
pub fn needs_a_newer_gloo(file: &str) -> Result<bool> {
    Ok(scenario::parse(file).context("not a scenario")?.newer_gloo)
}

/// Returns name and text of every scenario in a folder, sorted by name.
///
/// # Errors
/// Returns `Err` if the folder cannot be read, or is empty.
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
