//! A Rollout as the API shows it, turned into what a router receives.

use std::collections::BTreeMap;

use rollouts_rpc::rollout::{
    CanaryStep, CanaryStrategy, HeaderRoutingMatch, OtherStep, PingPong, Rollout, RolloutStatus,
    RouteMatch, SetHeaderRoute, SetMirrorRoute, StringMatch, TrafficRouting,
};
use serde_json::Value;

pub(super) fn rollout(api: &Value) -> Rollout {
    let meta = child(api, "metadata");
    let spec = child(api, "spec");
    Rollout {
        name: text(meta, "name"),
        namespace: text(meta, "namespace"),
        uid: text(meta, "uid"),
        resource_version: text(meta, "resourceVersion"),
        generation: meta
            .get("generation")
            .and_then(Value::as_i64)
            .unwrap_or_default(),
        labels: map(child(meta, "labels"), own_text),
        annotations: map(child(meta, "annotations"), own_text),
        replicas: number(spec, "replicas").unwrap_or_default(),
        paused: flag(spec, "paused"),
        canary: present(child(spec, "strategy"), "canary").map(canary),
        status: status(child(api, "status")),
    }
}

fn canary(api: &Value) -> CanaryStrategy {
    CanaryStrategy {
        stable_service: text(api, "stableService"),
        canary_service: text(api, "canaryService"),
        ping_pong: present(api, "pingPong").map(|services| PingPong {
            ping_service: text(services, "pingService"),
            pong_service: text(services, "pongService"),
        }),
        dynamic_stable_scale: flag(api, "dynamicStableScale"),
        steps: list(api, "steps", step),
        traffic_routing: present(api, "trafficRouting").map(|routing| TrafficRouting {
            plugins: map(child(routing, "plugins"), |block| {
                block.to_string().into_bytes()
            }),
            managed_routes: list(routing, "managedRoutes", |route| text(route, "name")),
            max_traffic_weight: number(routing, "maxTrafficWeight"),
        }),
    }
}

fn step(api: &Value) -> CanaryStep {
    let others = [
        ("pause", OtherStep::Pause),
        ("experiment", OtherStep::Experiment),
        ("analysis", OtherStep::Analysis),
        ("setCanaryScale", OtherStep::SetCanaryScale),
        ("plugin", OtherStep::Plugin),
    ];
    CanaryStep {
        set_weight: number(api, "setWeight"),
        set_header_route: present(api, "setHeaderRoute").map(header_route),
        set_mirror_route: present(api, "setMirrorRoute").map(mirror_route),
        others: others
            .into_iter()
            .filter_map(|(key, kind)| present(api, key).map(|_| kind))
            .collect(),
    }
}

pub(super) fn header_route(api: &Value) -> SetHeaderRoute {
    SetHeaderRoute {
        name: text(api, "name"),
        matches: list(api, "match", |entry| HeaderRoutingMatch {
            header_name: text(entry, "headerName"),
            header_value: string_match(child(entry, "headerValue")),
        }),
    }
}

pub(super) fn mirror_route(api: &Value) -> SetMirrorRoute {
    SetMirrorRoute {
        name: text(api, "name"),
        matches: list(api, "match", |entry| RouteMatch {
            method: present(entry, "method").map(string_match),
            path: present(entry, "path").map(string_match),
            headers: map(child(entry, "headers"), string_match),
        }),
        percentage: number(api, "percentage"),
    }
}

fn string_match(api: &Value) -> StringMatch {
    StringMatch {
        exact: text(api, "exact"),
        prefix: text(api, "prefix"),
        regex: text(api, "regex"),
    }
}

fn status(api: &Value) -> RolloutStatus {
    let canary = child(api, "canary");
    RolloutStatus {
        abort: flag(api, "abort"),
        promote_full: flag(api, "promoteFull"),
        controller_pause: flag(api, "controllerPause"),
        phase: text(api, "phase"),
        message: text(api, "message"),
        observed_generation: text(api, "observedGeneration"),
        current_pod_hash: text(api, "currentPodHash"),
        stable_rs: text(api, "stableRS"),
        current_step_index: number(api, "currentStepIndex"),
        updated_replicas: number(api, "updatedReplicas").unwrap_or_default(),
        available_replicas: number(api, "availableReplicas").unwrap_or_default(),
        weights: None,
        stable_ping_pong: text(canary, "stablePingPong"),
        current_experiment: text(canary, "currentExperiment"),
    }
}

fn child<'a>(value: &'a Value, key: &str) -> &'a Value {
    value.get(key).unwrap_or(&Value::Null)
}

fn present<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| !value.is_null())
}

fn text(value: &Value, key: &str) -> String {
    own_text(child(value, key))
}

fn own_text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value, key: &str) -> Option<i32> {
    value.get(key)?.as_i64()?.try_into().ok()
}

fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn list<T>(value: &Value, key: &str, item: impl Fn(&Value) -> T) -> Vec<T> {
    let items = child(value, key).as_array().map(Vec::as_slice);
    items.unwrap_or_default().iter().map(item).collect()
}

fn map<T>(value: &Value, item: impl Fn(&Value) -> T) -> BTreeMap<String, T> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| (key.clone(), item(value)))
        .collect()
}
