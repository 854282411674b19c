//! Promotions and aborts by the released controllers under load: no request fails; without the guard many fail.
//!
//! Requests go through a real Envoy that receives endpoints up to 1 s late and routes up to 0.5 s late. With `dynamicStableScale`
//! no request fails under these conditions:
//!
//! - Gloo writes the status of the RouteTable when the gateway serves it. The plugin delays the scale-down of the controller until
//!   then.
//! - The Rollout sets `abortScaleDownDelaySeconds`. Without it an aborted version is scaled down at once.
//! - Pods serve for some seconds after SIGTERM, as with a preStop hook, so that the gateway receives their removal first.
//!
//! A rollout waits for the controller most of the time. `TRAFFIC_WALKS` sets the number of promotions and of aborts. With it,
//! `TRAFFIC_LANES` Rollouts of each kind run in parallel in one cluster and one Envoy, and share the load.

#![expect(clippy::print_stdout, reason = "a person reads the counts")]

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::traffic::{LoadedRollout, RolloutKind, UnderLoad, open_gateway};
use e2e_tests::{Canary, Cluster, Release, Setup};
use fastrand::Rng;
use futures::future::try_join_all;
use tokio::sync::Mutex;
use tokio::time::sleep;
use traffic_lab::proof::Tally;
use traffic_lab::{Delays, Sent};

/// How long a new version has half of the requests.
const SHARED: Duration = Duration::from_millis(500);
/// Pause after an abort.
const ABORTED: Duration = Duration::from_secs(2);
/// The largest delay of the gateway.
const LATEST: Delays = Delays {
    routes: Duration::from_millis(500),
    endpoints: Duration::from_secs(1),
};
/// After this time the controller may have missed a change.
const UNNOTICED: Duration = Duration::from_secs(15);
/// The delays of the controls: in each of them another path is slower.
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
/// What happens to a new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    Promoted,
    Aborted,
}

use Walk::{Aborted, Promoted};

/// The tests measure on the same two cores, so only one runs at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_newest_controller_loses_no_request() -> Result<()> {
    let walks = [Promoted, Promoted, Aborted, Promoted, Aborted, Promoted];
    guarded("1.10.1", Release::V1_10, &walks).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_oldest_controller_loses_no_request() -> Result<()> {
    guarded("1.5.1", Release::V1_5, &[Promoted, Aborted, Promoted]).await
}

/// The positive controls of the tests above.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_what_they_need_requests_fail() -> Result<()> {
    let _alone = ALONE.lock().await;
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
        // On a busy machine requests may not fail in every control: the old Pods may end after the endpoints arrive.
        side_by_side(dynamic, &[Promoted; 4], None),
        side_by_side(plain, &[Promoted, Promoted], None),
        side_by_side(unreported, &[Promoted; 4], None),
    )?;
    let dynamic = sum("without the guard, with dynamicStableScale", &dynamic);
    let plain = sum("without the guard, without dynamicStableScale", &plain);
    let name = "without a status of the table, with dynamicStableScale";
    let unreported = sum(name, &unreported);
    // The stable Service has no Pods until the gateway receives the new ones.
    ensure!(dynamic.failed > 100, "{dynamic:?}");
    // The stable Service leads to the old Pods until the gateway receives the new ones.
    ensure!(plain.old > 100, "{plain:?}");
    // At full weight the old Pods end before the route changes, because without a status the plugin does not know when the route is
    // served.
    ensure!(unreported.failed > 20, "{unreported:?}");
    cluster.stop().await
}

/// How many Rollouts of a kind run in parallel.
fn lanes() -> Result<u32> {
    let lanes = env::var("TRAFFIC_LANES");
    let lanes: u32 = lanes.map_or(Ok(1), |lanes| lanes.parse())?;
    ensure!(lanes > 0, "TRAFFIC_LANES is 0");
    Ok(lanes)
}

/// Runs Rollouts with and without `dynamicStableScale` in parallel, each with random delays.
async fn guarded(version: &str, release: Release, walks: &[Walk]) -> Result<()> {
    let _alone = ALONE.lock().await;
    let begun = Instant::now();
    let seed = match env::var("TRAFFIC_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => fastrand::u64(..),
    };
    let lanes = lanes()?;
    let walks = match env::var("TRAFFIC_WALKS") {
        Ok(count) => {
            let all: usize = count.parse()?;
            [Promoted, Aborted].repeat(all.div_ceil(usize::try_from(lanes)?))
        }
        Err(_) => walks.to_vec(),
    };
    let cluster = Cluster::start(release).await?;
    cluster.stop_kubelet();
    let walked = async {
        let gateway = open_gateway().await?;
        let (dynamic, plain) = tokio::try_join!(
            UnderLoad::open_lanes(&cluster, &gateway, DYNAMIC, lanes),
            UnderLoad::open_lanes(&cluster, &gateway, PLAIN, lanes),
        )?;
        let (dynamic, plain) = tokio::try_join!(
            side_by_side(dynamic, &walks, Some(Rng::with_seed(seed))),
            side_by_side(plain, &walks, Some(Rng::with_seed(!seed))),
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
    let walked = walked.await;
    println!("{version}: {:.0?} in all", begun.elapsed());
    let walked = walked.with_context(|| format!("TRAFFIC_SEED={seed}"));
    walked.map_err(|error| cluster.with_logs(error))?;
    cluster.stop().await
}

/// The results of the requests to one Rollout.
struct Outcome {
    tally: Tally,
    /// Answers of the old version to requests that were sent when the new version had all traffic.
    old: usize,
    /// The times of the actions, and the tenths of a second in which requests failed.
    log: Vec<String>,
    walks: usize,
    took: Duration,
}

/// The results of the requests to all Rollouts of a kind.
#[derive(Debug, Default)]
struct Sum {
    walks: usize,
    requests: usize,
    failed: usize,
    old: usize,
}

/// Adds the results of the lanes of a kind, and prints a line for each. It prints the timeline of a single lane, and of lanes with
/// failed requests.
fn sum(name: &str, lanes: &[Outcome]) -> Sum {
    let mut sum = Sum::default();
    for (lane, outcome) in lanes.iter().enumerate() {
        let Outcome {
            tally,
            old,
            log,
            walks,
            took,
        } = outcome;
        sum.walks += walks;
        sum.requests += tally.requests();
        sum.failed += tally.failed();
        sum.old += old;
        println!(
            "{name}, lane {lane}: {walks} walks in {took:.0?}, {} requests, failed {:?}, {old} answered by the old version",
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

/// Runs Rollouts in parallel. Each has its own delays, if they are random.
///
/// # Errors
/// One of them does not reach its end. The others are then stopped.
async fn side_by_side(
    rollouts: Vec<UnderLoad>,
    walks: &[Walk],
    mut delays: Option<Rng>,
) -> Result<Vec<Outcome>> {
    let lanes = rollouts.into_iter().enumerate().map(|(lane, rollout)| {
        let delays = delays.as_mut().map(Rng::fork);
        let walked = promote_or_abort(rollout, walks, delays);
        async move { walked.await.with_context(|| format!("lane {lane}")) }
    });
    try_join_all(lanes.collect::<Vec<_>>()).await
}

/// Runs new versions through their steps, with new delays for each action, and counts requests.
async fn promote_or_abort(
    rollout: UnderLoad,
    walks: &[Walk],
    delays: Option<Rng>,
) -> Result<Outcome> {
    let mut log = Vec::new();
    let begun = Instant::now();
    let walked = rollout.during(async |it| walk(it, walks, delays, &mut log).await);
    let walked = walked.await;
    let (spans, sent) = walked.with_context(|| format!("{log:#?}"))?;
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
        walks: walks.len(),
        took: begun.elapsed(),
    })
}

/// Waits for the reaction of the controller to a change of its Rollout.
///
/// Controller 1.5.1 can miss a change that arrives during a reconcile: it writes the older Rollout to its cache and waits for the
/// next event. A user would repeat the command; this function changes a label of the Rollout.
async fn noticed(canary: &Canary, done: impl Future<Output = Result<()>>) -> Result<()> {
    let touched = async {
        loop {
            sleep(UNNOTICED).await;
            canary.touch().await?;
        }
    };
    tokio::select! {
        done = done => done,
        failed = touched => failed,
    }
}

/// The time from which a new version had all traffic, and the version that it replaced.
struct Span {
    during: Range<Duration>,
    old: String,
}

async fn walk(
    rollout: &LoadedRollout,
    walks: &[Walk],
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
    for (new, walk) in (2..).zip(walks) {
        note(&format!("version {new}"));
        let image = format!("registry.example.com/demo:{new}");
        canary.change_image(&image).await?;
        noticed(canary, canary.paused_at(1)).await?;
        // For a moment both versions answer.
        world.heard().await?;
        sleep(SHARED).await;
        match walk {
            Aborted => {
                note("abort");
                canary.abort().await?;
                noticed(canary, canary.aborted()).await?;
                canary.restores(&owners).await?;
                // For two seconds the controller switches the canary Service to the aborted Pods and back.
                sleep(ABORTED).await;
                world.heard().await?;
            }
            Promoted => {
                note("full weight");
                canary.promote().await?;
                noticed(canary, canary.paused_at(3)).await?;
                world.heard().await?;
                let begin = load.elapsed();
                note("promotion");
                canary.promote().await?;
                noticed(canary, canary.healthy()).await?;
                canary.restores(&owners).await?;
                world.heard().await?;
                let (during, old) = (begin..load.elapsed(), stable.to_string());
                spans.push(Span { during, old });
                stable = new;
            }
        }
    }
    Ok(spans)
}
