//! A router whose calls never come back, for tests of what a plugin holds while they run. A Rollout named `panic`
//! makes it panic.

use std::future::pending;
use std::process::ExitCode;

use rollouts_rpc::goplugin::log::{self, LogFormat};
use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{PluginEnv, RouterCall, ServeConfig, announce_on_stdout, serve};
use tracing::error;
use tracing::level_filters::LevelFilter;

#[tokio::main]
async fn main() -> ExitCode {
    if log::install(LevelFilter::INFO, LogFormat::Json).is_err() {
        return ExitCode::FAILURE;
    }
    let env = PluginEnv::from_vars(std::env::vars_os());
    let router = FnRouter(|call| async move {
        match call {
            #[expect(clippy::panic, reason = "a test asks for it")]
            RouterCall::RemoveManagedRoutes(rollout) if rollout.metadata.name == "panic" => {
                panic!("index 3\nof 50%")
            }
            _ => pending().await,
        }
    });
    match serve(
        &ServeConfig::TRAFFIC_ROUTER,
        &env,
        announce_on_stdout,
        router,
    )
    .await
    {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            error!(
                error = &error as &(dyn std::error::Error + 'static),
                "cannot serve"
            );
            ExitCode::FAILURE
        }
    }
}
