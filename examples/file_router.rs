//! A traffic router that writes the weight of a Rollout to a file, from which a proxy could read it.
//!
//! A Rollout configures it under `trafficRouting.plugins` as `example/file: {path: /tmp/shop.weight}`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use rollouts_rpc::{
    DesiredWeight, Result, Rollout, Router, TrafficRouter, Verification, WeightDestination,
};
use serde::Deserialize;
use tracing::info;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    path: PathBuf,
}

struct FileRouter;

impl TrafficRouter for FileRouter {
    async fn set_weight(
        &self,
        rollout: &Rollout,
        to: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result {
        let Config { path } = rollout.config("example/file")?;
        fs::write(&path, to.value.to_string())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        info!(weight = to.value, max = to.max, "weight set");
        Ok(())
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        to: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<Verification> {
        let Config { path } = rollout.config("example/file")?;
        if fs::read_to_string(path)? == to.value.to_string() {
            Ok(Verification::Verified)
        } else {
            Ok(Verification::NotVerified)
        }
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Router(FileRouter))
}
