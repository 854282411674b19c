//! What an author of a metric provider implements, and the part of an AnalysisRun it sees.
//!
//! Field names are those of the API (`pkg/apis/rollouts/v1alpha1/analysis_types.go`) in snake case.
//! What other providers need, such as the settings of Prometheus, is left in the stream.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use gob::{DecodeError, LazyVec};
use rollout_types::ConfigError;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Result, short_name};
use crate::to_wire;
use crate::wire;

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
    /// The name the controller logs, such as `Prometheus`; that of the type unless a plugin says otherwise.
    fn type_name(&self) -> &str {
        short_name::<Self>()
    }

    /// Called once per process, before anything else.
    ///
    /// It should return at once and not fail for reasons that may pass: the controller holds a lock
    /// over every metric plugin meanwhile, and it uses the plugin all the same after an error.
    fn init(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Takes a measurement, or begins one that [`resume`](Self::resume) will finish.
    fn run(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
    ) -> impl Future<Output = Result<Measurement>> + Send;

    /// Looks again at a measurement that was still running.
    ///
    /// Until a provider implements it, the measurement is returned as it is.
    fn resume(
        &self,
        _run: &AnalysisRun,
        _metric: &Metric,
        measurement: Measurement,
    ) -> impl Future<Output = Result<Measurement>> + Send {
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
    ) -> impl Future<Output = Result<Measurement>> + Send {
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
    ) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// What the controller stores beside a metric's results, such as the query as it was sent. It
    /// asks when the first measurement of a metric has been taken.
    ///
    /// Until a provider implements it, there is nothing. The key `error` means a failure.
    fn metadata(
        &self,
        _metric: &Metric,
    ) -> impl Future<Output = Result<BTreeMap<String, String>>> + Send {
        async { Ok(BTreeMap::new()) }
    }
}

/// An AnalysisRun as it was when the controller's reconcile began.
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
    /// `spec.args` but for those from Secrets. The controller has put all of them into the metric already.
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
#[non_exhaustive]
pub struct MetricResult {
    /// The metric's name.
    pub name: String,
    /// The metric as a whole.
    pub phase: AnalysisPhase,
    /// The newest measurements, oldest first.
    pub measurements: Measurements,
    /// What [`MetricProvider::metadata`] said.
    pub metadata: BTreeMap<String, String>,
}

/// The measurements of a metric, each decoded when it is asked for: a run keeps thousands, and most calls read none.
#[derive(Clone, Default)]
pub struct Measurements(pub(crate) LazyVec<wire::Measurement>);

impl Measurements {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no measurements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The measurements, oldest first. One that cannot be decoded is an error, and the next one follows.
    pub fn iter(&self) -> impl Iterator<Item = Result<Measurement, DecodeError>> {
        self.0.iter().map(|found| found.map(Measurement::from))
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
        Self(to_wire::all(&measurements).into())
    }
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A metric of an AnalysisRun, its arguments resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// `name`.
    pub name: String,
    /// `interval`, a Go duration such as `30s`; empty for a single measurement.
    pub interval: String,
    /// `successCondition`, an expression over `result`; empty if it is not set.
    pub success_condition: String,
    /// `failureCondition`, likewise.
    pub failure_condition: String,
    /// `provider.plugin`: the JSON configuration by plugin name.
    pub plugins: BTreeMap<String, Vec<u8>>,
}

/// One measurement, finished or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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

impl AnalysisRun {
    /// A run of which only the key is known.
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
    /// The measurements of the metric of that name.
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
    /// A metric with the configuration of one plugin.
    #[must_use]
    pub fn new(name: &str, plugin: &str, config: &Value) -> Self {
        Self {
            name: name.to_owned(),
            plugins: BTreeMap::from([(plugin.to_owned(), config.to_string().into_bytes())]),
            ..Self::default()
        }
    }

    /// The configuration of the metric's plugin. A metric has one, whatever the controller's ConfigMap calls it.
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
    /// A measurement that begins now and that [`MetricProvider::resume`] will finish.
    #[must_use]
    pub fn running() -> Self {
        Self {
            phase: AnalysisPhase::Running,
            started_at: Some(SystemTime::now()),
            ..Self::default()
        }
    }

    /// A measurement that begins and ends now, with its verdict.
    #[must_use]
    pub fn taken(phase: AnalysisPhase, value: impl ToString) -> Self {
        Self::running().finish(phase, value)
    }

    /// Ends the measurement now.
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

    /// Adds something that is needed to find the measurement again.
    #[must_use]
    pub fn with_metadata(mut self, key: &str, value: impl ToString) -> Self {
        self.metadata.insert(key.to_owned(), value.to_string());
        self
    }
}

/// How a measurement, a metric or a whole run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
