//! Every method of a metric provider, called over a complete session in memory.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, and one provider must panic"
)]

use std::collections::BTreeMap;

use serde_json::json;

use rollouts_rpc::host::{CallError, MetricClient};
use rollouts_rpc::rollout::Timestamp;
use rollouts_rpc::testing::MemoryHost;
use rollouts_rpc::{
    AnalysisPhase, AnalysisRun, Argument, MAX_RESULT, Measurement, Metric, MetricProvider,
    MetricResult, Metrics, PluginError, ServeConfig, Shutdown,
};

fn second(unix_seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { unix_seconds })
}

fn args(name: &str, value: &str) -> Vec<Argument> {
    vec![Argument {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    }]
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

/// A measurement with a value in every field.
fn measurement() -> Measurement {
    let mut measurement = Measurement::running().with_metadata("id", 42);
    measurement.message = "asked".into();
    measurement.started_at = second(1_700_000_000);
    measurement.finished_at = second(1_700_000_009);
    measurement.value = "0.97".into();
    measurement.resume_at = second(1_700_000_030);
    measurement
}

/// A run with a value in every field.
fn analysis_run() -> AnalysisRun {
    let measurements = vec![measurement(), Measurement::default()];
    let mut result = MetricResult::new("success-rate", AnalysisPhase::Inconclusive, measurements);
    result.metadata = map("query", "up");
    let mut run = AnalysisRun::named("ns", "demo-1");
    run.metadata.uid = "u-1".into();
    run.metadata.labels = map("app", "demo");
    run.metadata.annotations = map("revision", "2");
    run.spec.args = args("service", "canary");
    run.spec.terminate = true;
    run.status.phase = AnalysisPhase::Running;
    run.status.started_at = second(1_699_999_999);
    run.status.metric_results = vec![result];
    run
}

fn metric() -> Metric {
    let mut metric = Metric::new("success-rate", "e2e/metric", &json!({"a": 1}));
    metric.interval = "30s".into();
    metric.success_condition = "result > 0.9".into();
    metric.failure_condition = "result < 0.5".into();
    metric
}

/// Checks that its arguments are those that were sent, and returns a different value from each method.
struct Full;

impl Full {
    fn check(run: &AnalysisRun, metric_given: &Metric) {
        assert_eq!((run, metric_given), (&analysis_run(), &metric()));
    }

    fn check_resumed(run: &AnalysisRun, metric: &Metric, before: &Measurement) {
        Self::check(run, metric);
        assert_eq!(*before, measurement());
    }

    fn measured(value: &str) -> Measurement {
        let mut measured = measurement();
        measured.value = value.into();
        measured
    }
}

impl MetricProvider for Full {
    fn type_name(&self) -> &str {
        "Full"
    }
    async fn run(&self, run: &AnalysisRun, metric: &Metric) -> Result<Measurement, PluginError> {
        Self::check(run, metric);
        Ok(Self::measured("run"))
    }
    async fn resume(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        before: Measurement,
    ) -> Result<Measurement, PluginError> {
        Self::check_resumed(run, metric, &before);
        Ok(Self::measured("resumed"))
    }
    async fn terminate(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        before: Measurement,
    ) -> Result<Measurement, PluginError> {
        Self::check_resumed(run, metric, &before);
        Ok(Self::measured("terminated"))
    }
    async fn garbage_collect(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        limit: usize,
    ) -> Result<(), PluginError> {
        Self::check(run, metric);
        Err(format!("keep {limit}").into())
    }
    async fn metadata(&self, given: &Metric) -> Result<BTreeMap<String, String>, PluginError> {
        assert_eq!(given, &metric());
        Ok(map("query", "up"))
    }
}

async fn serve(provider: impl MetricProvider) -> (MemoryHost, MetricClient) {
    let host = MemoryHost::start(ServeConfig::new(), Metrics(provider))
        .await
        .unwrap();
    let client = host.session().dispense_metric_provider().await.unwrap();
    (host, client)
}

#[tokio::test]
async fn every_method_arrives_with_its_arguments() {
    let (host, client) = serve(Full).await;
    let (run, metric, before) = (analysis_run(), metric(), measurement());
    client.init_plugin().await.unwrap();
    assert_eq!(client.type_name().await.unwrap(), "Full");
    assert_eq!(
        client.run(&run, &metric).await.unwrap(),
        Full::measured("run")
    );
    assert_eq!(
        client.resume(&run, &metric, &before).await.unwrap(),
        Full::measured("resumed")
    );
    assert_eq!(
        client.terminate(&run, &metric, &before).await.unwrap(),
        Full::measured("terminated")
    );
    match client.garbage_collect(&run, &metric, 3).await {
        Err(CallError::Router(text)) => assert_eq!(text, "keep 3"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.metadata(&metric).await.unwrap(), map("query", "up"));
    assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
}

/// A provider that implements only `run`, and fails in it.
enum Minimal {
    Fails,
    Panics,
    Hangs,
}

impl MetricProvider for Minimal {
    async fn run(&self, _: &AnalysisRun, _: &Metric) -> Result<Measurement, PluginError> {
        match self {
            Self::Fails => Err("no data\nin 5%".into()),
            Self::Panics => panic!("no\nluck"),
            Self::Hangs => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn the_default_methods_of_a_provider() {
    let (_host, client) = serve(Minimal::Fails).await;
    let (run, metric, before) = (AnalysisRun::default(), Metric::default(), measurement());
    assert_eq!(client.resume(&run, &metric, &before).await.unwrap(), before);
    let ended = client.terminate(&run, &metric, &before).await.unwrap();
    assert_eq!(ended.phase, AnalysisPhase::Successful);
    assert_eq!(ended.metadata, before.metadata);
    client.garbage_collect(&run, &metric, 0).await.unwrap();
    assert_eq!(client.metadata(&metric).await.unwrap(), BTreeMap::new());
}

async fn check_error(provider: Minimal, expect: &str) {
    let (_host, client) = serve(provider).await;
    let measured = client
        .run(&AnalysisRun::default(), &Metric::default())
        .await
        .unwrap();
    assert_eq!(
        (measured.phase, measured.message.as_str()),
        (AnalysisPhase::Error, expect)
    );
    assert!(measured.started_at.is_some() && measured.finished_at.is_some());
    assert_eq!(client.type_name().await.unwrap(), "Minimal");
}

#[tokio::test(start_paused = true)]
async fn an_error_is_a_measurement_with_one_line() {
    check_error(Minimal::Fails, "no data in 5\u{ff05}").await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline() {
    check_error(
        Minimal::Hangs,
        "Run took longer than 30 s and was aborted; the plugin's log shows its progress",
    )
    .await;
}

#[tokio::test]
async fn a_panic_fails_only_its_call() {
    let (_host, client) = serve(Minimal::Panics).await;
    let (run, metric) = (AnalysisRun::default(), Metric::default());
    match client.run(&run, &metric).await {
        Err(CallError::Refused(text)) => {
            assert_eq!(text, "Run panicked: no luck; the plugin's log says where");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.type_name().await.unwrap(), "Minimal");
}

#[tokio::test]
async fn a_metric_provider_is_not_dispensed_as_another_kind() {
    let (host, _client) = serve(Full).await;
    match host.session().dispense_router().await.map(drop) {
        Err(CallError::Refused(text)) => {
            assert_eq!(text, "unknown plugin type: RpcTrafficRouterPlugin");
        }
        other => panic!("{other:?}"),
    }
}

/// A run with this many measurements, each with metadata.
fn long_run(measurements: usize) -> AnalysisRun {
    let mut run = analysis_run();
    run.status.metric_results[0].measurements = vec![measurement(); measurements].into();
    run.spec.args = args("empty", "");
    run
}

/// Returns the number of measurements in the run.
struct Counts;

impl MetricProvider for Counts {
    async fn run(&self, run: &AnalysisRun, _: &Metric) -> Result<Measurement, PluginError> {
        let count = run.status.metric_results[0].measurements.len();
        let value = format!("{:?} {count}", run.arg("empty"));
        Ok(Measurement::taken(AnalysisPhase::Successful, value))
    }
}

#[tokio::test]
async fn a_run_with_a_long_history_is_accepted() {
    let (_host, client) = serve(Counts).await;
    for count in [0, 2100, 15_000] {
        let measured = client.run(&long_run(count), &metric()).await.unwrap();
        assert_eq!(measured.value, format!("Some(\"\") {count}"));
    }
}

/// Returns a time that Go cannot represent.
struct Late;

impl MetricProvider for Late {
    async fn run(&self, _: &AnalysisRun, _: &Metric) -> Result<Measurement, PluginError> {
        let mut measured = Measurement::running();
        measured.resume_at = second(i64::MAX);
        Ok(measured)
    }
}

#[tokio::test]
async fn a_reply_that_gob_cannot_represent_fails_only_its_call() {
    let (_host, client) = serve(Late).await;
    for _ in 0..2 {
        let refused = client.run(&long_run(0), &metric()).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Plugin.Run: the reply cannot be encoded: time is later than Go can represent"
        );
    }
    assert_eq!(client.type_name().await.unwrap(), "Late");
}

/// Returns results of this many bytes.
struct Large(usize);

impl MetricProvider for Large {
    async fn run(&self, _: &AnalysisRun, _: &Metric) -> Result<Measurement, PluginError> {
        Ok(Measurement::taken(
            AnalysisPhase::Successful,
            "v".repeat(self.0),
        ))
    }

    async fn metadata(&self, _: &Metric) -> Result<BTreeMap<String, String>, PluginError> {
        Ok(map("", &"v".repeat(self.0)))
    }
}

#[tokio::test]
async fn a_result_that_an_analysis_run_cannot_hold_is_an_error() {
    for (bytes, fits) in [(MAX_RESULT, true), (MAX_RESULT + 1, false)] {
        let (_host, client) = serve(Large(bytes)).await;
        let measured = client.run(&analysis_run(), &metric()).await.unwrap();
        assert_eq!(measured.value.len(), if fits { bytes } else { 0 });
        assert_eq!(
            measured.message,
            if fits {
                ""
            } else {
                "the plugin's result is too large: value, message and metadata have 102401 bytes, at most 102400 fit: return a summary"
            }
        );
        let metadata = client.metadata(&metric()).await.unwrap();
        assert_eq!(!metadata.contains_key("error"), fits);
    }
}
