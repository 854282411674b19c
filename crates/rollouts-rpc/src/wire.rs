//! What goes over the wire, field by field under the names Go gave it.
//!
//! These names are frozen by every released controller. Nothing outside `from_wire`, `to_wire`, the
//! codec and the host half uses these types.

use std::collections::BTreeMap;

use gob::{Bytes, LazyVec, Limits, Time, WithRaw};
use rollout_types::{
    ObjectMeta, Present, Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination,
};

/// What a peer may send. A controller's first call is about 22 KB with 245 types nested 17 deep; the API server
/// takes no object above 3 MiB, and gob does not make it larger. Whatever an author of Rollouts can exceed
/// here ends a call, not the session.
pub(crate) const LIMITS: Limits = Limits::STRICT
    .with_message_bytes(4 << 20)
    .with_value_messages(8192)
    .with_types(4096)
    .with_definition_bytes(256 << 10)
    .with_fields(1024)
    .with_name_bytes(1024)
    .with_depth(64)
    .with_interface_depth(4)
    .with_elements(4096);

// The headers of Go's `net/rpc`, whose bodies follow as values of their own.

gob::gob_struct! {
    pub(crate) struct Request as "Request" {
        pub(crate) service_method: String as "ServiceMethod",
        pub(crate) seq: u64 as "Seq",
    }

    pub(crate) struct Response as "Response" {
        pub(crate) service_method: String as "ServiceMethod",
        pub(crate) seq: u64 as "Seq",
        /// Empty for a call that was carried out.
        pub(crate) error: String as "Error",
    }
}

// Arguments and replies of a traffic router: `rollout/trafficrouting/plugin/rpc/rpc.go`.

gob::gob_struct! {
    pub(crate) struct UpdateHashArgs as "UpdateHashArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) canary_hash: String as "CanaryHash",
        pub(crate) stable_hash: String as "StableHash",
        pub(crate) additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    pub(crate) struct SetWeightAndVerifyWeightArgs as "SetWeightAndVerifyWeightArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) desired_weight: i32 as "DesiredWeight",
        pub(crate) additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    pub(crate) struct SetHeaderArgs as "SetHeaderArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) set_header_route: SetHeaderRoute as "SetHeaderRoute",
    }

    pub(crate) struct SetMirrorArgs as "SetMirrorArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) set_mirror_route: SetMirrorRoute as "SetMirrorRoute",
    }

    pub(crate) struct RemoveManagedRoutesArgs as "RemoveManagedRoutesArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
    }

    pub(crate) struct RpcError as "RpcError" {
        /// Empty for success.
        pub(crate) error_string: String as "ErrorString",
    }

    pub(crate) struct VerifyWeightResponse as "VerifyWeightResponse" {
        /// 0 not verified, 1 verified, 2 not implemented.
        pub(crate) verified: i32 as "Verified",
        pub(crate) err: RpcError as "Err",
    }
}

gob::gob_interface! {
    /// The argument of every method, a Go `any` under a registered name.
    pub(crate) enum RouterArgs {
        UpdateHash(UpdateHashArgs) as "UpdateHashArgs",
        Weight(SetWeightAndVerifyWeightArgs) as "SetWeightAndVerifyWeightArgs",
        SetHeader(SetHeaderArgs) as "SetHeaderArgs",
        SetMirror(SetMirrorArgs) as "SetMirrorArgs",
        RemoveManagedRoutes(RemoveManagedRoutesArgs) as "RemoveManagedRoutesArgs",
    }
}

// Arguments and replies of a metric provider: `metricproviders/plugin/rpc/rpc.go`, and of `analysis_types.go` what is read.

gob::gob_struct! {
    pub(crate) struct MetricRunArgs as "RunArgs" {
        pub(crate) analysis_run: AnalysisRun as "AnalysisRun",
        pub(crate) metric: Metric as "Metric",
    }

    pub(crate) struct TerminateAndResumeArgs as "TerminateAndResumeArgs" {
        pub(crate) analysis_run: AnalysisRun as "AnalysisRun",
        pub(crate) metric: Metric as "Metric",
        pub(crate) measurement: Measurement as "Measurement",
    }

    pub(crate) struct GarbageCollectArgs as "GarbageCollectArgs" {
        pub(crate) analysis_run: AnalysisRun as "AnalysisRun",
        pub(crate) metric: Metric as "Metric",
        pub(crate) limit: i64 as "Limit",
    }

    pub(crate) struct GetMetadataArgs as "GetMetadataArgs" {
        pub(crate) metric: Metric as "Metric",
    }

    pub(crate) struct AnalysisRun as "AnalysisRun" {
        pub(crate) object_meta: ObjectMeta as "ObjectMeta",
        pub(crate) spec: AnalysisRunSpec as "Spec",
        pub(crate) status: AnalysisRunStatus as "Status",
    }

    pub(crate) struct AnalysisRunSpec as "AnalysisRunSpec" {
        pub(crate) args: Vec<Argument> as "Args",
        pub(crate) terminate: bool as "Terminate",
    }

    pub(crate) struct Argument as "Argument" {
        pub(crate) name: String as "Name",
        /// Nil and empty arrive alike.
        pub(crate) value: Option<String> as "Value",
        pub(crate) value_from: Option<Present> as "ValueFrom",
    }

    pub(crate) struct AnalysisRunStatus as "AnalysisRunStatus" {
        pub(crate) phase: String as "Phase",
        pub(crate) metric_results: Vec<MetricResult> as "MetricResults",
        pub(crate) started_at: Option<Time> as "StartedAt",
    }

    pub(crate) struct MetricResult as "MetricResult" {
        pub(crate) name: String as "Name",
        pub(crate) phase: String as "Phase",
        /// Thousands, of which most calls read none.
        pub(crate) measurements: LazyVec<Measurement> as "Measurements",
        pub(crate) metadata: BTreeMap<String, String> as "Metadata",
    }

    pub(crate) struct Metric as "Metric" {
        pub(crate) name: String as "Name",
        pub(crate) interval: String as "Interval",
        pub(crate) success_condition: String as "SuccessCondition",
        pub(crate) failure_condition: String as "FailureCondition",
        pub(crate) provider: MetricProvider as "Provider",
    }

    pub(crate) struct MetricProvider as "MetricProvider" {
        pub(crate) plugin: BTreeMap<String, Bytes> as "Plugin",
    }

    pub(crate) struct Measurement as "Measurement" {
        pub(crate) phase: String as "Phase",
        pub(crate) message: String as "Message",
        pub(crate) started_at: Option<Time> as "StartedAt",
        pub(crate) finished_at: Option<Time> as "FinishedAt",
        pub(crate) value: String as "Value",
        pub(crate) metadata: BTreeMap<String, String> as "Metadata",
        pub(crate) resume_at: Option<Time> as "ResumeAt",
    }
}

gob::gob_interface! {
    /// The argument of every method, a Go `any` under a registered name.
    pub(crate) enum MetricArgs {
        Run(MetricRunArgs) as "RunArgs",
        TerminateAndResume(TerminateAndResumeArgs) as "TerminateAndResumeArgs",
        GarbageCollect(GarbageCollectArgs) as "GarbageCollectArgs",
        GetMetadata(GetMetadataArgs) as "GetMetadataArgs",
    }
}

// Arguments and reply of a step plugin: `rollout/steps/plugin/rpc/rpc.go`, `utils/plugin/types/steps.go`.

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
