//! Metrics for Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::ledger::Outcome;
use crate::objects::Report;

/// Labels, each with its name and value.
type Labels<const N: usize> = [(&'static str, String); N];
/// A gauge of a number that is not negative.
type Amount = Gauge<u64, AtomicU64>;

/// All metrics. The values of labels are names from the configuration, never values of a request.
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<Labels<2>, Counter>,
    seconds: Family<Labels<1>, Histogram>,
    empty: Family<Labels<1>, Counter>,
    last_success: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    pub(crate) registries: RegistryMetrics,
    running: Gauge,
    cancelled: Counter,
    pub(crate) reloads: Counter,
    pub(crate) config_warnings: Amount,
    closed: Family<Labels<2>, Counter>,
    refreshes: Family<Labels<1>, Counter>,
    pub(crate) remembered: Amount,
    pub(crate) draining: Gauge,
    config_good: Gauge,
    synced: Family<Labels<3>, Gauge>,
    objects: Family<Labels<3>, Amount>,
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

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("gloo_appset");
        let mut register = Register(&mut registry);
        let seconds = || Histogram::new(BUCKETS);
        let upstream: Family<Labels<1>, Counter> =
            register.add("upstream_queries", "Images that were not in the cache");
        Self {
            calls: register.add("calls", "Calls, by source and code"),
            seconds: register.put(
                "call_seconds",
                "Latency of calls",
                Family::new_with_constructor(seconds),
            ),
            empty: register.add(
                "empty_answers",
                "Answers without a set, which delete every Application",
            ),
            last_success: register.add(
                "last_success_timestamp_seconds",
                "Time of the last call that was answered with 200",
            ),
            registries: RegistryMetrics {
                lookups: upstream.get_or_create_owned(&[("source", "image-digests".to_owned())]),
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
            },
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
            reloads: register.add("reloads", "How often the files that may change were read"),
            config_good: register.add(
                "config_good",
                "Whether the current files of the configuration and the certificate are valid and in use",
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

    /// Counts a call that ended with `code`.
    pub(crate) fn called(&self, source: Option<&str>, code: &'static str, took: Duration) {
        let labels = [("source", source.unwrap_or_default().to_owned())];
        let seconds = self.seconds.get_or_create_owned(&labels);
        seconds.observe(took.as_secs_f64());
        let [source] = labels;
        let labels = [source, ("code", code.to_owned())];
        self.calls.get_or_create(&labels).inc();
    }

    /// Counts a call that was answered with `count` sets.
    pub(crate) fn answered(&self, source: &str, count: usize, took: Duration) {
        self.called(Some(source), "ok", took);
        let labels = [("source", source.to_owned())];
        if count == 0 {
            self.empty.get_or_create(&labels).inc();
        }
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            let last = self.last_success.get_or_create(&labels);
            last.set(now.as_secs_f64());
        }
    }

    /// Counts a running call. If the result is dropped without [`finish`](Running::finish), the call counts as cancelled.
    pub(crate) fn begin(&self) -> Running<'_> {
        self.running.inc();
        let (metrics, finished) = (self, false);
        Running { metrics, finished }
    }

    /// Returns the counter of connections that are closed early on `port`.
    pub(crate) fn closed(&self, port: &str, reason: &str) -> Counter {
        let labels = [("port", port.to_owned()), ("reason", reason.to_owned())];
        self.closed.get_or_create_owned(&labels)
    }

    /// Counts the outcome of annotating an ApplicationSet.
    pub(crate) fn refreshed(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Requested => "requested",
            Outcome::Unknown => "unknown",
            Outcome::Failed => "failed",
        };
        let labels = [("outcome", outcome.to_owned())];
        self.refreshes.get_or_create(&labels).inc();
    }

    /// Returns all metrics in the text format of OpenMetrics.
    pub(crate) fn to_text(&self, config_good: bool, watches: Vec<Report>) -> String {
        self.config_good.set(config_good.into());
        self.synced.clear();
        self.objects.clear();
        for watch in watches {
            let labels = [
                ("cluster", watch.cluster),
                ("kind", watch.kind.to_owned()),
                ("namespace", watch.namespace),
            ];
            let synced = self.synced.get_or_create_owned(&labels);
            synced.set(watch.objects.is_some().into());
            if let Some(objects) = watch.objects {
                self.objects.get_or_create(&labels).set(objects as u64);
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
    /// Lookups of images that were not in the cache.
    pub(crate) lookups: Counter,
    requests: Family<Labels<2>, Counter>,
    remaining: Family<Labels<1>, Gauge>,
    stale: Family<Labels<1>, Amount>,
}

impl RegistryMetrics {
    /// Counts a request by the status of its response, or as `broken` without one.
    pub(crate) fn requested(&self, registry: &str, code: &str) {
        let labels = [("registry", registry.to_owned()), ("code", code.to_owned())];
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a response of a registry.
    pub(crate) fn answered(&self, registry: &str, status: StatusCode, headers: &HeaderMap) {
        self.requested(registry, status.as_str());
        let remaining = headers.get("ratelimit-remaining");
        let remaining = remaining.and_then(|text| {
            // `76;w=21600` is 76 in six hours.
            text.to_str().ok()?.split(';').next()?.trim().parse().ok()
        });
        if let Some(remaining) = remaining {
            let labels = [("registry", registry.to_owned())];
            self.remaining.get_or_create(&labels).set(remaining);
        }
    }

    /// Sets the age of the stale digest that was served.
    pub(crate) fn served_stale(&self, registry: &str, age: Duration) {
        let labels = [("registry", registry.to_owned())];
        self.stale.get_or_create(&labels).set(age.as_secs());
    }

    /// Records that a registry works.
    pub(crate) fn served_fresh(&self, registry: &str) {
        if let Some(stale) = self.stale.get(&[("registry", registry.to_owned())]) {
            stale.set(0);
        }
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
