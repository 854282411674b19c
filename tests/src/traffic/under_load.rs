//! Rollouts of a real controller whose Pods answer a steady load through Envoy, side by side.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use serde_json::Value;
use traffic_lab::proof::Tally;
use traffic_lab::{Delays, Envoy, Gateway, Load, Sent, Target, World, envoy_binary};

use super::Workloads;
use crate::{Canary, Cluster, eventually};

const MANIFESTS: &str = include_str!("../../testdata/traffic.yaml");
/// Requests each second to all Rollouts of a kind, which share it: more of them are no more work for the machine.
const RATE: u32 = 200;
/// How long a Pod serves after SIGTERM: more than the gateway needs to hear of it.
const PRE_STOP: Duration = Duration::from_secs(4);

/// A Rollout and what is around it.
#[derive(Clone, Copy, Debug)]
pub struct RolloutKind {
    /// What its namespace begins with.
    pub name: &'static str,
    /// `dynamicStableScale`.
    pub is_dynamic: bool,
    /// Whether the RouteTable gets a status.
    pub reports: bool,
}

/// A Rollout under load, and what runs its Pods.
pub struct UnderLoad {
    /// The Rollout.
    pub rollout: LoadedRollout,
    workloads: Workloads,
}

/// A Rollout under load, with a host of its own.
pub struct LoadedRollout {
    /// The Rollout.
    pub canary: Canary,
    /// The gateway, and how late that hears of its changes.
    pub world: Arc<World>,
    /// The requests.
    pub load: Load,
    target: Target,
}

impl UnderLoad {
    /// Deploys a Rollout, and starts the load when a request is answered.
    ///
    /// # Errors
    /// The API server or Envoy refuses, or the request is not answered.
    pub async fn open(cluster: &Cluster, kind: RolloutKind) -> Result<Self> {
        Self::deploy(cluster, open_gateway().await?, kind, 0, RATE).await
    }

    /// Deploys so many Rollouts of a kind at the gateway of `world`. They share the load.
    ///
    /// # Errors
    /// As for [`UnderLoad::open`].
    pub async fn open_lanes(
        cluster: &Cluster,
        world: &World,
        kind: RolloutKind,
        lanes: u32,
    ) -> Result<Vec<Self>> {
        let deployed = (0..lanes).map(|lane| {
            let world = world.beside(Delays::default());
            Self::deploy(cluster, world, kind, lane, RATE / lanes)
        });
        try_join_all(deployed).await
    }

    async fn deploy(
        cluster: &Cluster,
        world: World,
        kind: RolloutKind,
        lane: u32,
        rate: u32,
    ) -> Result<Self> {
        let world = Arc::new(world);
        let namespace = format!("{}-{lane}", kind.name);
        let its_world = Arc::clone(&world);
        let workloads =
            Workloads::start(cluster, &namespace, its_world, PRE_STOP, kind.reports).await?;
        let manifests = MANIFESTS.replace("$DYNAMIC", &kind.is_dynamic.to_string());
        let canary = Canary::deploy_manifests(cluster, &namespace, &manifests).await?;
        world.heard().await?;
        let target = Target {
            gateway: world.address(),
            host: format!("{namespace}.example.com"),
            path: "/".to_owned(),
            headers: Vec::new(),
        };
        let first = Tally::of(&Load::send(&target, rate, 1).await);
        ensure!(first.version("1") == 1, "{first:?}");
        let rollout = LoadedRollout {
            canary,
            world,
            load: Load::start(&target, rate),
            target,
        };
        Ok(Self { rollout, workloads })
    }

    /// Does `work` under load. Returns its result, and all requests.
    ///
    /// # Errors
    /// The error of `work`, or what stopped the Pods or the gateway.
    pub async fn during<T>(
        self,
        work: impl AsyncFnOnce(&LoadedRollout) -> Result<T>,
    ) -> Result<(T, Vec<Sent>)> {
        let Self {
            rollout,
            mut workloads,
        } = self;
        let worked = tokio::select! {
            worked = work(&rollout) => worked,
            error = workloads.stopped() => Err(error),
        };
        let worked = match worked {
            Ok(worked) => worked,
            Err(error) => {
                let so_far = Tally::of(&rollout.load.sent());
                return Err(error.context(format!("so far: {so_far:?}")));
            }
        };
        let sent = rollout.load.stop().await;
        rollout.world.heard().await?;
        Ok((worked, sent))
    }
}

/// A new Envoy, and a world at it in which nothing happens yet.
///
/// # Errors
/// Envoy does not start.
pub async fn open_gateway() -> Result<World> {
    let gateway = Gateway::new(Envoy::start(&envoy_binary()?).await?);
    Ok(World::new(gateway, Delays::default()))
}

impl LoadedRollout {
    /// Waits until the gateway serves the RouteTable as it is. That takes until the watch of the table is back where the API
    /// server was restarted. Only for a Rollout whose table gets Gloo's verdict.
    ///
    /// # Errors
    /// It never does.
    pub async fn served(&self) -> Result<()> {
        eventually("the gateway serves the table", async || {
            let table = self.canary.table().await?;
            let served = table
                .data
                .pointer("/status/common/State/observedGeneration");
            let generation = table.metadata.generation;
            ensure!(served.and_then(Value::as_i64) == generation, "{served:?}");
            Ok(())
        })
        .await?;
        Ok(self.world.heard().await?)
    }

    /// Sends `count` requests beside the load and counts who answered.
    pub async fn count(&self, count: u64) -> Tally {
        Tally::of(&Load::send(&self.target, 5 * RATE, count).await)
    }
}
