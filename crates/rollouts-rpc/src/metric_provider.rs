//! What an author of a metric provider implements, and the part of an AnalysisRun it sees.
//!
//! Field names are those of the API (`pkg/apis/rollouts/v1alpha1/analysis_types.go`) in snake case.
//! What other providers need, such as the settings of Prometheus, is left in the stream.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::SystemTime;

use crate::error::PluginError;

/// Takes the measurements of an analysis.
///
/// The controller takes one measurement at a time of each metric of an AnalysisRun, and those of
/// different metrics and runs at once. A measurement is begun by `run`; while its phase is
/// [`AnalysisPhase::Running`] it is resumed (`analysis/analysis.go`). Deciding is the provider's
/// part too: it applies the metric's conditions to the value and answers with the phase.
///
/// An error is a measurement in phase `Error`; the metric fails after `consecutiveErrorLimit` of
/// them.
pub trait MetricProvider: Send + Sync + 'static {
    /// The name the controller logs, such as `Prometheus`.
    fn type_name(&self) -> &str;

    /// Called once per process, before anything else.
    ///
    /// It should return at once and not fail for reasons that may pass: the controller holds a lock
    /// over every metric plugin meanwhile, and it uses the plugin all the same after an error.
    fn init(&self) -> impl Future<Output = Result<(), PluginError>> + Send;

    /// Takes a measurement, or begins one that [`resume`](Self::resume) will finish.
    fn run(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
    ) -> impl Future<Output = Result<Measurement, PluginError>> + Send;

    /// Looks again at a measurement that was still running.
    ///
    /// Until a provider implements it, the measurement is returned as it is.
    fn resume(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        measurement: Measurement,
    ) -> impl Future<Output = Result<Measurement, PluginError>> + Send {
        async { Ok(measurement) }
    }

    /// Ends a measurement that was still running, because its run is being terminated.
    ///
    /// Until a provider implements it, the measurement ends as successful.
    fn terminate(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        measurement: Measurement,
    ) -> impl Future<Output = Result<Measurement, PluginError>> + Send {
        async move {
            Ok(Measurement {
                phase: AnalysisPhase::Successful,
                finished_at: Some(SystemTime::now()),
                ..measurement
            })
        }
    }

    /// Removes what is kept elsewhere for all but the newest `limit` measurements of a metric; the
    /// run still lists them all.
    ///
    /// Until a provider implements it, there is nothing to remove.
    fn garbage_collect(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        _limit: usize,
    ) -> impl Future<Output = Result<(), PluginError>> + Send {
        async { Ok(()) }
    }

    /// What the controller stores beside a metric's results, such as the query as it was sent. It
    /// asks when the first measurement of a metric has been taken.
    ///
    /// Until a provider implements it, there is nothing. The key `error` means a failure.
    fn metadata(
        &self,
        _metric: &Metric,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, PluginError>> + Send {
        async { Ok(BTreeMap::new()) }
    }
}

/// An AnalysisRun as it was when the controller's reconcile began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnalysisRun {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.args` that have a value. The controller has put them into the metric already.
    pub args: BTreeMap<String, String>,
    /// `spec.terminate`.
    pub terminate: bool,
    /// `status.phase`.
    pub phase: AnalysisPhase,
    /// `status.startedAt`.
    pub started_at: Option<SystemTime>,
    /// `status.metricResults`.
    pub results: Vec<MetricResult>,
}

/// What has been measured of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricResult {
    /// The metric's name.
    pub name: String,
    /// The metric as a whole.
    pub phase: AnalysisPhase,
    /// The newest measurements, oldest first.
    pub measurements: Vec<Measurement>,
    /// What [`MetricProvider::metadata`] said.
    pub metadata: BTreeMap<String, String>,
}

/// A metric of an AnalysisRun, its arguments resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metric {
    /// `name`.
    pub name: String,
    /// `interval`, a Go duration such as `30s`; empty for a single measurement.
    pub interval: String,
    /// `successCondition`, an expression over `result`; empty when there is none.
    pub success_condition: String,
    /// `failureCondition`, likewise.
    pub failure_condition: String,
    /// `provider.plugin`: the JSON configuration by plugin name.
    pub plugins: BTreeMap<String, Vec<u8>>,
}

/// One measurement, finished or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// `Running` to be resumed, else the verdict.
    pub phase: AnalysisPhase,
    /// For people.
    pub message: String,
    /// When it began.
    pub started_at: Option<SystemTime>,
    /// When it ended; the controller fills it in if it is absent.
    pub finished_at: Option<SystemTime>,
    /// The value, as text.
    pub value: String,
    /// Whatever the provider needs to find it again, such as an id.
    pub metadata: BTreeMap<String, String>,
    /// When to resume a running measurement; the controller chooses if it is absent.
    pub resume_at: Option<SystemTime>,
}

/// How a measurement, a metric or a whole run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnalysisPhase {
    /// Not begun. A phase that is empty, or that no released controller knows, is read as this.
    #[default]
    Pending,
    /// Begun.
    Running,
    /// The success condition holds.
    Successful,
    /// The failure condition holds.
    Failed,
    /// There is no value.
    Error,
    /// Neither condition holds.
    Inconclusive,
}
