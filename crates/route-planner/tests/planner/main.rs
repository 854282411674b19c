//! The planner from outside: scenarios, refusals, observations, patches and properties.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

mod configuration;
mod mirror_policies;
mod observations;
mod patches;
mod properties;
mod reference;
mod refusals;
mod restore;
mod scenario;
mod scenarios;
mod table;
