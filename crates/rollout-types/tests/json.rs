//! Decodes a Rollout from the JSON of the API server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rollout_types::{HeaderRoutingMatch, Present, RawJson, Rollout, StringMatch};
use serde_json::json;

#[test]
fn a_rollout_decodes_from_json_of_the_api_server() {
    let rollout: Rollout = serde_json::from_value(json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {"name": "demo", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": null, "labels": null, "annotations": {"a": "b"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": []}}, "strategy": {"canary": {
            "stableService": "s", "canaryService": "c", "maxSurge": "25%",
            "steps": [
                {"setWeight": 0}, {"pause": {"duration": "1m"}}, {"setCanaryScale": {"weight": 1}},
                {"setHeaderRoute": {"name": "h", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]}},
                {"setMirrorRoute": {"name": "m", "percentage": 0, "match": [{"path": {"prefix": "/"}}]}},
            ],
            "trafficRouting": {"managedRoutes": [{"name": "h"}], "maxTrafficWeight": 1000, "plugins": {"a/b": {"c": [1, null]}}},
        }}},
        "status": {"abort": true, "stableRS": "1", "observedGeneration": "2", "currentStepIndex": 0,
            "canary": {"stablePingPong": "ping", "weights": {"canary": {"weight": 5}, "stable": {"weight": 95}, "verified": true}}},
    }))
    .unwrap();
    let meta = &rollout.metadata;
    assert_eq!((&*meta.namespace, &*meta.name), ("shop", "demo"));
    assert_eq!(meta.resource_version, "7");
    assert_eq!(
        (rollout.replicas(), rollout.max_traffic_weight()),
        (3, 1000)
    );
    let routing = rollout.traffic_routing().unwrap();
    let block = &routing.plugins["a/b"];
    assert_eq!(*block, RawJson(br#"{"c":[1,null]}"#.to_vec()));
    assert_eq!(routing.managed_routes[0].name, "h");
    let [weight, pause, scale, header, mirror] = rollout.steps() else {
        panic!("{:?}", rollout.steps());
    };
    assert_eq!(weight.set_weight, Some(0));
    assert_eq!(pause.pause, Some(Present {}));
    assert_eq!(scale.set_canary_scale, Some(Present {}));
    let header = header.set_header_route.as_ref().unwrap();
    assert_eq!(header.matches[0].header_value.exact, "1");
    let mirror = mirror.set_mirror_route.as_ref().unwrap();
    assert_eq!(mirror.percentage, Some(0));
    let status = &rollout.status;
    assert!(status.abort && status.has_observed(2) && !status.has_observed(3));
    assert_eq!(
        (&*status.stable_rs, &*status.canary.stable_ping_pong),
        ("1", "ping")
    );
    let weights = status.canary.weights.as_ref().unwrap();
    assert_eq!((weights.canary.weight, weights.stable.weight), (5, 95));
    assert!(weights.verified);
}

#[test]
fn null_counts_as_absent() {
    let rollout: Rollout = serde_json::from_value(json!({
        "metadata": {"name": "demo"},
        "spec": {"replicas": null, "strategy": {"canary": null}},
        "status": null,
    }))
    .unwrap();
    assert_eq!(rollout.canary(), None);
    assert_eq!(rollout.replicas(), 1);
    let header: HeaderRoutingMatch =
        serde_json::from_value(json!({"headerName": "x", "headerValue": null})).unwrap();
    assert_eq!(header.header_value, StringMatch::default());
}

#[test]
fn a_value_of_another_type_is_an_error() {
    let rollout: Result<Rollout, _> =
        serde_json::from_value(json!({"spec": {"replicas": "three"}}));
    assert!(rollout.unwrap_err().to_string().contains("expected i32"));
}
