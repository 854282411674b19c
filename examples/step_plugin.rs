//! A step that is complete after a number of calls.
//!
//! A canary step configures it under `plugin` with `config: {"times": 3}`. To register it, list it under `stepPlugins` in the
//! ConfigMap `argo-rollouts-config` (controller 1.8 and later).

use std::process::ExitCode;
use std::time::Duration;

use rollouts_rpc::{Result, Rollout, Step, StepContext, StepPhase, StepPlugin, StepResult};
use serde::{Deserialize, Serialize};
use tracing::info;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    times: u32,
}

/// The state between two calls. The controller stores it in the Rollout, because another process may answer the next call.
#[derive(Default, Serialize, Deserialize)]
struct Status {
    looks: u32,
}

struct Patience;

impl StepPlugin for Patience {
    async fn run(&self, _: &Rollout, context: &StepContext) -> Result<StepResult> {
        let Config { times } = context.config()?;
        let looks = context.status::<Status>()?.looks + 1;
        info!(looks, times, "looked");
        let phase = if looks < times {
            StepPhase::Running
        } else {
            StepPhase::Successful
        };
        Ok(
            StepResult::new(phase, format!("looked {looks} of {times} times"))
                .requeue_after(Duration::from_secs(15))
                .with_status(&Status { looks })?,
        )
    }

    async fn abort(&self, _: &Rollout, context: &StepContext) -> Result<StepResult> {
        let Status { looks } = context.status()?;
        let message = format!("forgot {looks} looks");
        Ok(StepResult::new(StepPhase::Successful, message))
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Step(Patience))
}
