//! Replays recorded calls of released controllers to a router.

use gob::{Decoder, Limits};
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::rollout::{
    CanaryStep, HeaderRoutingMatch, RawJson, RolloutSpec, RolloutStrategy, RouteMatch,
    SetHeaderRoute, SetMirrorRoute, StringMatch,
};
use rollouts_rpc::testing::{Recording, recordings};
use rollouts_rpc::{DesiredWeight, PodHashes, Rollout, RouterCall, WeightDestination};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use crate::raw_host::RawHost;

gob::gob_struct! {
    struct Response as "Response" {
        service_method: String as "ServiceMethod",
        seq: u64 as "Seq",
        error: String as "Error",
    }
}

/// Sends the recording in pieces of this length and returns the calls that reach the router.
async fn replay(recording: &Recording, piece: usize) -> Vec<RouterCall> {
    let mut host = RawHost::with_router().await;
    let mut replies = Decoder::new(LIMITS);
    for (seq, (method, bytes)) in recording.calls().enumerate() {
        for piece in bytes.chunks(piece) {
            host.send(7, piece).await;
        }
        let reply: Response = receive(&mut host, &mut replies).await;
        assert_eq!(reply.service_method, format!("Plugin.{method}"));
        assert_eq!((reply.seq, reply.error.as_str()), (seq as u64, ""));
        receive::<IgnoredAny>(&mut host, &mut replies).await;
    }
    std::iter::from_fn(|| host.calls.try_recv().ok()).collect()
}

/// Returns the next value on the router's stream.
async fn receive<T: DeserializeOwned>(host: &mut RawHost, replies: &mut Decoder) -> T {
    loop {
        if let Some(value) = replies.poll_value().unwrap() {
            return value;
        }
        let (_, data) = host.frame().await;
        replies.handle_input(&data).unwrap();
    }
}

const LIMITS: Limits = Limits {
    message_bytes: 1 << 16,
    value_messages: 1,
    types: 10,
    definition_bytes: 1000,
    fields: 10,
    name_bytes: 100,
    depth: 4,
    interface_depth: 1,
    elements: 10,
};

/// Returns the recorded calls, in their order.
fn expected(recording: &Recording) -> Vec<RouterCall> {
    let whole = demo(recording);
    let hashes = || PodHashes {
        canary: "6d4f8b7c5".into(),
        stable: "7c9d6b5f4".into(),
    };
    let removed_header = SetHeaderRoute {
        name: "header-canary".into(),
        ..SetHeaderRoute::default()
    };
    let removed_mirror = SetMirrorRoute {
        name: "mirror-canary".into(),
        ..SetMirrorRoute::default()
    };
    let additional = vec![
        WeightDestination::default(),
        destination(5, "demo-experiment", "5f6c7d8"),
    ];
    let rounds = [
        (&whole, 25, vec![], header_route(), mirror_route()),
        (&another(), 50, additional, removed_header, removed_mirror),
    ];
    let mut calls = Vec::new();
    for (rollout, value, additional, header, mirror) in rounds {
        let whole = Box::new(whole.clone());
        let rollout = || Box::new(rollout.clone());
        let desired = DesiredWeight { value, max: 100 };
        calls.extend([
            RouterCall::SetWeight(whole, desired, additional.clone()),
            RouterCall::VerifyWeight(rollout(), desired, additional.clone()),
            RouterCall::UpdateHash(rollout(), hashes(), additional),
            RouterCall::SetHeaderRoute(rollout(), header),
            RouterCall::SetMirrorRoute(rollout(), mirror),
            RouterCall::RemoveManagedRoutes(rollout()),
        ]);
    }
    calls
}

/// The Rollout that the recorder creates.
fn another() -> Rollout {
    let rollout = json!({
        "metadata": {"name": "another", "namespace": "bank"},
        "spec": {"replicas": 0, "strategy": {"canary": {"steps": [{"setWeight": 0}]}}},
        "status": {"currentStepIndex": 0},
    });
    serde_json::from_value(rollout).unwrap()
}

/// `tests/go/rollouts/fixture/rollout.yaml` with the fields of a release, without the last-applied annotation.
fn demo(recording: &Recording) -> Rollout {
    // The oldest release does not have the maximum weight, `scaleDown` and step plugins of the fixture.
    let is_new = recording.version != "1.5.1";
    let rollout = json!({
        "metadata": {
            "name": "demo",
            "namespace": "shop",
            "uid": "5d1c7d0e-9a4e-4e0c-8f53-0f7c5a2f6b10",
            "resourceVersion": "184467",
            "generation": 12,
            "creationTimestamp": "2026-01-05T08:30:00Z",
            "finalizers": ["example.com/keep"],
            "ownerReferences": [{
                "apiVersion": "example.com/v1",
                "kind": "Shop",
                "name": "demo",
                "uid": "9be0ab1c-5d6f-4ef0-8b55-b8a4c7e1a001",
                "controller": true,
            }],
            "labels": {"app.kubernetes.io/name": "demo", "app.kubernetes.io/managed-by": "argocd"},
            "annotations": {
                "rollout.argoproj.io/revision": "7",
                "argocd.argoproj.io/tracking-id": "shop:argoproj.io/Rollout:shop/demo",
            },
        },
        "spec": {"replicas": 4, "strategy": {"canary": {
            "stableService": "demo-stable",
            "canaryService": "demo-canary",
            "dynamicStableScale": true,
            "steps": [
                {"setWeight": 0},
                {"setWeight": 25},
                {"pause": {}},
                {},
                {},
                {"setCanaryScale": {}},
                {"analysis": {}},
                {"experiment": {}},
                {"plugin": {}},
                {"setWeight": 50},
                {"pause": {}},
            ],
            "trafficRouting": {
                "managedRoutes": [{"name": "header-canary"}, {"name": "mirror-canary"}],
                "maxTrafficWeight": is_new.then_some(100),
            },
        }}},
        "status": {
            "controllerPause": true,
            "currentStepHash": "5b7c9f6d8",
            "readyReplicas": 5,
            "selector": "app=demo",
            "phase": "Paused",
            "message": "CanaryPauseStep",
            "observedGeneration": "12",
            "currentPodHash": "6d4f8b7c5",
            "stableRS": "7c9d6b5f4",
            "currentStepIndex": 1,
            "replicas": 5,
            "updatedReplicas": 1,
            "availableReplicas": 5,
            "canary": {
                "currentExperiment": "demo-7-1",
                "weights": {
                    "canary": {"weight": 25, "serviceName": "demo-canary", "podTemplateHash": "6d4f8b7c5"},
                    "stable": {"weight": 75, "serviceName": "demo-stable", "podTemplateHash": "7c9d6b5f4"},
                    "verified": true,
                },
            },
        },
    });
    let mut rollout: Rollout = serde_json::from_value(rollout).unwrap();
    let spec = json!({
        "minReadySeconds": 5,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": 300,
        "progressDeadlineAbort": true,
        "selector": {
            "matchLabels": {"app": "demo"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["web", "api"]}],
        },
        "workloadRef": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "demo",
            "scaleDown": is_new.then_some("progressively"),
        },
        "strategy": {"blueGreen": {"activeService": "demo-active", "previewService": "demo-preview"}},
    });
    let spec: RolloutSpec = serde_json::from_value(spec).unwrap();
    rollout.spec = RolloutSpec {
        replicas: rollout.spec.replicas,
        strategy: RolloutStrategy {
            canary: rollout.spec.strategy.canary.take(),
            ..spec.strategy
        },
        ..spec
    };
    let canary = rollout.spec.strategy.canary.as_mut().unwrap();
    canary.steps[3].set_header_route = Some(header_route());
    canary.steps[4].set_mirror_route = Some(mirror_route());
    let is_known = |step: &CanaryStep| is_new || step.plugin.is_none();
    canary.steps.retain(is_known);
    // In YAML 1.1, the key `on` is a boolean.
    let plugins = [
        (
            "argoproj-labs/gatewayAPI",
            r#"{"httpRoute":"demo","namespace":"shop"}"#,
        ),
        (
            "example.com/other",
            r#"{"nested":{"note":"\u003c\u0026\u003e","true":true},"weights":[1,2.5,null]}"#,
        ),
        (
            "solo-io/glooplatform",
            r#"{"routeTableSelector":{"name":"shop","namespace":"shop"}}"#,
        ),
    ];
    let plugins = plugins.map(|(name, json)| (name.to_owned(), RawJson(json.into())));
    canary.traffic_routing.as_mut().unwrap().plugins = plugins.into();
    rollout
}

fn header_route() -> SetHeaderRoute {
    SetHeaderRoute {
        name: "header-canary".into(),
        matches: vec![HeaderRoutingMatch {
            header_name: "x-canary".into(),
            header_value: exact("1"),
        }],
    }
}

fn mirror_route() -> SetMirrorRoute {
    let prefix = StringMatch {
        prefix: "/".into(),
        ..StringMatch::default()
    };
    let regex = StringMatch {
        regex: ".+".into(),
        ..StringMatch::default()
    };
    SetMirrorRoute {
        name: "mirror-canary".into(),
        matches: vec![RouteMatch {
            method: Some(exact("GET")),
            path: Some(prefix),
            headers: [("x-mirror".into(), regex)].into(),
        }],
        percentage: Some(30),
    }
}

fn exact(text: &str) -> StringMatch {
    StringMatch {
        exact: text.into(),
        ..StringMatch::default()
    }
}

fn destination(weight: i32, service_name: &str, pod_template_hash: &str) -> WeightDestination {
    WeightDestination {
        weight,
        service_name: service_name.into(),
        pod_template_hash: pod_template_hash.into(),
    }
}

/// In pieces of any size. The first calls define 245 types, later calls none.
#[tokio::test(start_paused = true)]
async fn recorded_calls_of_released_controllers_arrive_unchanged() {
    for recording in recordings(PluginKind::TrafficRouter) {
        for piece in [1000, usize::MAX] {
            let mut calls = replay(recording, piece).await;
            let applied: Vec<bool> = calls
                .iter_mut()
                .map(|call| applied(rollout(call)))
                .collect();
            // The recorder keeps the annotation only in SetWeight calls.
            let set_weight = |call: &RouterCall| matches!(call, RouterCall::SetWeight(..));
            assert_eq!(applied, calls.iter().map(set_weight).collect::<Vec<_>>());
            assert_eq!(calls, expected(recording), "{}", recording.version);
        }
    }
}

/// Removes the last-applied annotation, and returns whether it was there.
fn applied(rollout: &mut Rollout) -> bool {
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let json = rollout.metadata.annotations.remove(annotation);
    json.is_some_and(|json| json.len() > 4000)
}

fn rollout(call: &mut RouterCall) -> &mut Rollout {
    match call {
        RouterCall::UpdateHash(rollout, ..)
        | RouterCall::SetWeight(rollout, ..)
        | RouterCall::VerifyWeight(rollout, ..)
        | RouterCall::SetHeaderRoute(rollout, ..)
        | RouterCall::SetMirrorRoute(rollout, ..)
        | RouterCall::RemoveManagedRoutes(rollout) => rollout,
        call => panic!("{call:?} has no Rollout"),
    }
}

/// Fields that the typed Rollout does not have.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WithTemplate {
    spec: WithContainers,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WithContainers {
    #[serde(default)]
    template: Option<Box<WithSpec>>,
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WithSpec {
    spec: WithContainers,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    image: String,
}

#[tokio::test(start_paused = true)]
async fn untyped_fields_can_be_read_from_the_raw_rollout() {
    for recording in recordings(PluginKind::TrafficRouter) {
        let mut calls = replay(recording, usize::MAX).await;
        let set_weight = calls
            .iter_mut()
            .find(|call| matches!(call, RouterCall::SetWeight(..)));
        let raw = &rollout(set_weight.unwrap()).raw;
        let fields: WithTemplate = raw.read().unwrap().unwrap();
        let template = fields.spec.template.unwrap();
        assert_eq!(
            template.spec.containers[0].image, "registry.example.com/demo:1.2.3",
            "{}",
            recording.version
        );
        assert!(raw.read::<String>().unwrap().is_err());
    }
    assert!(
        Rollout::named("ns", "a")
            .raw
            .read::<WithTemplate>()
            .is_none()
    );
}
