//! Our host side with a plugin in Go that the real go-plugin server serves: `go/rollouts/plugin`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use e2e_tests::program;
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::{CallError, PluginProcess, RouterClient};
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute, Timestamp};
use rollouts_rpc::{
    AnalysisPhase, AnalysisRun, Measurement, Metric, PodHashes, Rollout, StepContext, StepPhase,
    Verification, WeightDestination,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

async fn start(kind: PluginKind) -> PluginProcess {
    let command = program("go-plugin").unwrap().into();
    PluginProcess::start(command, kind, drop).await.unwrap()
}

async fn router(plugin: &PluginProcess) -> RouterClient {
    let router = plugin.session().dispense_router().await.unwrap();
    router.init_plugin().await.unwrap();
    router
}

async fn quits(plugin: PluginProcess) {
    let ended = plugin.quit().await.unwrap();
    assert_eq!(
        (ended.status.code(), ended.graceful, ended.stray_stdout),
        (Some(0), true, 0)
    );
}

fn from<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// Returns a Rollout. The Go plugin refuses one with the name `refused`.
fn rollout(name: &str) -> Rollout {
    from(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"strategy": {"canary": {
            "stableService": "stable",
            "canaryService": "canary",
            "steps": [{"setWeight": 5}, {"pause": {}}],
            "trafficRouting": {"plugins": {"e2e/go": {"table": "shop"}}, "managedRoutes": [{"name": "header"}]},
        }}},
        "status": {"currentPodHash": "c1"},
    }))
}

/// Checks that the error names the call, the object, and the arguments that Go decoded.
#[track_caller]
fn check_refused<T: std::fmt::Debug>(outcome: Result<T, CallError>, call: &str, arguments: Value) {
    let Err(CallError::Router(text)) = outcome else {
        panic!("{outcome:?}");
    };
    let decoded = text.strip_prefix(&format!("{call} shop/refused "));
    let decoded = decoded.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        from::<Value>(serde_json::from_str(decoded).unwrap()),
        arguments
    );
}

#[tokio::test]
async fn a_go_router_answers_every_method() {
    let plugin = start(PluginKind::TrafficRouter).await;
    let go = router(&plugin).await;
    assert_eq!(go.type_name().await.unwrap(), "go");
    let (demo, refused) = (rollout("demo"), rollout("refused"));
    let additional = [WeightDestination {
        weight: 10,
        service_name: "experiment".into(),
        pod_template_hash: "e1".into(),
    }];
    let decoded = json!([{"weight": 10, "serviceName": "experiment", "podTemplateHash": "e1"}]);
    let hashes = PodHashes {
        canary: "c1".into(),
        stable: "s1".into(),
    };
    go.update_hash(&demo, &hashes, &additional).await.unwrap();
    check_refused(
        go.update_hash(&refused, &hashes, &additional).await,
        "UpdateHash",
        json!(["c1", "s1", decoded]),
    );

    let verified = async |desired| go.verify_weight(&demo, desired, &[]).await.unwrap();
    assert_eq!(verified(25).await, Verification::NotImplemented);
    go.set_weight(&demo, 25, &additional).await.unwrap();
    assert_eq!(verified(25).await, Verification::Verified);
    assert_eq!(verified(26).await, Verification::NotVerified);
    check_refused(
        go.verify_weight(&refused, 25, &[]).await,
        "VerifyWeight",
        json!([25, null]),
    );
    check_refused(
        go.set_weight(&refused, 25, &additional).await,
        "SetWeight",
        json!([25, decoded, {
            "stableService": "stable",
            "canaryService": "canary",
            "steps": [{"setWeight": 5}, {"pause": {}}],
            "trafficRouting": {"plugins": {"e2e/go": {"table": "shop"}}, "managedRoutes": [{"name": "header"}]},
        }]),
    );

    let step =
        json!({"name": "header", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]});
    let route: SetHeaderRoute = from(step.clone());
    go.set_header_route(&demo, &route).await.unwrap();
    check_refused(
        go.set_header_route(&refused, &route).await,
        "SetHeaderRoute",
        json!([step]),
    );
    let step = json!({"name": "mirror", "match": [{"method": {"exact": "GET"}, "headers": {"x": {"regex": "."}}}], "percentage": 5});
    let route: SetMirrorRoute = from(step.clone());
    go.set_mirror_route(&demo, &route).await.unwrap();
    check_refused(
        go.set_mirror_route(&refused, &route).await,
        "SetMirrorRoute",
        json!([step]),
    );
    go.remove_managed_routes(&demo).await.unwrap();
    check_refused(
        go.remove_managed_routes(&refused).await,
        "RemoveManagedRoutes",
        json!(["c1"]),
    );
    quits(plugin).await;
}

#[tokio::test]
async fn a_go_plugin_that_was_killed_is_started_again() {
    let plugin = start(PluginKind::TrafficRouter).await;
    let killed = plugin.id();
    let go = router(&plugin).await;
    go.set_weight(&rollout("demo"), 25, &[]).await.unwrap();
    plugin.kill().await.unwrap();
    let outcome = go.set_weight(&rollout("demo"), 50, &[]).await;
    assert!(matches!(outcome, Err(CallError::Shutdown)), "{outcome:?}");

    let plugin = start(PluginKind::TrafficRouter).await;
    assert_ne!(plugin.id(), killed);
    let go = router(&plugin).await;
    let verified = go.verify_weight(&rollout("demo"), 25, &[]).await.unwrap();
    assert_eq!(
        verified,
        Verification::NotImplemented,
        "the answer is of the old process"
    );
    go.set_weight(&rollout("demo"), 50, &[]).await.unwrap();
    quits(plugin).await;
}

#[tokio::test]
async fn a_go_plugin_refuses_unknown_plugins_and_methods() {
    let plugin = start(PluginKind::TrafficRouter).await;
    plugin.session().ping().await.unwrap();
    let Err(CallError::Refused(text)) = plugin.session().dispense_step().await else {
        panic!("a router was dispensed as a step");
    };
    assert_eq!(text, "unknown plugin type: RpcStepPlugin");
    let outcome: Result<String, _> = router(&plugin).await.call("Plugin.Sing", &true).await;
    let Err(CallError::Refused(text)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(text, "rpc: can't find method Plugin.Sing");
    quits(plugin).await;
}

#[tokio::test]
async fn concurrent_calls_get_their_own_answers() {
    let plugin = start(PluginKind::TrafficRouter).await;
    let go = router(&plugin).await;
    let calls = (0..50).map(|weight| {
        let go = &go;
        async move {
            let outcome = go.set_weight(&rollout("refused"), weight, &[]).await;
            let Err(CallError::Router(text)) = outcome else {
                panic!("{outcome:?}");
            };
            assert!(
                text.starts_with(&format!("SetWeight shop/refused [{weight},")),
                "{text}"
            );
        }
    });
    futures::future::join_all(calls).await;
    quits(plugin).await;
}

#[tokio::test]
async fn a_go_metric_provider_answers_every_method() {
    let plugin = start(PluginKind::MetricProvider).await;
    let go = plugin.session().dispense_metric_provider().await.unwrap();
    go.init_plugin().await.unwrap();
    assert_eq!(go.type_name().await.unwrap(), "go");
    let run = |name: &str| AnalysisRun::named("shop", name);
    let metric = Metric::new("latency", "e2e/go", &json!({"is": 7}));
    let measured = go.run(&run("demo"), &metric).await.unwrap();
    let mut expected = Measurement::running().with_metadata("run", "shop/demo");
    expected.value = "{\"is\":7}".into();
    expected.started_at = Some(Timestamp {
        unix_seconds: 1_700_000_000,
    });
    assert_eq!(measured, expected);
    let resumed = go.resume(&run("demo"), &metric, &measured).await.unwrap();
    let mut successful = measured.clone();
    successful.phase = AnalysisPhase::Successful;
    assert_eq!(resumed, successful);
    let terminated = go
        .terminate(&run("demo"), &metric, &measured)
        .await
        .unwrap();
    assert_eq!(terminated.phase, AnalysisPhase::Failed);
    go.garbage_collect(&run("demo"), &metric, 3).await.unwrap();
    check_refused(
        go.garbage_collect(&run("refused"), &metric, 3).await,
        "GarbageCollect",
        json!(["latency", 3]),
    );
    let metadata = go.metadata(&metric).await.unwrap();
    assert_eq!(
        metadata,
        BTreeMap::from([("metric".into(), "latency".into())])
    );
    quits(plugin).await;
}

#[tokio::test]
async fn a_go_step_answers_every_method() {
    let plugin = start(PluginKind::Step).await;
    let go = plugin.session().dispense_step().await.unwrap();
    go.init_plugin().await.unwrap();
    assert_eq!(go.type_name().await.unwrap(), "go");
    let mut context = StepContext::new("e2e/go", &json!({"retries": 3}));
    context.status = (&json!({"tried": 1})).into();
    let (demo, refused) = (rollout("demo"), rollout("refused"));
    let result = go.run(&demo, &context).await.unwrap();
    assert_eq!(
        (result.phase, result.message.as_str(), result.requeue_after),
        (StepPhase::Running, "e2e/go", Duration::from_secs(15))
    );
    assert_eq!(result.status, Some(json!({"retries": 3})));
    check_refused(
        go.run(&refused, &context).await,
        "Run",
        json!([{"PluginName": "e2e/go", "Config": {"retries": 3}, "Status": {"tried": 1}}]),
    );
    let result = go.terminate(&demo, &context).await.unwrap();
    assert_eq!(
        (result.phase, result.message.as_str()),
        (StepPhase::Failed, "{\"tried\":1}")
    );
    check_refused(
        go.terminate(&refused, &context).await,
        "Terminate",
        json!(null),
    );
    let result = go.abort(&demo, &context).await.unwrap();
    assert_eq!(
        (result.phase, result.message.as_str()),
        (StepPhase::Successful, "{\"tried\":1}")
    );
    check_refused(go.abort(&refused, &context).await, "Abort", json!(null));
    quits(plugin).await;
}
