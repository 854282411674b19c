//! The calls and replies of a step plugin (`rollout/steps/plugin/rpc/rpc.go` and `utils/plugin/types/steps.go` in Argo Rollouts).

#[cfg(feature = "host")]
use std::time::Duration;

use gob::{Bytes, Decoder, WithRaw};
#[cfg(feature = "host")]
use gob::{EncodeError, Encoder};

#[cfg(feature = "host")]
use super::{Outcome, sent};
use super::{RpcError, other_argument, received};
use crate::error::PluginError;
use crate::methods::{StepCall, StepMethod};
use crate::netrpc::{Decoded, Fault};
use crate::rollout::Rollout;
use crate::step_plugin::{StepContext, StepPhase, StepResult};

gob::gob_struct! {
    /// `RunArgs`, `TerminateArgs` and `AbortArgs`; only their registered names differ.
    struct StepArgs as "RunArgs" {
        rollout: WithRaw<Rollout> as "Rollout",
        context: StepContext as "Context",
    }

    pub(crate) struct StepResponse as "Response" {
        result: RpcStepResult as "Result",
        error: RpcError as "Error",
    }

    struct RpcStepResult as "RpcStepResult" {
        phase: String as "Phase",
        message: String as "Message",
        /// Nanoseconds.
        requeue_after: i64 as "RequeueAfter",
        status: Bytes as "Status",
    }
}

gob::gob_interface! {
    /// The argument of every method: a Go `any` under its registered name.
    enum StepArgument {
        Run(StepArgs) as "step.RunArgs",
        Terminate(StepArgs) as "step.TerminateArgs",
        Abort(StepArgs) as "step.AbortArgs",
    }
}

/// Decodes the argument of a call, as [`router::decode_call`](super::router::decode_call) does.
pub(crate) fn decode_call(method: StepMethod, stream: &mut Decoder) -> Decoded<StepCall> {
    let args = stream.poll_value()?;
    Ok(args.map(|args| step_call(method, args)))
}

/// Converts the argument of a call; `None` is Go's nil.
fn step_call(method: StepMethod, args: Option<StepArgument>) -> Result<StepCall, Fault> {
    use StepMethod::{Abort, InitPlugin, Run, Terminate, Type};
    Ok(match (method, args) {
        // The Go server ignores the argument of these two methods.
        (InitPlugin, _) => StepCall::InitPlugin,
        (Type, _) => StepCall::Type,
        (Run, Some(StepArgument::Run(args))) => StepCall::Run(received(args.rollout), args.context),
        (Terminate, Some(StepArgument::Terminate(args))) => {
            StepCall::Terminate(received(args.rollout), args.context)
        }
        (Abort, Some(StepArgument::Abort(args))) => {
            StepCall::Abort(received(args.rollout), args.context)
        }
        (_, args) => {
            let found = args.as_ref().map(StepArgument::registered_name);
            return Err(other_argument(method, found));
        }
    })
}

impl From<&Result<StepResult, PluginError>> for StepResponse {
    fn from(outcome: &Result<StepResult, PluginError>) -> Self {
        Self {
            result: outcome.as_ref().map(Into::into).unwrap_or_default(),
            error: outcome.into(),
        }
    }
}

impl From<&StepResult> for RpcStepResult {
    fn from(result: &StepResult) -> Self {
        let status = result.status.as_ref().map(ToString::to_string);
        let phase = match result.phase {
            StepPhase::Running => "Running",
            StepPhase::Successful => "Successful",
            StepPhase::Failed => "Failed",
            StepPhase::Error => "Error",
        };
        Self {
            phase: phase.to_owned(),
            message: result.message.clone(),
            // Go's longest duration is 292 years.
            requeue_after: i64::try_from(result.requeue_after.as_nanos()).unwrap_or(i64::MAX),
            status: Bytes(status.unwrap_or_default().into_bytes()),
        }
    }
}

/// Encodes the argument of a call.
///
/// # Errors
///
/// Returns `Err` if gob cannot represent the argument.
#[cfg(feature = "host")]
pub(crate) fn encode_call(
    call: StepCall,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let args = match call {
        StepCall::InitPlugin | StepCall::Type => None,
        StepCall::Run(rollout, context) => Some(StepArgument::Run(step_args(*rollout, context))),
        StepCall::Terminate(rollout, context) => {
            Some(StepArgument::Terminate(step_args(*rollout, context)))
        }
        StepCall::Abort(rollout, context) => {
            Some(StepArgument::Abort(step_args(*rollout, context)))
        }
    };
    encoder.encode(&args, out)
}

#[cfg(feature = "host")]
fn step_args(rollout: Rollout, context: StepContext) -> StepArgs {
    let rollout = sent(rollout);
    StepArgs { rollout, context }
}

#[cfg(feature = "host")]
impl StepResponse {
    pub(crate) fn into_outcome(self) -> Outcome<StepResult> {
        self.error.into_outcome()?;
        Ok(self.result.into())
    }
}

/// A phase that a controller would refuse becomes `Error`, and a status that is not JSON becomes `None`.
#[cfg(feature = "host")]
impl From<RpcStepResult> for StepResult {
    fn from(result: RpcStepResult) -> Self {
        Self {
            phase: match result.phase.as_str() {
                "Running" => StepPhase::Running,
                "Successful" => StepPhase::Successful,
                "Failed" => StepPhase::Failed,
                _ => StepPhase::Error,
            },
            message: result.message,
            requeue_after: Duration::from_nanos(result.requeue_after.try_into().unwrap_or(0)),
            status: serde_json::from_slice(&result.status.0).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(method: StepMethod, args: Option<StepArgument>, expect: &str) {
        let fault = step_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(StepMethod::Run, None, "it is nil");
        let args = StepArgument::Abort(Default::default());
        check_refused(StepMethod::Terminate, Some(args), "it is step.AbortArgs");
    }
}
