//! Slow Pods: they become available, or end, only when the controller has done all that it does without them.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::{Either, select};
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use super::Canary;
use crate::cluster::kubelet::{all_available, services_named};
use crate::{Cluster, eventually};

const INTERVAL: Duration = Duration::from_millis(100);

impl Canary {
    /// Runs `work`, and meanwhile plays the kubelet of this namespace with slow Pods. The cluster's own kubelet must be stopped.
    ///
    /// # Errors
    /// Returns the error of `work`, or `Err` if a status cannot be written.
    pub async fn with_slow_pods<T>(
        &self,
        cluster: &Cluster,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match select(pin!(work), pin!(self.run_pods(cluster))).await {
            Either::Left((done, _)) => done,
            Either::Right((error, _)) => Err(error),
        }
    }

    /// Waits until all Pods that the controller wants are available, no others are left, and the controller is done.
    ///
    /// # Errors
    /// Returns `Err` if that is not so before the deadline.
    pub async fn pods_settle(&self, cluster: &Cluster) -> Result<()> {
        eventually("the Pods have started and ended", async || {
            for set in self.sets(cluster).list(&ListParams::default()).await? {
                ensure!(all_available(&set).is_none(), "{}", set.name_any());
            }
            Ok(())
        })
        .await?;
        self.idle().await
    }

    /// Waits until an aborted update has no Pods, and the controller is done.
    ///
    /// # Errors
    /// Returns `Err` if that is not so before the deadline.
    pub async fn canary_ends(&self, cluster: &Cluster) -> Result<()> {
        let stable = self.rollout().await?.data["status"]["stableRS"].take();
        let stable = stable.as_str().context("no stable version")?;
        eventually("the canary has no Pods", async || {
            for set in self.sets(cluster).list(&ListParams::default()).await? {
                let is_version = set.owner_references().iter().any(|it| it.kind == "Rollout");
                let is_canary = is_version && !set.name_any().ends_with(stable);
                let pods = set.spec.replicas;
                ensure!(
                    !is_canary || pods == Some(0),
                    "{}: {pods:?}",
                    set.name_any()
                );
            }
            Ok(())
        })
        .await?;
        self.pods_settle(cluster).await
    }

    fn sets(&self, cluster: &Cluster) -> Api<ReplicaSet> {
        Api::namespaced(cluster.client().clone(), &self.namespace)
    }

    async fn run_pods(&self, cluster: &Cluster) -> anyhow::Error {
        loop {
            if let Err(error) = self.run_pods_once(cluster).await {
                return error;
            }
            sleep(INTERVAL).await;
        }
    }

    async fn run_pods_once(&self, cluster: &Cluster) -> Result<()> {
        let sets = self.sets(cluster);
        let list = async || sets.list(&ListParams::default()).await;
        if !list().await?.iter().any(|set| all_available(set).is_some()) {
            return Ok(());
        }
        self.idle().await?;
        for set in list().await? {
            let Some(status) = all_available(&set) else {
                continue;
            };
            if status.replicas > 0 {
                services_named(cluster.client(), &set).await?;
            }
            let patch = Patch::Merge(json!({ "status": status }));
            sets.patch_status(&set.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }
}
