//! A metric provider's arguments.

use std::time::{Duration, SystemTime};

use gob::Decoder;

use crate::call::{MetricCall, MetricMethod, other_argument};
use crate::metric_provider::{
    AnalysisPhase, AnalysisRun, Measurement, Measurements, Metric, MetricResult,
};
use crate::netrpc::{Decoded, Fault};
use crate::wire::{self, MetricArgs};

/// See [`decode_router_call`](super::decode_router_call).
pub(crate) fn decode_metric_call(
    method: MetricMethod,
    stream: &mut Decoder,
) -> Decoded<MetricCall> {
    let args = stream.poll_value()?;
    Ok(args.map(|args| metric_call(method, args)))
}

/// A call with the argument that belongs to its method. `None` is Go's nil.
fn metric_call(method: MetricMethod, args: Option<MetricArgs>) -> Result<MetricCall, Fault> {
    use MetricMethod::{GarbageCollect, GetMetadata, InitPlugin, Resume, Run, Terminate, Type};
    Ok(match (method, args) {
        // Both ignore their argument.
        (InitPlugin, _) => MetricCall::InitPlugin,
        (Type, _) => MetricCall::Type,
        (Run, Some(MetricArgs::Run(args))) => {
            MetricCall::Run(boxed(args.analysis_run), boxed(args.metric))
        }
        (Resume, Some(MetricArgs::TerminateAndResume(args))) => MetricCall::Resume(
            boxed(args.analysis_run),
            boxed(args.metric),
            boxed(args.measurement),
        ),
        (Terminate, Some(MetricArgs::TerminateAndResume(args))) => MetricCall::Terminate(
            boxed(args.analysis_run),
            boxed(args.metric),
            boxed(args.measurement),
        ),
        (GarbageCollect, Some(MetricArgs::GarbageCollect(args))) => {
            let limit = usize::try_from(args.limit).map_err(|_| Fault::Argument {
                method: "Plugin.GarbageCollect".to_owned(),
                reason: format!("the limit is {}", args.limit),
            })?;
            MetricCall::GarbageCollect(boxed(args.analysis_run), boxed(args.metric), limit)
        }
        (GetMetadata, Some(MetricArgs::GetMetadata(args))) => {
            MetricCall::GetMetadata(boxed(args.metric))
        }
        (_, args) => {
            let found = args.as_ref().map(MetricArgs::registered_name);
            return Err(other_argument(method, found));
        }
    })
}

impl From<wire::AnalysisRun> for AnalysisRun {
    fn from(run: wire::AnalysisRun) -> Self {
        let wire::AnalysisRun {
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
            phase: phase(&status.phase),
            started_at: status.started_at.and_then(instant),
            results: all(status.metric_results),
        }
    }
}

impl From<wire::MetricResult> for MetricResult {
    fn from(result: wire::MetricResult) -> Self {
        Self {
            name: result.name,
            phase: phase(&result.phase),
            measurements: Measurements(result.measurements),
            metadata: result.metadata,
        }
    }
}

impl From<wire::Metric> for Metric {
    fn from(metric: wire::Metric) -> Self {
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

impl From<wire::Measurement> for Measurement {
    fn from(measurement: wire::Measurement) -> Self {
        Self {
            phase: phase(&measurement.phase),
            message: measurement.message,
            started_at: measurement.started_at.and_then(instant),
            finished_at: measurement.finished_at.and_then(instant),
            value: measurement.value,
            metadata: measurement.metadata,
            resume_at: measurement.resume_at.and_then(instant),
        }
    }
}

/// An argument with its value. The controller has resolved those that are not taken from elsewhere, so one without a value has
/// an empty one; the value of a Secret stays in the metric.
fn argument(argument: wire::Argument) -> Option<(String, String)> {
    let value = match argument.value_from {
        None => argument.value.unwrap_or_default(),
        Some(_) => argument.value?,
    };
    Some((argument.name, value))
}

fn phase(text: &str) -> AnalysisPhase {
    match text {
        "Running" => AnalysisPhase::Running,
        "Successful" => AnalysisPhase::Successful,
        "Failed" => AnalysisPhase::Failed,
        "Error" => AnalysisPhase::Error,
        "Inconclusive" => AnalysisPhase::Inconclusive,
        _ => AnalysisPhase::Pending,
    }
}

/// `None` for Go's zero time, and for one this machine cannot represent.
fn instant(time: gob::Time) -> Option<SystemTime> {
    if time.is_zero() {
        return None;
    }
    let seconds = Duration::from_secs(time.unix_seconds.unsigned_abs());
    let whole = if time.unix_seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole?.checked_add(Duration::from_nanos(time.nanos.into()))
}

fn boxed<W, D: From<W>>(wire: W) -> Box<D> {
    Box::new(wire.into())
}

fn all<W, D: From<W>>(wire: Vec<W>) -> Vec<D> {
    wire.into_iter().map(D::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(method: MetricMethod, args: Option<MetricArgs>, expect: &str) {
        let fault = metric_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(MetricMethod::Run, None, "it is nil");
        check_refused(
            MetricMethod::Resume,
            Some(MetricArgs::Run(Default::default())),
            "it is RunArgs",
        );
    }

    #[test]
    fn a_limit_below_zero_is_refused() {
        let args = wire::GarbageCollectArgs {
            limit: -1,
            ..Default::default()
        };
        check_refused(
            MetricMethod::GarbageCollect,
            Some(MetricArgs::GarbageCollect(args)),
            "the limit is -1",
        );
    }

    #[track_caller]
    fn check_argument(value: Option<&str>, from_elsewhere: bool, expect: Option<&str>) {
        let found = argument(wire::Argument {
            name: "x".to_owned(),
            value: value.map(str::to_owned),
            value_from: from_elsewhere.then(Default::default),
        });
        let value = found.map(|(_, value)| value);
        assert_eq!(value.as_deref(), expect);
    }

    #[test]
    fn an_argument_without_a_value_is_empty_unless_it_comes_from_elsewhere() {
        check_argument(Some("v"), false, Some("v"));
        check_argument(None, false, Some(""));
        check_argument(None, true, None);
        check_argument(Some("v"), true, Some("v"));
    }

    #[track_caller]
    fn check_instant(unix_seconds: i64, nanos: u32, expect: Option<SystemTime>) {
        let time = gob::Time {
            unix_seconds,
            nanos,
            offset_seconds: None,
        };
        assert_eq!(instant(time), expect);
    }

    #[test]
    fn times_of_any_size_are_read() {
        let epoch = SystemTime::UNIX_EPOCH;
        check_instant(5, 7, Some(epoch + Duration::new(5, 7)));
        check_instant(
            -5,
            7,
            Some(epoch - Duration::from_secs(5) + Duration::from_nanos(7)),
        );
        check_instant(i64::MIN, 0, epoch.checked_sub(Duration::from_secs(1 << 63)));
        assert_eq!(instant(gob::Time::default()), None);
    }
}
