//! Decides how a Gloo RouteTable changes for a canary: a pure function from configuration, intent and document to edits.
//!
//! ```text
//! before                                SetWeight 25 of 100
//! http:                                 http:
//! - name: list                          - name: list
//!   forwardTo:                            forwardTo:
//!     destinations:                         destinations:
//!     - ref: {name: reviews}                - {ref: {name: reviews}, weight: 60}
//!       weight: 80                          - {ref: {name: reviews-canary}, weight: 20}
//!     - ref: {name: legacy}                 - {ref: {name: legacy}, weight: 20}
//!       weight: 20
//! ```
//!
//! [`plan`] answers with a [`Plan`], whose edits become a guarded JSON Patch, or with a typed refusal. The same input
//! gives the same plan, and planning on a patched table gives the empty plan. What the owner wrote is remembered in one
//! annotation of the table itself ([`ANNOTATION`]); SetWeight 0 puts it back byte for byte and removes the annotation.
//! [`observe`] is the question behind VerifyWeight: is the intent in force, and has Gloo accepted it? [`restore`] needs no
//! configuration: it puts back a table of a Rollout that is gone.
//!
//! The crate knows no clock, no file, no network and no Kubernetes client.

mod config;
mod config_reader;
mod destinations;
mod edit;
mod error;
mod intent;
mod json_patch;
mod managed_routes;
mod matcher;
mod mirror_policy;
mod observe;
mod ownership;
mod re2;
mod record;
mod restore;
mod roles;
mod select;
mod set_weight;
mod source;
mod weight;

pub use config::{
    DEFAULT_PLUGIN_NAMES, HeaderMatchMode, HeaderRoutePlacement, PluginConfig, RouteSelector,
    TlsSelector, VerifyMode, keys,
};
pub use edit::{DestinationChange, Edit, OtherAnnotations, Plan, Skip, SkipReason, Warning};
pub use error::{ConfigError, ConfigProblem, PlanError, Refusal};
pub use intent::{
    AdditionalDestination, AppliedWeights, HeaderMatch, HeaderRoute, Intent, IntentKind,
    ManagedRoute, ManagedRoutes, MirrorRoute, PodHashes, RequestMatch, ServicePair, TextMatch,
    WeightSplit,
};
pub use mirror_policy::{PolicyChange, belongs_to};
pub use observe::{Observation, observe};
pub use ownership::fnv1a;
pub use record::ANNOTATION;
pub use restore::{at_rest, involved, managed_by, restore};

use gloo_types::RouteTableDoc;

/// Decides the part of [`plan`] that sends no more traffic to the canary: routes whose canary share would grow stay as
/// they are.
///
/// This is what a caller carries out while it cannot plan another table of the same Rollout.
///
/// # Errors
/// Returns `Err` if the table as a whole cannot be read.
pub fn plan_toward_stable(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    let plan = plan(config, intent, table)?;
    Ok(if plan.grows() {
        Plan::nothing(&intent.rollout, table)
    } else {
        plan
    })
}

/// Decides what has to change in `table` so that `intent` is in force.
///
/// When no route would send more traffic to the canary, routes that cannot be planned do not stop the others:
/// [`Plan::left`] names them.
///
/// # Errors
/// Returns `Err` if the table cannot be read, if it leads no traffic to the stable Service, or if the canary share of a
/// route would grow while another route cannot be planned.
pub fn plan(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    let decided = table.spec().map(|spec| match &intent.kind {
        IntentKind::SetWeight(split) => set_weight::plan(config, intent, split, table, &spec),
        IntentKind::SetManagedRoute(route) => {
            managed_routes::set(config, intent, route, table, &spec)
        }
        IntentKind::RemoveManagedRoutes => Ok(managed_routes::remove_all(config, intent, table)),
    })?;
    let plan = decided.map_err(|refusal| PlanError::Refused {
        table: table.key().clone(),
        rollout: intent.rollout.clone(),
        refusal: Box::new(refusal),
    })?;
    Ok(plan.with_what_it_leaves(table))
}
