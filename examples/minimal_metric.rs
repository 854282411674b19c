//! The smallest metric provider: it returns the value of its configuration under `provider.plugin`, such as
//! `{"value": 0.97, "atLeast": 0.9}`.

use std::process::ExitCode;

use rollouts_rpc::{
    AnalysisPhase, AnalysisRun, Measurement, Metric, MetricProvider, Metrics, Result,
};

struct Constant;

impl MetricProvider for Constant {
    async fn run(&self, _: &AnalysisRun, metric: &Metric) -> Result<Measurement> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Config {
            value: f64,
            at_least: f64,
        }
        let Config { value, at_least } = metric.config()?;
        let phase = if value >= at_least {
            AnalysisPhase::Successful
        } else {
            AnalysisPhase::Failed
        };
        Ok(Measurement::taken(phase, value))
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Metrics(Constant))
}
