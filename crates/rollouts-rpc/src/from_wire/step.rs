//! A step plugin's arguments.

#[cfg(feature = "host")]
use std::time::Duration;

use gob::Decoder;

use super::boxed;
use crate::call::{StepCall, StepMethod, other_argument};
use crate::netrpc::{Decoded, Fault};
use crate::step_plugin::StepContext;
#[cfg(feature = "host")]
use crate::step_plugin::{StepPhase, StepResult};
use crate::wire::{self, StepCallArgs};

/// See [`decode_router_call`](super::decode_router_call).
pub(crate) fn decode_step_call(method: StepMethod, stream: &mut Decoder) -> Decoded<StepCall> {
    let args = stream.poll_value()?;
    Ok(args.map(|args| step_call(method, args)))
}

/// A call with the argument that belongs to its method. `None` is Go's nil.
fn step_call(method: StepMethod, args: Option<StepCallArgs>) -> Result<StepCall, Fault> {
    use StepMethod::{Abort, InitPlugin, Run, Terminate, Type};
    Ok(match (method, args) {
        // Both ignore their argument.
        (InitPlugin, _) => StepCall::InitPlugin,
        (Type, _) => StepCall::Type,
        (Run, Some(StepCallArgs::Run(args))) => {
            StepCall::Run(boxed(args.rollout), args.context.into())
        }
        (Terminate, Some(StepCallArgs::Terminate(args))) => {
            StepCall::Terminate(boxed(args.rollout), args.context.into())
        }
        (Abort, Some(StepCallArgs::Abort(args))) => {
            StepCall::Abort(boxed(args.rollout), args.context.into())
        }
        (_, args) => {
            let found = args.as_ref().map(StepCallArgs::registered_name);
            return Err(other_argument(method, found));
        }
    })
}

impl From<wire::RpcStepContext> for StepContext {
    fn from(context: wire::RpcStepContext) -> Self {
        Self {
            plugin_name: context.plugin_name,
            config: context.config.0,
            status: context.status.0,
        }
    }
}

/// For a host: a phase or a status that a controller would refuse is an error, or absent.
#[cfg(feature = "host")]
impl From<wire::RpcStepResult> for StepResult {
    fn from(result: wire::RpcStepResult) -> Self {
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
    fn check_refused(method: StepMethod, args: Option<StepCallArgs>, expect: &str) {
        let fault = step_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(StepMethod::Run, None, "it is nil");
        let args = StepCallArgs::Abort(Default::default());
        check_refused(StepMethod::Terminate, Some(args), "it is step.AbortArgs");
    }
}
