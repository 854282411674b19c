//! Every method of a traffic router, called over a complete session in memory.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use rollouts_rpc::host::CallError;
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::testing::{FnRouter, MemoryHost};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, Router, RouterCall, RouterError, ServeConfig, Shutdown,
    TrafficRouter, Verification, WeightDestination,
};
use serde_json::json;
use tokio::sync::mpsc;

async fn serve(router: impl TrafficRouter) -> MemoryHost {
    MemoryHost::start(ServeConfig::new(), Router(router))
        .await
        .unwrap()
}

/// Returns a router that sends every call to the test.
fn recorder() -> (impl TrafficRouter, mpsc::UnboundedReceiver<RouterCall>) {
    let (calls, received) = mpsc::unbounded_channel();
    let router = FnRouter(move |call| {
        calls.send(call).unwrap();
        async { Ok(Verification::Verified) }
    });
    (router, received)
}

/// A Rollout with a value in every field.
fn full_rollout() -> Rollout {
    let destination =
        |weight| json!({"weight": weight, "serviceName": "svc", "podTemplateHash": "abc"});
    let header =
        json!({"name": "h", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]});
    let mirror = json!({"name": "m", "percentage": 35, "match": [
        {"method": {"exact": "GET"}, "path": {"prefix": "/"}, "headers": {"y": {"regex": "2"}}},
    ]});
    let rollout = json!({
        "metadata": {
            "name": "demo", "namespace": "ns", "uid": "u-1", "resourceVersion": "42", "generation": 7,
            "labels": {"app": "demo"}, "annotations": {"rollout.argoproj.io/revision": "2"},
        },
        "spec": {"replicas": 5, "paused": true, "strategy": {"canary": {
            "stableService": "stable", "canaryService": "canary",
            "pingPong": {"pingService": "ping", "pongService": "pong"},
            "dynamicStableScale": true,
            "steps": [
                {"setWeight": 20, "setHeaderRoute": header},
                {"pause": {}},
                {"setWeight": 0},
                {"setMirrorRoute": mirror, "plugin": {}},
                {"experiment": {}},
                {"analysis": {}},
                {"setCanaryScale": {}},
            ],
            "trafficRouting": {
                "plugins": {"solo-io/glooplatform": {"a": 1}},
                "managedRoutes": [{"name": "h"}, {"name": "m"}],
                "maxTrafficWeight": 1000,
            },
        }}},
        "status": {
            "abort": true, "promoteFull": true, "controllerPause": true,
            "phase": "Paused", "message": "CanaryPauseStep", "observedGeneration": "7",
            "currentPodHash": "new", "stableRS": "old", "currentStepIndex": 1,
            "replicas": 5, "updatedReplicas": 1, "availableReplicas": 4,
            "canary": {
                "weights": {
                    "canary": destination(200), "stable": destination(800),
                    "additional": [destination(0)], "verified": true,
                },
                "stablePingPong": "ping",
                "currentExperiment": "exp",
            },
        },
    });
    serde_json::from_value(rollout).unwrap()
}

#[tokio::test]
async fn every_method_arrives_with_its_arguments() {
    let (router, mut received) = recorder();
    let host = serve(router).await;
    let client = host.router().await.unwrap();
    let rollout = full_rollout();
    let boxed = || Box::new(full_rollout());
    let additional = [
        WeightDestination {
            weight: 5,
            ..WeightDestination::default()
        },
        WeightDestination::default(),
    ];
    let hashes = PodHashes {
        canary: "c".into(),
        stable: String::new(),
    };
    let header = SetHeaderRoute {
        name: "h".into(),
        matches: Vec::new(),
    };
    let mirror = SetMirrorRoute {
        name: "m".into(),
        ..SetMirrorRoute::default()
    };
    let desired = DesiredWeight {
        value: 400,
        max: 1000,
    };

    assert_eq!(client.type_name().await.unwrap(), "FnRouter");
    client
        .update_hash(&rollout, &hashes, &additional)
        .await
        .unwrap();
    client.set_weight(&rollout, 400, &additional).await.unwrap();
    let verification = client.verify_weight(&rollout, 400, &[]).await.unwrap();
    client.set_header_route(&rollout, &header).await.unwrap();
    client.set_mirror_route(&rollout, &mirror).await.unwrap();
    client
        .remove_managed_routes(&Rollout::default())
        .await
        .unwrap();

    assert_eq!(verification, Verification::Verified);
    let expected = [
        RouterCall::UpdateHash(boxed(), hashes, additional.to_vec()),
        RouterCall::SetWeight(boxed(), desired, additional.to_vec()),
        RouterCall::VerifyWeight(boxed(), desired, Vec::new()),
        RouterCall::SetHeaderRoute(boxed(), header),
        RouterCall::SetMirrorRoute(boxed(), mirror),
        RouterCall::RemoveManagedRoutes(Box::new(Rollout::default().with_defaults())),
    ];
    for call in expected {
        assert_eq!(received.try_recv().unwrap(), call);
    }
    assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
}

#[track_caller]
fn check_refusal<T: std::fmt::Debug>(result: Result<T, CallError>, expect: &str) {
    match result.unwrap_err() {
        CallError::Router(text) => assert_eq!(text, expect),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_error_of_a_router_is_one_line_in_the_reply() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot patch ns/table\nto 50%")]
    struct Refused(#[source] std::io::Error);
    let router = FnRouter(|_| async {
        Err::<Verification, _>(RouterError::from(Refused(std::io::Error::other(
            "forbidden",
        ))))
    });
    let host = serve(router).await;
    let client = host.router().await.unwrap();
    let rollout = Rollout::default();
    let expect = "cannot patch ns/table to 50\u{ff05}: forbidden";

    check_refusal(client.set_weight(&rollout, 5, &[]).await, expect);
    check_refusal(
        client
            .update_hash(&rollout, &PodHashes::default(), &[])
            .await,
        expect,
    );
    check_refusal(client.remove_managed_routes(&rollout).await, expect);
    client.type_name().await.unwrap();
}

#[tokio::test]
async fn each_verification_arrives_unchanged() {
    for verification in [
        Verification::Verified,
        Verification::NotVerified,
        Verification::NotImplemented,
    ] {
        let router = FnRouter(move |_| async move { Ok(verification) });
        let host = serve(router).await;
        let client = host.router().await.unwrap();
        assert_eq!(
            client
                .verify_weight(&Rollout::default(), 5, &[])
                .await
                .unwrap(),
            verification
        );
    }
}

/// Implements only `set_weight`, and fails to initialize.
struct Minimal;

impl TrafficRouter for Minimal {
    async fn init(&self) -> Result<(), RouterError> {
        Err("not today".into())
    }

    async fn set_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }
}

#[tokio::test]
async fn header_and_mirror_routes_are_refused_by_default() {
    let host = serve(Minimal).await;
    let client = host.session().dispense_router().await.unwrap();
    let rollout = full_rollout();
    let header = SetHeaderRoute {
        name: "h".into(),
        ..SetHeaderRoute::default()
    };
    let mirror = SetMirrorRoute {
        name: "m".into(),
        ..SetMirrorRoute::default()
    };
    check_refusal(
        client.set_header_route(&rollout, &header).await,
        "SetHeaderRoute is not supported: remove the step with route \"h\" from rollout ns/demo",
    );
    check_refusal(
        client.set_mirror_route(&rollout, &mirror).await,
        "SetMirrorRoute is not supported: remove the step with route \"m\" from rollout ns/demo",
    );
}

#[tokio::test]
async fn a_router_that_failed_to_initialize_is_still_called() {
    let host = serve(Minimal).await;
    let client = host.session().dispense_router().await.unwrap();
    check_refusal(client.init_plugin().await, "not today");
    client
        .set_weight(&Rollout::default(), 5, &[])
        .await
        .unwrap();
}
