//! Series that are computed when Prometheus scrapes: the state of each watch, and memory and CPU of this process. Also
//! the optional series for each Rollout, which expire.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gloo_types::ObjectKey;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Unit;
use route_store::{FRESH, InformerStatus};
use tokio::time::Instant;
use tracing::warn;

use super::KindLabels;

type Status = Box<dyn Fn() -> InformerStatus + Send + Sync>;

/// The watched kinds. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Mutex<Vec<Watch>>>);

struct Watch {
    cluster: &'static str,
    kind: &'static str,
    status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    cluster: &'static str,
    kind: &'static str,
}

/// The values of one kind.
struct Values {
    labels: WatchLabels,
    /// Absent while the kind is not watched, as MirrorPolicies while no Rollout has mirror steps.
    is_synced: Option<bool>,
    /// Number of namespaces that are watched one by one; 0 if all are watched together.
    namespaces: Option<i64>,
    /// Seconds since 1970; absent before the first list.
    last_sign: Option<f64>,
    restarts: u64,
    objects: u64,
    bytes: u64,
}

impl Watches {
    pub(super) fn add(&self, cluster: &'static str, kind: &'static str, status: Status) {
        self.watches().push(Watch {
            cluster,
            kind,
            status,
        });
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watches")
    }
}

impl Values {
    /// Reads the values of a kind. The namespace that is furthest behind counts.
    fn of(watch: &Watch, now: f64) -> Self {
        let status = (watch.status)();
        let in_use = || status.scopes.iter().filter(|scope| scope.is_in_use);
        let is_any = !status.scopes.is_empty();
        let ages: Option<Vec<_>> = in_use().map(|scope| scope.age).collect();
        let oldest = ages.and_then(|all| all.into_iter().max());
        Self {
            labels: WatchLabels {
                cluster: watch.cluster,
                kind: watch.kind,
            },
            is_synced: is_any.then(|| oldest.is_some_and(|age| age <= FRESH)),
            namespaces: is_any.then(|| in_use().filter(|it| it.namespace.is_some()).count() as i64),
            last_sign: oldest.map(|age| now - age.as_secs_f64()),
            restarts: status.scopes.iter().map(|scope| scope.restarts).sum(),
            objects: status.objects as u64,
            bytes: status.bytes as u64,
        }
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        let watches = self.watches();
        let values: Vec<Values> = watches.iter().map(|it| Values::of(it, now)).collect();
        let mut family = Families {
            encoder: &mut encoder,
            values: &values,
        };
        family.gauge(
            "watch_synced",
            "Whether the cache has all objects of a kind, in the namespaces that can be watched, and is current",
            |it| it.is_synced.map(i64::from),
        )?;
        family.gauge(
            "watch_namespaces",
            "Number of namespaces that are watched one by one, because all together cannot be; 0 if all are watched",
            |it| it.namespaces,
        )?;
        family.gauge(
            "watch_last_sign_timestamp_seconds",
            "Time as of which the API server has confirmed the content of the cache",
            |it| it.last_sign,
        )?;
        family.counter(
            "watch_restarts",
            "Lists and watches that ended with an error",
            |it| it.restarts,
        )?;
        family.by_kind("cache_objects", "Objects in the cache", |it| it.objects)?;
        family.by_kind(
            "cache_bytes",
            "Memory that the objects in the cache take",
            |it| it.bytes,
        )
    }
}

struct Families<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    values: &'a [Values],
}

impl Families<'_, '_> {
    fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Values) -> Option<V>,
    ) -> Result<(), fmt::Error> {
        self.put(name, help, MetricType::Gauge, |it| {
            value(it).map(|value| (it.labels.clone(), ConstGauge::new(value)))
        })
    }

    fn counter<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Values) -> V,
    ) -> Result<(), fmt::Error> {
        self.put(name, help, MetricType::Counter, |it| {
            Some((it.labels.clone(), ConstCounter::new(value(it))))
        })
    }

    /// Writes a gauge without a cluster label: each kind is in one cluster only.
    fn by_kind(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Values) -> u64,
    ) -> Result<(), fmt::Error> {
        self.put(name, help, MetricType::Gauge, |it| {
            let kind = it.labels.kind;
            Some((KindLabels { kind }, ConstGauge::new(value(it))))
        })
    }

    fn put<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        value: impl Fn(&Values) -> Option<(L, M)>,
    ) -> Result<(), fmt::Error> {
        // A metric without series is not declared.
        if self.values.is_empty() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in self.values.iter().filter_map(value) {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Linux reports CPU time to user space in hundredths of a second (`USER_HZ`) on all supported architectures.
const TICKS: f64 = 100.0;

/// Memory and CPU of this process, under the names that every Prometheus client uses. Reads `/proc/self` at each scrape;
/// without that file there are no series.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        if let Some(bytes) = resident_bytes(&read("/proc/self/status")) {
            let gauge = ConstGauge::new(bytes);
            let help = "Resident memory size in bytes";
            let name = "process_resident_memory";
            let metric =
                encoder.encode_descriptor(name, help, Some(&Unit::Bytes), gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        if let Some(seconds) = cpu_seconds(&read("/proc/self/stat")) {
            let counter = ConstCounter::new(seconds);
            let help = "Total user and system CPU time spent in seconds";
            let name = "process_cpu";
            let metric = encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                counter.metric_type(),
            )?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}

/// Parses `VmRSS` of `/proc/self/status`, which is in KiB.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Parses `utime` and `stime` of `/proc/self/stat`, fields 14 and 15. Field 2, the name of the program, may contain any
/// character.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let mut time = || times.next()?.parse::<f64>().ok();
    Some((time()? + time()?) / TICKS)
}

/// Largest number of Rollouts with a series.
const MOST_ROLLOUTS: usize = 2000;
/// The controller reconciles each Rollout every 15 minutes. A Rollout without a call for twice as long was deleted.
const ABSENT: Duration = Duration::from_secs(1860);

#[derive(Default)]
pub(super) struct PerRollout {
    weights: Family<RolloutLabels, Gauge<i64>>,
    last_calls: Mutex<HashMap<RolloutLabels, Instant>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RolloutLabels {
    namespace: String,
    rollout: String,
}

impl PerRollout {
    pub(super) fn family(&self) -> Family<RolloutLabels, Gauge<i64>> {
        self.weights.clone()
    }

    /// Sets the weight of a Rollout, unless too many other Rollouts have a series.
    pub(super) fn set(&self, rollout: &ObjectKey, weight: i32) {
        let labels = RolloutLabels {
            namespace: rollout.namespace.clone(),
            rollout: rollout.name.clone(),
        };
        let mut last_calls = self.last_calls();
        if last_calls.len() >= MOST_ROLLOUTS && !last_calls.contains_key(&labels) {
            return;
        }
        self.weights.get_or_create(&labels).set(weight.into());
        let is_new = last_calls.insert(labels, Instant::now()).is_none();
        if is_new && last_calls.len() == MOST_ROLLOUTS {
            warn!(
                "{MOST_ROLLOUTS} Rollouts have a series of canary_weight; no series is added for others"
            );
        }
    }

    /// Removes the series of Rollouts for which the controller no longer calls.
    pub(super) fn forget_absent(&self) {
        self.last_calls().retain(|labels, at| {
            let is_there = at.elapsed() < ABSENT;
            if !is_there {
                self.weights.remove(labels);
            }
            is_there
        });
    }

    fn last_calls(&self) -> MutexGuard<'_, HashMap<RolloutLabels, Instant>> {
        self.last_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tplugin\nVmHWM:\t    9000 kB\nVmRSS:\t    8192 kB\nThreads:\t3\n";
        assert_eq!(resident_bytes(status), Some(8192 * 1024));
        assert_eq!(resident_bytes("VmRSS:\tmuch\n"), None);
        assert_eq!(resident_bytes(""), None);
    }

    #[test]
    fn cpu_time_is_that_of_user_and_kernel() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 99 0 0 0 250 50 9 9 20 0 3 0 100 0\n";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (plugin) S 1"), None);
        assert_eq!(cpu_seconds(""), None);
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_2000_rollouts_have_a_series_and_only_while_they_are_called_for() {
        let per_rollout = PerRollout::default();
        let key = |number| ObjectKey::new("shop", format!("r{number}"));
        for number in 0..10_000 {
            per_rollout.set(&key(number), 25);
        }
        assert_eq!(per_rollout.last_calls().len(), 2000);
        tokio::time::advance(Duration::from_secs(1800)).await;
        for number in 0..10 {
            per_rollout.set(&key(number), 50);
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        per_rollout.forget_absent();
        assert_eq!(per_rollout.last_calls().len(), 10);
        per_rollout.set(&key(9999), 25);
        assert_eq!(per_rollout.last_calls().len(), 11);
    }
}
