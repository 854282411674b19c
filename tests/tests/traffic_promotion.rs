//! Promotions and aborts by the released controllers under load: no request fails; without the guard many fail.
//!
//! Requests go through a real Envoy that receives endpoints up to 1 s late and routes up to 0.5 s late. With
//! `dynamicStableScale`, no request is lost under these conditions:
//!
//! - Gloo writes a status in the RouteTable when it serves the table. The plugin makes the controller wait for it before it scales
//!   down.
//! - The Rollout sets `abortScaleDownDelaySeconds`, and is aborted at its lowest `setWeight`. Without the setting the controller
//!   scales down an aborted version at once; docs/between-the-calls.md says what releases do above the lowest `setWeight`.
//! - Pods serve for some seconds after SIGTERM, like with a preStop hook, so that the gateway receives the change of endpoints first.
//!
//! `TRAFFIC_UPDATES` sets the number of promotions, and of aborts. An update mostly waits for the controller, so `TRAFFIC_LANES`
//! Rollouts of each kind are updated concurrently in one cluster with one Envoy, and share the load.

#![expect(clippy::print_stdout, reason = "a person reads the counts")]

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::traffic::{LoadedRollout, RolloutKind, UnderLoad, open_gateway};
use e2e_tests::{Cluster, Release, Setup};
use fastrand::Rng;
use futures::future::try_join_all;
use tokio::sync::Mutex;
use tokio::time::sleep;
use traffic_lab::proof::Tally;
use traffic_lab::{Delays, Sent};

/// How long both versions answer requests.
const SHARED: Duration = Duration::from_millis(500);
/// How long the test waits after an abort.
const ABORTED: Duration = Duration::from_secs(2);
/// The maximum of the random delays.
const LATEST: Delays = Delays {
    routes: Duration::from_millis(500),
    endpoints: Duration::from_secs(1),
};
/// The delays of the controls: either endpoints or routes are slower.
const ROUTE_FIRST: Delays = Delays {
    routes: Duration::from_millis(100),
    endpoints: Duration::from_secs(1),
};
const ENDPOINTS_FIRST: Delays = Delays {
    routes: Duration::from_millis(800),
    endpoints: Duration::from_millis(50),
};
const DYNAMIC: RolloutKind = RolloutKind {
    name: "dynamic",
    is_dynamic: true,
    reports: true,
};
const PLAIN: RolloutKind = RolloutKind {
    name: "plain",
    is_dynamic: false,
    ..DYNAMIC
};
const UNREPORTED: RolloutKind = RolloutKind {
    name: "unreported",
    reports: false,
    ..DYNAMIC
};
/// The end of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Promoted,
    Aborted,
}

use End::{Aborted, Promoted};

/// The tests need the whole machine, so one runs at a time.
static SERIAL: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_newest_controller_loses_no_request() -> Result<()> {
    let updates = [Promoted, Promoted, Aborted, Promoted, Aborted];
    guarded(Release::V1_10, &updates).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_oldest_controller_loses_no_request() -> Result<()> {
    guarded(Release::V1_5, &[Promoted, Aborted]).await
}

/// The positive controls of the tests above.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_guard_or_a_status_requests_fail() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let off = Setup {
        variables: &[("GLOO_PLUGIN_PROMOTION_GUARD", Path::new("off"))],
        ..Setup::default()
    };
    let cluster = Cluster::start_with(Release::V1_10, off).await?;
    cluster.stop_kubelet();
    let (lanes, gateway) = (lanes()?, open_gateway().await?);
    let (dynamic, plain, unreported) = tokio::try_join!(
        UnderLoad::open_lanes(&cluster, &gateway, DYNAMIC, lanes),
        UnderLoad::open_lanes(&cluster, &gateway, PLAIN, lanes),
        UnderLoad::open_lanes(&cluster, &gateway, UNREPORTED, lanes),
    )?;
    for (lanes, delays) in [
        (&dynamic, ROUTE_FIRST),
        (&plain, ROUTE_FIRST),
        (&unreported, ENDPOINTS_FIRST),
    ] {
        for lane in lanes {
            lane.rollout.world.set_delays(delays);
        }
    }
    let (dynamic, plain, unreported) = tokio::try_join!(
        // On a busy machine not every promotion loses requests: the old Pods may end after the endpoints have arrived.
        update_concurrently(dynamic, &[Promoted; 4], None),
        update_concurrently(plain, &[Promoted, Promoted], None),
        update_concurrently(unreported, &[Promoted; 4], None),
    )?;
    let dynamic = sum("without the guard, with dynamicStableScale", &dynamic);
    let plain = sum("without the guard, without dynamicStableScale", &plain);
    let name = "without a status of the table, with dynamicStableScale";
    let unreported = sum(name, &unreported);
    // For the gateway the stable Service has no Pods until it receives the new ones.
    ensure!(dynamic.failed > 100, "{dynamic:?}");
    // For the gateway the stable Service has the old Pods until it receives the new ones.
    ensure!(plain.old > 100, "{plain:?}");
    // At full weight the old Pods end before the gateway has the route, because the plugin does not know when it is served.
    ensure!(unreported.failed > 20, "{unreported:?}");
    cluster.stop().await
}

/// Returns the number of concurrent Rollouts of a kind.
fn lanes() -> Result<u32> {
    let lanes = env::var("TRAFFIC_LANES");
    let lanes: u32 = lanes.map_or(Ok(1), |lanes| lanes.parse())?;
    ensure!(lanes > 0, "TRAFFIC_LANES is 0");
    Ok(lanes)
}

/// Updates Rollouts with and without `dynamicStableScale` concurrently, each with random delays, and checks that no request fails.
async fn guarded(release: Release, updates: &[End]) -> Result<()> {
    let _serial = SERIAL.lock().await;
    let version = release.version();
    let started = Instant::now();
    let seed = match env::var("TRAFFIC_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => fastrand::u64(..),
    };
    let lanes = lanes()?;
    let updates = match env::var("TRAFFIC_UPDATES") {
        Ok(count) => {
            let all: usize = count.parse()?;
            [Promoted, Aborted].repeat(all.div_ceil(usize::try_from(lanes)?))
        }
        Err(_) => updates.to_vec(),
    };
    let cluster = Cluster::start(release).await?;
    cluster.stop_kubelet();
    let outcome = async {
        let gateway = open_gateway().await?;
        let (dynamic, plain) = tokio::try_join!(
            UnderLoad::open_lanes(&cluster, &gateway, DYNAMIC, lanes),
            UnderLoad::open_lanes(&cluster, &gateway, PLAIN, lanes),
        )?;
        let (dynamic, plain) = tokio::try_join!(
            update_concurrently(dynamic, &updates, Some(Rng::with_seed(seed))),
            update_concurrently(plain, &updates, Some(Rng::with_seed(!seed))),
        )?;
        let dynamic = sum(&format!("{version}, with dynamicStableScale"), &dynamic);
        let plain = sum(&format!("{version}, without dynamicStableScale"), &plain);
        for sum in [dynamic, plain] {
            ensure!(sum.failed == 0, "{sum:?}");
            ensure!(sum.old == 0, "{sum:?}");
            ensure!(sum.requests > 1000, "{sum:?}");
        }
        Ok(())
    };
    let outcome = outcome.await;
    println!("{version}: {:.0?} in total", started.elapsed());
    let outcome = outcome.with_context(|| format!("TRAFFIC_SEED={seed}"));
    outcome.map_err(|error| cluster.with_logs(error))?;
    cluster.stop().await
}

/// The results of the requests to one Rollout.
struct Outcome {
    tally: Tally,
    /// Answers of the old version to requests that were sent when the new version had all traffic.
    old: usize,
    /// The actions with their times, and the tenths of a second in which requests failed.
    log: Vec<String>,
    updates: usize,
    took: Duration,
}

/// The results of the requests to all Rollouts of a kind.
#[derive(Debug, Default)]
struct Sum {
    updates: usize,
    requests: usize,
    failed: usize,
    old: usize,
}

/// Adds up the lanes of a kind, and prints a line for each. Prints the log of a single lane, and of lanes that lost a request.
fn sum(name: &str, lanes: &[Outcome]) -> Sum {
    let mut sum = Sum::default();
    for (lane, outcome) in lanes.iter().enumerate() {
        let Outcome {
            tally,
            old,
            log,
            updates,
            took,
        } = outcome;
        sum.updates += updates;
        sum.requests += tally.requests();
        sum.failed += tally.failed();
        sum.old += old;
        println!(
            "{name}, lane {lane}: {updates} updates in {took:.0?}, {} requests, failed {:?}, {old} answered by the old version",
            tally.requests(),
            tally.failures,
        );
        if lanes.len() == 1 || tally.failed() + old > 0 {
            println!("{log:#?}");
        }
    }
    println!("{name}: {sum:?}");
    sum
}

/// Updates Rollouts concurrently. Each has different random delays if `delays` is set.
///
/// # Errors
/// Returns the first error of a Rollout, and stops the others.
async fn update_concurrently(
    rollouts: Vec<UnderLoad>,
    updates: &[End],
    mut delays: Option<Rng>,
) -> Result<Vec<Outcome>> {
    let lanes = rollouts.into_iter().enumerate().map(|(lane, rollout)| {
        let delays = delays.as_mut().map(Rng::fork);
        let updated = promote_or_abort(rollout, updates, delays);
        async move { updated.await.with_context(|| format!("lane {lane}")) }
    });
    try_join_all(lanes.collect::<Vec<_>>()).await
}

/// Promotes or aborts new versions under load, with new delays for each action, and counts the results.
async fn promote_or_abort(
    rollout: UnderLoad,
    updates: &[End],
    delays: Option<Rng>,
) -> Result<Outcome> {
    let mut log = Vec::new();
    let started = Instant::now();
    let outcome = rollout.during(async |it| update(it, updates, delays, &mut log).await);
    let outcome = outcome.await;
    let (spans, sent) = outcome.with_context(|| format!("{log:#?}"))?;
    let failed = sent.iter().filter(|it| !it.answer.is_success());
    let tenths: BTreeSet<_> = failed.map(|it| it.at.as_millis() / 100).collect();
    log.extend(
        tenths
            .iter()
            .map(|tenth| format!("{}.{} s: failed", tenth / 10, tenth % 10)),
    );
    let is_old = |it: &&Sent| {
        let mut spans = spans.iter();
        spans.any(|span| span.during.contains(&it.at) && it.answer.version == span.old)
    };
    Ok(Outcome {
        old: sent.iter().filter(is_old).count(),
        tally: Tally::of(&sent),
        log,
        updates: updates.len(),
        took: started.elapsed(),
    })
}

/// The time in which a new version had all traffic, and the version that it replaced.
struct Span {
    during: Range<Duration>,
    old: String,
}

async fn update(
    rollout: &LoadedRollout,
    updates: &[End],
    mut delays: Option<Rng>,
    log: &mut Vec<String>,
) -> Result<Vec<Span>> {
    let LoadedRollout {
        canary,
        world,
        load,
        ..
    } = rollout;
    let mut note = |what: &str| {
        let mut text = format!("{:.2?} {what}", load.elapsed());
        if let Some(rng) = &mut delays {
            let new = Delays {
                routes: LATEST.routes.mul_f64(rng.f64()),
                endpoints: LATEST.endpoints.mul_f64(rng.f64()),
            };
            world.set_delays(new);
            text = format!("{text}, {new:.2?}");
        }
        log.push(text);
    };
    let owners = canary.table().await?;
    let mut spans = Vec::new();
    let mut stable = 1;
    for (new, end) in (2..).zip(updates) {
        note(&format!("version {new}"));
        let image = format!("registry.example.com/demo:{new}");
        canary.change_image(&image).await?;
        canary.reconciled(canary.paused_at(1)).await?;
        // Both versions answer for a moment.
        world.delivered().await?;
        sleep(SHARED).await;
        match end {
            Aborted => {
                note("abort");
                canary.abort().await?;
                canary.reconciled(canary.aborted()).await?;
                canary.restores(&owners).await?;
                // In these 2 s the controller changes the selector of the canary Service to the aborted Pods and back.
                sleep(ABORTED).await;
                world.delivered().await?;
            }
            Promoted => {
                note("full weight");
                canary.promote().await?;
                canary.reconciled(canary.paused_at(3)).await?;
                world.delivered().await?;
                let begin = load.elapsed();
                note("promotion");
                canary.promote().await?;
                canary.reconciled(canary.healthy()).await?;
                canary.restores(&owners).await?;
                world.delivered().await?;
                let (during, old) = (begin..load.elapsed(), stable.to_string());
                spans.push(Span { during, old });
                stable = new;
            }
        }
    }
    Ok(spans)
}
