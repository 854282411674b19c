//! The parts of the measurement except [drift](crate::drift): one Rollout, many Rollouts, and a new leader.

#![expect(clippy::print_stdout, reason = "prints measurements")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, Proxy, RecordedRequest, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rollouts_rpc::Rollout;
use serde_json::Value;
use tokio::time::sleep;

use crate::Args;
use crate::plugin::Plugin;
use crate::storm::OtherClient;
use crate::world::{ROLLOUTS_PER_TABLE, State, World};

/// Rounds of the short parts.
const ROUNDS: usize = 5;
/// Steady passes of each round.
const PASSES: usize = 300;
/// Changed weights and bare requests of each round. Even, so that the weight at the end is the one at the start.
const CHANGES: usize = 100;
/// How often all Rollouts of one table get another weight in each round.
const SHARED: usize = 10;
/// Passes that are not measured, in which connections are opened and memory is allocated.
const WARM_UP: usize = 20;
/// Number of Rollouts that the controller reconciles concurrently by default.
const WORKERS: usize = 10;
/// The second part uses this fraction of the Rollouts.
pub(crate) const FEWER: usize = 5;
/// Time for a plugin to start its watches, in the parts that do not measure the start.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
/// After this long without a request, the plugin has finished its lists.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) struct Bench {
    args: Args,
    pub(crate) world: World,
    pub(crate) proxy: Proxy,
    /// A client whose requests go through the proxy, like the plugin's.
    client: Client,
    pub(crate) other: OtherClient,
}

impl Bench {
    pub(crate) async fn new(cluster: &Cluster, args: Args) -> Result<Self> {
        let world = World::new(cluster).await?;
        let proxy = Proxy::start(cluster).await?;
        proxy.set_delay(args.delay);
        let kubeconfig = Kubeconfig::read_from(proxy.kubeconfig())?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(Self {
            args,
            world,
            proxy,
            client: Client::try_from(config)?,
            other: OtherClient::new(cluster).await?,
        })
    }

    pub(crate) async fn run(mut self) -> Result<()> {
        let plugins = &self.args.plugins.clone();
        self.world.create(ROLLOUTS_PER_TABLE).await?;
        self.one_rollout(plugins).await?;
        let fewer = self.args.rollouts / FEWER;
        self.world.create(fewer).await?;
        self.many_rollouts(plugins).await?;
        self.storm(plugins, &[]).await?;
        self.world.create(self.args.rollouts).await?;
        self.new_leader(plugins).await?;
        self.drift(plugins).await
    }

    /// Measures only the storm, with as many Rollouts as in [`Self::run`]. The API server has these flags.
    pub(crate) async fn run_storm(mut self, flags: &[&str]) -> Result<()> {
        self.world.create(self.args.rollouts / FEWER).await?;
        self.storm(&self.args.plugins.clone(), flags).await
    }

    pub(crate) async fn start(&self, binary: &Path) -> Result<Plugin> {
        self.start_with(binary, &[]).await
    }

    /// Starts a plugin with these environment variables.
    pub(crate) async fn start_with(
        &self,
        binary: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Plugin> {
        Plugin::start(binary, self.proxy.kubeconfig(), variables).await
    }

    /// One Rollout: a steady pass, a changed weight, and the bare requests that a changed weight needs at least.
    async fn one_rollout(&mut self, plugins: &[PathBuf]) -> Result<()> {
        let mut all = vec![OneRollout::default(); plugins.len()];
        for _ in 0..ROUNDS {
            for (measured, binary) in all.iter_mut().zip(plugins) {
                self.one_rollout_with(binary, measured).await?;
            }
        }
        let size = self.world.rollout_size(0)?;
        let mut report = Report::new(&format!(
            "one Rollout of {} KB, {ROUNDS} rounds",
            size / 1000
        ));
        let passes = ROUNDS * PASSES;
        let changes = ROUNDS * CHANGES;
        let ratio = |it: &OneRollout| median(&it.change) / median(&it.bare_patch);
        report.row("steady pass: requests", &all, |it| {
            mean(it.steady_requests, passes)
        });
        report.row("steady pass: median ms", &all, |it| {
            millis(median(&it.steady))
        });
        report.row("steady pass: CPU ms of the plugin", &all, |it| {
            millis(it.steady_cpu.as_secs_f64() / passes as f64)
        });
        report.row("changed SetWeight: requests", &all, |it| {
            mean(it.change_requests, changes)
        });
        report.row("changed SetWeight: median ms", &all, |it| {
            millis(median(&it.change))
        });
        report.row("changed SetWeight: CPU ms of the plugin", &all, |it| {
            millis(it.change_cpu.as_secs_f64() / changes as f64)
        });
        report.row("bare PATCH, same operations: median ms", &all, |it| {
            millis(median(&it.bare_patch))
        });
        report.row("changed SetWeight, times the bare PATCH", &all, |it| {
            format!("{:.2}", ratio(it))
        });
        report.row("bare GET of the RouteTable: median ms", &all, |it| {
            millis(median(&it.bare_get))
        });
        report.print();
        Ok(())
    }

    async fn one_rollout_with(&mut self, binary: &Path, measured: &mut OneRollout) -> Result<()> {
        let plugin = self.start(binary).await?;
        sleep(SETTLE).await;
        let resting = self.world.rollout(0)?;
        for _ in 0..WARM_UP {
            plugin.steady_pass(resting).await?;
        }
        self.proxy.take_requests();
        let cpu = plugin.cpu()?;
        for _ in 0..PASSES {
            let begin = Instant::now();
            plugin.steady_pass(resting).await?;
            measured.steady.push(begin.elapsed());
        }
        measured.steady_cpu += plugin.cpu()? - cpu;
        measured.steady_requests += self.proxy.take_requests().len();

        self.world.set_state(0, State::Updating).await?;
        let updating = self.world.rollout(0)?;
        for weight in [25, 50] {
            plugin.change(updating, weight).await?;
        }
        let mut patches = Vec::new();
        self.proxy.take_requests();
        let cpu = plugin.cpu()?;
        for change in 0..CHANGES {
            let weight = if change % 2 == 0 { 25 } else { 50 };
            measured.change.push(plugin.change(updating, weight).await?);
            if change < 2 {
                let patch = self.proxy.last_patch();
                patches.push(patch.context("a changed weight sent no PATCH")?);
            }
        }
        measured.change_cpu += plugin.cpu()? - cpu;
        measured.change_requests += self.proxy.take_requests().len();
        plugin.quit().await?;

        // The plugin has ended, so nothing else watches the table.
        let mut table = self.get(&patches).await?;
        for change in 0..CHANGES {
            let patch = patches.get(change % 2).context("two changes")?;
            let patch = at_version_of(patch, &table)?;
            let begin = Instant::now();
            let text = self.client.request_text(patch).await?;
            measured.bare_patch.push(begin.elapsed());
            table = serde_json::from_str(&text)?;
        }
        for _ in 0..CHANGES {
            let begin = Instant::now();
            self.get(&patches).await?;
            measured.bare_get.push(begin.elapsed());
        }
        // Another version of the plugin may not be able to read this one's records.
        self.world.write_again(0).await?;
        self.world.set_state(0, State::Resting).await?;
        self.proxy.take_requests();
        Ok(())
    }

    /// Reads the table of the PATCHes.
    async fn get(&self, patches: &[Request<Vec<u8>>]) -> Result<Value> {
        let path = patches.first().context("no PATCH")?.uri().path();
        Ok(self
            .client
            .request(Request::get(path).body(Vec::new())?)
            .await?)
    }

    /// Many Rollouts: ten workers, as in the controller, on a fifth of the Rollouts.
    async fn many_rollouts(&mut self, plugins: &[PathBuf]) -> Result<()> {
        let mut all = vec![ManyRollouts::default(); plugins.len()];
        for _ in 0..ROUNDS {
            for (measured, binary) in all.iter_mut().zip(plugins) {
                self.many_rollouts_with(binary, measured).await?;
            }
        }
        let (rollouts, tables) = (self.world.rollouts(), self.world.tables());
        let mut report = Report::new(&format!(
            "{WORKERS} workers, {rollouts} Rollouts, {tables} RouteTables, {ROUNDS} rounds"
        ));
        report.row("steady passes per second", &all, |it| {
            format!(
                "{:.0}",
                it.steady.len() as f64 / it.steady_time.as_secs_f64()
            )
        });
        report.row("steady pass: requests", &all, |it| {
            mean(it.steady_requests, it.steady.len())
        });
        report.row("steady pass: median ms", &all, |it| {
            millis(median(&it.steady))
        });
        report.row("steady pass: p99 ms", &all, |it| {
            millis(percentile(&it.steady, 99))
        });
        report.row("steady pass: CPU ms of the plugin", &all, |it| {
            millis(it.steady_cpu.as_secs_f64() / it.steady.len() as f64)
        });
        report.row("changed SetWeight: requests", &all, |it| {
            mean(it.change_requests, it.change.len())
        });
        report.row("changed SetWeight: median ms", &all, |it| {
            millis(median(&it.change))
        });
        report.row("changed SetWeight: p99 ms", &all, |it| {
            millis(percentile(&it.change, 99))
        });
        report.row("weights of one table at once: requests", &all, |it| {
            mean(it.shared_requests, it.shared.len())
        });
        report.row("weights of one table at once: median ms", &all, |it| {
            millis(median(&it.shared))
        });
        report.row("weights of one table at once: CPU ms", &all, |it| {
            millis(it.shared_cpu.as_secs_f64() / it.shared.len() as f64)
        });
        report.row("peak memory, MiB", &all, |it| mebibytes(it.memory));
        report.print();
        Ok(())
    }

    async fn many_rollouts_with(
        &mut self,
        binary: &Path,
        measured: &mut ManyRollouts,
    ) -> Result<()> {
        let plugin = self.start(binary).await?;
        sleep(SETTLE).await;
        let everything: Vec<usize> = (0..self.world.rollouts()).collect();
        self.steady_passes(&plugin, &everything).await?;
        self.proxy.take_requests();
        let (cpu, begin) = (plugin.cpu()?, Instant::now());
        let times = self.steady_passes(&plugin, &everything).await?;
        measured.steady_time += begin.elapsed();
        measured.steady_cpu += plugin.cpu()? - cpu;
        measured.steady.extend(times);
        measured.steady_requests += self.proxy.take_requests().len();

        // One Rollout of each table.
        let some: Vec<usize> = everything.into_iter().step_by(ROLLOUTS_PER_TABLE).collect();
        self.world.set_states(&some, State::Updating).await?;
        self.proxy.take_requests();
        for weight in [25, 50] {
            let times = self.each(&some, async |rollout| plugin.change(rollout, weight).await);
            measured.change.extend(times.await?);
        }
        measured.change_requests += self.proxy.take_requests().len();
        self.each(&some, async |rollout| plugin.set_weight(rollout, 0).await)
            .await?;
        self.world.set_states(&some, State::Resting).await?;

        // All Rollouts of one table.
        let shared: Vec<usize> = (0..ROLLOUTS_PER_TABLE).collect();
        self.world.set_states(&shared, State::Updating).await?;
        self.proxy.take_requests();
        let cpu = plugin.cpu()?;
        for change in 0..SHARED {
            let weight = if change % 2 == 0 { 25 } else { 50 };
            let times = self.each(&shared, async |rollout| {
                plugin.change(rollout, weight).await
            });
            measured.shared.extend(times.await?);
        }
        measured.shared_cpu += plugin.cpu()? - cpu;
        measured.shared_requests += self.proxy.take_requests().len();
        self.each(&shared, async |rollout| plugin.set_weight(rollout, 0).await)
            .await?;
        self.world.set_states(&shared, State::Resting).await?;
        measured.memory = measured.memory.max(plugin.peak_memory()?);
        plugin.quit().await
    }

    /// Runs a pass of each of these Rollouts, with ten workers.
    async fn steady_passes(&self, plugin: &Plugin, rollouts: &[usize]) -> Result<Vec<Duration>> {
        let pass = async |rollout: &Rollout| {
            let begin = Instant::now();
            plugin.steady_pass(rollout).await?;
            Ok(begin.elapsed())
        };
        self.each(rollouts, pass).await
    }

    /// Runs `call` for each of these Rollouts, with ten workers.
    pub(crate) async fn each<T>(
        &self,
        rollouts: &[usize],
        call: impl AsyncFn(&Rollout) -> Result<T>,
    ) -> Result<Vec<T>> {
        let calls = stream::iter(rollouts.iter().copied())
            .map(async |index| call(self.world.rollout(index)?).await);
        calls.buffer_unordered(WORKERS).try_collect().await
    }

    /// A new leader: starts a plugin, and runs a pass of every Rollout.
    async fn new_leader(&mut self, plugins: &[PathBuf]) -> Result<()> {
        let mut all = Vec::new();
        for binary in plugins {
            all.push(self.new_leader_with(binary).await?);
        }
        let (rollouts, tables) = (self.world.rollouts(), self.world.tables());
        let mut report = Report::new(&format!(
            "a new leader: {WORKERS} workers, {rollouts} Rollouts at rest, {tables} RouteTables of {} KiB",
            self.world.table_size(0).await? / 1024
        ));
        let seconds = |it: Duration| format!("{:.1}", it.as_secs_f64());
        report.row("s until each Rollout had its pass", &all, |it| {
            seconds(it.passes)
        });
        report.row("s until everything was listed", &all, |it| {
            it.listed.map_or_else(|| "-".to_owned(), seconds)
        });
        report.row("requests in total", &all, |it| {
            it.requests.values().sum::<usize>().to_string()
        });
        report.row("of these, GETs of an object", &all, |it| {
            it.requests.get("get").unwrap_or(&0).to_string()
        });
        report.row("CPU s of the plugin", &all, |it| seconds(it.cpu));
        report.row("peak memory, MiB", &all, |it| mebibytes(it.memory));
        let relists = self.args.relists;
        report.row(
            &format!("peak memory after {relists} more lists, MiB"),
            &all,
            |it| it.memory_later.map_or_else(|| "-".to_owned(), mebibytes),
        );
        report.print();
        Ok(())
    }

    async fn new_leader_with(&self, binary: &Path) -> Result<NewLeader> {
        self.proxy.take_requests();
        let begin = tokio::time::Instant::now();
        let plugin = self.start(binary).await?;
        let everything: Vec<usize> = (0..self.world.rollouts()).collect();
        self.steady_passes(&plugin, &everything).await?;
        let passes = begin.elapsed();
        let mut seen = self.proxy.take_requests();
        loop {
            sleep(SILENCE).await;
            let more = self.proxy.take_requests();
            if more.is_empty() {
                break;
            }
            seen.extend(more);
        }
        let mut requests = BTreeMap::new();
        for RecordedRequest { verb, .. } in &seen {
            *requests.entry(*verb).or_default() += 1;
        }
        let watched = first_watches(&seen);
        let mut measured = NewLeader {
            passes,
            // A watch starts when its list is complete.
            listed: watched.values().max().map(|last| *last - begin),
            requests,
            cpu: plugin.cpu()?,
            memory: plugin.peak_memory()?,
            memory_later: None,
        };
        if !watched.is_empty() {
            for _ in 0..self.args.relists {
                self.relist(watched.len()).await?;
            }
            measured.memory_later = Some(plugin.peak_memory()?);
        }
        plugin.quit().await?;
        Ok(measured)
    }

    /// Makes the plugin list again, and waits until it watches again.
    async fn relist(&self, resources: usize) -> Result<()> {
        self.proxy.take_requests();
        self.proxy.expire_watches();
        let mut seen = Vec::new();
        eventually("everything is watched again", async || {
            seen.extend(self.proxy.take_requests());
            let lists = seen.iter().filter(|it| it.verb == "list").count();
            ensure!(
                lists > 0 && first_watches(&seen).len() == resources,
                "{lists} lists"
            );
            Ok(())
        })
        .await
    }
}

/// Returns when each resource was watched for the first time.
fn first_watches(seen: &[RecordedRequest]) -> BTreeMap<&str, tokio::time::Instant> {
    let mut first = BTreeMap::new();
    for it in seen.iter().filter(|it| it.verb == "watch") {
        first.entry(it.resource.as_str()).or_insert(it.at);
    }
    first
}

/// Returns the same PATCH, with a `test` of the table's current version.
fn at_version_of(patch: &Request<Vec<u8>>, table: &Value) -> Result<Request<Vec<u8>>> {
    let mut operations: Vec<Value> = serde_json::from_slice(patch.body())?;
    let version = table.pointer("/metadata/resourceVersion");
    let version = version.context("a table without a version")?;
    for operation in &mut operations {
        let is_test = operation
            .get("path")
            .is_some_and(|path| path == "/metadata/resourceVersion");
        if let (true, Some(value)) = (is_test, operation.get_mut("value")) {
            *value = version.clone();
        }
    }
    let mut request = patch.clone();
    // The new body has another length.
    request.headers_mut().remove(http::header::CONTENT_LENGTH);
    *request.body_mut() = serde_json::to_vec(&operations)?;
    Ok(request)
}

pub(crate) fn median(times: &[Duration]) -> f64 {
    percentile(times, 50)
}

fn mebibytes(kibibytes: u64) -> String {
    format!("{:.1}", kibibytes as f64 / 1024.0)
}

#[derive(Clone, Default)]
struct OneRollout {
    steady: Vec<Duration>,
    steady_cpu: Duration,
    steady_requests: usize,
    change: Vec<Duration>,
    change_cpu: Duration,
    change_requests: usize,
    bare_patch: Vec<Duration>,
    bare_get: Vec<Duration>,
}

#[derive(Clone, Default)]
struct ManyRollouts {
    steady: Vec<Duration>,
    steady_time: Duration,
    steady_cpu: Duration,
    steady_requests: usize,
    change: Vec<Duration>,
    change_requests: usize,
    /// Weights of Rollouts that share a table.
    shared: Vec<Duration>,
    shared_cpu: Duration,
    shared_requests: usize,
    /// In KiB.
    memory: u64,
}

struct NewLeader {
    passes: Duration,
    listed: Option<Duration>,
    /// By verb.
    requests: BTreeMap<&'static str, usize>,
    cpu: Duration,
    /// In KiB.
    memory: u64,
    memory_later: Option<u64>,
}

const NAME_WIDTH: usize = 44;
const COLUMN_WIDTH: usize = 12;

/// One table.
pub(crate) struct Report(String);

impl Report {
    pub(crate) fn new(title: &str) -> Self {
        Self(format!("\n{title}\n"))
    }

    /// Adds a row with one value for each plugin.
    pub(crate) fn row<T>(&mut self, name: &str, plugins: &[T], value: impl Fn(&T) -> String) {
        self.0 += &format!("  {name:<NAME_WIDTH$}");
        for plugin in plugins {
            self.0 += &format!("{:>COLUMN_WIDTH$}", value(plugin));
        }
        self.0.push('\n');
    }

    /// Adds rows with the median and the 99th percentile of times.
    pub(crate) fn times<T>(
        &mut self,
        name: &str,
        plugins: &[T],
        times: impl Fn(&T) -> &[Duration],
    ) {
        for (of, percent) in [("median", 50), ("p99", 99)] {
            self.row(&format!("{name}: {of} ms"), plugins, |it| {
                millis(percentile(times(it), percent))
            });
        }
    }

    pub(crate) fn print(self) {
        print!("{}", self.0);
    }
}

/// Prints the plugins of the columns.
pub(crate) fn title(plugins: &[PathBuf], delay: Duration) {
    for (index, plugin) in plugins.iter().enumerate() {
        println!("column {}: {}", index + 1, plugin.display());
    }
    if !delay.is_zero() {
        println!("every request is delayed by {} ms", delay.as_millis());
    }
}

/// Returns a percentile in seconds.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    let index = times.len().saturating_sub(1) * percent / 100;
    times.get(index).copied().unwrap_or_default().as_secs_f64()
}

/// Formats seconds as milliseconds.
pub(crate) fn millis(seconds: f64) -> String {
    format!("{:.2}", seconds * 1000.0)
}

pub(crate) fn mean(sum: usize, count: usize) -> String {
    format!("{:.2}", sum as f64 / count as f64)
}
