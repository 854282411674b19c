//! The host's direction: an AnalysisRun and a metric as a controller would send them.

use rollout_types::ObjectMeta;

use super::all;
use super::metric::{phase, time};
use crate::metric_provider::{AnalysisRun, Metric, MetricResult};
use crate::wire;

impl From<&AnalysisRun> for wire::AnalysisRun {
    fn from(run: &AnalysisRun) -> Self {
        let argument = |(name, value): (&String, &String)| wire::Argument {
            name: name.clone(),
            value: Some(value.clone()),
            value_from: None,
        };
        Self {
            object_meta: ObjectMeta {
                name: run.name.clone(),
                namespace: run.namespace.clone(),
                uid: run.uid.clone(),
                labels: run.labels.clone(),
                annotations: run.annotations.clone(),
                ..ObjectMeta::default()
            },
            spec: wire::AnalysisRunSpec {
                args: run.args.iter().map(argument).collect(),
                terminate: run.terminate,
            },
            status: wire::AnalysisRunStatus {
                phase: phase(run.phase).to_owned(),
                metric_results: all(&run.results),
                started_at: run.started_at.and_then(time),
            },
        }
    }
}

impl From<&MetricResult> for wire::MetricResult {
    fn from(result: &MetricResult) -> Self {
        Self {
            name: result.name.clone(),
            phase: phase(result.phase).to_owned(),
            measurements: result.measurements.0.clone(),
            metadata: result.metadata.clone(),
        }
    }
}

impl From<&Metric> for wire::Metric {
    fn from(metric: &Metric) -> Self {
        let configuration = |(name, json): (&String, &Vec<u8>)| (name.clone(), json.clone().into());
        Self {
            name: metric.name.clone(),
            interval: metric.interval.clone(),
            success_condition: metric.success_condition.clone(),
            failure_condition: metric.failure_condition.clone(),
            provider: wire::MetricProvider {
                plugin: metric.plugins.iter().map(configuration).collect(),
            },
        }
    }
}
