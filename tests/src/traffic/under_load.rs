//! Rollouts of a real controller, whose Pods answer a steady load through Envoy. Several can share one gateway.

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
/// Requests per second to all Rollouts of a kind together, so that more Rollouts are not more load for the machine.
const RATE: u32 = 200;
/// How long a Pod serves after SIGTERM: longer than the delay of endpoints.
const PRE_STOP: Duration = Duration::from_secs(4);

/// The configuration of a Rollout and its environment.
#[derive(Clone, Copy, Debug)]
pub struct RolloutKind {
    /// Prefix of its namespace.
    pub name: &'static str,
    /// `dynamicStableScale`.
    pub is_dynamic: bool,
    /// Whether the RouteTable gets a status.
    pub reports: bool,
}

/// A Rollout under load, and its workloads.
pub struct UnderLoad {
    /// The Rollout.
    pub rollout: LoadedRollout,
    workloads: Workloads,
}

/// A Rollout under load, with its own host.
pub struct LoadedRollout {
    /// The Rollout.
    pub canary: Canary,
    /// The gateway and its delays.
    pub world: Arc<World>,
    /// The requests.
    pub load: Load,
    target: Target,
}

impl UnderLoad {
    /// Deploys a Rollout, and starts the load once a request is answered.
    ///
    /// # Errors
    /// Returns `Err` if the API server or Envoy rejects something, or the first request is not answered.
    pub async fn open(cluster: &Cluster, kind: RolloutKind) -> Result<Self> {
        Self::deploy(cluster, open_gateway().await?, kind, 0, RATE).await
    }

    /// Deploys `lanes` Rollouts of a kind at the gateway of `world`. They share the load.
    ///
    /// # Errors
    /// See [`UnderLoad::open`].
    pub async fn open_lanes(
        cluster: &Cluster,
        world: &World,
        kind: RolloutKind,
        lanes: u32,
    ) -> Result<Vec<Self>> {
        let deployed = (0..lanes).map(|lane| {
            let world = world.with_same_gateway(Delays::default());
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
        world.delivered().await?;
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

    /// Runs `work` under load. Returns its result and all requests.
    ///
    /// # Errors
    /// Returns the error of `work`, or the error that stopped the Pods or the gateway.
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
        rollout.world.delivered().await?;
        Ok((worked, sent))
    }
}

/// Starts an Envoy, and returns a world for it without routes and endpoints.
///
/// # Errors
/// Returns `Err` if Envoy does not start.
pub async fn open_gateway() -> Result<World> {
    let gateway = Gateway::new(Envoy::start(&envoy_binary()?).await?);
    Ok(World::new(gateway, Delays::default()))
}

impl LoadedRollout {
    /// Waits until the gateway serves the current RouteTable. After a restart of the API server this includes the restart of
    /// the table's watch. Only for a Rollout with [`RolloutKind::reports`].
    ///
    /// # Errors
    /// Returns `Err` if it does not before the deadline.
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
        Ok(self.world.delivered().await?)
    }

    /// Sends `count` requests in addition to the load, and counts the results by version.
    pub async fn count(&self, count: u64) -> Tally {
        Tally::of(&Load::send(&self.target, 5 * RATE, count).await)
    }
}
