//! A metric provider whose measurement is the `value` of its configuration. With `slow`, the measurement is resumed once.
//!
//! A metric configures it under `provider.plugin` with `{"value": 0.97, "atLeast": 0.9, "slow": true}`. The controller starts
//! it from `metricProviderPlugins` in the ConfigMap `argo-rollouts-config`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use rollouts_rpc::{
    AnalysisPhase, AnalysisRun, Measurement, Metric, MetricProvider, Metrics, Result,
};
use serde::Deserialize;
use tracing::info;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    value: f64,
    at_least: f64,
    #[serde(default)]
    slow: bool,
}

struct Constant;

impl MetricProvider for Constant {
    async fn run(&self, run: &AnalysisRun, metric: &Metric) -> Result<Measurement> {
        let config: Config = metric.config()?;
        // State for `resume` is stored in the measurement, because another process may carry it out.
        let begun = Measurement::running().with_metadata("run", &run.metadata.uid);
        if config.slow {
            return Ok(begun.resume_in(Duration::from_secs(10)));
        }
        self.resume(run, metric, begun).await
    }

    async fn resume(
        &self,
        _: &AnalysisRun,
        metric: &Metric,
        begun: Measurement,
    ) -> Result<Measurement> {
        let config: Config = metric.config()?;
        let phase = if config.value >= config.at_least {
            AnalysisPhase::Successful
        } else {
            AnalysisPhase::Failed
        };
        info!(config.value, ?phase, "measured");
        Ok(begun.finish(phase, config.value))
    }

    async fn metadata(&self, metric: &Metric) -> Result<BTreeMap<String, String>> {
        let at_least = metric.config::<Config>()?.at_least.to_string();
        Ok(BTreeMap::from([("atLeast".to_owned(), at_least)]))
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Metrics(Constant))
}
