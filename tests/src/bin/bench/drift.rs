//! Drift: edits of RouteTables that contradict the last SetWeight, and the time until the plugin repairs each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::TryStreamExt as _;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::{Instant, interval, sleep};

use crate::measure::{Bench, Report, SETTLE, mean, median, millis, percentile};
use crate::world::{Edit, ROLLOUTS_PER_TABLE, State, canary_share, version};

/// Maximum number of edited tables.
const EDITS: usize = 1000;
/// Time between two edits. A repair reads the Rollout and the Lease, and the plugin sends at most 50 requests per second.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the last repair.
const PATIENCE: Duration = Duration::from_secs(10);
const WEIGHT: i32 = 25;

#[derive(Default)]
struct Drift {
    edits: usize,
    repairs: Vec<Duration>,
    requests: usize,
    patches: usize,
}

/// The versions of each table with the canary's share, and when each was observed.
type Split = Arc<Mutex<BTreeMap<String, Vec<(u64, Instant)>>>>;

impl Bench {
    pub(crate) async fn drift(&mut self, plugins: &[PathBuf]) -> Result<()> {
        let mut all = Vec::new();
        for binary in plugins {
            all.push(self.drift_with(binary).await?);
        }
        let edits = all.first().map_or(0, |it| it.edits);
        let mut report = Report::new(&format!(
            "drift: {edits} edits of RouteTables that contradict SetWeight {WEIGHT}, one each {} ms",
            PAUSE.as_millis()
        ));
        report.row("repaired", &all, |it| it.repairs.len().to_string());
        let delay = |it: &Drift, seconds: f64| match it.repairs.is_empty() {
            true => "-".to_owned(),
            false => millis(seconds),
        };
        report.row("from the edit to its repair: median ms", &all, |it| {
            delay(it, median(&it.repairs))
        });
        report.row("from the edit to its repair: p99 ms", &all, |it| {
            delay(it, percentile(&it.repairs, 99))
        });
        report.row("PATCHes of the plugin per edit", &all, |it| {
            mean(it.patches, it.edits)
        });
        report.row("requests of the plugin per edit", &all, |it| {
            mean(it.requests, it.edits)
        });
        report.print();
        Ok(())
    }

    async fn drift_with(&mut self, binary: &Path) -> Result<Drift> {
        let plugin = self.start(binary).await?;
        sleep(SETTLE).await;
        let tables = self.world.tables().min(EDITS);
        let first_of_each: Vec<usize> = (0..tables).map(|it| it * ROLLOUTS_PER_TABLE).collect();
        self.world
            .set_states(&first_of_each, State::Updating)
            .await?;
        self.each(&first_of_each, async |rollout| {
            plugin.change(rollout, WEIGHT).await
        })
        .await?;

        let split = Split::default();
        let watching = tokio::spawn(watch(self.world.watch(), Arc::clone(&split)));
        sleep(SETTLE).await;
        self.proxy.take_requests();
        let mut random = fastrand::Rng::with_seed(1);
        let mut order: Vec<usize> = (0..tables).collect();
        random.shuffle(&mut order);
        let mut edits = Vec::new();
        let mut ticks = interval(PAUSE);
        for table in order {
            ticks.tick().await;
            let edit = random.choice(Edit::ALL).context("no kind of edit")?;
            let edited = self.world.edit(table, edit).await?;
            edits.push((edited, Instant::now()));
        }
        sleep(PATIENCE).await;
        watching.abort();

        let split = split.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let repairs = edits.iter().filter_map(|(edited, at)| {
            let seen = split.get(edited.metadata.name.as_deref()?)?;
            let repaired = seen.iter().find(|(seen, _)| *seen > version(edited))?;
            Some(repaired.1.duration_since(*at))
        });
        let seen = self.proxy.take_requests();
        let is_patch = |verb: &str, resource: &str| verb == "patch" && resource == "routetables";
        let measured = Drift {
            edits: edits.len(),
            repairs: repairs.collect(),
            requests: seen.len(),
            patches: seen
                .iter()
                .filter(|it| is_patch(it.verb, &it.resource))
                .count(),
        };
        self.each(&first_of_each, async |rollout| {
            plugin.set_weight(rollout, 0).await
        })
        .await?;
        plugin.quit().await?;
        self.world
            .set_states(&first_of_each, State::Resting)
            .await?;
        for table in 0..tables {
            self.world.write_again(table).await?;
        }
        Ok(measured)
    }
}

/// Records each version of a table with the canary's share. Runs until it is aborted.
async fn watch(tables: kube::Api<DynamicObject>, split: Split) -> Result<()> {
    let seen = watcher(tables, watcher::Config::default()).applied_objects();
    seen.try_for_each(async |table| {
        if canary_share(&table) == Some(WEIGHT.into())
            && let Some(name) = &table.metadata.name
        {
            let mut split = split.lock().unwrap_or_else(PoisonError::into_inner);
            let versions = split.entry(name.clone()).or_default();
            versions.push((version(&table), Instant::now()));
        }
        Ok(())
    })
    .await?;
    Ok(())
}
