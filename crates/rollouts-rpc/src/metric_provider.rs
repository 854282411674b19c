//! The trait of metric providers, and the fields of an AnalysisRun that they receive.
//!
//! As those of a Rollout, the types are declared once, with their names in Go, and have the form of the API
//! (`pkg/apis/rollouts/v1alpha1/analysis_types.go` in Argo Rollouts). Fields of the built-in providers, such as the settings of
//! Prometheus, are not decoded.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gob::{GobType, LazyVec, Schema, SchemaRef};
use rollout_types::{ConfigError, ObjectMeta, Present, RawJson, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
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
                finished_at: now(),
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

gob::gob_struct! {
    /// An AnalysisRun at the start of the controller's reconcile.
    pub struct AnalysisRun as "AnalysisRun" {
        /// `metadata`.
        pub metadata: ObjectMeta as "ObjectMeta",
        /// `spec`.
        pub spec: AnalysisRunSpec as "Spec",
        /// `status`.
        pub status: AnalysisRunStatus as "Status",
    }

    /// `spec` of an AnalysisRun.
    pub struct AnalysisRunSpec as "AnalysisRunSpec" {
        /// `args`. The controller has already substituted them in the metric.
        pub args: Vec<Argument> as "Args",
        /// `terminate`.
        pub terminate: bool as "Terminate",
    }

    /// One entry of `spec.args`.
    pub struct Argument as "Argument" {
        /// `name`.
        pub name: String as "Name",
        /// `value`; see [`Argument::text`].
        pub value: Option<String> as "Value",
        /// `valueFrom`: a Secret, for example.
        pub value_from: Option<Present> as "ValueFrom",
    }

    /// `status` of an AnalysisRun.
    pub struct AnalysisRunStatus as "AnalysisRunStatus" {
        /// `phase`.
        pub phase: AnalysisPhase as "Phase",
        /// `metricResults`.
        pub metric_results: Vec<MetricResult> as "MetricResults",
        /// `startedAt`.
        pub started_at: Option<Timestamp> as "StartedAt",
    }

    /// The results of one metric.
    pub struct MetricResult as "MetricResult" {
        /// The metric's name.
        pub name: String as "Name",
        /// The phase of the metric.
        pub phase: AnalysisPhase as "Phase",
        /// The newest measurements, oldest first. They are decoded one at a time while they are read: a long run has thousands,
        /// and most calls read none.
        pub measurements: LazyVec<Measurement> as "Measurements",
        /// The result of [`MetricProvider::metadata`].
        pub metadata: BTreeMap<String, String> as "Metadata",
    }

    /// A metric of an AnalysisRun, with resolved arguments.
    pub struct Metric as "Metric" {
        /// `name`.
        pub name: String as "Name",
        /// `interval`, a Go duration such as `30s`; empty for a single measurement.
        pub interval: String as "Interval",
        /// `successCondition`, an expression over `result`; empty if it is not set.
        pub success_condition: String as "SuccessCondition",
        /// `failureCondition`, an expression over `result`; empty if it is not set.
        pub failure_condition: String as "FailureCondition",
        /// `provider`.
        pub provider: Provider as "Provider",
    }

    /// `provider` of a metric.
    pub struct Provider as "MetricProvider" {
        /// `plugin`: the configuration by plugin name.
        pub plugin: BTreeMap<String, RawJson> as "Plugin",
    }

    /// One measurement, finished or not. Value, message and metadata have at most [`MAX_RESULT`](crate::MAX_RESULT) bytes.
    #[derive(Eq)]
    pub struct Measurement as "Measurement" {
        /// `Running` if the controller must resume it, otherwise the final phase.
        pub phase: AnalysisPhase as "Phase",
        /// A message for people.
        pub message: String as "Message",
        /// When it started.
        pub started_at: Option<Timestamp> as "StartedAt",
        /// When it finished. The controller sets it if it is absent.
        pub finished_at: Option<Timestamp> as "FinishedAt",
        /// The value, as text.
        pub value: String as "Value",
        /// Data with which the provider identifies the measurement later, such as an id.
        pub metadata: BTreeMap<String, String> as "Metadata",
        /// When to resume a running measurement. The controller chooses the time if it is absent.
        pub resume_at: Option<Timestamp> as "ResumeAt",
    }
}

/// Returns the number of bytes of metadata.
pub(crate) fn size_of_metadata(metadata: &BTreeMap<String, String>) -> usize {
    metadata
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}

/// Returns the time after `wait` from now, without the part of a second, or `None` if it is beyond all dates.
fn after(wait: Duration) -> Option<Timestamp> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let then = since_1970.unwrap_or_default().checked_add(wait)?;
    let unix_seconds = i64::try_from(then.as_secs()).ok()?;
    Some(Timestamp { unix_seconds })
}

/// Returns the time of a measurement that starts or ends now.
pub(crate) fn now() -> Option<Timestamp> {
    after(Duration::ZERO)
}

impl AnalysisRun {
    /// Returns a run with only a namespace and a name.
    #[must_use]
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            metadata: ObjectMeta {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..ObjectMeta::default()
            },
            ..Self::default()
        }
    }

    /// Returns the value of an argument, or `None` if there is none of this name or the controller did not resolve it. If several
    /// have the name, the last value counts, as in the controller (`ResolveArgs` in `utils/template`).
    #[must_use]
    pub fn arg(&self, name: &str) -> Option<&str> {
        let mut args = self.spec.args.iter().rev();
        args.find_map(|argument| argument.text().filter(|_| argument.name == name))
    }
}

impl Argument {
    /// Returns the value, or `None` for one that the controller did not resolve. The value of a Secret is only in the metric.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self.value_from {
            // An argument without `valueFrom` has a value, so nil is the empty string that gob dropped.
            None => Some(self.value.as_deref().unwrap_or_default()),
            Some(_) => self.value.as_deref(),
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
            provider: Provider {
                plugin: BTreeMap::from([(plugin.to_owned(), config.into())]),
            },
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
        match self.provider.plugin.first_key_value() {
            Some((plugin, json)) => {
                ConfigError::parse(json.as_ref(), || format!("{}[{plugin}]", at()))
            }
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
            started_at: now(),
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
            finished_at: now(),
            resume_at: None,
            ..self
        }
    }

    /// Sets when a running measurement is resumed. After a wait beyond all dates, such as [`Duration::MAX`], the controller chooses the
    /// time.
    #[must_use]
    pub fn resume_in(self, wait: Duration) -> Self {
        Self {
            resume_at: after(wait),
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AnalysisPhase {
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
    /// Not started. An empty or unknown phase is read as `Pending`.
    #[default]
    #[serde(other)]
    Pending,
}

impl GobType for AnalysisPhase {
    fn describe(schema: &mut Schema) -> SchemaRef {
        String::describe(schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_argument(value: Option<&str>, has_value_from: bool, expect: Option<&str>) {
        let argument = Argument {
            name: "x".to_owned(),
            value: value.map(str::to_owned),
            value_from: has_value_from.then(Default::default),
        };
        assert_eq!(argument.text(), expect);
    }

    #[test]
    fn of_arguments_with_one_name_the_last_value_counts() {
        let argument = |value: Option<&str>, has_value_from: bool| Argument {
            name: "x".to_owned(),
            value: value.map(str::to_owned),
            value_from: has_value_from.then(Default::default),
        };
        let mut run = AnalysisRun::default();
        run.spec.args = vec![
            argument(Some("first"), false),
            argument(Some("last"), false),
            argument(None, true),
        ];
        assert_eq!(run.arg("x"), Some("last"));
        assert_eq!(run.arg("y"), None);
    }

    #[track_caller]
    fn check_times(measurement: &Measurement, [started, finished, resumed]: [bool; 3]) {
        assert_eq!(measurement.started_at.is_some(), started);
        assert_eq!(measurement.finished_at.is_some(), finished);
        assert_eq!(measurement.resume_at.is_some(), resumed);
    }

    #[test]
    fn a_measurement_is_resumed_until_it_is_finished() {
        check_times(&Measurement::running(), [true, false, false]);
        let waits = Measurement::running().resume_in(Duration::from_secs(60));
        check_times(&waits, [true, false, true]);
        let taken = waits.finish(AnalysisPhase::Successful, 1);
        check_times(&taken, [true, true, false]);
        let taken = Measurement::taken(AnalysisPhase::Failed, 1);
        check_times(&taken, [true, true, false]);
    }

    #[test]
    fn a_named_run_has_both_parts_of_its_name() {
        let AnalysisRun { metadata, .. } = AnalysisRun::named("ns", "demo-1");
        assert_eq!(
            (metadata.namespace, metadata.name),
            ("ns".into(), "demo-1".into())
        );
    }

    #[test]
    fn a_wait_without_end_leaves_the_time_to_the_controller() {
        let waits = Measurement::running().resume_in(Duration::MAX);
        assert_eq!(waits.resume_at, None);
    }

    #[test]
    fn an_argument_without_a_value_is_empty_unless_it_has_value_from() {
        check_argument(Some("v"), false, Some("v"));
        check_argument(None, false, Some(""));
        check_argument(None, true, None);
        check_argument(Some("v"), true, Some("v"));
    }
}
