//! Faults during a canary under load: no request fails, and the canary has its share of the requests again afterwards.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e_tests::traffic::{LoadedRollout, RolloutKind, UnderLoad};
use e2e_tests::updates::IMAGE;
use e2e_tests::{Cluster, Release};
use serde_json::json;
use traffic_lab::Delays;
use traffic_lab::proof::Tally;

const ROLLOUT: RolloutKind = RolloutKind {
    name: "disturbed",
    is_dynamic: false,
    reports: true,
};
/// The split at the first pause.
const AT_50: &str = "demo: demo-canary=50 demo-stable=50";
/// Routes arrive much later than endpoints.
const ROUTES_LATE: Delays = Delays {
    routes: Duration::from_secs(4),
    endpoints: Duration::from_millis(300),
};

#[tokio::test(flavor = "multi_thread")]
async fn no_fault_during_a_canary_loses_a_request() -> Result<()> {
    let mut cluster = Cluster::start(Release::V1_10).await?;
    cluster.stop_kubelet();
    let rollout = UnderLoad::open(&cluster, ROLLOUT).await?;
    let outcome = rollout.during(async |rollout| inject_faults(&mut cluster, rollout).await);
    let (log, sent) = outcome.await.map_err(|error| cluster.with_logs(error))?;
    let tally = Tally::of(&sent);
    println!("{tally:?}\n{log:#?}");
    ensure!(tally.failed() == 0, "{tally:?}\n{log:#?}");
    cluster.stop().await
}

/// Injects the faults. Returns how long it took after each until the gateway served the correct share again.
async fn inject_faults(cluster: &mut Cluster, rollout: &LoadedRollout) -> Result<Vec<String>> {
    let LoadedRollout { canary, world, .. } = rollout;
    let owners = canary.table().await?;
    canary.change_image(IMAGE).await?;
    canary.paused_at(1).await?;
    check_served(rollout).await?;
    let mut log = Vec::new();
    let mut note =
        |what: &str, since: Instant| log.push(format!("{what}: {:.2?}", since.elapsed()));

    let revert = async || canary.revert_table(&owners).await;
    let restored = async || {
        canary.splits(AT_50).await?;
        rollout.served().await
    };
    cluster.kill_plugin().await?;
    check_served(rollout).await?;
    revert().await?;
    rollout.served().await?;
    // The controller starts the plugin again in its next reconcile.
    let reconcile = Instant::now();
    canary
        .change_spec(json!({ "revisionHistoryLimit": 3 }))
        .await?;
    restored().await?;
    note(
        "after the plugin was killed and the table reverted",
        reconcile,
    );
    check_served(rollout).await?;

    let reverted = Instant::now();
    revert().await?;
    restored().await?;
    note("after the table was reverted", reverted);
    check_served(rollout).await?;

    cluster.stop_api_server();
    check_shares(rollout).await?;
    cluster.start_api_server().await?;
    let ready = Instant::now();
    revert().await?;
    restored().await?;
    note(
        "after the table was reverted when the API server was ready",
        ready,
    );
    check_served(rollout).await?;

    // The canary Service has the stable Pods at once, and the route to the stable Service arrives later.
    world.set_delays(ROUTES_LATE);
    let aborted = Instant::now();
    canary.abort().await?;
    canary.aborted().await?;
    canary.restores(&owners).await?;
    rollout.served().await?;
    note("after an abort with routes 4 s late", aborted);
    let tally = rollout.count(1000).await;
    ensure!(tally.version("1") == 1000, "{tally:?}");
    Ok(log)
}

/// Waits until the gateway serves the split, and checks the shares.
async fn check_served(rollout: &LoadedRollout) -> Result<()> {
    rollout.canary.splits(AT_50).await?;
    rollout.served().await?;
    check_shares(rollout).await
}

/// Checks the shares of both versions.
async fn check_shares(rollout: &LoadedRollout) -> Result<()> {
    let tally = rollout.count(1000).await;
    let checked = tally.check(&[("1", 50.0), ("2", 50.0)]);
    checked.map(drop).map_err(anyhow::Error::msg)
}
