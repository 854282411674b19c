//! The calls and replies of a metric provider (`metricproviders/plugin/rpc/rpc.go` and `analysis_types.go` in Argo Rollouts).

use std::collections::BTreeMap;

use gob::Decoder;
#[cfg(feature = "host")]
use gob::{EncodeError, Encoder};

use super::{error_text, other_argument};
use crate::error::PluginError;
use crate::methods::{
    GarbageCollectArgs, GetMetadataArgs, MetricCall, MetricMethod, RunArgs, TerminateAndResumeArgs,
};
use crate::metric_provider::{AnalysisPhase, Measurement, now};
use crate::netrpc::{Decoded, Fault};

gob::gob_interface! {
    /// The argument of every method: a Go `any` under its registered name.
    enum MetricArgument {
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
fn metric_call(method: MetricMethod, args: Option<MetricArgument>) -> Result<MetricCall, Fault> {
    use MetricMethod::{GarbageCollect, GetMetadata, InitPlugin, Resume, Run, Terminate, Type};
    Ok(match (method, args) {
        // The Go server ignores the argument of these two methods.
        (InitPlugin, _) => MetricCall::InitPlugin,
        (Type, _) => MetricCall::Type,
        (Run, Some(MetricArgument::Run(args))) => MetricCall::Run(args.into()),
        (Resume, Some(MetricArgument::TerminateAndResume(args))) => MetricCall::Resume(args.into()),
        (Terminate, Some(MetricArgument::TerminateAndResume(args))) => {
            MetricCall::Terminate(args.into())
        }
        (GarbageCollect, Some(MetricArgument::GarbageCollect(args))) if args.limit < 0 => {
            return Err(Fault::Argument {
                method: "Plugin.GarbageCollect".to_owned(),
                reason: format!("the limit is {}", args.limit),
            });
        }
        (GarbageCollect, Some(MetricArgument::GarbageCollect(args))) => {
            MetricCall::GarbageCollect(args.into())
        }
        (GetMetadata, Some(MetricArgument::GetMetadata(args))) => {
            MetricCall::GetMetadata(args.into())
        }
        (_, args) => {
            let found = args.as_ref().map(MetricArgument::registered_name);
            return Err(other_argument(method, found));
        }
    })
}

/// Returns the reply for an error: a measurement that starts and ends now, as the controller makes it (`MarkMeasurementError` in
/// `utils/metric`).
pub(super) fn failed_measurement(error: &PluginError) -> Measurement {
    let now = now();
    Measurement {
        phase: AnalysisPhase::Error,
        message: error_text(error),
        started_at: now,
        finished_at: now,
        ..Measurement::default()
    }
}

/// Returns the reply of GetMetadata for an error, which has it under the key `error`.
pub(super) fn failed_metadata(error: &PluginError) -> BTreeMap<String, String> {
    BTreeMap::from([("error".to_owned(), error_text(error))])
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
        MetricCall::Run(args) => Some(MetricArgument::Run(*args)),
        MetricCall::Resume(args) | MetricCall::Terminate(args) => {
            Some(MetricArgument::TerminateAndResume(*args))
        }
        MetricCall::GarbageCollect(args) => Some(MetricArgument::GarbageCollect(*args)),
        MetricCall::GetMetadata(args) => Some(MetricArgument::GetMetadata(*args)),
    };
    encoder.encode(&args, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(method: MetricMethod, args: Option<MetricArgument>, expect: &str) {
        let fault = metric_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(MetricMethod::Run, None, "it is nil");
        check_refused(
            MetricMethod::Resume,
            Some(MetricArgument::Run(Default::default())),
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
            Some(MetricArgument::GarbageCollect(args)),
            "the limit is -1",
        );
    }

    #[test]
    fn an_error_is_a_measurement_that_starts_and_ends_now() {
        let measured = failed_measurement(&"no data\nin 5%".into());
        assert_eq!(measured.phase, AnalysisPhase::Error);
        assert_eq!(measured.message, "no data in 5\u{ff05}");
        assert!(measured.started_at.is_some() && measured.finished_at.is_some());
    }

    #[test]
    fn an_error_of_metadata_is_reported_under_the_key_error() {
        let expect = BTreeMap::from([("error".to_owned(), "no".to_owned())]);
        assert_eq!(failed_metadata(&"no".into()), expect);
    }
}
