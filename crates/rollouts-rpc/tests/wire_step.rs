//! Every method of a step plugin, called over a complete session in memory.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and one step must panic"
)]

use std::time::Duration;

use rollouts_rpc::host::{CallError, StepClient};
use rollouts_rpc::testing::MemoryHost;
use rollouts_rpc::{
    MAX_RESULT, PluginError, Rollout, ServeConfig, Shutdown, Step, StepContext, StepPhase,
    StepPlugin, StepResult,
};
use serde_json::json;

fn rollout() -> Rollout {
    Rollout::named("ns", "demo").with_defaults()
}

fn context() -> StepContext {
    let mut context = StepContext::new("e2e/step", &json!({"for": "1m"}));
    context.status = (&json!({"runs": 1})).into();
    context
}

fn result(phase: StepPhase) -> StepResult {
    StepResult::new(phase, format!("{phase:?}"))
        .requeue_after(Duration::from_secs(15))
        .with_status(&json!({"runs": 2}))
        .unwrap()
}

/// Checks that its arguments are those that were sent, and returns another phase from each method.
struct Full;

impl Full {
    fn answer(
        given: &Rollout,
        context_given: &StepContext,
        phase: StepPhase,
    ) -> Result<StepResult, PluginError> {
        assert_eq!((given, context_given), (&rollout(), &context()));
        Ok(result(phase))
    }
}

impl StepPlugin for Full {
    fn type_name(&self) -> &str {
        "Full"
    }
    async fn run(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, PluginError> {
        Self::answer(rollout, context, StepPhase::Running)
    }
    async fn terminate(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, PluginError> {
        Self::answer(rollout, context, StepPhase::Failed)
    }
    async fn abort(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, PluginError> {
        Self::answer(rollout, context, StepPhase::Error)
    }
}

async fn serve(step: impl StepPlugin) -> (MemoryHost, StepClient) {
    let host = MemoryHost::start(ServeConfig::new(), Step(step))
        .await
        .unwrap();
    let client = host.session().dispense_step().await.unwrap();
    (host, client)
}

#[tokio::test]
async fn every_method_arrives_with_its_arguments() {
    let (host, client) = serve(Full).await;
    let (rollout, context) = (rollout(), context());
    client.init_plugin().await.unwrap();
    assert_eq!(client.type_name().await.unwrap(), "Full");
    assert_eq!(
        client.run(&rollout, &context).await.unwrap(),
        result(StepPhase::Running)
    );
    assert_eq!(
        client.terminate(&rollout, &context).await.unwrap(),
        result(StepPhase::Failed)
    );
    assert_eq!(
        client.abort(&rollout, &context).await.unwrap(),
        result(StepPhase::Error)
    );
    assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
}

/// A step that implements only `run`, and fails in it.
enum Minimal {
    Fails,
    Panics,
    Hangs,
}

impl StepPlugin for Minimal {
    async fn run(&self, _: &Rollout, _: &StepContext) -> Result<StepResult, PluginError> {
        match self {
            Self::Fails => Err("not\n5%".into()),
            Self::Panics => panic!("no\nluck"),
            Self::Hangs => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn the_default_methods_of_a_step() {
    let (_host, client) = serve(Minimal::Fails).await;
    let (rollout, context) = (rollout(), context());
    let nothing = StepResult::default();
    assert_eq!(client.terminate(&rollout, &context).await.unwrap(), nothing);
    assert_eq!(client.abort(&rollout, &context).await.unwrap(), nothing);
}

async fn run(step: Minimal) -> CallError {
    let (_host, client) = serve(step).await;
    let error = client.run(&rollout(), &context()).await.unwrap_err();
    assert_eq!(client.type_name().await.unwrap(), "Minimal");
    error
}

#[tokio::test(start_paused = true)]
async fn an_error_is_one_line() {
    match run(Minimal::Fails).await {
        CallError::Router(text) => assert_eq!(text, "not 5\u{ff05}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline() {
    match run(Minimal::Hangs).await {
        CallError::Router(text) => assert_eq!(
            text,
            "Run took longer than 5 s and was aborted; the plugin's log shows its progress"
        ),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_panic_fails_only_its_call() {
    match run(Minimal::Panics).await {
        CallError::Refused(text) => {
            assert_eq!(text, "Run panicked: no luck; the plugin's log says where");
        }
        other => panic!("{other:?}"),
    }
}

/// Returns a message of this many bytes.
struct Large(usize);

impl StepPlugin for Large {
    async fn run(&self, _: &Rollout, _: &StepContext) -> Result<StepResult, PluginError> {
        let message = "m".repeat(self.0 - 2);
        // Two bytes.
        Ok(StepResult::new(StepPhase::Successful, message).with_status(&json!({}))?)
    }
}

#[tokio::test]
async fn a_result_that_a_rollout_cannot_hold_is_an_error() {
    for (bytes, fits) in [(MAX_RESULT, true), (MAX_RESULT + 1, false)] {
        let (_host, client) = serve(Large(bytes)).await;
        let context = StepContext::new("e2e/large", &json!(null));
        let result = client.run(&Rollout::named("ns", "demo"), &context).await;
        assert_eq!(result.is_ok(), fits, "{:?}", result.err());
    }
}
