//! The smallest step: it fails if its configuration is `{"fail": true}`.

use std::process::ExitCode;

use rollouts_rpc::{Result, Rollout, Step, StepContext, StepPhase, StepPlugin, StepResult};

#[derive(Default, serde::Deserialize)]
struct Config {
    fail: bool,
}

struct Gate;

impl StepPlugin for Gate {
    async fn run(&self, rollout: &Rollout, context: &StepContext) -> Result<StepResult> {
        let Config { fail } = context.config::<Option<_>>()?.unwrap_or_default();
        let phase = if fail {
            StepPhase::Failed
        } else {
            StepPhase::Successful
        };
        Ok(StepResult::new(
            phase,
            format!("{} was looked at", rollout.metadata.name),
        ))
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Step(Gate))
}
