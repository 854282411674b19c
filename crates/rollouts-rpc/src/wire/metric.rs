//! The calls and replies of a metric provider (`metricproviders/plugin/rpc/rpc.go` and `analysis_types.go` in Argo Rollouts).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gob::{Bytes, DecodeError, Decoder, EncodeError, Encoder, LazyVec, Time};
#[cfg(feature = "host")]
use serde::ser::Error as _;

use super::{RpcError, error_text, other_argument};
use crate::error::PluginError;
use crate::methods::{MetricCall, MetricMethod, MetricReply};
use crate::metric_provider as domain;
use crate::metric_provider::AnalysisPhase;
use crate::netrpc::{Body, Decoded, Fault};
use crate::rollout::{ObjectMeta, Present};

gob::gob_struct! {
    struct RunArgs as "RunArgs" {
        analysis_run: AnalysisRun as "AnalysisRun",
        metric: Metric as "Metric",
    }

    struct TerminateAndResumeArgs as "TerminateAndResumeArgs" {
        analysis_run: AnalysisRun as "AnalysisRun",
        metric: Metric as "Metric",
        measurement: Measurement as "Measurement",
    }

    struct GarbageCollectArgs as "GarbageCollectArgs" {
        analysis_run: AnalysisRun as "AnalysisRun",
        metric: Metric as "Metric",
        limit: i64 as "Limit",
    }

    struct GetMetadataArgs as "GetMetadataArgs" {
        metric: Metric as "Metric",
    }

    struct AnalysisRun as "AnalysisRun" {
        object_meta: ObjectMeta as "ObjectMeta",
        spec: AnalysisRunSpec as "Spec",
        status: AnalysisRunStatus as "Status",
    }

    struct AnalysisRunSpec as "AnalysisRunSpec" {
        args: Vec<Argument> as "Args",
        terminate: bool as "Terminate",
    }

    struct Argument as "Argument" {
        name: String as "Name",
        /// Nil and empty are the same in gob.
        value: Option<String> as "Value",
        value_from: Option<Present> as "ValueFrom",
    }

    struct AnalysisRunStatus as "AnalysisRunStatus" {
        phase: String as "Phase",
        metric_results: Vec<MetricResult> as "MetricResults",
        started_at: Option<Time> as "StartedAt",
    }

    struct MetricResult as "MetricResult" {
        name: String as "Name",
        phase: String as "Phase",
        /// A long run has thousands, and most calls read none.
        measurements: LazyVec<Measurement> as "Measurements",
        metadata: BTreeMap<String, String> as "Metadata",
    }

    struct Metric as "Metric" {
        name: String as "Name",
        interval: String as "Interval",
        success_condition: String as "SuccessCondition",
        failure_condition: String as "FailureCondition",
        provider: MetricProvider as "Provider",
    }

    struct MetricProvider as "MetricProvider" {
        plugin: BTreeMap<String, Bytes> as "Plugin",
    }

    struct Measurement as "Measurement" {
        phase: String as "Phase",
        message: String as "Message",
        started_at: Option<Time> as "StartedAt",
        finished_at: Option<Time> as "FinishedAt",
        value: String as "Value",
        metadata: BTreeMap<String, String> as "Metadata",
        resume_at: Option<Time> as "ResumeAt",
    }
}

gob::gob_interface! {
    /// The argument of every method: a Go `any` under its registered name.
    enum Args {
        Run(RunArgs) as "RunArgs",
        TerminateAndResume(TerminateAndResumeArgs) as "TerminateAndResumeArgs",
        GarbageCollect(GarbageCollectArgs) as "GarbageCollectArgs",
        GetMetadata(GetMetadataArgs) as "GetMetadataArgs",
    }
}

/// Decodes the argument of a call, as [`router::decode_call`](super::router::decode_call) does.
pub(crate) fn decode_call(method: MetricMethod, stream: &mut Decoder) -> Decoded<MetricCall> {
    let args = stream.poll_value()?;
    Ok(args.map(|args| metric_call(method, args)))
}

/// Converts the argument of a call; `None` is Go's nil.
fn metric_call(method: MetricMethod, args: Option<Args>) -> Result<MetricCall, Fault> {
    use MetricMethod::{GarbageCollect, GetMetadata, InitPlugin, Resume, Run, Terminate, Type};
    Ok(match (method, args) {
        // The Go server ignores the argument of these two methods.
        (InitPlugin, _) => MetricCall::InitPlugin,
        (Type, _) => MetricCall::Type,
        (Run, Some(Args::Run(args))) => {
            MetricCall::Run(boxed(args.analysis_run), boxed(args.metric))
        }
        (Resume, Some(Args::TerminateAndResume(args))) => MetricCall::Resume(
            boxed(args.analysis_run),
            boxed(args.metric),
            boxed(args.measurement),
        ),
        (Terminate, Some(Args::TerminateAndResume(args))) => MetricCall::Terminate(
            boxed(args.analysis_run),
            boxed(args.metric),
            boxed(args.measurement),
        ),
        (GarbageCollect, Some(Args::GarbageCollect(args))) => {
            let limit = usize::try_from(args.limit).map_err(|_| Fault::Argument {
                method: "Plugin.GarbageCollect".to_owned(),
                reason: format!("the limit is {}", args.limit),
            })?;
            MetricCall::GarbageCollect(boxed(args.analysis_run), boxed(args.metric), limit)
        }
        (GetMetadata, Some(Args::GetMetadata(args))) => MetricCall::GetMetadata(boxed(args.metric)),
        (_, args) => {
            let found = args.as_ref().map(Args::registered_name);
            return Err(other_argument(method, found));
        }
    })
}

impl From<AnalysisRun> for domain::AnalysisRun {
    fn from(run: AnalysisRun) -> Self {
        let AnalysisRun {
            object_meta: meta,
            spec,
            status,
        } = run;
        Self {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            labels: meta.labels,
            annotations: meta.annotations,
            args: spec.args.into_iter().filter_map(argument).collect(),
            terminate: spec.terminate,
            phase: phase_named(&status.phase),
            started_at: status.started_at.and_then(system_time),
            results: status.metric_results.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<MetricResult> for domain::MetricResult {
    fn from(result: MetricResult) -> Self {
        Self {
            name: result.name,
            phase: phase_named(&result.phase),
            measurements: domain::Measurements::on_demand(Arc::new(result.measurements)),
            metadata: result.metadata,
        }
    }
}

impl domain::OnDemand for LazyVec<Measurement> {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn iter(&self) -> Box<dyn Iterator<Item = Result<domain::Measurement, DecodeError>> + '_> {
        Box::new(Self::iter(self).map(|found| found.map(Into::into)))
    }
}

impl From<Metric> for domain::Metric {
    fn from(metric: Metric) -> Self {
        let plugins = metric.provider.plugin.into_iter();
        Self {
            name: metric.name,
            interval: metric.interval,
            success_condition: metric.success_condition,
            failure_condition: metric.failure_condition,
            plugins: plugins.map(|(name, json)| (name, json.0)).collect(),
        }
    }
}

impl From<Measurement> for domain::Measurement {
    fn from(measurement: Measurement) -> Self {
        Self {
            phase: phase_named(&measurement.phase),
            message: measurement.message,
            started_at: measurement.started_at.and_then(system_time),
            finished_at: measurement.finished_at.and_then(system_time),
            value: measurement.value,
            metadata: measurement.metadata,
            resume_at: measurement.resume_at.and_then(system_time),
        }
    }
}

/// Returns the name and value of an argument, or `None` for one that the controller did not resolve.
///
/// An argument without `valueFrom` has a value, so nil is the empty string that gob dropped. The value of a Secret is only in the metric.
fn argument(argument: Argument) -> Option<(String, String)> {
    let value = match argument.value_from {
        None => argument.value.unwrap_or_default(),
        Some(_) => argument.value?,
    };
    Some((argument.name, value))
}

fn phase_named(text: &str) -> AnalysisPhase {
    match text {
        "Running" => AnalysisPhase::Running,
        "Successful" => AnalysisPhase::Successful,
        "Failed" => AnalysisPhase::Failed,
        "Error" => AnalysisPhase::Error,
        "Inconclusive" => AnalysisPhase::Inconclusive,
        _ => AnalysisPhase::Pending,
    }
}

const fn phase_name(phase: AnalysisPhase) -> &'static str {
    match phase {
        AnalysisPhase::Pending => "Pending",
        AnalysisPhase::Running => "Running",
        AnalysisPhase::Successful => "Successful",
        AnalysisPhase::Failed => "Failed",
        AnalysisPhase::Error => "Error",
        AnalysisPhase::Inconclusive => "Inconclusive",
    }
}

/// Returns `None` for Go's zero time, and for a time that this machine cannot represent.
fn system_time(time: Time) -> Option<SystemTime> {
    if time.is_zero() {
        return None;
    }
    let seconds = Duration::from_secs(time.unix_seconds.unsigned_abs());
    let whole = if time.unix_seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole?.checked_add(Duration::from_nanos(time.nanos.into()))
}

/// Returns the time in whole seconds, which is what Kubernetes stores, or `None` for a time before 1970.
fn go_time(time: SystemTime) -> Option<Time> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Time::from_unix(i64::try_from(since.as_secs()).ok()?))
}

fn boxed<W, D: From<W>>(wire: W) -> Box<D> {
    Box::new(wire.into())
}

impl Body for MetricReply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Type(name) => encoder.encode(name, out),
            Self::Done(outcome) => encoder.encode(&RpcError::from(outcome), out),
            Self::Measured(outcome) => encoder.encode(&Measurement::from(outcome.as_ref()), out),
            Self::Metadata(outcome) => encoder.encode(&metadata(outcome), out),
        }
    }
}

impl From<&Result<domain::Measurement, PluginError>> for Measurement {
    /// Converts an error to a measurement that starts and ends now, as the controller does
    /// (`MarkMeasurementError` in `utils/metric`).
    fn from(outcome: &Result<domain::Measurement, PluginError>) -> Self {
        match outcome {
            Ok(measurement) => measurement.into(),
            Err(error) => {
                let now = SystemTime::now();
                Self {
                    phase: phase_name(AnalysisPhase::Error).to_owned(),
                    message: error_text(error),
                    started_at: go_time(now),
                    finished_at: go_time(now),
                    ..Self::default()
                }
            }
        }
    }
}

impl From<&domain::Measurement> for Measurement {
    fn from(measurement: &domain::Measurement) -> Self {
        Self {
            phase: phase_name(measurement.phase).to_owned(),
            message: measurement.message.clone(),
            started_at: measurement.started_at.and_then(go_time),
            finished_at: measurement.finished_at.and_then(go_time),
            value: measurement.value.clone(),
            metadata: measurement.metadata.clone(),
            resume_at: measurement.resume_at.and_then(go_time),
        }
    }
}

/// Returns the reply to GetMetadata, in which the key `error` reports an error.
fn metadata(outcome: &Result<BTreeMap<String, String>, PluginError>) -> BTreeMap<String, String> {
    match outcome {
        Ok(metadata) => metadata.clone(),
        Err(error) => BTreeMap::from([("error".to_owned(), error_text(error))]),
    }
}

/// Encodes the argument of a call.
///
/// # Errors
///
/// Returns `Err` if gob cannot represent the argument, or if a measurement that arrived in gob does not decode.
#[cfg(feature = "host")]
pub(crate) fn encode_call(
    call: MetricCall,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let args = match call {
        MetricCall::InitPlugin | MetricCall::Type => None,
        MetricCall::Run(run, metric) => Some(Args::Run(RunArgs {
            analysis_run: analysis_run(*run)?,
            metric: (*metric).into(),
        })),
        MetricCall::Resume(run, metric, measurement)
        | MetricCall::Terminate(run, metric, measurement) => {
            Some(Args::TerminateAndResume(TerminateAndResumeArgs {
                analysis_run: analysis_run(*run)?,
                metric: (*metric).into(),
                measurement: (&*measurement).into(),
            }))
        }
        MetricCall::GarbageCollect(run, metric, limit) => {
            Some(Args::GarbageCollect(GarbageCollectArgs {
                analysis_run: analysis_run(*run)?,
                metric: (*metric).into(),
                limit: i64::try_from(limit).unwrap_or(i64::MAX),
            }))
        }
        MetricCall::GetMetadata(metric) => Some(Args::GetMetadata(GetMetadataArgs {
            metric: (*metric).into(),
        })),
    };
    encoder.encode(&args, out)
}

#[cfg(feature = "host")]
fn analysis_run(run: domain::AnalysisRun) -> Result<AnalysisRun, EncodeError> {
    let argument = |(name, value)| Argument {
        name,
        value: Some(value),
        value_from: None,
    };
    Ok(AnalysisRun {
        object_meta: ObjectMeta {
            name: run.name,
            namespace: run.namespace,
            uid: run.uid,
            labels: run.labels,
            annotations: run.annotations,
            ..ObjectMeta::default()
        },
        spec: AnalysisRunSpec {
            args: run.args.into_iter().map(argument).collect(),
            terminate: run.terminate,
        },
        status: AnalysisRunStatus {
            phase: phase_name(run.phase).to_owned(),
            metric_results: run
                .results
                .into_iter()
                .map(metric_result)
                .collect::<Result<_, _>>()?,
            started_at: run.started_at.and_then(go_time),
        },
    })
}

#[cfg(feature = "host")]
fn metric_result(result: domain::MetricResult) -> Result<MetricResult, EncodeError> {
    let measurements = result.measurements.iter();
    let measurements = measurements.map(|found| found.map(|found| Measurement::from(&found)));
    let measurements: Result<Vec<_>, _> = measurements.collect();
    Ok(MetricResult {
        name: result.name,
        phase: phase_name(result.phase).to_owned(),
        measurements: measurements.map_err(EncodeError::custom)?.into(),
        metadata: result.metadata,
    })
}

#[cfg(feature = "host")]
impl From<domain::Metric> for Metric {
    fn from(metric: domain::Metric) -> Self {
        let plugins = metric.plugins.into_iter();
        Self {
            name: metric.name,
            interval: metric.interval,
            success_condition: metric.success_condition,
            failure_condition: metric.failure_condition,
            provider: MetricProvider {
                plugin: plugins.map(|(name, json)| (name, json.into())).collect(),
            },
        }
    }
}

/// Decodes the reply to Run, Resume and Terminate.
#[cfg(feature = "host")]
pub(crate) fn decode_measurement(
    stream: &mut Decoder,
) -> Result<Option<domain::Measurement>, DecodeError> {
    let reply: Option<Measurement> = stream.poll_value()?;
    Ok(reply.map(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(method: MetricMethod, args: Option<Args>, expect: &str) {
        let fault = metric_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(MetricMethod::Run, None, "it is nil");
        check_refused(
            MetricMethod::Resume,
            Some(Args::Run(Default::default())),
            "it is RunArgs",
        );
    }

    #[test]
    fn a_negative_limit_is_refused() {
        let args = GarbageCollectArgs {
            limit: -1,
            ..Default::default()
        };
        check_refused(
            MetricMethod::GarbageCollect,
            Some(Args::GarbageCollect(args)),
            "the limit is -1",
        );
    }

    #[track_caller]
    fn check_argument(value: Option<&str>, has_value_from: bool, expect: Option<&str>) {
        let found = argument(Argument {
            name: "x".to_owned(),
            value: value.map(str::to_owned),
            value_from: has_value_from.then(Default::default),
        });
        let value = found.map(|(_, value)| value);
        assert_eq!(value.as_deref(), expect);
    }

    #[test]
    fn an_argument_without_a_value_is_empty_unless_it_has_value_from() {
        check_argument(Some("v"), false, Some("v"));
        check_argument(None, false, Some(""));
        check_argument(None, true, None);
        check_argument(Some("v"), true, Some("v"));
    }

    #[track_caller]
    fn check_time(unix_seconds: i64, nanos: u32, expect: Option<SystemTime>) {
        let time = Time {
            unix_seconds,
            nanos,
            offset_seconds: None,
        };
        assert_eq!(system_time(time), expect);
    }

    #[test]
    fn times_of_any_size_are_read() {
        check_time(5, 7, Some(UNIX_EPOCH + Duration::new(5, 7)));
        check_time(
            -5,
            7,
            Some(UNIX_EPOCH - Duration::from_secs(5) + Duration::from_nanos(7)),
        );
        check_time(
            i64::MIN,
            0,
            UNIX_EPOCH.checked_sub(Duration::from_secs(1 << 63)),
        );
        assert_eq!(system_time(Time::default()), None);
    }

    #[test]
    fn an_error_is_a_measurement_that_starts_and_ends_now() {
        let measured = Measurement::from(&Err("no data\nin 5%".into()));
        assert_eq!(measured.phase, "Error");
        assert_eq!(measured.message, "no data in 5\u{ff05}");
        assert!(measured.started_at.is_some() && measured.finished_at.is_some());
    }

    #[test]
    fn an_error_of_metadata_is_reported_under_the_key_error() {
        let expect = BTreeMap::from([("error".to_owned(), "no".to_owned())]);
        assert_eq!(metadata(&Err("no".into())), expect);
    }
}
