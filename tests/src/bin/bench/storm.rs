//! A storm: all Rollouts get another weight at once, with the limit of requests and without it, beside another client.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e_tests::{Cluster, grant};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{PolicyRule, Subject};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rollouts_rpc::Rollout;
use serde_json::json;
use tokio::time::sleep;

use crate::measure::{Bench, Report, SETTLE};
use crate::plugin::Plugin;
use crate::world::{ROLLOUTS_PER_TABLE, State};

/// The limits that are compared.
const LIMITS: [(&str, &[(&str, &str)]); 2] =
    [("none", &[]), ("--qps 50", &[("GLOO_PLUGIN_QPS", "50")])];
/// The pauses of the controller before it reconciles a Rollout again whose reconcile failed: the first one, which doubles, and
/// the longest one.
const REQUEUE: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(10)];
/// How often a call may fail.
const TRIES: u32 = 30;

struct Storm {
    /// The time of each weight, with all calls that failed before.
    weights: Vec<Duration>,
    took: Duration,
    requests: usize,
    /// Answers with status 429.
    refused: usize,
    /// Calls of the controller that failed.
    failed: usize,
    other: Seen,
}

impl Bench {
    /// Measures the storm. The API server has these flags.
    pub(crate) async fn storm(&mut self, plugins: &[PathBuf], flags: &[&str]) -> Result<()> {
        // Neighbours are of different tables: the plugin writes the weights of one table together.
        let (count, tables) = (self.world.rollouts(), self.world.tables());
        let of_place = |place| (0..tables).map(move |table| table * ROLLOUTS_PER_TABLE + place);
        let everything = (0..ROLLOUTS_PER_TABLE).flat_map(of_place);
        let everything: Vec<usize> = everything.filter(|index| *index < count).collect();
        for (name, limits) in LIMITS {
            let mut all = Vec::new();
            for binary in plugins {
                all.push(self.storm_with(binary, limits, &everything).await?);
            }
            let mut report = Report::new(&format!(
                "a storm: {count} weights at once, limit of requests: {name}; kube-apiserver {}",
                flags.join(" ")
            ));
            report.row("s until all are answered", &all, |it| {
                format!("{:.1}", it.took.as_secs_f64())
            });
            report.times("changed weight", &all, |it| &it.weights);
            report.row("calls that failed", &all, |it| it.failed.to_string());
            report.row("requests", &all, |it| it.requests.to_string());
            report.row("answers 429", &all, |it| it.refused.to_string());
            report.times("GET of another client", &all, |it| &it.other.reads);
            report.times("PATCH of another client", &all, |it| &it.other.writes);
            report.row("answers 429 to the other client", &all, |it| {
                let of = it.other.refused + it.other.reads.len() + it.other.writes.len();
                format!("{} of {of}", it.other.refused)
            });
            report.print();
        }
        Ok(())
    }

    async fn storm_with(
        &mut self,
        binary: &Path,
        limits: &[(&str, &str)],
        everything: &[usize],
    ) -> Result<Storm> {
        self.world.set_states(everything, State::Updating).await?;
        let plugin = self.start_with(binary, limits).await?;
        sleep(SETTLE).await;
        let failed = AtomicUsize::new(0);
        let set = async |rollout: &Rollout, weight| change(&plugin, rollout, weight, &failed).await;
        // The first weight adds the canary.
        self.each(everything, async |it| set(it, 25).await).await?;
        sleep(SETTLE).await;
        failed.store(0, Ordering::Relaxed);
        self.proxy.take_requests();
        let refused = self.proxy.refused();
        let begin = Instant::now();
        let mut other = Seen::default();
        let weights = tokio::select! {
            weights = self.each(everything, async |it| set(it, 50).await) => weights?,
            never = self.other.work(&mut other) => return never,
        };
        let storm = Storm {
            weights,
            took: begin.elapsed(),
            requests: self.proxy.take_requests().len(),
            refused: self.proxy.refused() - refused,
            failed: failed.load(Ordering::Relaxed),
            other,
        };
        self.each(everything, async |it| set(it, 0).await).await?;
        self.world.set_states(everything, State::Resting).await?;
        plugin.quit().await?;
        Ok(storm)
    }
}

/// Sets another weight, like the controller, which calls again after a failure. Returns the time of all calls.
async fn change(
    plugin: &Plugin,
    rollout: &Rollout,
    weight: i32,
    failed: &AtomicUsize,
) -> Result<Duration> {
    let [mut pause, longest] = REQUEUE;
    let begin = Instant::now();
    for _ in 1..TRIES {
        if plugin.change(rollout, weight).await.is_ok() {
            return Ok(begin.elapsed());
        }
        failed.fetch_add(1, Ordering::Relaxed);
        sleep(pause).await;
        pause = longest.min(pause * 2);
    }
    plugin.change(rollout, weight).await?;
    Ok(begin.elapsed())
}

/// A client with a user of its own that reads and writes a ConfigMap. It is not one of the administrators, whom the API server
/// never refuses.
pub(crate) struct OtherClient(Api<ConfigMap>);

/// What the other client saw.
#[derive(Default)]
struct Seen {
    reads: Vec<Duration>,
    writes: Vec<Duration>,
    /// Answers with status 429.
    refused: usize,
}

impl OtherClient {
    const NAMESPACE: &str = "default";
    const NAME: &str = "other";
    /// The pause after each request.
    const PAUSE: Duration = Duration::from_millis(25);

    pub(crate) async fn new(cluster: &Cluster) -> Result<Self> {
        let rule = PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["configmaps".to_owned()]),
            verbs: vec!["get".to_owned(), "patch".to_owned()],
            ..PolicyRule::default()
        };
        let subject = Subject {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "User".to_owned(),
            name: Self::NAME.to_owned(),
            namespace: None,
        };
        grant(cluster.client(), Self::NAME, &[rule], subject).await?;
        let map = serde_json::from_value(json!({ "metadata": { "name": Self::NAME } }))?;
        let owned: Api<ConfigMap> = Api::namespaced(cluster.client().clone(), Self::NAMESPACE);
        owned.create(&PostParams::default(), &map).await?;
        let client = cluster.client_as_without_retries(Self::NAME).await?;
        Ok(Self(Api::namespaced(client, Self::NAMESPACE)))
    }

    /// Reads and writes in turn, until it is cancelled or an answer is an error other than 429.
    async fn work<T>(&self, seen: &mut Seen) -> Result<T> {
        for round in 0_u64.. {
            let is_read = round % 2 == 0;
            let begin = Instant::now();
            let answer = if is_read {
                self.0.get(Self::NAME).await
            } else {
                let patch = json!({ "data": { "round": round.to_string() } });
                let params = PatchParams::default();
                self.0
                    .patch(Self::NAME, &params, &Patch::Merge(patch))
                    .await
            };
            match answer {
                Ok(_) if is_read => seen.reads.push(begin.elapsed()),
                Ok(_) => seen.writes.push(begin.elapsed()),
                Err(kube::Error::Api(status)) if status.code == 429 => seen.refused += 1,
                Err(error) => return Err(error.into()),
            }
            sleep(Self::PAUSE).await;
        }
        std::future::pending().await
    }
}
