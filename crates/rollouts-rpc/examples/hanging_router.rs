//! A router whose calls never return, for tests of a plugin with calls in flight. For a Rollout named `panic` it panics, and for one
//! named `block` it blocks its thread.

use std::future::pending;
use std::process::ExitCode;

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{Router, RouterCall};

fn main() -> ExitCode {
    rollouts_rpc::main(Router(FnRouter(|call| async move {
        match call {
            #[expect(clippy::panic, reason = "a test needs a panic")]
            RouterCall::RemoveManagedRoutes(rollout) if rollout.metadata.name == "panic" => {
                panic!("index 3\nof 50%")
            }
            RouterCall::RemoveManagedRoutes(rollout) if rollout.metadata.name == "block" => loop {
                std::thread::park();
            },
            _ => pending().await,
        }
    })))
}
