//! The planner from outside: configuration, refusals, warnings, observations, patches, policies and properties.
//!
//! How a table changes during a rollout is tested by the scenarios of `gloo-router`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

mod configuration;
mod mirror_policies;
mod observations;
mod owner_edits;
mod patches;
mod properties;
mod refusals;
mod restore;
mod several_tables;
mod table;
mod warnings;
