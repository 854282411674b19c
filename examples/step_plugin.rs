//! A step plugin that is complete after several calls.
//!
//! A canary step configures it under `plugin` with `config: {"times": 3}`. The controller, from release 1.8 on, starts it
//! from `stepPlugins` in the ConfigMap `argo-rollouts-config`.

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

/// State between two calls. The controller stores it in the Rollout, because another process may carry out the next call.
#[derive(Default, Serialize, Deserialize)]
struct Status {
    checks: u32,
}

struct Patience;

impl StepPlugin for Patience {
    async fn run(&self, _: &Rollout, context: &StepContext) -> Result<StepResult> {
        let Config { times } = context.config()?;
        let checks = context.status::<Status>()?.checks + 1;
        info!(checks, times, "checked");
        let phase = if checks < times {
            StepPhase::Running
        } else {
            StepPhase::Successful
        };
        Ok(
            StepResult::new(phase, format!("checked {checks} of {times} times"))
                .requeue_after(Duration::from_secs(15))
                .with_status(&Status { checks })?,
        )
    }

    async fn abort(&self, _: &Rollout, context: &StepContext) -> Result<StepResult> {
        let Status { checks } = context.status()?;
        let message = format!("discarded {checks} checks");
        Ok(StepResult::new(StepPhase::Successful, message))
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Step(Patience))
}
