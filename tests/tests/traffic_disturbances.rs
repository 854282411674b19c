//! Disturbances of a canary under load: no request fails, and afterwards the share is correct again.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e_tests::traffic::{LoadedRollout, RolloutKind, UnderLoad};
use e2e_tests::{Cluster, Release};
use serde_json::json;
use traffic_lab::Delays;
use traffic_lab::proof::Tally;

const ROLLOUT: RolloutKind = RolloutKind {
    name: "disturbed",
    is_dynamic: false,
    reports: true,
};
const NEW_IMAGE: &str = "registry.example.com/demo:2";
/// The split at the first pause.
const AT_50: &str = "demo: demo-canary=50 demo-stable=50";
/// Delays with which routes arrive much later than endpoints.
const ROUTES_LATE: Delays = Delays {
    routes: Duration::from_secs(4),
    endpoints: Duration::from_millis(300),
};

#[tokio::test(flavor = "multi_thread")]
async fn no_disturbance_of_a_canary_loses_a_request() -> Result<()> {
    let mut cluster = Cluster::start(Release::V1_10).await?;
    cluster.stop_kubelet();
    let rollout = UnderLoad::open(&cluster, ROLLOUT).await?;
    let disturbed = rollout.during(async |rollout| disturb(&mut cluster, rollout).await);
    let disturbed = disturbed.await;
    let (log, sent) = disturbed.map_err(|error| cluster.with_logs(error))?;
    let tally = Tally::of(&sent);
    println!("{tally:?}\n{log:#?}");
    ensure!(tally.failed() == 0, "{tally:?}\n{log:#?}");
    cluster.stop().await
}

/// Returns the time until the gateway served the correct share again.
async fn disturb(cluster: &mut Cluster, rollout: &LoadedRollout) -> Result<Vec<String>> {
    let LoadedRollout { canary, world, .. } = rollout;
    let owners = canary.table().await?;
    canary.change_image(NEW_IMAGE).await?;
    canary.paused_at(1).await?;
    is_right(rollout).await?;
    let mut log = Vec::new();
    let mut note =
        |what: &str, since: Instant| log.push(format!("{what}: {:.2?}", since.elapsed()));

    let revert = async || canary.revert_table(&owners).await;
    let right_again = async || {
        canary.splits(AT_50).await?;
        rollout.served().await
    };
    cluster.kill_plugin().await?;
    is_right(rollout).await?;
    revert().await?;
    rollout.served().await?;
    // The controller starts the plugin again with its next pass.
    let pass = Instant::now();
    canary
        .change_spec(json!({ "revisionHistoryLimit": 3 }))
        .await?;
    right_again().await?;
    note("after the plugin was killed and the table reverted", pass);
    is_right(rollout).await?;

    let reverted = Instant::now();
    revert().await?;
    right_again().await?;
    note("after the table was reverted", reverted);
    is_right(rollout).await?;

    cluster.stop_api_server();
    is_right_without_waiting(rollout).await?;
    cluster.start_api_server().await?;
    let ready = Instant::now();
    revert().await?;
    right_again().await?;
    note("reverted as soon as the API server was back", ready);
    is_right(rollout).await?;

    // The canary Service leads to the stable Pods at once, and the route to the stable Service follows later.
    world.set_delays(ROUTES_LATE);
    let aborted = Instant::now();
    canary.abort().await?;
    canary.aborted().await?;
    canary.restores(&owners).await?;
    rollout.served().await?;
    note("aborted, with routes 4 s late", aborted);
    let tally = rollout.count(1000).await;
    ensure!(tally.version("1") == 1000, "{tally:?}");
    Ok(log)
}

/// Waits until the gateway serves the split, and counts requests.
async fn is_right(rollout: &LoadedRollout) -> Result<()> {
    rollout.canary.splits(AT_50).await?;
    rollout.served().await?;
    is_right_without_waiting(rollout).await
}

async fn is_right_without_waiting(rollout: &LoadedRollout) -> Result<()> {
    let tally = rollout.count(1000).await;
    let checked = tally.check(&[("1", 50.0), ("2", 50.0)]);
    checked.map(drop).map_err(anyhow::Error::msg)
}
