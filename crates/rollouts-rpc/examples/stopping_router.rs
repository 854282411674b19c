//! A router with background work that takes a moment to stop, for tests of how a process ends.

use std::process::ExitCode;
use std::time::Duration;

use rollouts_rpc::{DesiredWeight, Result, Rollout, Router, TrafficRouter, WeightDestination};
use tracing::info;

struct Stopping;

impl TrafficRouter for Stopping {
    async fn set_weight(&self, _: &Rollout, _: DesiredWeight, _: &[WeightDestination]) -> Result {
        Ok(())
    }

    async fn stop(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        info!("the background work has stopped");
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Router(Stopping))
}
