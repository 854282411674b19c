//! Rollouts that are deleted during an update, in several ways: their tables are restored once, after the delay, and only if
//! the Rollout does not exist.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, IDLE};
use e2e_tests::{
    Canary, Cluster, Proxy, RecordedRequest, Release, Setup, apply, eventually, split,
};
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
const BEFORE_GC: Duration = Duration::from_millis(1500);
/// How long a test waits for an unwanted write: longer than [`GC_AFTER`].
const OBSERVED: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_a_deleted_rollout_is_restored_once() -> Result<()> {
    let cluster = Cluster::start_without_controller(RELEASE).await?;
    cluster.run(deletions).await
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
        async {
            recreated_before_gc(cluster)
                .await
                .context("recreated before GC")
        },
        async {
            recreated_after_gc(cluster)
                .await
                .context("recreated after GC")
        },
        async {
            deleted_with_its_namespace(cluster)
                .await
                .context("deleted with its namespace")
        },
    )?;
    // The plugin writes nothing again.
    proxy.take_requests();
    sleep(OBSERVED).await;
    let mut writes = proxy.take_requests();
    writes.retain(RecordedRequest::is_write);
    ensure!(writes.is_empty(), "{writes:?}");
    deleted_with_the_crd(cluster, &proxy)
        .await
        .context("deleted with the CRD")
}

/// Deploys a canary and updates it to weight 25. Returns it, and its table before the update.
async fn deploy_at_25(cluster: &Cluster, namespace: &str) -> Result<(Canary, DynamicObject)> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let owners = canary.table().await?;
    canary.update_to_25().await?;
    Ok((canary, owners))
}

/// `kubectl delete --cascade=orphan`: the Rollout exists until the garbage collector has orphaned its ReplicaSets. The test
/// removes the finalizer, because no garbage collector runs.
async fn orphaned(cluster: &Cluster) -> Result<()> {
    let (canary, owners) = deploy_at_25(cluster, "orphaned").await?;
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

/// The calls of the new Rollout restore the table, and the plugin's garbage collection does not.
async fn recreated_before_gc(cluster: &Cluster) -> Result<()> {
    let (canary, owners) = deploy_at_25(cluster, "recreated-before-gc").await?;
    let rollout = canary.rollout().await?;
    canary.delete_rollout().await?;
    sleep(BEFORE_GC).await;
    recreate(&canary, rollout).await?;
    canary.restores(&owners).await?;
    sleep(OBSERVED).await;
    let events = canary.events().await?;
    let restored = events
        .iter()
        .find(|event| event.reason.as_deref() == Some("TrafficRestored"));
    ensure!(restored.is_none(), "{restored:#?}");
    Ok(())
}

async fn recreated_after_gc(cluster: &Cluster) -> Result<()> {
    let (canary, owners) = deploy_at_25(cluster, "recreated-after-gc").await?;
    let rollout = canary.rollout().await?;
    canary.delete_rollout().await?;
    canary.restores(&owners).await?;
    canary.event("TrafficRestored").await?;
    let version = canary.table().await?.metadata.resource_version;
    recreate(&canary, rollout).await?;
    sleep(OBSERVED).await;
    let table = canary.table().await?;
    ensure!(
        table.metadata.resource_version == version,
        "{}",
        split(&table)
    );
    Ok(())
}

/// Creates the deleted Rollout again without its status, and waits until it is promoted.
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

/// In a namespace that is being deleted no object can be created, and therefore no Event. No namespace controller runs, so the
/// test deletes the objects, the Rollout first.
async fn deleted_with_its_namespace(cluster: &Cluster) -> Result<()> {
    let name = "with-its-namespace";
    let (canary, owners) = deploy_at_25(cluster, name).await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    namespaces.delete(name, &DeleteParams::default()).await?;
    canary.delete_rollout().await?;
    canary.restores(&owners).await?;
    canary.delete_table().await
}

/// Deleting the CustomResourceDefinition deletes every Rollout. The plugin then restores no table until the CRD exists again.
async fn deleted_with_the_crd(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client().clone());
    let (canary, owners) = deploy_at_25(cluster, "with-the-crd").await?;
    let name = "rollouts.argoproj.io";
    proxy.take_requests();
    crds.delete(name, &DeleteParams::default()).await?;
    eventually("the CRD is deleted", async || {
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
    sleep(OBSERVED).await;
    let requests = proxy.take_requests();
    let is_write = |verb: &str| verb == "patch" || verb == "delete";
    let written: Vec<_> = requests
        .iter()
        .filter(|it| is_write(it.verb) && it.resource == "routetables")
        .collect();
    ensure!(written.is_empty(), "{written:?}");
    canary.splits(AT_25).await?;

    // The CRD exists again, and the Rollout does not.
    apply(cluster.client(), &RELEASE.objects("crds")?).await?;
    canary.restores(&owners).await?;
    ensure!(split(&owners) == IDLE);
    Ok(())
}
