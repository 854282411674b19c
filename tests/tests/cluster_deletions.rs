//! Rollouts that are deleted during an update, in several ways. The plugin restores the table once, after the delay, and only if the
//! Rollout is gone.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::walks::{AT_25, IDLE};
use e2e_tests::{Canary, Cluster, Proxy, Release, Setup, apply, eventually, split};
use futures::try_join;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::json;
use tokio::time::sleep;

const RELEASE: Release = Release::V1_9;
/// The name of the Rollout.
const NAME: &str = "demo";
/// Seconds until a table is restored, instead of 30.
const GC_AFTER: &str = "3";
/// Half of [`GC_AFTER`], in which the plugin looks for such tables more than once.
const SOON: Duration = Duration::from_millis(1500);
/// Long enough for the plugin to act after [`GC_AFTER`], if it does.
const A_WHILE: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_rollout_leaves_is_removed_once() -> Result<()> {
    let mut cluster = Cluster::start_without_controller(RELEASE).await?;
    if let Err(error) = deletions(&mut cluster).await {
        return Err(cluster.with_logs(error));
    }
    cluster.stop().await
}

async fn deletions(cluster: &mut Cluster) -> Result<()> {
    let proxy = Proxy::start(cluster).await?;
    let setup = Setup {
        variables: &[
            ("GLOO_PLUGIN_GC_AFTER", Path::new(GC_AFTER)),
            ("KUBECONFIG", proxy.kubeconfig()),
        ],
        ..Setup::default()
    };
    cluster.register_and_start(RELEASE, setup).await?;
    let cluster = &*cluster;
    try_join!(
        async { orphaned(cluster).await.context("orphaned") },
        async { recreated_soon(cluster).await.context("recreated soon") },
        async { recreated_late(cluster).await.context("recreated late") },
        async {
            with_its_namespace(cluster)
                .await
                .context("with its namespace")
        },
    )?;
    // The plugin does not repeat a write.
    proxy.take_seen();
    sleep(A_WHILE).await;
    let seen = proxy.take_seen();
    let writes = ["create", "update", "patch", "delete"];
    let written: Vec<_> = seen.iter().filter(|it| writes.contains(&it.verb)).collect();
    ensure!(written.is_empty(), "{written:?}");
    all_at_once(cluster, &proxy).await.context("all at once")
}

/// A canary that pauses at a quarter, and its table as the owner wrote it.
async fn at_a_quarter(cluster: &Cluster, namespace: &str) -> Result<(Canary, DynamicObject)> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let owners = canary.table().await?;
    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    Ok((canary, owners))
}

/// `kubectl delete --cascade=orphan`: the Rollout stays until the garbage collector, which the test stands in for, has
/// released its ReplicaSets.
async fn orphaned(cluster: &Cluster) -> Result<()> {
    let (canary, owners) = at_a_quarter(cluster, "orphaned").await?;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    canary.rollouts().delete(NAME, &orphan).await?;
    let rollout = canary.rollout().await?;
    ensure!(
        rollout.metadata.deletion_timestamp.is_some(),
        "{rollout:#?}"
    );
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    canary
        .rollouts()
        .patch(NAME, &PatchParams::default(), &released)
        .await?;
    canary.restores(&owners).await?;
    canary.event("TrafficRestored").await?;
    Ok(())
}

/// The calls of the new Rollout restore the table, not the garbage collector of the plugin.
async fn recreated_soon(cluster: &Cluster) -> Result<()> {
    let (canary, owners) = at_a_quarter(cluster, "recreated-soon").await?;
    let rollout = canary.rollout().await?;
    canary.delete_rollout().await?;
    sleep(SOON).await;
    recreate(&canary, rollout).await?;
    canary.restores(&owners).await?;
    sleep(A_WHILE).await;
    let events = canary.events().await?;
    let restored = events
        .iter()
        .find(|event| event.reason.as_deref() == Some("TrafficRestored"));
    ensure!(restored.is_none(), "{restored:#?}");
    Ok(())
}

async fn recreated_late(cluster: &Cluster) -> Result<()> {
    let (canary, owners) = at_a_quarter(cluster, "recreated-late").await?;
    let rollout = canary.rollout().await?;
    canary.delete_rollout().await?;
    canary.restores(&owners).await?;
    canary.event("TrafficRestored").await?;
    let version = canary.table().await?.metadata.resource_version;
    recreate(&canary, rollout).await?;
    sleep(A_WHILE).await;
    let table = canary.table().await?;
    ensure!(
        table.metadata.resource_version == version,
        "{}",
        split(&table)
    );
    Ok(())
}

/// Creates the Rollout again from its manifest, and waits until it is healthy.
async fn recreate(canary: &Canary, deleted: DynamicObject) -> Result<()> {
    let mut rollout = deleted;
    let metadata = std::mem::take(&mut rollout.metadata);
    rollout.metadata.name = metadata.name;
    rollout.data["status"] = json!({});
    canary
        .rollouts()
        .create(&PostParams::default(), &rollout)
        .await?;
    canary.promoted().await
}

/// The API server refuses new objects in a namespace that is being deleted, including Events. There is no namespace controller, so
/// the test deletes the objects, Rollouts first.
async fn with_its_namespace(cluster: &Cluster) -> Result<()> {
    let name = "with-its-namespace";
    let (canary, owners) = at_a_quarter(cluster, name).await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    namespaces.delete(name, &DeleteParams::default()).await?;
    canary.delete_rollout().await?;
    canary.restores(&owners).await?;
    canary.delete_table().await
}

/// Deleting the CustomResourceDefinition deletes every Rollout, which is usually a mistake, so the plugin restores no table.
async fn all_at_once(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client().clone());
    let (canary, owners) = at_a_quarter(cluster, "all-at-once").await?;
    let name = "rollouts.argoproj.io";
    proxy.take_seen();
    crds.delete(name, &DeleteParams::default()).await?;
    eventually("the CRD is gone", async || {
        ensure!(crds.get_opt(name).await?.is_none());
        Ok(())
    })
    .await?;
    let log = cluster.controller()?.log().to_owned();
    eventually("the plugin warns", async || {
        let log = std::fs::read_to_string(&log)?;
        ensure!(log.contains("does not know the kind Rollout"), "no warning");
        Ok(())
    })
    .await?;
    sleep(A_WHILE).await;
    let seen = proxy.take_seen();
    let is_write = |verb: &str| verb == "patch" || verb == "delete";
    let written: Vec<_> = seen
        .iter()
        .filter(|it| is_write(it.verb) && it.resource == "routetables")
        .collect();
    ensure!(written.is_empty(), "{written:?}");
    canary.splits(AT_25).await?;

    // The definition is back without the Rollout, so the Rollout counts as deleted.
    apply(cluster.client(), &RELEASE.objects("crds")?).await?;
    canary.restores(&owners).await?;
    ensure!(split(&owners) == IDLE);
    Ok(())
}
