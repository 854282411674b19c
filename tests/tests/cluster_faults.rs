//! Real rollouts while the API server has faults: watches deliver no events or late ones, it is overloaded, it fails every
//! request.
//!
//! A proxy injects the faults. Only the plugin's requests go through it, because the controller must work.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, AT_50, AT_100, IDLE, promote_an_update};
use e2e_tests::{ApiServerFault, Canary, Cluster, Proxy, Release, eventually, split};
use futures::future::try_join;
use serde_json::json;
use tokio::time::sleep;

/// Less than a call has for its reads and writes.
const PATCH_DELAY: Duration = Duration::from_millis(1500);

async fn behind_proxy(test: impl AsyncFnOnce(&Cluster, &Proxy) -> Result<()>) -> Result<()> {
    let (cluster, proxy) = Cluster::start_behind_proxy(Release::V1_9).await?;
    cluster
        .run(async |cluster| test(cluster, &proxy).await)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_continue_while_the_api_server_has_faults() -> Result<()> {
    behind_proxy(async |cluster, proxy| {
        overloaded(cluster, proxy).await.context("overloaded")?;
        late_events(cluster, proxy).await.context("late events")?;
        for (namespace, is_rollback) in [("abort", false), ("rollback", true)] {
            let ended = ended_during_a_repair(cluster, proxy, namespace, is_rollback).await;
            ended.context(namespace)?;
        }
        let aborted = aborted_while_requests_fail(cluster, proxy).await;
        aborted.context("an abort while every request fails")
    })
    .await
}

/// Has a separate cluster, because it waits for more than a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_restarted() -> Result<()> {
    behind_proxy(silent_watches).await
}

/// Deploys a canary, updates it to weight 25, and waits until the controller is idle.
async fn deploy_at_25(cluster: &Cluster, namespace: &str) -> Result<Canary> {
    let canary = Canary::deploy(cluster, namespace).await?;
    canary.update_to_25().await?;
    canary.idle().await?;
    Ok(canary)
}

/// Every second request must be retried after 5 s: the update continues, and a Rollout without an update gets no error Events.
async fn overloaded(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let resting = Canary::deploy(cluster, "resting").await?;
    resting.idle().await?;
    let canary = Canary::deploy(cluster, "overloaded").await?;
    let original = canary.table().await?;
    let earlier = resting.events().await?;
    proxy.set_fault(Some(ApiServerFault::Overloaded));
    let reconciles = async {
        for limit in 1..=5 {
            let changed = json!({ "revisionHistoryLimit": limit });
            resting.change_spec(changed).await?;
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    };
    try_join(promote_an_update(&canary), reconciles).await?;
    proxy.set_fault(None);
    canary.restores(&original).await?;
    let later = resting.events().await?;
    ensure!(later.len() == earlier.len(), "{later:#?}");
    Ok(())
}

/// Watch events of the plugin's own writes arrive up to 10 s late. Each step is still written once.
async fn late_events(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let canary = Canary::deploy(cluster, "late").await?;
    let original = canary.table().await?;
    proxy.set_fault(Some(ApiServerFault::LateEvents(Duration::from_secs(10))));
    let history = canary.watch_table().await?;
    promote_an_update(&canary).await?;
    canary.restores(&original).await?;
    // Events that are still delayed arrive now, and must not cause a write.
    sleep(Duration::from_secs(10)).await;
    proxy.set_fault(None);
    history.equals(&[IDLE, AT_25, AT_50, AT_100, IDLE]).await
}

/// The owner puts the table back, and the update is aborted or rolled back while the PATCH of the repair is on its way. Without the annotation, nothing in the table shows the abort that there is something to restore.
async fn ended_during_a_repair(
    cluster: &Cluster,
    proxy: &Proxy,
    namespace: &str,
    is_rollback: bool,
) -> Result<()> {
    let canary = Canary::deploy(cluster, namespace).await?;
    // With it, no scale-down of canary Pods leads to further calls soon.
    let dynamic = json!({ "strategy": { "canary": { "dynamicStableScale": true } } });
    canary.change_spec(dynamic).await?;
    canary.idle().await?;
    let original = canary.table().await?;
    let first = canary.rollout().await?.data["spec"]["template"].clone();
    canary.update_to_25().await?;
    canary.idle().await?;
    proxy.set_fault(Some(ApiServerFault::LatePatches(PATCH_DELAY)));
    proxy.take_requests();
    let reverted = canary.edit_table(|table| {
        table.data["spec"] = original.data["spec"].clone();
        table.metadata.annotations = original.metadata.annotations.clone();
    });
    reverted.await?;
    eventually("the repair has sent its PATCH", async || {
        let requests = proxy.take_requests();
        ensure!(requests.iter().any(|request| request.verb == "patch"));
        Ok(())
    })
    .await?;
    if is_rollback {
        canary.change_spec(json!({ "template": first })).await?;
        canary.healthy().await?;
    } else {
        canary.abort().await?;
        canary.aborted().await?;
    }
    // By now the PATCH has landed.
    sleep(2 * PATCH_DELAY).await;
    proxy.set_fault(None);
    sleep(Duration::from_secs(1)).await;
    canary.is_restored(&original).await?;
    canary.splits(IDLE).await?;
    Ok(())
}

/// The plugin restores the table as soon as the API server answers, although the circuit breaker is open after the failures.
async fn aborted_while_requests_fail(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let canary = deploy_at_25(cluster, "aborted").await?;
    let original = canary.table().await?;
    let earlier = canary.events().await?;
    proxy.set_fault(Some(ApiServerFault::Failing));
    canary.abort().await?;
    let message = canary.event_after(&earlier, "TrafficRoutingError").await?;
    ensure!(message.contains("etcd has no leader"), "{message}");
    sleep(Duration::from_secs(5)).await;
    ensure!(split(&canary.table().await?) == AT_25);
    proxy.set_fault(None);
    canary.splits(IDLE).await?;
    canary.aborted().await?;
    ensure!(split(&original) == AT_25);
    Ok(())
}

/// The plugin restarts a watch after 28 s without events, as with a half-open connection, and then repairs the drift.
async fn silent_watches(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let canary = deploy_at_25(cluster, "silent").await?;
    proxy.set_fault(Some(ApiServerFault::SilentWatches));
    let table = canary.table().await?;
    let mut routes = table.data["spec"]["http"].clone();
    for route in routes.as_array_mut().into_iter().flatten() {
        if let Some(list) = route["forwardTo"]["destinations"].as_array_mut() {
            list.retain(|to| to["ref"]["name"] != "demo-canary");
        }
    }
    canary
        .merge_into_table("owner", json!({ "spec": { "http": routes } }))
        .await?;
    ensure!(split(&canary.table().await?) != AT_25);
    canary.splits(AT_25).await?;
    proxy.set_fault(None);
    Ok(())
}
