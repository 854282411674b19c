//! How the objects of each kind are followed: read from the informers when Prometheus asks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use route_store::InformerStatus;

use super::KindLabels;

type Status = Box<dyn Fn() -> InformerStatus + Send + Sync>;

/// The kinds that are followed. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Mutex<Vec<Followed>>>);

struct Followed {
    cluster: &'static str,
    kind: &'static str,
    status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    cluster: &'static str,
    kind: &'static str,
}

/// What is shown of one kind.
struct Shown {
    labels: WatchLabels,
    /// Absent while the kind is not followed, as MirrorPolicies are not while no Rollout has mirror steps.
    is_synced: Option<bool>,
    /// Seconds since 1970; absent before the first sign of life.
    last_sign: Option<f64>,
    restarts: u64,
    objects: u64,
    bytes: u64,
}

impl Watches {
    pub(super) fn add(&self, cluster: &'static str, kind: &'static str, status: Status) {
        self.followed().push(Followed {
            cluster,
            kind,
            status,
        });
    }

    fn followed(&self) -> MutexGuard<'_, Vec<Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watches")
    }
}

impl Shown {
    /// A kind is followed only as well as the namespace that is furthest behind.
    fn of(followed: &Followed, now: f64) -> Self {
        let status = (followed.status)();
        let scopes = || status.scopes.iter();
        let silence = scopes().map(|scope| scope.silence);
        let longest: Option<Vec<_>> = silence.collect();
        let longest = longest.and_then(|all| all.into_iter().max());
        Self {
            labels: WatchLabels {
                cluster: followed.cluster,
                kind: followed.kind,
            },
            is_synced: (!status.scopes.is_empty()).then(|| scopes().all(|scope| scope.is_synced)),
            last_sign: longest.map(|silence| now - silence.as_secs_f64()),
            restarts: scopes().map(|scope| scope.restarts).sum(),
            objects: status.objects as u64,
            bytes: status.bytes as u64,
        }
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        let followed = self.followed();
        let shown: Vec<Shown> = followed.iter().map(|it| Shown::of(it, now)).collect();
        let mut family = Families {
            encoder: &mut encoder,
            shown: &shown,
        };
        family.gauge(
            "watch_synced",
            "Whether all objects of a kind are known: listed, and watched since",
            |it| it.is_synced.map(i64::from),
        )?;
        family.gauge(
            "watch_last_sign_timestamp_seconds",
            "When the API server last gave a sign of life on the watch",
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
    shown: &'a [Shown],
}

impl Families<'_, '_> {
    fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Shown) -> Option<V>,
    ) -> Result<(), fmt::Error> {
        self.put(name, help, MetricType::Gauge, |it| {
            value(it).map(|value| (it.labels.clone(), ConstGauge::new(value)))
        })
    }

    fn counter<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Shown) -> V,
    ) -> Result<(), fmt::Error> {
        self.put(name, help, MetricType::Counter, |it| {
            Some((it.labels.clone(), ConstCounter::new(value(it))))
        })
    }

    /// Each kind is in one cluster.
    fn by_kind(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Shown) -> u64,
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
        value: impl Fn(&Shown) -> Option<(L, M)>,
    ) -> Result<(), fmt::Error> {
        // A name without series would be declared in vain.
        if self.shown.is_empty() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in self.shown.iter().filter_map(value) {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
