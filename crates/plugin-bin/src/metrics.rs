//! Metrics for Prometheus: their names, labels and help texts.
//!
//! Label values are chosen by this program, so the number of series does not grow with the cluster. Only [`PerRollout`],
//! which is off by default, has a series for each Rollout.

pub(crate) mod calls;
mod collectors;
mod serve;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use route_store::event_sink::EventResult;
use route_store::{InformerStatus, Observer, Outcome, Priority, RequestContext, SentRequest};

pub(crate) use self::calls::Metered;
use self::collectors::{PerRollout, Process, Watches};
pub(crate) use self::serve::serve;

/// All metrics of the plugin.
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    call_seconds: Family<MethodLabels, Histogram, Buckets>,
    passes: Family<PassLabels, Counter>,
    verify_lag: Histogram,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<VerbLabels, Histogram, Buckets>,
    waited: Family<ClusterLabels, Counter<f64, AtomicU64>>,
    breaker: Family<ClusterLabels, Gauge>,
    writes: Family<WriteLabels, Counter>,
    conflicts: Family<KindLabels, Counter>,
    events: Family<EventLabels, Counter>,
    pub(crate) background: BackgroundMetrics,
    watches: Watches,
    per_rollout: Option<PerRollout>,
}

/// Metrics of work outside of calls.
pub(crate) struct BackgroundMetrics {
    repairs: Family<OutcomeLabels, Counter>,
    repair_delay: Histogram,
    fights: Gauge,
    restores: Family<ReasonLabels, Counter>,
    orphans: Gauge,
    behind: Family<ReasonLabels, Gauge>,
    guard_outcomes: Family<OutcomeLabels, Counter>,
    guard_hold: Histogram,
    guard_holds: Gauge,
    leader: Gauge,
}

/// Upper bounds of a histogram, in seconds.
#[derive(Clone, Copy)]
struct Buckets(&'static [f64]);

/// The last bucket is the default deadline of a call.
const CALL: Buckets = Buckets(&[0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 3.0, 5.0]);
/// The last bucket is the default timeout of a request.
const REQUEST: Buckets = Buckets(&[0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 3.0]);
/// A repair starts within a second.
const DELAY: Buckets = Buckets(&[0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 30.0, 300.0]);
/// The defaults of `settle` and `timeout` are 5 s and 2 minutes.
const HOLD: Buckets = Buckets(&[2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0]);
/// The controller retries every 10 s.
const LAG: Buckets = Buckets(&[0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0]);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    cluster: &'static str,
    verb: &'static str,
    kind: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    cluster: &'static str,
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabels {
    cluster: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    reason: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabels {
    version: &'static str,
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Registers each metric that it returns.
struct Register<'r>(&'r mut Registry);

impl Register<'_> {
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.put(name, help, M::default())
    }

    fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn histograms<L>(
        &mut self,
        name: &str,
        help: &str,
        buckets: Buckets,
    ) -> Family<L, Histogram, Buckets>
    where
        L: EncodeLabelSet + Clone + fmt::Debug + Eq + std::hash::Hash + Send + Sync + 'static,
    {
        self.put(name, help, Family::new_with_constructor(buckets))
    }
}

impl Metrics {
    /// Creates the metrics. `with_rollouts` adds a series for each Rollout.
    pub(crate) fn new(with_rollouts: bool) -> Arc<Self> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let watches = Watches::default();
        let mut register = Register(registry.sub_registry_with_prefix("gloo_router"));
        register.0.register_collector(Box::new(watches.clone()));
        let version = VersionLabels {
            version: plugin_commands::VERSION,
        };
        let build_info: Family<VersionLabels, Gauge> =
            register.add("build_info", "Always 1; the label has the version");
        build_info.get_or_create(&version).set(1);
        let per_rollout = with_rollouts.then(PerRollout::default);
        if let Some(per_rollout) = &per_rollout {
            register.put(
                "canary_weight",
                "Last weight that the controller asked for, out of maxTrafficWeight, which is 100 by default",
                per_rollout.family(),
            );
        }
        let metrics = Self {
            calls: register.add(
                "calls",
                "Calls of the controller, by method and by outcome: ok, error, timeout or panic",
            ),
            call_seconds: register.histograms(
                "call_duration_seconds",
                "Duration of the controller's calls",
                CALL,
            ),
            passes: register.add(
                "passes",
                "Reconciliations of a Rollout, by result: steady (no request was sent), confirmed (only the live read of \
                 VerifyWeight at full weight), read (nothing was written), changed, deferred (checked later) or failed",
            ),
            verify_lag: register.put(
                "verify_lag_seconds",
                "Time from a changed weight until VerifyWeight found that Gloo had accepted it",
                LAG.new_metric(),
            ),
            requests: register.add(
                "api_requests",
                "Requests to an API server, by HTTP status, or timeout, connection or cancelled",
            ),
            request_seconds: register.histograms(
                "api_request_duration_seconds",
                "Duration of the requests to an API server",
                REQUEST,
            ),
            waited: register.add(
                "api_wait_seconds",
                "Time that requests waited for the rate limit of --qps and --burst",
            ),
            breaker: register.add(
                "api_breaker_open",
                "Whether requests to an API server fail at once because it does not answer",
            ),
            writes: register.add(
                "writes",
                "Changes of RouteTables and MirrorPolicies, by cause: call, repair or gc",
            ),
            conflicts: register.add(
                "conflicts",
                "Writes that conflicted with a change of another writer",
            ),
            events: register.add(
                "events",
                "Events about Rollouts and RouteTables, by result: posted, counted (as a repeat), throttled, dropped \
                 or failed",
            ),
            background: BackgroundMetrics {
                repairs: register.add(
                    "repairs",
                    "Repairs of drift, by outcome: written, fenced_lease, fenced_rollout, conflict, unanswered or failed",
                ),
                repair_delay: register.put(
                    "repair_delay_seconds",
                    "Time from a change that moved traffic until each try to repair it",
                    DELAY.new_metric(),
                ),
                fights: register.add("fights", "RouteTables whose weights another writer repeatedly changes"),
                restores: register.add(
                    "restores",
                    "RouteTables that were restored because a Rollout was deleted or no longer uses them, by reason: deleted, \
                     never_seen, plugin_removed or deselected",
                ),
                orphans: register.add(
                    "orphans",
                    "RouteTables with changes for a Rollout that was deleted or no longer selects them",
                ),
                behind: register.add(
                    "rollouts_behind",
                    "Rollouts whose tables have been behind the last weight for a minute, by reason: not_in_force, \
                     not_accepted (by Gloo) or not_seen (changes of a table are not seen)",
                ),
                guard_outcomes: register.add(
                    "guard_outcomes",
                    "Promotions that were held, by outcome: complete (the stable Service has the new Pods), timeout, \
                     broken (traffic could not stay on the canary Service) or ended (another client ended the split)",
                ),
                guard_hold: register.put(
                    "guard_hold_seconds",
                    "How long promotions were held",
                    HOLD.new_metric(),
                ),
                guard_holds: register.add("guard_holds", "Promotions that are held"),
                leader: register.add(
                    "leader",
                    "Whether the Lease names this controller: 1 or 0, as read before the last write between the calls; -1 \
                     if it is not known",
                ),
            },
            watches,
            per_rollout,
            registry,
        };
        metrics.background.leads(None);
        Arc::new(metrics)
    }

    /// Returns an observer of the requests to a cluster: `local`, the one with the Rollouts, or `tables`.
    pub(crate) fn requests_to(self: &Arc<Self>, cluster: &'static str) -> Arc<Requests> {
        self.breaker
            .get_or_create(&ClusterLabels { cluster })
            .set(0);
        Arc::new(Requests {
            metrics: self.clone(),
            cluster,
        })
    }

    /// Returns a counter of the results of Events, for an [`EventSink`](route_store::event_sink::EventSink).
    pub(crate) fn count_events(&self) -> impl Fn(&'static str, EventResult) + Send + Sync + use<> {
        let events = self.events.clone();
        move |reason, result| {
            let result = result.as_str();
            events.get_or_create(&EventLabels { reason, result }).inc();
        }
    }

    /// Exports the state of the watch of a kind in a cluster.
    pub(crate) fn export_watch(
        &self,
        cluster: &'static str,
        kind: &'static str,
        status: impl Fn() -> InformerStatus + Send + Sync + 'static,
    ) {
        self.watches.add(cluster, kind, Box::new(status));
    }

    /// Encodes all metrics in the text format of OpenMetrics.
    fn to_open_metrics(&self) -> Result<String, fmt::Error> {
        if let Some(per_rollout) = &self.per_rollout {
            per_rollout.forget_absent();
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl BackgroundMetrics {
    pub(crate) fn repair(&self, outcome: &'static str, delay: Duration) {
        self.repairs.get_or_create(&OutcomeLabels { outcome }).inc();
        self.repair_delay.observe(delay.as_secs_f64());
    }

    pub(crate) fn fights(&self, count: usize) {
        self.fights.set(gauge(count));
    }

    pub(crate) fn restore(&self, reason: &'static str) {
        self.restores.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn orphans(&self, count: usize) {
        self.orphans.set(gauge(count));
    }

    pub(crate) fn behind(&self, reason: &'static str, count: usize) {
        let series = self.behind.get_or_create(&ReasonLabels { reason });
        series.set(gauge(count));
    }

    pub(crate) fn released(&self, outcome: &'static str, after: Duration) {
        let outcomes = &self.guard_outcomes;
        outcomes.get_or_create(&OutcomeLabels { outcome }).inc();
        self.guard_hold.observe(after.as_secs_f64());
    }

    pub(crate) fn leads(&self, leads: Option<bool>) {
        self.leader.set(leads.map_or(-1, i64::from));
    }

    pub(crate) fn holds(&self, count: usize) {
        self.guard_holds.set(gauge(count));
    }
}

fn gauge(count: usize) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Counts the requests to one API server.
pub(crate) struct Requests {
    metrics: Arc<Metrics>,
    cluster: &'static str,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Requests({})", self.cluster)
    }
}

impl Observer for Requests {
    fn request(&self, request: &SentRequest) {
        let &SentRequest {
            verb,
            kind,
            outcome,
            duration,
        } = request;
        let (metrics, cluster) = (&self.metrics, self.cluster);
        let code = outcome.to_string();
        let labels = RequestLabels {
            cluster,
            verb,
            kind,
            code,
        };
        metrics.requests.get_or_create(&labels).inc();
        calls::request_sent();
        let labels = VerbLabels { cluster, verb };
        let seconds = metrics.request_seconds.get_or_create(&labels);
        seconds.observe(duration.as_secs_f64());
        let is_write = matches!(verb, "create" | "patch" | "delete");
        if is_write && matches!(outcome, Outcome::Answered(200..=299)) {
            let priority = RequestContext::current().priority;
            if let Some(cause) = Cause::of_request(priority) {
                calls::object_written();
                let cause = cause.as_str();
                metrics
                    .writes
                    .get_or_create(&WriteLabels { kind, cause })
                    .inc();
            }
        }
    }

    fn waited(&self, time: Duration) {
        let cluster = self.cluster;
        let waited = self
            .metrics
            .waited
            .get_or_create(&ClusterLabels { cluster });
        waited.inc_by(time.as_secs_f64());
    }

    fn breaker(&self, is_open: bool) {
        let cluster = self.cluster;
        let breaker = self
            .metrics
            .breaker
            .get_or_create(&ClusterLabels { cluster });
        breaker.set(is_open.into());
    }

    fn conflict(&self, kind: &'static str) {
        self.metrics
            .conflicts
            .get_or_create(&KindLabels { kind })
            .inc();
    }
}

/// The cause of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A call of the controller.
    Call,
    /// A repair of drift.
    Repair,
    /// Garbage collection.
    Gc,
}

impl Cause {
    /// By the priority of the request; `None` for Events, which change no object.
    fn of_request(priority: Priority) -> Option<Self> {
        match priority {
            Priority::TowardStable | Priority::Call | Priority::List => Some(Self::Call),
            Priority::Repair => Some(Self::Repair),
            Priority::Collect => Some(Self::Gc),
            Priority::Event => None,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Repair => "repair",
            Self::Gc => "gc",
        }
    }
}

#[cfg(test)]
mod tests;
