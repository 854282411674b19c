//! `simulate` plays what the released controllers call.
//!
//! Random Rollouts are updated by the oldest and the newest controller, with a plugin that records its calls and the RouteTable after
//! each, and by `simulate`. Both must give the same passes with the same weights. Pods are slow: see [`Canary::with_slow_pods`].
//!
//! `cargo xtask soak --previews` sets `PREVIEWS`, the number of Rollouts, and `PREVIEWS_SEED`.

#![expect(
    clippy::indexing_slicing,
    reason = "an absent key of a JSON value reads as null"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, Result, bail, ensure};
use e2e_tests::updates::IMAGE;
use e2e_tests::{Canary, Cluster, Controller, PLUGIN_NAME, Release, Setup, eventually, parse, run};
use fastrand::Rng;
use futures::future::{Either, join_all, select};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::time::sleep;

const MANIFESTS: &str = include_str!("../testdata/canary.yaml");
const REMOVE: &str = "RemoveManagedRoutes";
const FIRST_IMAGE: &str = "registry.example.com/demo:1";
const ANOTHER_IMAGE: &str = "registry.example.com/demo:3";
/// Rollouts in an ordinary run. The oldest controller has one in four.
const ROLLOUTS: u64 = 12;
/// Rollouts that run at the same time.
const AT_ONCE: usize = 24;
const RELEASES: [Release; 2] = [Release::V1_5, Release::V1_10];

/// What a person does at a step at which the update pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Abort,
    Retry,
    PromoteFull,
    NewVersion,
    /// Applies the stable version again.
    StableVersion,
}

/// Whether the Pods of the version before the stable one still run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rollback {
    Early,
    Late,
}

/// A Rollout and its update.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    release: usize,
    spec: Value,
    event: Option<(usize, Event)>,
    /// The update goes back to the version before the stable one.
    rollback: Option<Rollback>,
}

/// What `simulate` says.
struct Expected {
    passes: Vec<Pass>,
    /// The step that the controller does not get past.
    stuck_at: Option<usize>,
}

/// The calls of one pass, and the table after it.
#[derive(Clone, Debug, PartialEq)]
struct Pass {
    calls: Vec<String>,
    table: String,
}

impl Case {
    fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let release = usize::from(!seed.is_multiple_of(4));
        let is_new = release > 0;
        let max = *choose(
            &mut rng,
            if is_new {
                &[100, 100, 100, 10, 1000]
            } else {
                &[100]
            },
        );
        let steps = rng.usize(1..=7);
        let mut steps: Vec<Value> = (0..steps).map(|_| step(&mut rng, is_new, max)).collect();
        let has_threshold = is_new && rng.u8(..3) == 0;
        if has_threshold {
            // Steps do not wait for all Pods then. What ends by itself may end before or after Pods start, and the last Pod may end
            // during any later step.
            steps.retain(|step| {
                let is_timed =
                    step.get("experiment").is_some() || !step["pause"]["duration"].is_null();
                let ends_pods = step["setWeight"] == 0 || step["setCanaryScale"]["replicas"] == 0;
                !is_timed && !ends_pods
            });
        }
        let is_dynamic = rng.u8(..3) == 0;
        let mut routing = json!({
            "managedRoutes": [{ "name": "first" }, { "name": "second" }],
            "plugins": { PLUGIN_NAME: { "routeTableSelector": { "name": "demo" } } },
        });
        if max != 100 {
            routing["maxTrafficWeight"] = json!(max);
        }
        let mut canary = json!({
            "stableService": "demo-stable", "canaryService": "demo-canary",
            "trafficRouting": routing, "steps": steps,
        });
        if has_threshold {
            canary["replicaProgressThreshold"] = choose(
                &mut rng,
                &[
                    json!({ "type": "Percent", "value": 50 }),
                    json!({ "type": "Percent", "value": 100 }),
                    json!({ "type": "Pods", "value": 1 }),
                    json!({ "type": "Pods", "value": 3 }),
                ],
            )
            .clone();
        }
        if is_dynamic {
            canary["dynamicStableScale"] = json!(true);
        } else {
            canary["abortScaleDownDelaySeconds"] = json!(1);
        }
        let pauses: Vec<usize> = (0..steps.len())
            .filter(|it| steps[*it]["pause"] == json!({}))
            .collect();
        let events = [
            Event::Abort,
            Event::Retry,
            Event::PromoteFull,
            Event::NewVersion,
            Event::StableVersion,
        ];
        let event = (!pauses.is_empty() && rng.u8(..4) > 0)
            .then(|| (*choose(&mut rng, &pauses), *choose(&mut rng, &events)));
        let has_window = rng.u8(..3) > 0;
        // Steps that are not skipped may end Pods of the version before, and start them again in no certain order.
        let rollbacks = match is_new && has_window {
            true => &[Rollback::Early, Rollback::Late][..],
            false => &[Rollback::Late],
        };
        let rollback = (event.is_none() && rng.u8(..3) > 0).then(|| *choose(&mut rng, rollbacks));
        // With dynamicStableScale, the Pods of the version before end at once.
        if !is_dynamic {
            let is_late = rollback == Some(Rollback::Late);
            canary["scaleDownDelaySeconds"] = json!(if is_late { 1 } else { 600 });
        }
        let mut spec = json!({ "replicas": rng.u8(1..=5), "strategy": { "canary": canary } });
        if has_window {
            spec["rollbackWindow"] = json!({ "revisions": 1 });
        }
        Self {
            seed,
            release,
            spec,
            event,
            rollback,
        }
    }

    fn namespace(&self) -> String {
        format!("previews-{}", self.seed)
    }

    fn objects(&self) -> Result<Vec<DynamicObject>> {
        let mut objects = parse(&MANIFESTS.replace("$NAMESPACE", &self.namespace()))?;
        let rollout = objects.last_mut().context("no objects")?;
        for (key, value) in self.spec.as_object().into_iter().flatten() {
            rollout.data["spec"][key] = value.clone();
        }
        let labels = rollout.metadata.labels.get_or_insert_default();
        labels.insert(
            "argo-rollouts.argoproj.io/controller-instance-id".to_owned(),
            instance(self.release),
        );
        Ok(objects)
    }

    /// Plays the update with a controller, and returns its passes.
    async fn play(
        &self,
        cluster: &Cluster,
        controller: &Controller,
        record: &Path,
        expected: &Expected,
    ) -> Result<Vec<Pass>> {
        let canary =
            Canary::create(cluster, controller, &self.namespace(), &self.objects()?).await?;
        canary
            .with_slow_pods(cluster, async {
                canary.healthy().await?;
                let mut from = 0;
                if self.rollback.is_some() {
                    // Two versions of the same second have no order.
                    sleep(Duration::from_secs(1)).await;
                    from = self.update_in_full(cluster, &canary, record).await?;
                    canary.change_spec(version(FIRST_IMAGE)).await?;
                } else {
                    canary.change_spec(version(IMAGE)).await?;
                }
                let mut event = self.event;
                loop {
                    let is_next = |stuck: &usize| event.is_none_or(|(at, _)| at > *stuck);
                    let stuck_at = expected.stuck_at.filter(is_next);
                    let step = pause(&canary, stuck_at).await?;
                    canary.pods_settle(cluster).await?;
                    let Some(step) = step else { break };
                    let what = event.filter(|(at, _)| *at == step).map(|(_, what)| what);
                    if what.is_some() {
                        event = None;
                    }
                    match what {
                        None => canary.promote().await?,
                        Some(Event::PromoteFull) => canary.promote_fully().await?,
                        Some(Event::NewVersion) => {
                            canary.change_spec(version(ANOTHER_IMAGE)).await?;
                        }
                        Some(Event::StableVersion) => {
                            canary.change_spec(version(FIRST_IMAGE)).await?;
                        }
                        Some(what) => {
                            canary.abort().await?;
                            canary.aborted().await?;
                            canary.canary_ends(cluster).await?;
                            if what == Event::Abort {
                                break;
                            }
                            canary.retry().await?;
                        }
                    }
                }
                // The controller may be done before the call of the last pass is written down.
                eventually("the last pass is recorded", async || {
                    let passes = passes(&self.recorded(record)?[from..])?;
                    ensure!(passes.last() == expected.passes.last(), "{passes:#?}");
                    Ok(passes)
                })
                .await
            })
            .await
    }

    /// Updates to another version, and returns at which call its last pass starts.
    async fn update_in_full(
        &self,
        cluster: &Cluster,
        canary: &Canary,
        record: &Path,
    ) -> Result<usize> {
        canary.change_spec(version(IMAGE)).await?;
        eventually("the update starts", async || {
            let status = canary.rollout().await?.data["status"].take();
            ensure!(status["currentPodHash"] != status["stableRS"], "{status}");
            Ok(())
        })
        .await?;
        canary.idle().await?;
        canary.promote_fully().await?;
        canary.healthy().await?;
        canary.pods_settle(cluster).await?;
        let canary_spec = &self.spec["strategy"]["canary"];
        if self.rollback == Some(Rollback::Late) || canary_spec["dynamicStableScale"] == true {
            canary.canary_ends(cluster).await?;
        }
        let recorded = self.recorded(record)?;
        let last = recorded.iter().rposition(|call| call["call"] == REMOVE);
        last.context("no pass")
    }

    /// Returns what the plugin has recorded of this Rollout.
    fn recorded(&self, record: &Path) -> Result<Vec<Value>> {
        let lines = fs::read_to_string(record)?;
        let namespace = self.namespace();
        // The last line may be incomplete.
        let (lines, _) = lines.rsplit_once('\n').unwrap_or_default();
        let calls = lines.lines().filter(|line| line.contains(&namespace));
        let calls: Vec<Value> = calls.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(calls
            .into_iter()
            .filter(|call| call["namespace"] == *namespace)
            .collect())
    }

    /// Plays the update with `simulate`.
    async fn simulate(&self, cluster: &Cluster, directory: &Path) -> Result<Expected> {
        let path = directory.join(format!("{}.json", self.seed));
        fs::write(
            &path,
            json!({ "kind": "List", "items": self.objects()? }).to_string(),
        )?;
        let release = RELEASES[self.release].version();
        let mut line = format!(
            "simulate -f {} -o json --controller-release {release}",
            path.display()
        );
        if let Some((step, event)) = self.event {
            line += &match event {
                Event::Abort => format!(" --abort-at {step}"),
                Event::Retry => format!(" --abort-at {step} --retry"),
                Event::PromoteFull => format!(" --promote-full-at {step}"),
                Event::NewVersion => format!(" --new-version-at {step}"),
                Event::StableVersion => format!(" --rollback-at {step}"),
            };
        }
        line += match self.rollback {
            None => "",
            Some(Rollback::Early) => " --rollback=early",
            Some(Rollback::Late) => " --rollback=late",
        };
        let answer = run(cluster.kubeconfig(), &line).await?;
        let report: Value =
            serde_json::from_str(&answer.stdout).with_context(|| answer.stderr.clone())?;
        let passes = report["passes"].as_array().context("no passes")?;
        let last = passes.last().and_then(|pass| pass["at"].as_str());
        let stuck_at = last.filter(|_| report["end"] == "stuck").map(|at| {
            // For example "new version: 3 setWeight 75".
            let (_, at) = at.rsplit_once(": ").unwrap_or(("", at));
            let step = at.split(' ').next().unwrap_or_default();
            step.parse().with_context(|| format!("stuck at {at}"))
        });
        let passes = passes.iter().map(|pass| {
            let calls = pass["calls"].as_array().into_iter().flatten();
            let routes = pass["routes"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|route| {
                    let shares = route["destinations"].as_array().into_iter().flatten();
                    let shares = shares
                        .map(|it| share(&it["destination"], &it["weight"]))
                        .collect();
                    described(&route["route"], shares)
                });
            let calls = calls.filter_map(Value::as_str);
            let calls = calls.map(|call| {
                call.split(' ')
                    .map(without_hash)
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            Pass {
                calls: calls.collect(),
                table: routes.collect::<Vec<_>>().join("; "),
            }
        });
        Ok(Expected {
            passes: joined(passes),
            stuck_at: stuck_at.transpose()?,
        })
    }
}

/// Waits until the update pauses, is at the step at which it gets stuck, or has ended. Returns the step of a pause.
async fn pause(canary: &Canary, stuck_at: Option<usize>) -> Result<Option<usize>> {
    let Some(stuck) = stuck_at else {
        return canary.paused_or_healthy().await;
    };
    let stuck = eventually("the update is stuck", async || {
        let status = canary.rollout().await?.data["status"].take();
        ensure!(status["currentStepIndex"] == stuck && status["phase"] == "Progressing");
        Ok(())
    });
    match select(pin!(canary.paused_or_healthy()), pin!(stuck)).await {
        Either::Left((step, _)) => step,
        Either::Right((stuck, _)) => stuck.map(|()| None),
    }
}

fn choose<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}

/// Returns a random step that the release accepts.
fn step(rng: &mut Rng, is_new: bool, max: i32) -> Value {
    let name = *choose(rng, &["first", "second"]);
    match rng.u8(..if is_new { 16 } else { 10 }) {
        0..=3 => json!({ "setWeight": *choose(rng, &[0, 10, 25, 50, 75, 100]) * max / 100 }),
        4..=6 => json!({ "pause": {} }),
        7 => json!({ "pause": { "duration": 1 } }),
        8 => json!({ "setCanaryScale": *choose(rng, &[
            json!({ "replicas": 1 }), json!({ "replicas": 3 }), json!({ "replicas": 0 }), json!({ "weight": 40 * max / 100 }),
        ]) }),
        9 => json!({ "setCanaryScale": { "matchTrafficWeight": true } }),
        10 | 11 => {
            let matches = json!([{ "headerName": "x-test", "headerValue": { "exact": "yes" } }]);
            json!({ "setHeaderRoute": { "name": name, "match": matches } })
        }
        12 => json!({ "setHeaderRoute": { "name": name } }),
        13 => {
            let matches = json!([{ "method": { "exact": "GET" }, "path": { "prefix": "/" } }]);
            json!({ "setMirrorRoute": { "name": name, "match": matches, "percentage": *choose(rng, &[100, 35, 0]) } })
        }
        14 => json!({ "setMirrorRoute": { "name": name } }),
        _ => {
            let template = |name: &str, spec: &str, weight: i32| {
                json!({
                    "name": name, "specRef": spec, "weight": weight, "replicas": 1,
                })
            };
            json!({ "experiment": { "duration": "12s", "templates": [
                template("old", "stable", 5 * max / 100), template("new", "canary", 10 * max / 100),
            ] } })
        }
    }
}

fn version(image: &str) -> Value {
    let ports = json!([{ "containerPort": 8080 }]);
    json!({ "template": { "spec": { "containers": [{ "name": "app", "image": image, "ports": ports }] } } })
}

fn instance(release: usize) -> String {
    format!("release-{release}")
}

/// Divides recorded calls into passes. `VerifyWeight` ends a pass, and so does a closed gate after `RemoveManagedRoutes`.
fn passes(recorded: &[Value]) -> Result<Vec<Pass>> {
    let mut passes = Vec::new();
    let mut calls: Vec<String> = Vec::new();
    let mut table = String::new();
    for record in recorded {
        ensure!(
            record["error"].is_null(),
            "{}: {}",
            record["call"],
            record["error"]
        );
        let call = record["call"].as_str().context("no call")?;
        if call == REMOVE && !calls.is_empty() {
            passes.push(Pass {
                calls: std::mem::take(&mut calls),
                table: table.clone(),
            });
        }
        table = described_table(&record["table"]);
        match call {
            "VerifyWeight" if calls.is_empty() => {}
            "VerifyWeight" => passes.push(Pass {
                calls: std::mem::take(&mut calls),
                table: table.clone(),
            }),
            "UpdateHash" => {}
            call => calls.push(
                call.split(' ')
                    .map(without_hash)
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
        }
    }
    // The last pass may not have ended.
    Ok(joined(passes))
}

fn described_table(table: &Value) -> String {
    let routes = table["spec"]["http"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|route| {
            let destinations = route["forwardTo"]["destinations"].as_array()?;
            let shares = destinations
                .iter()
                .map(|it| share(&it["ref"]["name"], &it["weight"]));
            Some(described(&route["name"], shares.collect()))
        });
    routes.collect::<Vec<_>>().join("; ")
}

fn share(name: &Value, weight: &Value) -> String {
    format!(
        "{}={weight}",
        without_hash(name.as_str().unwrap_or_default())
    )
}

/// Removes what only the controller knows from the name of an experiment's Service: `demo-HASH-2-0-old` becomes `2-0-old`.
fn without_hash(name: &str) -> &str {
    let after = name
        .strip_prefix("demo-")
        .and_then(|rest| rest.split_once('-'));
    after.map_or(name, |(_, rest)| rest)
}

fn described(route: &Value, shares: BTreeSet<String>) -> String {
    let shares = Vec::from_iter(shares).join(" ");
    format!("{}: {shares}", route.as_str().unwrap_or_default())
}

/// Joins equal passes that follow each other, and equal calls in a pass. A pass that ended after `RemoveManagedRoutes` is joined with
/// the next one, because the record does not tell where it ended.
fn joined(passes: impl IntoIterator<Item = Pass>) -> Vec<Pass> {
    let mut joined: Vec<Pass> = Vec::new();
    for mut pass in passes {
        if joined.pop_if(|last| last.calls == [REMOVE]).is_some() {
            pass.calls.insert(0, REMOVE.to_owned());
        }
        pass.calls.dedup();
        if joined.last() != Some(&pass) {
            joined.push(pass);
        }
    }
    joined
}

fn number(variable: &str) -> Result<Option<u64>> {
    let value = env::var(variable).ok();
    Ok(value.map(|value| value.parse()).transpose()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_plays_what_the_controllers_call() -> Result<()> {
    let count = number("PREVIEWS")?.unwrap_or(ROLLOUTS);
    let first = number("PREVIEWS_SEED")?.unwrap_or(1);
    let directory = tempfile::tempdir()?;
    let examples = env::var_os("EXAMPLES_DIR").context("EXAMPLES_DIR is not set")?;
    let program = Path::new(&examples).join("recording_router");
    let records: Vec<_> = (0..RELEASES.len())
        .map(|it| directory.path().join(format!("{it}.record")))
        .collect();

    let cluster = Cluster::start_without_controller(Release::V1_10).await?;
    cluster.stop_kubelet();
    cluster
        .run(async |cluster| {
            for (index, release) in RELEASES.into_iter().enumerate() {
                fs::write(&records[index], "")?;
                let flag = format!("--instance-id={}", instance(index));
                let setup = Setup {
                    flags: &["--leader-elect=false", "--qps=400", "--burst=800", &flag],
                    variables: &[("RECORD", &records[index])],
                    program: Some(&program),
                    ..Setup::default()
                };
                cluster.register_and_start(release, setup).await?;
            }
            let cases: Vec<Case> = (first..first + count).map(Case::random).collect();
            let (mut compared_calls, mut different) = (0, Vec::new());
            for cases in cases.chunks(AT_ONCE) {
                let started = Instant::now();
                let compared = cases
                    .iter()
                    .map(|case| compare(cluster, &records, directory.path(), case));
                for compared in join_all(compared).await {
                    match compared {
                        Ok(calls) => compared_calls += calls,
                        Err(difference) => different.push(format!("{difference:#}")),
                    }
                }
                eprintln!("{} Rollouts in {:?}", cases.len(), started.elapsed());
            }
            eprintln!("{count} Rollouts, {compared_calls} calls");
            ensure!(
                different.is_empty(),
                "{} differ:\n{}",
                different.len(),
                different.join("\n")
            );
            Ok(())
        })
        .await
}

/// Returns the number of calls that were the same.
#[expect(clippy::print_stderr, reason = "output of a test program")]
async fn compare(
    cluster: &Cluster,
    records: &[std::path::PathBuf],
    directory: &Path,
    case: &Case,
) -> Result<usize> {
    let controller = &cluster.controllers()[case.release];
    let steps = &case.spec["strategy"]["canary"]["steps"];
    let about = || {
        let canary = &case.spec["strategy"]["canary"];
        let steps: Vec<String> = steps
            .as_array()
            .into_iter()
            .flatten()
            .map(ToString::to_string)
            .collect();
        format!(
            "seed {}, {}, replicas {}, dynamic {}, max {}, threshold {}, window {}, {:?}, {:?}\n  {}",
            case.seed,
            RELEASES[case.release].version(),
            case.spec["replicas"],
            canary["dynamicStableScale"],
            canary["trafficRouting"]["maxTrafficWeight"],
            canary["replicaProgressThreshold"],
            case.spec["rollbackWindow"]["revisions"],
            case.event,
            case.rollback,
            steps.join("\n  ")
        )
    };
    let expected = case
        .simulate(cluster, directory)
        .await
        .with_context(about)?;
    let record = &records[case.release];
    let played = case.play(cluster, controller, record, &expected);
    let played = match played.await {
        // A fault of the controller: see `services_named` of the stand-in kubelet.
        Err(error) if format!("{error:#}").contains("no names of its Services") => {
            eprintln!("seed {} is not compared: {error:#}", case.seed);
            return Ok(0);
        }
        played => played.with_context(about)?,
    };
    let calls = played.iter().map(|pass| pass.calls.len()).sum();
    // The first revision comes before.
    let rest = expected.passes.first().cloned();
    let is_rest = |pass: &&Pass| rest.as_ref() == Some(*pass);
    let update = |passes: &[Pass]| {
        let passes = passes
            .iter()
            .skip_while(|pass| !is_rest(pass))
            .skip_while(is_rest);
        passes
            .map(|pass| format!("{} | {}", pass.calls.join(", "), pass.table))
            .collect::<Vec<_>>()
    };
    let (expected, played) = (update(&expected.passes), update(&played));
    if expected != played {
        bail!(
            "{}\nsimulated:\n  {}\nplayed:\n  {}",
            about(),
            expected.join("\n  "),
            played.join("\n  ")
        );
    }
    Ok(calls)
}
