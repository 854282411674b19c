//! Arguments and reply of a step plugin (`rollout/steps/plugin/rpc/rpc.go`, `utils/plugin/types/steps.go`).

use gob::{Bytes, WithRaw};
use rollout_types::Rollout;

use super::router::RpcError;

gob::gob_struct! {
    /// `RunArgs`, `TerminateArgs` and `AbortArgs`, which are told apart by their registered names.
    pub(crate) struct StepArgs as "RunArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) context: RpcStepContext as "Context",
    }

    pub(crate) struct RpcStepContext as "RpcStepContext" {
        pub(crate) plugin_name: String as "PluginName",
        pub(crate) config: Bytes as "Config",
        pub(crate) status: Bytes as "Status",
    }

    pub(crate) struct StepResponse as "Response" {
        pub(crate) result: RpcStepResult as "Result",
        pub(crate) error: RpcError as "Error",
    }

    pub(crate) struct RpcStepResult as "RpcStepResult" {
        pub(crate) phase: String as "Phase",
        pub(crate) message: String as "Message",
        /// Nanoseconds.
        pub(crate) requeue_after: i64 as "RequeueAfter",
        pub(crate) status: Bytes as "Status",
    }
}

gob::gob_interface! {
    /// The argument of every method, a Go `any` under a registered name.
    pub(crate) enum StepCallArgs {
        Run(StepArgs) as "step.RunArgs",
        Terminate(StepArgs) as "step.TerminateArgs",
        Abort(StepArgs) as "step.AbortArgs",
    }
}
