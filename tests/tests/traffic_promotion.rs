//! Promotions and aborts by the released controllers under load: no request fails, and without the guard many do.
//!
//! Requests go through a real Envoy that hears of endpoints up to 1 s late and of routes up to 0.5 s late. Pods serve for some
//! seconds after SIGTERM, as a preStop hook has them do; without that `dynamicStableScale` loses requests at the start of
//! an update, which no plugin can prevent.

use std::env;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::traffic::{HOST, Workloads};
use e2e_tests::{Canary, Cluster, Release};
use fastrand::Rng;
use tokio::sync::Mutex;
use traffic_lab::proof::Tally;
use traffic_lab::{Delays, Envoy, Gateway, Load, Sent, Target, World, envoy_binary};

const MANIFESTS: &str = include_str!("../testdata/traffic.yaml");
/// Requests each second, for each Rollout.
const RATE: u32 = 200;
/// How long a Pod serves after SIGTERM: more than the gateway needs to hear of it.
const PRE_STOP: Duration = Duration::from_secs(4);
/// How late the gateway hears of changes at most.
const LATEST: Delays = Delays {
    routes: Duration::from_millis(500),
    endpoints: Duration::from_secs(1),
};
/// The delays of the control: the route arrives before the endpoints, as section 6 of the design has it.
const ROUTE_FIRST: Delays = Delays {
    routes: Duration::from_millis(100),
    endpoints: Duration::from_secs(1),
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

/// The positive control of the tests above: the same, with the guard off.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_guard_requests_fail_and_the_old_version_returns() -> Result<()> {
    let _alone = ALONE.lock().await;
    let off = [("GLOO_PLUGIN_PROMOTION_GUARD", Path::new("off"))];
    let cluster = Cluster::start_with(Release::V1_10, &off).await?;
    cluster.stop_kubelet();
    let (dynamic, plain) = tokio::try_join!(
        Shop::open(&cluster, "dynamic", true),
        Shop::open(&cluster, "plain", false),
    )?;
    for shop in [&dynamic, &plain] {
        shop.world.set_delays(ROUTE_FIRST);
    }
    let (dynamic, plain) = tokio::try_join!(
        dynamic.walk(&[Promoted, Promoted], None),
        plain.walk(&[Promoted, Promoted], None),
    )?;
    println!("without the guard, with dynamicStableScale and without: {dynamic:#?} {plain:#?}");
    ensure!(dynamic.tally.failed() > 100, "{dynamic:?}");
    ensure!(plain.old > 100, "{plain:?}");
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
            Shop::open(&cluster, "dynamic", true),
            Shop::open(&cluster, "plain", false),
        )?;
        let (dynamic, plain) = tokio::try_join!(
            dynamic.walk(&walks, Some(Rng::with_seed(seed))),
            plain.walk(&walks, Some(Rng::with_seed(!seed))),
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
    let outcomes = outcomes.with_context(|| format!("{}\nTRAFFIC_SEED={seed}", cluster.logs()))?;
    cluster.stop().await?;
    Ok(outcomes)
}

/// A Rollout under load.
struct Shop {
    canary: Canary,
    world: Arc<World>,
    workloads: Workloads,
    load: Load,
}

/// What became of the requests.
#[derive(Debug)]
struct Outcome {
    tally: Tally,
    /// Answers of the old version to requests that were sent when the new one had all traffic.
    old: usize,
}

impl Shop {
    /// Deploys the Rollout, and starts the load when a request is answered.
    async fn open(cluster: &Cluster, namespace: &str, is_dynamic: bool) -> Result<Self> {
        let gateway = Gateway::new(Envoy::start(&envoy_binary()?).await?);
        let world = Arc::new(World::new(gateway, Delays::default()));
        let workloads = Workloads::start(cluster, namespace, Arc::clone(&world), PRE_STOP).await?;
        let manifests = MANIFESTS.replace("$DYNAMIC", &is_dynamic.to_string());
        let canary = Canary::deploy_manifests(cluster, namespace, &manifests).await?;
        world.heard().await?;
        let target = Target {
            gateway: world.address(),
            host: HOST.to_owned(),
            path: "/".to_owned(),
            headers: Vec::new(),
        };
        let first = Tally::of(&Load::send(&target, RATE, 1).await);
        ensure!(first.version("1") == 1, "{first:?}");
        Ok(Self {
            canary,
            world,
            workloads,
            load: Load::start(&target, RATE),
        })
    }

    /// Walks new versions through their steps, with other delays for each thing that is done, and counts.
    async fn walk(mut self, walks: &[Walk], delays: Option<Rng>) -> Result<Outcome> {
        let walked = tokio::select! {
            spans = walk(&self.canary, &self.world, &self.load, walks, delays) => spans,
            error = self.workloads.stopped() => Err(error),
        };
        let spans = match walked {
            Ok(spans) => spans,
            Err(error) => {
                let so_far = Tally::of(&self.load.sent());
                return Err(error.context(format!("so far: {so_far:?}")));
            }
        };
        let sent = self.load.stop().await;
        self.world.heard().await?;
        let is_old = |it: &&Sent| {
            let mut spans = spans.iter();
            spans.any(|span| span.during.contains(&it.at) && it.answer.version == span.old)
        };
        Ok(Outcome {
            old: sent.iter().filter(is_old).count(),
            tally: Tally::of(&sent),
        })
    }
}

/// When a new version had all traffic, and which one it replaced.
struct Span {
    during: Range<Duration>,
    old: String,
}

async fn walk(
    canary: &Canary,
    world: &World,
    load: &Load,
    walks: &[Walk],
    mut delays: Option<Rng>,
) -> Result<Vec<Span>> {
    let mut change_delays = || {
        if let Some(rng) = &mut delays {
            world.set_delays(Delays {
                routes: LATEST.routes.mul_f64(rng.f64()),
                endpoints: LATEST.endpoints.mul_f64(rng.f64()),
            });
        }
    };
    let owners = canary.table().await?;
    let mut spans = Vec::new();
    let mut stable = 1;
    for (new, walk) in (2..).zip(walks) {
        change_delays();
        let image = format!("registry.example.com/demo:{new}");
        canary.change_image(&image).await?;
        canary.paused_at(1).await?;
        change_delays();
        match walk {
            Aborted => {
                canary.abort().await?;
                canary.aborted().await?;
                canary.restores(&owners).await?;
            }
            Promoted => {
                canary.promote().await?;
                canary.paused_at(3).await?;
                world.heard().await?;
                let begin = load.elapsed();
                change_delays();
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
