//! The traffic router: it shifts the traffic of Rollouts by editing RouteTables, and keeps it there between the calls.
//!
//! [`GlooRouter`] answers calls, [`background`] repairs, restores and releases between them, and an
//! [`Observer`](report::Observer) receives what answers do not show. Decisions are in `route-planner`, access to the objects
//! in `route-store`.
#![doc = include_str!("../README.md")]

pub mod background;
mod collect;
mod error;
mod fights;
pub mod from_rpc;
pub mod report;
mod router;
mod standing;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use error::{Failure, Failures, ShiftError};
pub use from_rpc::{Policy, admissible};
pub use route_planner::DEFAULT_PLUGIN_NAMES;
pub use router::{
    ASSUMED_PORT, GlooRouter, Target, behind_recorded, carry_out, portions, rollout_keeper,
    table_keeper,
};
pub use {gloo_types, route_planner, route_store};

/// Locks a mutex. What a panicked task has locked stays in use: no lock of this crate is held over a step that can panic halfway
/// through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
