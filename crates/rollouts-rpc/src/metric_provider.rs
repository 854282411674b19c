//! The trait of metric providers, and the fields of an AnalysisRun that they receive.
//!
//! Field names are those of the API (`pkg/apis/rollouts/v1alpha1/analysis_types.go` in Argo Rollouts) in snake case. Fields of the
//! built-in providers, such as the settings of Prometheus, are not decoded.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gob::DecodeError;
use rollout_types::ConfigError;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Result, short_name, within_limit};

/// Takes the measurements of an analysis.
///
/// The controller takes one measurement of a metric at a time, and measurements of different metrics and runs concurrently. `run` starts a
/// measurement, and the controller calls `resume` while its phase is [`AnalysisPhase::Running`] (`analysis/analysis.go`). The
/// provider also applies the metric's conditions to the value, and returns the phase.
///
/// An error becomes a measurement in phase `Error`. The metric fails after `consecutiveErrorLimit` consecutive ones.
pub trait MetricProvider: Send + Sync + 'static {
    /// Returns the name that the controller logs, such as `Prometheus`. The default is the name of the type.
    fn type_name(&self) -> &str {
        short_name::<Self>()
    }

    /// Initializes the plugin. It is called once per process, before all other methods.
    ///
    /// It should return at once and not fail for temporary reasons: the controller holds a lock on all metric plugins during the call, and
    /// uses the plugin even after an error.
    fn init(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Takes a measurement, or starts one that [`resume`](Self::resume) finishes.
    fn run(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
    ) -> impl Future<Output = Result<Measurement>> + Send;

    /// Continues a running measurement.
    ///
    /// The default returns the measurement unchanged.
    fn resume(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        measurement: Measurement,
    ) -> impl Future<Output = Result<Measurement>> + Send {
        async { Ok(measurement) }
    }

    /// Stops a running measurement because its run is terminated.
    ///
    /// The default finishes the measurement as successful.
    fn terminate(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        measurement: Measurement,
    ) -> impl Future<Output = Result<Measurement>> + Send {
        async move {
            Ok(Measurement {
                phase: AnalysisPhase::Successful,
                finished_at: Some(SystemTime::now()),
                ..measurement
            })
        }
    }

    /// Removes external data of all measurements of a metric except the newest `limit`. The run still lists all measurements.
    ///
    /// The default does nothing.
    fn garbage_collect(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        _limit: usize,
    ) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Returns metadata that the controller stores with a metric's results, such as the resolved query. The controller calls it after
    /// the first measurement of a metric.
    ///
    /// It has at most [`MAX_RESULT`](crate::MAX_RESULT) bytes. The default is empty. The key `error` means that the call failed.
    fn metadata(
        &self,
        _metric: &Metric,
    ) -> impl Future<Output = Result<BTreeMap<String, String>>> + Send {
        async { Ok(BTreeMap::new()) }
    }
}

/// An AnalysisRun at the start of the controller's reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// `spec.args`, without arguments from Secrets. The controller has already substituted all arguments in the metric.
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

/// The results of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricResult {
    /// The metric's name.
    pub name: String,
    /// The phase of the metric.
    pub phase: AnalysisPhase,
    /// The newest measurements, oldest first.
    pub measurements: Measurements,
    /// The result of [`MetricProvider::metadata`].
    pub metadata: BTreeMap<String, String>,
}

/// The measurements of a metric, oldest first.
///
/// Those that the controller sent are decoded one at a time while they are read: a long run has thousands, and most calls read none.
#[derive(Clone)]
pub struct Measurements(List);

#[derive(Clone)]
enum List {
    Owned(Vec<Measurement>),
    OnDemand(Arc<dyn OnDemand>),
}

/// A list of measurements that are decoded while they are read.
pub(crate) trait OnDemand: Send + Sync {
    fn len(&self) -> usize;

    fn iter(&self) -> Box<dyn Iterator<Item = Result<Measurement, DecodeError>> + '_>;
}

impl Measurements {
    pub(crate) fn on_demand(list: Arc<dyn OnDemand>) -> Self {
        Self(List::OnDemand(list))
    }

    /// Returns the number of measurements.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            List::Owned(list) => list.len(),
            List::OnDemand(list) => list.len(),
        }
    }

    /// Returns whether there are no measurements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the measurements, oldest first. A measurement that does not decode is an error, and the iteration continues after
    /// it.
    pub fn iter(&self) -> impl Iterator<Item = Result<Measurement, DecodeError>> {
        let iter: Box<dyn Iterator<Item = _>> = match &self.0 {
            List::Owned(list) => Box::new(list.iter().cloned().map(Ok)),
            List::OnDemand(list) => list.iter(),
        };
        iter
    }
}

impl Default for Measurements {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl PartialEq for Measurements {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Measurements {}

impl From<Vec<Measurement>> for Measurements {
    fn from(measurements: Vec<Measurement>) -> Self {
        Self(List::Owned(measurements))
    }
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A metric of an AnalysisRun, with resolved arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// `name`.
    pub name: String,
    /// `interval`, a Go duration such as `30s`; empty for a single measurement.
    pub interval: String,
    /// `successCondition`, an expression over `result`; empty if it is not set.
    pub success_condition: String,
    /// `failureCondition`, an expression over `result`; empty if it is not set.
    pub failure_condition: String,
    /// `provider.plugin`: the JSON configuration by plugin name.
    pub plugins: BTreeMap<String, Vec<u8>>,
}

/// Returns the number of bytes of metadata.
pub(crate) fn size_of_metadata(metadata: &BTreeMap<String, String>) -> usize {
    metadata
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}

/// One measurement, finished or not. Value, message and metadata have at most [`MAX_RESULT`](crate::MAX_RESULT) bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measurement {
    /// `Running` if the controller must resume it, otherwise the final phase.
    pub phase: AnalysisPhase,
    /// A message for people.
    pub message: String,
    /// When it started.
    pub started_at: Option<SystemTime>,
    /// When it finished. The controller sets it if it is absent.
    pub finished_at: Option<SystemTime>,
    /// The value, as text.
    pub value: String,
    /// Data with which the provider identifies the measurement later, such as an id.
    pub metadata: BTreeMap<String, String>,
    /// When to resume a running measurement. The controller chooses the time if it is absent.
    pub resume_at: Option<SystemTime>,
}

impl AnalysisRun {
    /// Returns a run with only a namespace and a name.
    #[must_use]
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Self::default()
        }
    }
}

impl MetricResult {
    /// Returns the results of the metric of that name.
    #[must_use]
    pub fn new(name: &str, phase: AnalysisPhase, measurements: Vec<Measurement>) -> Self {
        Self {
            name: name.to_owned(),
            phase,
            measurements: measurements.into(),
            ..Self::default()
        }
    }
}

impl Metric {
    /// Returns a metric with the configuration of one plugin.
    #[must_use]
    pub fn new(name: &str, plugin: &str, config: &Value) -> Self {
        Self {
            name: name.to_owned(),
            plugins: BTreeMap::from([(plugin.to_owned(), config.to_string().into_bytes())]),
            ..Self::default()
        }
    }

    /// Parses the configuration of the metric's plugin. A metric has only one, so the plugin's name is not needed.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn config<T: DeserializeOwned>(&self) -> std::result::Result<T, ConfigError> {
        let at = || format!("metric {}: provider.plugin", self.name);
        match self.plugins.first_key_value() {
            Some((plugin, json)) => ConfigError::parse(json, || format!("{}[{plugin}]", at())),
            None => Err(ConfigError::absent(at())),
        }
    }
}

impl Measurement {
    /// Refuses a measurement that is larger than [`MAX_RESULT`](crate::MAX_RESULT).
    pub(crate) fn limited(self) -> Result<Self> {
        let size = self.value.len() + self.message.len() + size_of_metadata(&self.metadata);
        within_limit("value, message and metadata", size)?;
        Ok(self)
    }

    /// Returns a measurement that starts now and that [`MetricProvider::resume`] finishes.
    #[must_use]
    pub fn running() -> Self {
        Self {
            phase: AnalysisPhase::Running,
            started_at: Some(SystemTime::now()),
            ..Self::default()
        }
    }

    /// Returns a measurement that starts and finishes now.
    #[must_use]
    pub fn taken(phase: AnalysisPhase, value: impl ToString) -> Self {
        Self::running().finish(phase, value)
    }

    /// Finishes the measurement now.
    #[must_use]
    pub fn finish(self, phase: AnalysisPhase, value: impl ToString) -> Self {
        Self {
            phase,
            value: value.to_string(),
            finished_at: Some(SystemTime::now()),
            resume_at: None,
            ..self
        }
    }

    /// Sets when a running measurement is resumed.
    #[must_use]
    pub fn resume_in(self, wait: Duration) -> Self {
        Self {
            resume_at: SystemTime::now().checked_add(wait),
            ..self
        }
    }

    /// Adds data with which the provider identifies the measurement later.
    #[must_use]
    pub fn with_metadata(mut self, key: &str, value: impl ToString) -> Self {
        self.metadata.insert(key.to_owned(), value.to_string());
        self
    }
}

/// The phase of a measurement, a metric or a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnalysisPhase {
    /// Not started. An empty or unknown phase is read as `Pending`.
    #[default]
    Pending,
    /// Started.
    Running,
    /// The success condition holds.
    Successful,
    /// The failure condition holds.
    Failed,
    /// The measurement failed.
    Error,
    /// Neither condition holds.
    Inconclusive,
}
