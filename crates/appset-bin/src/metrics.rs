//! Metrics for Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, StatusCode};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::ledger::Outcome;
use crate::objects::Report;

/// All metrics. Labels hold names of the configuration, never values of a request.
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    seconds: Family<SourceLabels, Histogram>,
    empty: Family<SourceLabels, Counter>,
    last_success: Family<SourceLabels, Gauge<f64, AtomicU64>>,
    upstream: Family<SourceLabels, Counter>,
    requests: Family<RequestLabels, Counter>,
    remaining: Family<RegistryLabels, Gauge>,
    stale: Family<RegistryLabels, Gauge>,
    running: Gauge,
    cancelled: Counter,
    closed: Family<ClosedLabels, Counter>,
    refreshes: Family<RefreshLabels, Counter>,
    remembered: Gauge,
    draining: Gauge,
    config_good: Gauge,
    synced: Family<KindLabels, Gauge>,
    objects: Family<KindLabels, Gauge>,
}

/// In seconds; the last one is the default deadline.
const BUCKETS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 2.0, 5.0, 10.0, 25.0];

struct Register<'r>(&'r mut Registry);

impl Register<'_> {
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.put(name, help, M::default())
    }

    fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    source: String,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClosedLabels {
    port: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefreshLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RegistryLabels {
    registry: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    registry: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    cluster: String,
    kind: &'static str,
    namespace: String,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("gloo_appset");
        let mut register = Register(&mut registry);
        Self {
            calls: register.add("calls", "Calls, by source and code"),
            seconds: register.put(
                "call_seconds",
                "How long calls took",
                Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            ),
            empty: register.add(
                "empty_answers",
                "Answers without a set, which delete every Application",
            ),
            last_success: register.add(
                "last_success_timestamp_seconds",
                "When a call was last answered with 200",
            ),
            upstream: register.add("upstream_queries", "What was not in the cache"),
            requests: register.add(
                "registry_requests",
                "Requests to registries and their token servers, by status; broken without an answer",
            ),
            remaining: register.add(
                "registry_ratelimit_remaining",
                "Requests that the registry still allows, by its last answer",
            ),
            stale: register.add(
                "registry_stale_seconds",
                "Age of the last digest that was served because its registry failed; 0 if it answers",
            ),
            running: register.add("running_calls", "Calls that have begun and not ended"),
            cancelled: register.add("cancelled_calls", "Calls that the client did not wait for"),
            closed: register.add(
                "closed_connections",
                "Connections that the server closed early: late, or evicted for another one",
            ),
            refreshes: register.add(
                "refreshes",
                "ApplicationSets whose answer had changed, by what became of their annotation",
            ),
            remembered: register.add(
                "remembered_requests",
                "Requests whose answer is compared when an object changes",
            ),
            draining: register.add("draining", "Whether the process is about to end"),
            config_good: register.add(
                "config_good",
                "Whether the configuration file is in use as it is",
            ),
            synced: register.add(
                "watch_synced",
                "Whether all objects of a kind in a namespace of a cluster are known",
            ),
            objects: register.add("watch_objects", "Number of known objects, by kind"),
            registry,
        }
    }

    /// What is counted of registries, for lookups of `source`.
    pub(crate) fn registries(&self, source: &str) -> RegistryMetrics {
        let source = source.to_owned();
        RegistryMetrics {
            lookups: self.upstream.get_or_create_owned(&SourceLabels { source }),
            requests: self.requests.clone(),
            remaining: self.remaining.clone(),
            stale: self.stale.clone(),
        }
    }

    /// A call ended with `code`.
    pub(crate) fn called(&self, source: Option<&str>, code: &'static str, took: Duration) {
        let source = source.unwrap_or_default().to_owned();
        let labels = SourceLabels {
            source: source.clone(),
        };
        self.seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        self.calls.get_or_create(&CallLabels { source, code }).inc();
    }

    /// A call was answered with `count` sets.
    pub(crate) fn answered(&self, source: &str, count: usize, took: Duration) {
        self.called(Some(source), "ok", took);
        let labels = SourceLabels {
            source: source.to_owned(),
        };
        if count == 0 {
            self.empty.get_or_create(&labels).inc();
        }
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            self.last_success
                .get_or_create(&labels)
                .set(now.as_secs_f64());
        }
    }

    /// A call begins. Dropped instead of finished, it was cancelled.
    pub(crate) fn begin(&self) -> Running<'_> {
        self.running.inc();
        Running {
            metrics: self,
            finished: false,
        }
    }

    /// The counters of connections of `port` that are closed early.
    pub(crate) fn closed(&self, port: &'static str) -> Closed {
        let counter = |reason| {
            let labels = ClosedLabels { port, reason };
            self.closed.get_or_create_owned(&labels)
        };
        Closed {
            late: counter("late"),
            evicted: counter("evicted"),
        }
    }

    /// An ApplicationSet was annotated, or could not be.
    pub(crate) fn refreshed(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Requested => "requested",
            Outcome::Unknown => "unknown",
            Outcome::Failed => "failed",
        };
        self.refreshes
            .get_or_create(&RefreshLabels { outcome })
            .inc();
    }

    /// So many requests are remembered.
    pub(crate) fn remembered(&self, requests: usize) {
        self.remembered.set(requests.try_into().unwrap_or(i64::MAX));
    }

    pub(crate) fn drain(&self) {
        self.draining.set(1);
    }

    /// Everything, in the text format of OpenMetrics.
    pub(crate) fn to_text(&self, config_good: bool, watches: Vec<Report>) -> String {
        self.config_good.set(config_good.into());
        self.synced.clear();
        self.objects.clear();
        for Report {
            cluster,
            kind,
            namespace,
            objects,
        } in watches
        {
            let labels = KindLabels {
                cluster,
                kind,
                namespace,
            };
            let synced = self.synced.get_or_create(&labels);
            synced.set(objects.is_some().into());
            if let Some(objects) = objects.and_then(|objects| objects.try_into().ok()) {
                self.objects.get_or_create(&labels).set(objects);
            }
        }
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(error) => format!("# {error}\n"),
        }
    }
}

/// Counts what is asked of registries. Labels hold only registries that the configuration names.
#[derive(Clone)]
pub(crate) struct RegistryMetrics {
    lookups: Counter,
    requests: Family<RequestLabels, Counter>,
    remaining: Family<RegistryLabels, Gauge>,
    stale: Family<RegistryLabels, Gauge>,
}

impl RegistryMetrics {
    /// An image is looked up that was not in the cache.
    pub(crate) fn lookup(&self) {
        self.lookups.inc();
    }

    /// A registry answered.
    pub(crate) fn answered(&self, registry: &str, status: StatusCode, headers: &HeaderMap) {
        self.count(registry, status.as_str());
        let remaining = headers.get("ratelimit-remaining");
        let remaining = remaining.and_then(|text| {
            // `76;w=21600` is 76 in six hours.
            text.to_str().ok()?.split(';').next()?.trim().parse().ok()
        });
        if let Some(remaining) = remaining {
            let registry = registry.to_owned();
            let labels = RegistryLabels { registry };
            self.remaining.get_or_create(&labels).set(remaining);
        }
    }

    /// A request was not answered.
    pub(crate) fn broken(&self, registry: &str) {
        self.count(registry, "broken");
    }

    /// A digest was served that is this old.
    pub(crate) fn is_stale(&self, registry: &str, age: Duration) {
        let age = age.as_secs().try_into().unwrap_or(i64::MAX);
        let registry = registry.to_owned();
        self.stale
            .get_or_create(&RegistryLabels { registry })
            .set(age);
    }

    /// A registry answers.
    pub(crate) fn is_fresh(&self, registry: &str) {
        let registry = registry.to_owned();
        if let Some(stale) = self.stale.get(&RegistryLabels { registry }) {
            stale.set(0);
        }
    }

    fn count(&self, registry: &str, code: &str) {
        let (registry, code) = (registry.to_owned(), code.to_owned());
        self.requests
            .get_or_create(&RequestLabels { registry, code })
            .inc();
    }
}

/// Counts the connections of one port that are closed early.
#[derive(Clone)]
pub(crate) struct Closed {
    late: Counter,
    evicted: Counter,
}

impl Closed {
    /// A limit passed.
    pub(crate) fn late(&self) {
        self.late.inc();
    }

    /// Another connection needed the place.
    pub(crate) fn evicted(&self) {
        self.evicted.inc();
    }
}

/// A call that has not ended.
pub(crate) struct Running<'m> {
    metrics: &'m Metrics,
    finished: bool,
}

impl Running<'_> {
    pub(crate) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.metrics.running.dec();
        if !self.finished {
            self.metrics.cancelled.inc();
        }
    }
}
