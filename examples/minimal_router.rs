//! The smallest traffic router: it remembers the weight of each Rollout and moves no traffic.
//!
//! Run by hand it explains itself; an Argo Rollouts controller starts it like any other plugin.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use rollouts_rpc::goplugin::log::{self, LogFormat};
use rollouts_rpc::{
    DesiredWeight, PluginEnv, PodHashes, Rollout, RouterError, ServeConfig, TrafficRouter,
    Verification, WeightDestination,
};
use tracing::level_filters::LevelFilter;
use tracing::{error, info};

#[derive(Default)]
struct Minimal {
    weights: Mutex<HashMap<String, i32>>,
}

impl TrafficRouter for Minimal {
    fn type_name(&self) -> &str {
        "Minimal"
    }

    async fn init(&self) -> Result<(), RouterError> {
        Ok(())
    }

    async fn update_hash(
        &self,
        _: &Rollout,
        _: &PodHashes,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        info!(weight = desired.value, max = desired.max, "weight set");
        let mut weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        weights.insert(rollout.metadata.uid.clone(), desired.value);
        Ok(())
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        let weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(
            if weights.get(&rollout.metadata.uid) == Some(&desired.value) {
                Verification::Verified
            } else {
                Verification::NotVerified
            },
        )
    }

    async fn remove_managed_routes(&self, _: &Rollout) -> Result<(), RouterError> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    if log::install(LevelFilter::INFO, LogFormat::Json).is_err() {
        return ExitCode::FAILURE;
    }
    let env = PluginEnv::from_vars(std::env::vars_os());
    let config = ServeConfig::TRAFFIC_ROUTER;
    match rollouts_rpc::serve(
        &config,
        &env,
        rollouts_rpc::announce_on_stdout,
        Minimal::default(),
    )
    .await
    {
        Ok(_shutdown) => ExitCode::SUCCESS,
        Err(error) => {
            error!(
                error = &error as &(dyn std::error::Error + 'static),
                "cannot serve"
            );
            ExitCode::FAILURE
        }
    }
}
