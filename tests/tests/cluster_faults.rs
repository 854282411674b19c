//! Real rollouts while the API server has a fault: silent or late watches, overload, or an error for every request.
//!
//! Only the plugin's requests go through the proxy with the fault, because the controller must continue.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::walks::{AT_25, AT_50, AT_100, IDLE};
use e2e_tests::{Canary, Cluster, Proxy, Release, Sickness, eventually, split};
use futures::future::try_join;
use serde_json::json;
use tokio::time::sleep;

const NEW_IMAGE: &str = "registry.example.com/demo:2";

async fn behind_proxy(test: impl AsyncFnOnce(&Cluster, &Proxy) -> Result<()>) -> Result<()> {
    let (cluster, proxy) = Cluster::start_behind_proxy(Release::V1_9).await?;
    if let Err(error) = test(&cluster, &proxy).await {
        return Err(cluster.with_logs(error));
    }
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_go_on_while_the_api_server_is_sick() -> Result<()> {
    behind_proxy(async |cluster, proxy| {
        overloaded(cluster, proxy).await.context("overloaded")?;
        late_events(cluster, proxy).await.context("late events")?;
        let aborted = aborted_while_it_fails(cluster, proxy).await;
        aborted.context("an abort while every request fails")
    })
    .await
}

/// It has a separate cluster, because it waits for more than a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_given_up() -> Result<()> {
    behind_proxy(silent_watches).await
}

async fn walk(canary: &Canary) -> Result<()> {
    canary.change_image(NEW_IMAGE).await?;
    for (step, expected) in [(1, AT_25), (3, AT_50), (5, AT_100)] {
        canary.paused_at(step).await?;
        canary.splits(expected).await?;
        canary.promote().await?;
    }
    canary.healthy().await
}

async fn at_a_quarter(cluster: &Cluster, namespace: &str) -> Result<Canary> {
    let canary = Canary::deploy(cluster, namespace).await?;
    canary.change_image(NEW_IMAGE).await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.idle().await?;
    Ok(canary)
}

/// Every second request must be repeated after 5 s. The steps continue, and passes of a Rollout at rest are not affected.
async fn overloaded(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let resting = Canary::deploy(cluster, "resting").await?;
    resting.idle().await?;
    let canary = Canary::deploy(cluster, "overloaded").await?;
    let original = canary.table().await?;
    let earlier = resting.events().await?;
    proxy.suffer(Some(Sickness::Overloaded));
    let passes = async {
        for limit in 1..=5 {
            let changed = json!({ "revisionHistoryLimit": limit });
            resting.change_spec(changed).await?;
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    };
    try_join(walk(&canary), passes).await?;
    proxy.suffer(None);
    canary.restores(&original).await?;
    let later = resting.events().await?;
    ensure!(later.len() == earlier.len(), "{later:#?}");
    Ok(())
}

/// The plugin's own writes arrive late on its watch. Each step is still one write.
async fn late_events(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let canary = Canary::deploy(cluster, "late").await?;
    let original = canary.table().await?;
    proxy.suffer(Some(Sickness::LateEvents(Duration::from_secs(10))));
    let history = canary.watch_table().await?;
    walk(&canary).await?;
    canary.restores(&original).await?;
    // A late write would arrive in this time.
    sleep(Duration::from_secs(10)).await;
    proxy.suffer(None);
    eventually("the watch has seen the last revision", async || {
        let (seen, expected) = (history.splits(), [IDLE, AT_25, AT_50, AT_100, IDLE]);
        ensure!(seen == expected, "{seen:#?}");
        Ok(())
    })
    .await
}

/// The abort is carried out as soon as the API server answers, even if the circuit breaker is open.
async fn aborted_while_it_fails(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let canary = at_a_quarter(cluster, "aborted").await?;
    let original = canary.table().await?;
    let earlier = canary.events().await?;
    proxy.suffer(Some(Sickness::Failing));
    canary.abort().await?;
    let said = canary.event_after(&earlier, "TrafficRoutingError").await?;
    ensure!(said.contains("etcd has no leader"), "{said}");
    sleep(Duration::from_secs(5)).await;
    ensure!(split(&canary.table().await?) == AT_25);
    proxy.suffer(None);
    canary.splits(IDLE).await?;
    canary.aborted().await?;
    ensure!(split(&original) == AT_25);
    Ok(())
}

/// A silent watch, as on a half-open connection, is closed after 75 s. The plugin then repairs the drift that the watch did not
/// report.
async fn silent_watches(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let canary = at_a_quarter(cluster, "silent").await?;
    proxy.suffer(Some(Sickness::SilentWatches));
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
    proxy.suffer(None);
    Ok(())
}
