//! Arguments and replies of a metric provider (`metricproviders/plugin/rpc/rpc.go`), with the parts of
//! `analysis_types.go` that are read.

use std::collections::BTreeMap;

use gob::{Bytes, LazyVec, Time};

use rollout_types::{ObjectMeta, Present};

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
