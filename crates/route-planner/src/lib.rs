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
//! annotation of the table itself ([`ANNOTATION`]); SetWeight 0 restores it byte for byte and removes the annotation.
//! [`observe`] is the question behind VerifyWeight: is the intent in force, and has Gloo accepted it? [`restore`] restores the
//! table of a Rollout that was deleted, and needs no configuration. [`promotion`] decides when the stable Service of a promoted
//! Rollout may get its traffic back.
//!
//! The crate knows no clock, no file, no network and no Kubernetes client.

mod admissible;
mod config;
mod destinations;
mod error;
mod intent;
mod limits;
mod managed_routes;
mod matcher;
mod mirror_policy;
mod observe;
mod ownership;
mod plan;
mod planning;
pub mod promotion;
mod re2;
mod record;
mod record_matching;
mod recovery;
mod restore;
mod roles;
mod route;
mod set_weight;
mod table_state;
mod weight;

pub use admissible::{Admissible, Progress, Recorded};
pub use config::{
    DEFAULT_PLUGIN_NAMES, HeaderMatchMode, HeaderRoutePlacement, PluginConfig, RouteSelector,
    TlsSelector, VerifyMode, keys,
};
pub use error::{ConfigError, ConfigProblem, PlanError, Refusal};
pub use intent::{
    AdditionalDestination, AppliedWeights, HeaderMatch, HeaderRoute, Intent, IntentKind,
    ManagedRoute, ManagedRoutes, MirrorRoute, PodHashes, RequestMatch, ServicePair, TextMatch,
    WeightSplit,
};
pub use mirror_policy::{PolicyChange, belongs_to};
pub use observe::{Observation, observe};
pub use ownership::{ANNOTATION, fnv1a, mark, marked};
pub use plan::{DestinationChange, Edit, OtherAnnotations, Plan, Skip, SkipReason, Warning};
pub use planning::is_rest;
pub use restore::{at_rest, involved, managed_by, restore};

use gloo_types::RouteTableDoc;

use crate::set_weight::Growth;

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
    planning::plan(config, intent, table, Growth::Allowed)
}

/// Decides the part of [`plan`] that sends no more traffic to the canary: routes whose canary share would grow stay as
/// they are.
///
/// This is what a caller carries out while it cannot plan another table of the same Rollout.
///
/// # Errors
/// Returns `Err` if the table as a whole cannot be read, and if it leads no traffic to the stable Service.
pub fn plan_toward_stable(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    planning::plan(config, intent, table, Growth::Withheld)
}
