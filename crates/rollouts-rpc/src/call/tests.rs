//! Decodes recorded calls to metric providers and steps; `tests/wire_bytes` has those to routers.

#![expect(
    clippy::unwrap_used,
    reason = "the functions that tests share are test code too"
)]

use std::collections::BTreeMap;

use super::{Dispatch, Metrics, PluginService, Step};
use crate::error::PluginError;
use crate::kind::PluginKind;
use crate::methods::{
    Call as _, GarbageCollectArgs, GetMetadataArgs, Method as _, MetricCall, RunArgs, StepCall,
    TerminateAndResumeArgs,
};
use crate::metric_provider::{
    AnalysisPhase, AnalysisRun, AnalysisRunSpec, AnalysisRunStatus, Argument, Measurement, Metric,
    MetricProvider, MetricResult, Provider,
};
use crate::netrpc::LIMITS;
use crate::netrpc::codec::CallDecoder;
use crate::rollout::{CanaryStep, ObjectMeta, OwnerReference, Present, Rollout, Timestamp};
use crate::step_plugin::{StepContext, StepPlugin, StepResult};
use crate::testing::{Recording, recordings};

/// Decodes a recording, checks the methods, and returns the calls.
fn replay<P: Dispatch>(recording: &Recording) -> Vec<P::Call> {
    let mut decoder = CallDecoder::new(LIMITS);
    let mut decoded = Vec::new();
    let mut bytes = 0;
    for (method, call) in recording.calls() {
        bytes += call.len();
        decoder.handle_input(call).unwrap();
        let incoming = decoder.poll_call::<PluginService<P>>().unwrap().unwrap();
        let call = incoming.call.unwrap();
        assert_eq!(call.method().name(), method, "{}", recording.version);
        decoded.push(call);
    }
    assert_eq!(bytes, recording.stream.len(), "{}", recording.version);
    decoded
}

/// A plugin that is never created.
enum Never {}

impl MetricProvider for Never {
    fn type_name(&self) -> &str {
        match *self {}
    }
    async fn init(&self) -> Result<(), PluginError> {
        match *self {}
    }
    async fn run(&self, _: &AnalysisRun, _: &Metric) -> Result<Measurement, PluginError> {
        match *self {}
    }
}

impl StepPlugin for Never {
    fn type_name(&self) -> &str {
        match *self {}
    }
    async fn init(&self) -> Result<(), PluginError> {
        match *self {}
    }
    async fn run(&self, _: &Rollout, _: &StepContext) -> Result<StepResult, PluginError> {
        match *self {}
    }
}

/// Returns a time this many seconds after 2026-01-06T10:00:00Z.
fn after(seconds: i64) -> Option<Timestamp> {
    let unix_seconds = 1_767_693_600 + seconds;
    Some(Timestamp { unix_seconds })
}

fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn measurements() -> [Measurement; 2] {
    [
        Measurement {
            phase: AnalysisPhase::Successful,
            value: "0.97".into(),
            started_at: after(60),
            finished_at: after(61),
            metadata: map([("id", "42")]),
            ..Measurement::default()
        },
        Measurement {
            phase: AnalysisPhase::Error,
            message: "timeout: 100%".into(),
            started_at: after(90),
            finished_at: after(100),
            ..Measurement::default()
        },
    ]
}

/// `tests/go/rollouts/fixture/analysis_run.yaml`.
fn analysis_run() -> AnalysisRun {
    AnalysisRun {
        metadata: ObjectMeta {
            name: "demo-7-1-1".into(),
            namespace: "shop".into(),
            uid: "0c1f4d3a-2a56-4c0e-9d0c-6f1d2f0b7a11".into(),
            labels: map([
                ("rollouts-pod-template-hash", "6d4f8b7c5"),
                ("rollout-type", "Background"),
            ]),
            annotations: map([("rollout.argoproj.io/revision", "7")]),
            resource_version: "184470".into(),
            generation: 3,
            creation_timestamp: after(0),
            owner_references: vec![OwnerReference {
                api_version: "argoproj.io/v1alpha1".into(),
                kind: "Rollout".into(),
                name: "demo".into(),
                uid: "5d1c7d0e-9a4e-4e0c-8f53-0f7c5a2f6b10".into(),
                controller: true,
                ..OwnerReference::default()
            }],
            ..ObjectMeta::default()
        },
        spec: AnalysisRunSpec {
            args: vec![
                Argument {
                    name: "service".into(),
                    value: Some("demo-canary".into()),
                    value_from: None,
                },
                Argument {
                    name: "token".into(),
                    value: None,
                    value_from: Some(Present {}),
                },
            ],
            terminate: true,
        },
        status: AnalysisRunStatus {
            phase: AnalysisPhase::Running,
            started_at: after(0),
            metric_results: vec![MetricResult {
                name: "success-rate".into(),
                phase: AnalysisPhase::Running,
                measurements: measurements().to_vec().into(),
                metadata: map([("query", "up")]),
            }],
        },
    }
}

fn metric() -> Metric {
    let block = br#"{"atLeast":0.9,"note":"\u003c\u0026\u003e","value":0.97}"#;
    Metric {
        name: "success-rate".into(),
        interval: "30s".into(),
        success_condition: "result > 0.95".into(),
        failure_condition: "result < 0.9".into(),
        provider: Provider {
            plugin: [("e2e/metric-provider".to_owned(), block.to_vec().into())].into(),
        },
    }
}

#[test]
fn recorded_calls_of_released_controllers_reach_a_metric_provider() {
    let [measurement, _] = measurements();
    let mut expected = Vec::new();
    for (run, metric, measurement) in [(analysis_run(), metric(), measurement), Default::default()]
    {
        let going_on = || {
            Box::new(TerminateAndResumeArgs {
                analysis_run: run.clone(),
                metric: metric.clone(),
                measurement: measurement.clone(),
            })
        };
        expected.extend([
            MetricCall::InitPlugin,
            MetricCall::Type,
            MetricCall::Run(Box::new(RunArgs {
                analysis_run: run.clone(),
                metric: metric.clone(),
            })),
            MetricCall::Resume(going_on()),
            MetricCall::Terminate(going_on()),
            MetricCall::GarbageCollect(Box::new(GarbageCollectArgs {
                analysis_run: run.clone(),
                metric: metric.clone(),
                limit: 10,
            })),
            MetricCall::GetMetadata(Box::new(GetMetadataArgs {
                metric: metric.clone(),
            })),
        ]);
    }
    let demo = Some(("shop", "demo-7-1-1"));
    let objects: Vec<_> = expected.iter().take(7).map(|call| call.object()).collect();
    assert_eq!(objects, [None, None, demo, demo, demo, demo, None]);
    for recording in recordings(PluginKind::MetricProvider) {
        let calls = replay::<Metrics<Never>>(recording);
        assert_eq!(calls, expected, "{}", recording.version);
    }
}

#[test]
fn each_kind_has_recordings_of_the_oldest_and_the_newest_controller() {
    for (kind, expect) in [
        (PluginKind::TrafficRouter, &["1.5.1", "1.10.2"][..]),
        (PluginKind::MetricProvider, &["1.5.1", "1.10.2"]),
        (PluginKind::Step, &["1.10.2"]),
    ] {
        let versions: Vec<_> = recordings(kind).iter().map(|it| it.version).collect();
        assert_eq!(versions, expect, "{kind:?}");
    }
}

/// The recordings of traffic routers already test the fields of a Rollout.
#[test]
fn recorded_calls_of_released_controllers_reach_a_step() {
    let context = |config: &str, status: &str| StepContext {
        plugin_name: "example.com/step".into(),
        config: config.as_bytes().to_vec().into(),
        status: status.as_bytes().to_vec().into(),
    };
    let weights = [&[Some(0), Some(25)][..], &[None; 7], &[Some(50), None]].concat();
    let demo = (
        "shop/demo".to_owned(),
        weights,
        context(r#"{"retries":3}"#, r#"{"looks":2}"#),
    );
    let another = ("bank/another".to_owned(), vec![Some(0)], context("", ""));
    let expected = [vec![demo; 3], vec![another; 3]].concat();
    for recording in recordings(PluginKind::Step) {
        let calls = replay::<Step<Never>>(recording);
        let seen: Vec<_> = calls.iter().filter_map(arguments).collect();
        assert_eq!(seen, expected, "{}", recording.version);
    }
}

/// Returns the Rollout's name, the weights of its steps, and the context.
fn arguments(call: &StepCall) -> Option<(String, Vec<Option<i32>>, StepContext)> {
    match call {
        StepCall::InitPlugin | StepCall::Type => None,
        StepCall::Run(rollout, context)
        | StepCall::Terminate(rollout, context)
        | StepCall::Abort(rollout, context) => {
            let (namespace, name) = call.object()?;
            let steps = rollout.steps().iter();
            let weights = steps.map(|CanaryStep { set_weight, .. }| *set_weight);
            Some((
                format!("{namespace}/{name}"),
                weights.collect(),
                context.clone(),
            ))
        }
    }
}
