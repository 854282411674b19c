//! A step that has to be looked at several times before it is done.
//!
//! A canary step names it under `plugin` with `config: {"times": 3}`; a controller (1.8 and later)
//! starts it from `stepPlugins` in the ConfigMap `argo-rollouts-config`.

use std::time::Duration;

use rollouts_rpc::goplugin::log::{self, LogFormat};
use rollouts_rpc::{
    PluginEnv, PluginError, Rollout, ServeConfig, StepContext, StepPhase, StepPlugin, StepResult,
};
use serde::{Deserialize, Serialize};
use tracing::info;
use tracing::level_filters::LevelFilter;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    times: u32,
}

/// What one call tells the next: it is kept in the Rollout, since this process may be gone by then.
#[derive(Default, Serialize, Deserialize)]
struct Status {
    looks: u32,
}

struct Patience;

impl Patience {
    fn status(context: &StepContext) -> Result<Status, PluginError> {
        if context.status.is_empty() {
            return Ok(Status::default());
        }
        Ok(serde_json::from_slice(&context.status)?)
    }
}

impl StepPlugin for Patience {
    fn type_name(&self) -> &str {
        "Patience"
    }

    async fn init(&self) -> Result<(), PluginError> {
        Ok(())
    }

    async fn run(&self, _: &Rollout, context: &StepContext) -> Result<StepResult, PluginError> {
        let Config { times } = serde_json::from_slice(&context.config)?;
        let looks = Self::status(context)?.looks + 1;
        info!(looks, times, "looked");
        let phase = if looks < times {
            StepPhase::Running
        } else {
            StepPhase::Successful
        };
        Ok(StepResult {
            phase,
            message: format!("looked {looks} of {times} times"),
            requeue_after: Duration::from_secs(15),
            status: Some(serde_json::to_value(Status { looks })?),
        })
    }

    async fn abort(&self, _: &Rollout, context: &StepContext) -> Result<StepResult, PluginError> {
        let looks = Self::status(context)?.looks;
        Ok(StepResult {
            message: format!("forgot {looks} looks"),
            ..StepResult::default()
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    log::install(LevelFilter::INFO, LogFormat::Json)?;
    let env = PluginEnv::from_vars(std::env::vars_os());
    let announce = rollouts_rpc::announce_on_stdout;
    rollouts_rpc::serve_step_plugin(&ServeConfig::STEP, &env, announce, Patience).await?;
    Ok(())
}
