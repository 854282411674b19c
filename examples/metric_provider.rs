//! A metric provider that measures what its configuration says, at once or on the second look.
//!
//! A metric names it under `provider.plugin` with `{"value": 0.97, "atLeast": 0.9, "slow": true}`;
//! a controller starts it from `metricProviderPlugins` in the ConfigMap `argo-rollouts-config`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rollouts_rpc::goplugin::log::{self, LogFormat};
use rollouts_rpc::{
    AnalysisPhase, AnalysisRun, Measurement, Metric, MetricProvider, PluginEnv, PluginError,
    ServeConfig,
};
use serde::Deserialize;
use tracing::info;
use tracing::level_filters::LevelFilter;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    value: f64,
    at_least: f64,
    #[serde(default)]
    slow: bool,
}

/// A metric has exactly one plugin, whatever the controller's ConfigMap calls it.
fn config(metric: &Metric) -> Result<Config, PluginError> {
    let json = metric.plugins.values().next();
    let json = json.ok_or_else(|| format!("metric {} names no plugin", metric.name))?;
    Ok(serde_json::from_slice(json)?)
}

struct Constant;

impl MetricProvider for Constant {
    fn type_name(&self) -> &str {
        "Constant"
    }

    async fn init(&self) -> Result<(), PluginError> {
        Ok(())
    }

    async fn run(&self, run: &AnalysisRun, metric: &Metric) -> Result<Measurement, PluginError> {
        let config = config(metric)?;
        let begun = Measurement {
            phase: AnalysisPhase::Running,
            started_at: Some(SystemTime::now()),
            metadata: BTreeMap::from([("run".to_owned(), run.uid.clone())]),
            ..Measurement::default()
        };
        if config.slow {
            // Whatever the second look needs travels in the measurement: this process may be gone by then.
            let resume_at = Some(SystemTime::now() + Duration::from_secs(10));
            return Ok(Measurement { resume_at, ..begun });
        }
        self.resume(run, metric, begun).await
    }

    async fn resume(
        &self,
        _: &AnalysisRun,
        metric: &Metric,
        measurement: Measurement,
    ) -> Result<Measurement, PluginError> {
        let Config {
            value, at_least, ..
        } = config(metric)?;
        let phase = if value >= at_least {
            AnalysisPhase::Successful
        } else {
            AnalysisPhase::Failed
        };
        info!(value, ?phase, "measured");
        Ok(Measurement {
            phase,
            value: value.to_string(),
            finished_at: Some(SystemTime::now()),
            ..measurement
        })
    }

    async fn metadata(&self, metric: &Metric) -> Result<BTreeMap<String, String>, PluginError> {
        let at_least = config(metric)?.at_least.to_string();
        Ok(BTreeMap::from([("atLeast".to_owned(), at_least)]))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    log::install(LevelFilter::INFO, LogFormat::Json)?;
    let env = PluginEnv::from_vars(std::env::vars_os());
    let config = ServeConfig::METRIC_PROVIDER;
    let announce = rollouts_rpc::announce_on_stdout;
    rollouts_rpc::serve_metric_provider(&config, &env, announce, Constant).await?;
    Ok(())
}
