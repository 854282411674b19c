//! Promotions and aborts by the released controllers under load: no request fails, and without the guard many do.
//!
//! Requests go through a real Envoy that hears of endpoints up to 1 s late and of routes up to 0.5 s late. What it needs to
//! lose nothing with `dynamicStableScale`:
//!
//! - Gloo reports on the RouteTable when it serves it. The plugin then keeps the controller from scaling down until it does.
//! - `abortScaleDownDelaySeconds` is written in the Rollout, as without it an aborted version is scaled down at once.
//! - Pods serve for some seconds after SIGTERM, as a preStop hook has them do, so that the gateway hears of their end first.

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::traffic::{LoadedRollout, RolloutKind, UnderLoad};
use e2e_tests::{Cluster, Release, Setup};
use fastrand::Rng;
use tokio::sync::Mutex;
use tokio::time::sleep;
use traffic_lab::proof::Tally;
use traffic_lab::{Delays, Sent};

/// How long a new version has half of the requests.
const SHARED: Duration = Duration::from_millis(500);
/// How long an aborted version is left alone.
const ABORTED: Duration = Duration::from_secs(2);
/// How late the gateway hears of changes at most.
const LATEST: Delays = Delays {
    routes: Duration::from_millis(500),
    endpoints: Duration::from_secs(1),
};
/// The delays of controls: either path is the slower one.
const ROUTE_FIRST: Delays = Delays {
    routes: Duration::from_millis(100),
    endpoints: Duration::from_secs(1),
};
const ENDPOINTS_FIRST: Delays = Delays {
    routes: Duration::from_millis(800),
    endpoints: Duration::from_millis(50),
};
const DYNAMIC: RolloutKind = RolloutKind {
    namespace: "dynamic",
    is_dynamic: true,
    reports: true,
};
const PLAIN: RolloutKind = RolloutKind {
    namespace: "plain",
    is_dynamic: false,
    ..DYNAMIC
};
const UNREPORTED: RolloutKind = RolloutKind {
    namespace: "unreported",
    reports: false,
    ..DYNAMIC
};
/// What is done with a new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    Promoted,
    Aborted,
}

use Walk::{Aborted, Promoted};

/// The tests measure the same two cores, so one runs at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_controller_loses_no_request() -> Result<()> {
    let walks = [Promoted, Promoted, Aborted, Promoted, Aborted, Promoted];
    let outcomes = guarded(Release::V1_10, &walks).await?;
    println!("1.10.1, with dynamicStableScale and without: {outcomes:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_controller_loses_no_request() -> Result<()> {
    let outcomes = guarded(Release::V1_5, &[Promoted, Aborted, Promoted]).await?;
    println!("1.5.1, with dynamicStableScale and without: {outcomes:#?}");
    Ok(())
}

/// The positive controls of the tests above.
#[tokio::test(flavor = "multi_thread")]
async fn without_what_they_need_requests_fail() -> Result<()> {
    let _alone = ALONE.lock().await;
    let off = Setup {
        variables: &[("GLOO_PLUGIN_PROMOTION_GUARD", Path::new("off"))],
        ..Setup::default()
    };
    let cluster = Cluster::start_with(Release::V1_10, off).await?;
    cluster.stop_kubelet();
    let (dynamic, plain, unreported) = tokio::try_join!(
        UnderLoad::open(&cluster, DYNAMIC),
        UnderLoad::open(&cluster, PLAIN),
        UnderLoad::open(&cluster, UNREPORTED),
    )?;
    dynamic.rollout.world.set_delays(ROUTE_FIRST);
    plain.rollout.world.set_delays(ROUTE_FIRST);
    unreported.rollout.world.set_delays(ENDPOINTS_FIRST);
    let (dynamic, plain, unreported) = tokio::try_join!(
        // On a busy machine not each of them loses requests: the old Pods may go later than the endpoints arrive.
        promote_or_abort(dynamic, &[Promoted; 4], None),
        promote_or_abort(plain, &[Promoted, Promoted], None),
        promote_or_abort(unreported, &[Promoted; 4], None),
    )?;
    println!("without the guard, with dynamicStableScale: {dynamic:#?}");
    println!("without the guard, without dynamicStableScale: {plain:#?}");
    println!("without a status of the table, with dynamicStableScale: {unreported:#?}");
    // The stable Service has no Pods until the gateway hears of the new ones.
    ensure!(dynamic.tally.failed() > 100, "{dynamic:?}");
    // The stable Service leads to the old Pods until the gateway hears of the new ones.
    ensure!(plain.old > 100, "{plain:?}");
    // At full weight the old Pods go before the route does, since the plugin cannot see when it is served.
    ensure!(unreported.tally.failed() > 20, "{unreported:?}");
    cluster.stop().await
}

/// Walks two Rollouts at once, one with `dynamicStableScale`, each with delays that change at random.
async fn guarded(release: Release, walks: &[Walk]) -> Result<[Outcome; 2]> {
    let _alone = ALONE.lock().await;
    let seed = match env::var("TRAFFIC_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => fastrand::u64(..),
    };
    let walks = match env::var("TRAFFIC_WALKS") {
        Ok(count) => [Promoted, Aborted].repeat(count.parse()?),
        Err(_) => walks.to_vec(),
    };
    let cluster = Cluster::start(release).await?;
    cluster.stop_kubelet();
    let outcomes = async {
        let (dynamic, plain) = tokio::try_join!(
            UnderLoad::open(&cluster, DYNAMIC),
            UnderLoad::open(&cluster, PLAIN),
        )?;
        let (dynamic, plain) = tokio::try_join!(
            promote_or_abort(dynamic, &walks, Some(Rng::with_seed(seed))),
            promote_or_abort(plain, &walks, Some(Rng::with_seed(!seed))),
        )?;
        let outcomes = [dynamic, plain];
        for outcome in &outcomes {
            ensure!(outcome.tally.failed() == 0, "{outcome:?}");
            ensure!(outcome.old == 0, "{outcome:?}");
            ensure!(outcome.tally.requests() > 1000, "{outcome:?}");
        }
        Ok(outcomes)
    };
    let outcomes = outcomes.await;
    let outcomes = outcomes.with_context(|| format!("TRAFFIC_SEED={seed}"));
    let outcomes = outcomes.map_err(|error| cluster.with_logs(error))?;
    cluster.stop().await?;
    Ok(outcomes)
}

/// What became of the requests.
#[derive(Debug)]
#[expect(dead_code, reason = "`log` is for people, who see it by `Debug`")]
struct Outcome {
    tally: Tally,
    /// Answers of the old version to requests that were sent when the new one had all traffic.
    old: usize,
    /// What was done when, and the tenths of a second in which requests failed.
    log: Vec<String>,
}

/// Walks new versions through their steps, with other delays for each thing that is done, and counts.
async fn promote_or_abort(
    rollout: UnderLoad,
    walks: &[Walk],
    delays: Option<Rng>,
) -> Result<Outcome> {
    let mut log = Vec::new();
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
    })
}

/// When a new version had all traffic, and which one it replaced.
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
        canary.paused_at(1).await?;
        // Both versions answer for a moment.
        world.heard().await?;
        sleep(SHARED).await;
        match walk {
            Aborted => {
                note("abort");
                canary.abort().await?;
                canary.aborted().await?;
                canary.restores(&owners).await?;
                // For two seconds the controller turns the canary Service to the aborted Pods and back.
                sleep(ABORTED).await;
                world.heard().await?;
            }
            Promoted => {
                note("full weight");
                canary.promote().await?;
                canary.paused_at(3).await?;
                world.heard().await?;
                let begin = load.elapsed();
                note("promotion");
                canary.promote().await?;
                canary.healthy().await?;
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
