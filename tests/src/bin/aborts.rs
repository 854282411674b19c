//! Measures aborts by the controllers of the given versions: whether they end, and how many requests fail meanwhile. Also the first
//! update after ping-pong was switched on.
//!
//! Requests go through a real Envoy, like in `tests/traffic_promotion.rs`. For each version it prints the rows of a Markdown table.

#![expect(clippy::print_stdout, reason = "prints a table")]

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use e2e_tests::traffic::{LoadedRollout, RolloutKind, UnderLoad, open_gateway};
use e2e_tests::{AbortEnd, Cluster, Release, split};
use fastrand::Rng;
use futures::future::try_join_all;
use serde_json::json;
use tokio::time::sleep;
use traffic_lab::{Delays, World};

/// Measures aborts under load. $PLUGIN_BINARY, $ENVOY_BINARY and $GO_BIN_DIR name the programs.
#[derive(clap::Parser)]
struct Flags {
    /// Versions of the controller; each needs a program rollouts-controller-VERSION.
    #[arg(required = true)]
    versions: Vec<String>,
    /// Instead of aborts: the first update after ping-pong was switched on for an existing Rollout.
    #[arg(long)]
    ping_pong: bool,
    /// Aborts of each row.
    #[arg(long, default_value_t = 6)]
    aborts: u32,
    /// Seed of the random delays.
    #[arg(long, default_value_t = 4898)]
    seed: u64,
}

/// The weights at which an update pauses. With four replicas they are one, three and four Pods.
const WEIGHTS: [u32; 3] = [25, 75, 100];
const REPLICAS: u32 = 4;
/// `abortScaleDownDelaySeconds`, if it is set.
const DELAY: u32 = 30;
/// How long both versions answer requests before an abort.
const SHARED: Duration = Duration::from_millis(500);
/// Requests that count the answers of both versions with ping-pong.
const REQUESTS: u64 = 2000;
/// How long failed requests are counted after an abort has ended.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// The maximum of the random delays.
const LATEST: Delays = Delays {
    routes: Duration::from_millis(500),
    endpoints: Duration::from_secs(1),
};
/// The worst case without the setting: the gateway knows that Pods have ended before it has the route.
const ENDPOINTS_FIRST: Delays = Delays {
    routes: Duration::from_millis(800),
    endpoints: Duration::from_millis(50),
};

#[derive(Clone, Copy, Debug)]
struct Case {
    is_dynamic: bool,
    delay: Option<u32>,
    weight: u32,
}

/// One abort.
#[derive(Clone, Copy, Debug)]
struct Measured {
    end: AbortEnd,
    failed: usize,
    is_worst_case: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    if flags.ping_pong {
        for version in &flags.versions {
            ping_pong(version).await?;
        }
        return Ok(());
    }
    println!(
        "| version | dynamicStableScale | abortScaleDownDelaySeconds | aborted at | ended | failed, random delays | failed, endpoints first |"
    );
    println!("|---|---|---|---|---|---|---|");
    for version in &flags.versions {
        measure(version, &flags)
            .await
            .with_context(|| version.clone())?;
    }
    Ok(())
}

/// Measures all cases of a version in one cluster.
async fn measure(version: &str, flags: &Flags) -> Result<()> {
    let release = Release::Other(version.to_owned().leak());
    let cluster = Cluster::start(release).await?;
    cluster.stop_kubelet();
    let gateway = open_gateway().await?;
    let mut cases = Vec::new();
    for weight in WEIGHTS {
        for (is_dynamic, delay) in [(true, None), (true, Some(DELAY)), (false, None)] {
            cases.push(Case {
                is_dynamic,
                delay,
                weight,
            });
        }
    }
    for batch in cases.chunks(3) {
        let measured = batch.iter().map(|case| {
            let rng = Rng::with_seed(flags.seed ^ u64::from(case.weight));
            measure_case(&cluster, &gateway, *case, flags.aborts, rng)
        });
        let measured = try_join_all(measured.collect::<Vec<_>>()).await;
        let measured = measured.map_err(|error| cluster.with_logs(error))?;
        for (case, measured) in batch.iter().zip(measured) {
            println!("{}", row(version, *case, &measured));
        }
    }
    cluster.stop().await
}

fn row(version: &str, case: Case, measured: &[Measured]) -> String {
    let ended = measured
        .iter()
        .filter(|it| it.end == AbortEnd::Ended)
        .count();
    let stalled = measured.iter().find_map(|it| match it.end {
        AbortEnd::Stalled(weight) => Some(format!(", stays at weight {weight}")),
        AbortEnd::Ended => None,
    });
    let failed = |is_worst_case| {
        let of_kind = measured
            .iter()
            .filter(|it| it.is_worst_case == is_worst_case);
        let failed = of_kind.map(|it| it.failed.to_string());
        failed.collect::<Vec<_>>().join(", ")
    };
    let delay = case
        .delay
        .map_or("not set".to_owned(), |delay| delay.to_string());
    let (dynamic, weight) = (case.is_dynamic, case.weight);
    let (total, stalled) = (measured.len(), stalled.unwrap_or_default());
    let (random, worst) = (failed(false), failed(true));
    format!(
        "| {version} | {dynamic} | {delay} | {weight} | {ended} of {total}{stalled} | {random} | {worst} |"
    )
}

async fn measure_case(
    cluster: &Cluster,
    gateway: &World,
    case: Case,
    aborts: u32,
    rng: Rng,
) -> Result<Vec<Measured>> {
    let Case {
        is_dynamic,
        delay,
        weight,
    } = case;
    let setting = if delay.is_some() { "set" } else { "unset" };
    let dynamic = if is_dynamic { "dynamic" } else { "plain" };
    let kind = RolloutKind {
        name: format!("{dynamic}-{setting}-{weight}").leak(),
        is_dynamic,
        reports: true,
    };
    let mut opened = UnderLoad::open_lanes(cluster, gateway, kind, 1).await?;
    let rollout = opened.pop().context("no lane")?;
    let worked = rollout.during(async |it| abort_repeatedly(it, case, aborts, rng).await);
    let (spans, sent) = worked.await?;
    let measured = spans.into_iter().map(|(from, to, end, is_worst_case)| {
        let sent = sent.iter().filter(|it| (from..to).contains(&it.at));
        let failed = sent.filter(|it| !it.answer.is_success()).count();
        Measured {
            end,
            failed,
            is_worst_case,
        }
    });
    Ok(measured.collect())
}

/// Returns begin and end of each abort, its outcome, and whether the delays were those of the worst case.
async fn abort_repeatedly(
    it: &LoadedRollout,
    case: Case,
    aborts: u32,
    mut rng: Rng,
) -> Result<Vec<(Duration, Duration, AbortEnd, bool)>> {
    let LoadedRollout {
        canary,
        world,
        load,
        ..
    } = it;
    let pauses = WEIGHTS.map(|weight| [json!({"setWeight": weight}), json!({"pause": {}})]);
    let settings = json!({"abortScaleDownDelaySeconds": case.delay, "steps": pauses.concat()});
    canary
        .change_spec(json!({"replicas": REPLICAS, "strategy": {"canary": settings}}))
        .await?;
    canary.reconciled(canary.healthy()).await?;
    let mut spans = Vec::new();
    for number in 0..aborts {
        world.set_delays(Delays::default());
        let image = format!("registry.example.com/demo:{}", number + 2);
        canary.change_image(&image).await?;
        for (index, weight) in WEIGHTS.iter().enumerate() {
            canary.reconciled(canary.paused_at(2 * index + 1)).await?;
            if *weight == case.weight {
                break;
            }
            canary.promote().await?;
        }
        world.delivered().await?;
        let is_worst_case = number % 2 == 1;
        world.set_delays(if is_worst_case {
            ENDPOINTS_FIRST
        } else {
            Delays {
                routes: LATEST.routes.mul_f64(rng.f64()),
                endpoints: LATEST.endpoints.mul_f64(rng.f64()),
            }
        });
        sleep(SHARED).await;
        let begin = load.elapsed();
        canary.abort().await?;
        let end = canary.abort_end().await?;
        sleep(AFTERWARDS).await;
        world.delivered().await?;
        spans.push((begin, load.elapsed(), end, is_worst_case));
        if let AbortEnd::Stalled(_) = end {
            canary
                .change_spec(json!({"strategy": {"canary": {"abortScaleDownDelaySeconds": null}}}))
                .await?;
            let after = canary.abort_end().await?;
            println!("{case:?}: without abortScaleDownDelaySeconds this abort is then {after:?}");
            break;
        }
    }
    Ok(spans)
}

/// `pingService`, `pongService`, and the Service to which the owner's table routes when ping-pong is switched on.
const PAIRS: [[&str; 3]; 4] = [
    ["demo-ping", "demo-pong", "demo-ping"],
    ["demo-ping", "demo-pong", "demo-pong"],
    ["demo-stable", "demo-canary", "demo-stable"],
    ["demo-canary", "demo-stable", "demo-stable"],
];

/// Switches ping-pong on for existing Rollouts, updates them to weight 25, and prints which version answers.
async fn ping_pong(version: &str) -> Result<()> {
    let cluster = Cluster::start(Release::Other(version.to_owned().leak())).await?;
    cluster.stop_kubelet();
    let gateway = open_gateway().await?;
    println!("| version | ping | pong | table | at rest | at weight 25 | answers | failed |");
    println!("|---|---|---|---|---|---|---|---|");
    for (number, pair) in PAIRS.into_iter().enumerate() {
        let kind = RolloutKind {
            name: format!("ping-pong-{number}").leak(),
            is_dynamic: false,
            reports: true,
        };
        let mut opened = UnderLoad::open_lanes(&cluster, &gateway, kind, 1).await?;
        let rollout = opened.pop().context("no lane")?;
        let namespace = format!("{}-0", kind.name);
        let worked = rollout.during(async |it| {
            create_services(&cluster, &namespace, &pair).await?;
            switch_and_update(it, pair).await
        });
        let (measured, sent) = worked.await?;
        let failed = sent.iter().filter(|it| !it.answer.is_success()).count();
        println!(
            "| {version} | {} | {measured} | {failed} |",
            pair.join(" | ")
        );
    }
    cluster.stop().await
}

/// Creates the Services of a pair that a new Rollout has not.
async fn create_services(cluster: &Cluster, namespace: &str, pair: &[&str]) -> Result<()> {
    let new = pair.iter().filter(|name| name.starts_with("demo-p"));
    let services = new.map(|name| {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"app": "demo"}, "ports": [{"port": 8080}]},
        }))
    });
    let services = services.collect::<Result<Vec<_>, _>>()?;
    e2e_tests::apply(cluster.client(), &services).await
}

/// Returns the splits at rest and at weight 25, and the answers at that weight.
async fn switch_and_update(it: &LoadedRollout, [ping, pong, table]: [&str; 3]) -> Result<String> {
    let LoadedRollout { canary, world, .. } = it;
    let services = json!({
        "stableService": null, "canaryService": null,
        "pingPong": {"pingService": ping, "pongService": pong},
        "steps": [{"setWeight": 25}, {"pause": {}}],
    });
    canary
        .change_spec(json!({"replicas": REPLICAS, "strategy": {"canary": services}}))
        .await?;
    canary
        .edit_table(|it| {
            let name = it
                .data
                .pointer_mut("/spec/http/0/forwardTo/destinations/0/ref/name");
            if let Some(name) = name {
                *name = json!(table);
            }
        })
        .await?;
    canary.touch().await?;
    canary.healthy().await?;
    sleep(AFTERWARDS).await;
    world.delivered().await?;
    let at_rest = split(&canary.table().await?);
    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    sleep(AFTERWARDS).await;
    world.delivered().await?;
    let answers = it.count(REQUESTS).await.versions;
    Ok(format!(
        "{at_rest} | {} | {answers:?}",
        split(&canary.table().await?)
    ))
}
