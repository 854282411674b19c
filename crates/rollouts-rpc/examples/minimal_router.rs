//! The smallest traffic router. It logs each weight, but does not move traffic.

use std::process::ExitCode;

use rollouts_rpc::{DesiredWeight, Result, Rollout, Router, TrafficRouter, WeightDestination};
use tracing::info;

struct Minimal;

impl TrafficRouter for Minimal {
    async fn set_weight(&self, _: &Rollout, to: DesiredWeight, _: &[WeightDestination]) -> Result {
        info!(weight = to.value, max = to.max, "weight set");
        Ok(())
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Router(Minimal))
}
