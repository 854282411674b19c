//! A step plugin's answers.

use gob::Bytes;

use super::plugin_error;
use crate::error::PluginError;
use crate::step_plugin::{StepPhase, StepResult};
use crate::wire;

impl From<&Result<StepResult, PluginError>> for wire::StepResponse {
    fn from(outcome: &Result<StepResult, PluginError>) -> Self {
        match outcome {
            Ok(result) => Self {
                result: result.into(),
                error: wire::RpcError::default(),
            },
            Err(error) => Self {
                result: wire::RpcStepResult::default(),
                error: wire::RpcError {
                    error_string: plugin_error(error),
                },
            },
        }
    }
}

impl From<&StepResult> for wire::RpcStepResult {
    fn from(result: &StepResult) -> Self {
        let status = result.status.as_ref().map(ToString::to_string);
        Self {
            phase: phase(result.phase).to_owned(),
            message: result.message.clone(),
            // Go's longest duration is 292 years.
            requeue_after: i64::try_from(result.requeue_after.as_nanos()).unwrap_or(i64::MAX),
            status: Bytes(status.unwrap_or_default().into_bytes()),
        }
    }
}

const fn phase(phase: StepPhase) -> &'static str {
    match phase {
        StepPhase::Running => "Running",
        StepPhase::Successful => "Successful",
        StepPhase::Failed => "Failed",
        StepPhase::Error => "Error",
    }
}
