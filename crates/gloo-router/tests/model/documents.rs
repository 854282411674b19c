//! RouteTables of the model as JSON: routes, destinations, and how traffic is divided between them.
//!
//! The documents are read without the planner's code, since they check the planner.

use serde_json::{Map, Value, json};

use crate::controller::{Id, POD_HASH};

/// Prefix of the plugin's labels and annotations.
const OURS: &str = "rollouts-plugin-trafficrouter-glooplatform/";
pub(crate) const ANNOTATION: &str = "rollouts-plugin-trafficrouter-glooplatform/changes";

/// Returns the tables as their owners create them. `anchor` is the Service to which their routes forward. With `preview`, the
/// owner also has a route to that Service.
pub(crate) fn tables(anchor: &str, preview: Option<&str>, by_label: bool) -> [Value; 3] {
    let to = |name: &str, weight: Option<u32>| destination(name, weight);
    let route = |name: &str, path: &str, destinations: Vec<Value>| {
        let mut route = json!({"name": name, "matchers": [{"uri": {"prefix": path}}], "forwardTo": {"destinations": destinations}});
        if name.is_empty() {
            route
                .as_object_mut()
                .map(|route| route.shift_remove("name"));
        }
        route
    };
    let health = json!({"name": "health", "matchers": [{"uri": {"exact": "/healthz"}}], "directResponse": {"status": 200}});
    let mut list = route(
        "list",
        "/a",
        vec![to(anchor, Some(80)), to("legacy", Some(20))],
    );
    list["labels"] = json!({"route": "api"});
    list["forwardTo"]["pathRewrite"] = json!("/");
    let mut a = vec![
        health,
        list,
        route("", "/b", vec![to(anchor, None)]),
        route("ratings", "/r", vec![to("ratings", None)]),
    ];
    a.extend(preview.map(|service| route("preview", "/preview", vec![to(service, None)])));
    let b = vec![
        route("half", "/h", vec![to("legacy", None), to(anchor, None)]),
        route("ratings", "/r", vec![to("ratings", Some(100))]),
        route("root", "/", vec![to(anchor, Some(100))]),
    ];
    let c = vec![
        route(
            "ratings",
            "/r",
            vec![to("ratings", Some(60)), to("legacy", Some(40))],
        ),
        route("root", "/", vec![to(anchor, None)]),
    ];
    [("a", a), ("b", b), ("c", c)].map(|(name, http)| {
        let mut metadata = json!({"name": name, "namespace": "shop"});
        if by_label {
            metadata["labels"] = json!({"canary": "on"});
        }
        if name == "a" {
            metadata["annotations"] = json!({"team": "shop"});
        }
        json!({
            "apiVersion": "networking.gloo.solo.io/v2",
            "kind": "RouteTable",
            "metadata": metadata,
            "spec": {"hosts": ["shop.example.com"], "http": http, "weight": 7},
        })
    })
}

pub(crate) fn destination(name: &str, weight: Option<u32>) -> Value {
    let mut destination =
        json!({"ref": {"name": name, "namespace": "shop"}, "port": {"number": 80}});
    if let Some(weight) = weight {
        destination["weight"] = json!(weight);
    }
    destination
}

pub(crate) fn http(table: &Value) -> &[Value] {
    table["spec"]["http"].as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn http_mut(table: &mut Value) -> &mut Vec<Value> {
    table["spec"]["http"]
        .as_array_mut()
        .expect("every table has http routes")
}

/// Whether the plugin added a route.
pub(crate) fn is_managed(route: &Value) -> bool {
    route["labels"]
        .as_object()
        .is_some_and(|labels| labels.keys().any(|key| key.starts_with(OURS)))
}

pub(crate) fn is_mirror(route: &Value) -> bool {
    route["labels"].get(format!("{OURS}mirror")).is_some()
}

/// Returns the positions of the owner's routes.
pub(crate) fn owned(table: &Value) -> Vec<usize> {
    let routes = http(table).iter().enumerate();
    routes
        .filter(|(_, route)| !is_managed(route))
        .map(|(at, _)| at)
        .collect()
}

/// Returns the table without the plugin's annotation and without the resource version. The API server does not keep the order
/// of keys in metadata, so these are sorted.
pub(crate) fn without_ours(table: &Value) -> Value {
    let mut table = table.clone();
    if let Some(metadata) = table["metadata"].as_object_mut() {
        metadata.shift_remove("resourceVersion");
        drop_annotation(metadata);
    }
    table["metadata"].sort_all_objects();
    table
}

/// Removes the plugin's annotation, and the map if it is then empty.
pub(crate) fn drop_annotation(metadata: &mut Map<String, Value>) {
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.shift_remove(ANNOTATION);
        if annotations.is_empty() {
            metadata.shift_remove("annotations");
        }
    }
}

pub(crate) fn annotation(table: &Value) -> Option<&str> {
    table["metadata"]["annotations"][ANNOTATION].as_str()
}

/// Removes the plugin's labels from a route.
pub(crate) fn drop_labels(route: &mut Value) {
    let Some(route) = route.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(labels)) = route.get_mut("labels") {
        labels.retain(|key, _| !key.starts_with(OURS));
        if labels.is_empty() {
            route.shift_remove("labels");
        }
    }
}

pub(crate) fn destinations(route: &Value) -> &[Value] {
    route["forwardTo"]["destinations"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

pub(crate) fn destinations_mut(route: &mut Value) -> Option<&mut Vec<Value>> {
    route
        .get_mut("forwardTo")?
        .get_mut("destinations")?
        .as_array_mut()
}

/// Returns a route without its destinations.
pub(crate) fn frame(route: &Value) -> Value {
    let mut route = route.clone();
    if let Some(forward) = route.get_mut("forwardTo").and_then(Value::as_object_mut) {
        forward.shift_remove("destinations");
    }
    route
}

pub(crate) fn id(destination: &Value) -> Id {
    let hash = destination["subset"][POD_HASH].as_str();
    (name(destination).to_owned(), hash.map(str::to_owned))
}

pub(crate) fn name(destination: &Value) -> &str {
    destination["ref"]["name"].as_str().unwrap_or_default()
}

pub(crate) fn weight(destination: &Value) -> Option<i64> {
    destination["weight"].as_i64()
}

/// Returns a destination without weight, name and subset, to compare its other attributes.
pub(crate) fn attributes(destination: &Value) -> Value {
    let mut destination = destination.clone();
    if let Some(fields) = destination.as_object_mut() {
        fields.shift_remove("weight");
        fields.shift_remove("subset");
    }
    destination["ref"]["name"] = Value::Null;
    destination
}

/// Returns the percentage of traffic of each destination. One with weight 0 gets nothing; those without weight share the
/// rest.
pub(crate) fn shares(list: &[Value]) -> Vec<i64> {
    let set: i64 = list.iter().filter_map(weight).sum();
    let unset = list.iter().filter(|it| weight(it).is_none()).count();
    let unset = i64::try_from(unset).unwrap_or(i64::MAX);
    list.iter()
        .map(|it| weight(it).unwrap_or_else(|| (100 - set) / unset))
        .collect()
}

/// Returns the total percentage of the destinations that `is_meant` selects.
pub(crate) fn share(list: &[Value], is_meant: impl Fn(&Value) -> bool) -> i64 {
    let both = list.iter().zip(shares(list));
    both.filter(|(it, _)| is_meant(it))
        .map(|(_, share)| share)
        .sum()
}

/// Whether a route was added for that Rollout.
pub(crate) fn managed_for(route: &Value, rollout: &str) -> bool {
    route["labels"][format!("{OURS}rollout")] == rollout
}

/// Whether both have the same text: unlike `==`, this compares the order of keys.
pub(crate) fn has_same_bytes(a: &Value, b: &Value) -> bool {
    let (a, b) = (a.to_string(), b.to_string());
    a == b
}
