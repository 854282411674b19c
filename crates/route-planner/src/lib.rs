//! Plans how a Gloo RouteTable changes for a canary: pure functions from configuration, intent and document to edits.
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
//! The words for this, which the modules use:
//!
//! - The *owner* of a table is the person or tool, such as Argo CD, that writes it besides this plugin. The *owner's list* of a route is
//!   the list of destinations as the owner wrote it; the *live list* is the one in the table now.
//! - The *anchor* is the owner's destination by which a route forwards to the Rollout: `reviews`.
//! - *Foreign* destinations do not belong to the Rollout: `legacy`. They keep their weights.
//! - The *share* is the part of a route's traffic that stable, canary and experiments divide: 80 %.
//! - A *split* is the change of one route. The *record* contains the splits of a table and the owner's JSON that they
//!   replaced. It is stored in one annotation of the table ([`ANNOTATION`]).
//! - A *managed route* is a copy of a route that was inserted for a header or mirror step.
//! - A table is *at rest* if it has no record and no managed routes: it is as its owner wrote it.
//!
//! [`plan()`] returns a [`Plan`], whose edits become a guarded JSON Patch, or a typed refusal. The same input gives the same
//! plan, and planning on a patched table gives the empty plan. SetWeight 0 restores the owner's JSON byte for byte and
//! removes the annotation.
//!
//! [`observe()`] answers VerifyWeight: it compares a table with an intent, and reads whether Gloo has accepted the table.
//! [`restore()`] restores a table for a Rollout that was deleted, without its configuration. [`promotion`] decides how long a
//! promotion is held.
//!
//! The crate uses no clock, file, network or Kubernetes client.
#![doc = include_str!("../README.md")]

mod admissible;
mod applied_again;
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
mod tables;
#[cfg(test)]
mod tests;
mod weight;

pub use admissible::{Admissible, Progress, Recorded};
pub use config::{
    DEFAULT_PLUGIN_NAMES, HeaderMatchMode, HeaderRoutePlacement, PluginConfig, RouteSelector,
    TlsSelector, VerifyMode, keys,
};
pub use error::{ConfigError, ConfigProblem, PlanError, Refusal};
pub use intent::{
    AdditionalDestination, AppliedWeights, ExperimentPorts, HeaderMatch, HeaderRoute, Intent,
    IntentKind, ManagedRoute, ManagedRouteUpdate, ManagedRoutes, MirrorRoute, PodHashes,
    RequestMatch, ServicePair, TextMatch, WeightSplit,
};
pub use matcher::match_problems;
pub use mirror_policy::{PolicyChange, belongs_to, is_for_table};
pub use observe::{Observation, Portion, observe, portions};
pub use ownership::{ANNOTATION, mark, marked};
pub use plan::{DestinationChange, Edit, OtherAnnotations, Plan, Skip, SkipReason, Warning};
pub use planning::is_rest;
pub use re2::check as check_pattern;
pub use restore::{at_rest, involved, managed_by, restore};
pub use roles::stable_service;
pub use tables::{Combined, Growing, Planned, TableWrite, Writes, combine, decide};

use gloo_types::RouteTableDoc;

use crate::set_weight::CanaryGrowth;

/// Plans the changes of `table` that put `intent` into force.
///
/// If the canary's share increases in no route, routes that cannot be planned do not stop the others: [`Plan::left`] returns
/// their errors. Weight 0 restores a table by its record if it cannot be planned in another way.
///
/// # Errors
/// Returns `Err` if the table cannot be decoded, if no route forwards to the stable destination, or if the canary's share of a
/// route would increase while another route cannot be planned.
pub fn plan(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    planning::plan(config, intent, table, CanaryGrowth::Allowed)
        .or_else(|error| restore::at_weight_0(intent, table, error))
}

/// Plans as [`plan()`] does, but leaves routes unchanged in which the canary's share would increase.
///
/// A caller uses this while another table of the same Rollout cannot be planned.
///
/// # Errors
/// Returns `Err` if the table as a whole cannot be decoded, or if no route forwards to the stable destination.
pub fn plan_toward_stable(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    planning::plan(config, intent, table, CanaryGrowth::Withheld)
        .or_else(|error| restore::at_weight_0(intent, table, error))
}
