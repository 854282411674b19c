//! A router whose calls never come back, for tests of what a plugin holds while they run. A Rollout named `panic`
//! makes it panic, and one named `block` makes it block its thread.

use std::future::pending;
use std::process::ExitCode;

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{Router, RouterCall};

fn main() -> ExitCode {
    rollouts_rpc::main(Router(FnRouter(|call| async move {
        match call {
            #[expect(clippy::panic, reason = "a test asks for it")]
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
