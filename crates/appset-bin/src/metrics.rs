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

/// All metrics. The values of labels are names from the configuration, never values of a request.
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
    reloads: Counter,
    config_warnings: Gauge,
    closed: Family<ClosedLabels, Counter>,
    refreshes: Family<RefreshLabels, Counter>,
    remembered: Gauge,
    draining: Gauge,
    config_good: Gauge,
    synced: Family<KindLabels, Gauge>,
    objects: Family<KindLabels, Gauge>,
}

/// The buckets of the latency in seconds. The last one is the default deadline.
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
                "Latency of calls",
                Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            ),
            empty: register.add(
                "empty_answers",
                "Answers without a set, which delete every Application",
            ),
            last_success: register.add(
                "last_success_timestamp_seconds",
                "Time of the last call that was answered with 200",
            ),
            upstream: register.add("upstream_queries", "Images that were not in the cache"),
            requests: register.add(
                "registry_requests",
                "Requests to registries and their token servers, by status, or broken without a response",
            ),
            remaining: register.add(
                "registry_ratelimit_remaining",
                "Requests that the registry still allows, from its last response",
            ),
            stale: register.add(
                "registry_stale_seconds",
                "Age of the last stale digest that was served while its registry failed; 0 if it works",
            ),
            running: register.add("running_calls", "Number of running calls"),
            cancelled: register.add("cancelled_calls", "Calls that the client cancelled"),
            closed: register.add(
                "closed_connections",
                "Connections that the server closed early: late, or evicted to accept another one",
            ),
            refreshes: register.add(
                "refreshes",
                "ApplicationSets with a changed answer, by the outcome of their annotation",
            ),
            remembered: register.add(
                "remembered_requests",
                "Number of requests whose answers are compared when an object changes",
            ),
            draining: register.add("draining", "Whether the process is draining"),
            reloads: register.add(
                "reloads",
                "How often the files that may change were read",
            ),
            config_good: register.add(
                "config_good",
                "Whether the current configuration file is valid and in use",
            ),
            config_warnings: register.add(
                "config_warnings",
                "Number of warnings about the configuration when it came into use",
            ),
            synced: register.add(
                "watch_synced",
                "Whether all objects of a kind in a namespace of a cluster are known",
            ),
            objects: register.add("watch_objects", "Number of known objects, by kind"),
            registry,
        }
    }

    /// Returns the metrics of registries for lookups of `source`.
    pub(crate) fn registries(&self, source: &str) -> RegistryMetrics {
        let source = source.to_owned();
        RegistryMetrics {
            lookups: self.upstream.get_or_create_owned(&SourceLabels { source }),
            requests: self.requests.clone(),
            remaining: self.remaining.clone(),
            stale: self.stale.clone(),
        }
    }

    /// Counts a call that ended with `code`.
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

    /// Counts a call that was answered with `count` sets.
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

    /// Counts a running call. If the result is dropped without [`finish`](Running::finish), the call counts as cancelled.
    pub(crate) fn begin(&self) -> Running<'_> {
        self.running.inc();
        Running {
            metrics: self,
            finished: false,
        }
    }

    /// Returns the counters of connections that are closed early on `port`.
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

    /// Counts the outcome of annotating an ApplicationSet.
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

    /// Sets the number of recorded requests.
    pub(crate) fn remembered(&self, requests: usize) {
        self.remembered.set(requests.try_into().unwrap_or(i64::MAX));
    }

    pub(crate) fn warned(&self, warnings: usize) {
        let warnings = warnings.try_into().unwrap_or(i64::MAX);
        self.config_warnings.set(warnings);
    }

    pub(crate) fn reloaded(&self) {
        self.reloads.inc();
    }

    pub(crate) fn drain(&self) {
        self.draining.set(1);
    }

    /// Returns all metrics in the text format of OpenMetrics.
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

/// The metrics of registries. The values of labels are registries from the configuration.
#[derive(Clone)]
pub(crate) struct RegistryMetrics {
    lookups: Counter,
    requests: Family<RequestLabels, Counter>,
    remaining: Family<RegistryLabels, Gauge>,
    stale: Family<RegistryLabels, Gauge>,
}

impl RegistryMetrics {
    /// Counts the lookup of an image that was not in the cache.
    pub(crate) fn lookup(&self) {
        self.lookups.inc();
    }

    /// Counts a response of a registry.
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

    /// Counts a request without a response.
    pub(crate) fn broken(&self, registry: &str) {
        self.count(registry, "broken");
    }

    /// Sets the age of the stale digest that was served.
    pub(crate) fn served_stale(&self, registry: &str, age: Duration) {
        let age = age.as_secs().try_into().unwrap_or(i64::MAX);
        let registry = registry.to_owned();
        self.stale
            .get_or_create(&RegistryLabels { registry })
            .set(age);
    }

    /// Records that a registry works.
    pub(crate) fn served_fresh(&self, registry: &str) {
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

/// The counters of connections that are closed early on one port.
#[derive(Clone)]
pub(crate) struct Closed {
    late: Counter,
    evicted: Counter,
}

impl Closed {
    /// Counts a connection whose time limit passed.
    pub(crate) fn late(&self) {
        self.late.inc();
    }

    /// Counts a connection that was evicted.
    pub(crate) fn evicted(&self) {
        self.evicted.inc();
    }
}

/// The guard of a running call.
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
