//! The proof by requests: a managed route changes nothing but what its step says.
//!
//! (a) A request that no step names gets the same upstream, path, host, headers and policies with the managed routes as without
//! them. (b) A request that a header step names differs in its destination only. (c) A mirrored request's own response is the
//! same as without the mirror, and the copy has what the original has. (d) For every Rollout, in every route, the shares are
//! those that were asked for last.
//!
//! ```text
//! seed -> World (tables, policies, Rollouts, steps, requests)
//!           |-- owners' tables ---------------------> translate -> virtual host b17 --+
//!           +-- History: the controller's calls to                                    +-> Envoy <- each request, to both hosts
//!               GlooRouter -> tables after each step -> translate -> virtual host a17-2 +      |
//!                                          Judge: owner's answer + steps + weights <- the two answers
//! ```
//!
//! The judge knows the answer to the owner's tables, the steps in force and the weights that were asked for last. It never calls
//! the planner. A request is split by its header `x-pick` instead of a random number, so that the shares are exact. Translation
//! is that of `envoy-routes`, a model of Gloo.

mod backends;
mod check;
mod controls;
mod generate;
mod judge;
mod judgement;
mod play;
mod requests;
mod run;
mod served;
mod shrink;
mod steps;
mod text;
mod world;

pub use check::{Checker, Fault};
pub use controls::{CONTROLS, Control, control_world};
pub use generate::world;
pub use judgement::Finding;
pub use run::{Options, run};
pub use world::World;

/// Plays the history of a world without requests, over a store in memory.
///
/// # Errors
/// Returns `Err` if an object of the world is malformed.
pub async fn play(world: &World) -> anyhow::Result<()> {
    play::play(world).await.map(drop)
}
