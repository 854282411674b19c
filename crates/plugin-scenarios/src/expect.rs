//! Compares the tables after a call with what the call expects.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use gloo_types::{ObjectKey, RouteTableDoc, violations};
use serde_json::{Map, Value, json};

use crate::scenario::{Call, key};

/// Prefix of the plugin's labels and annotations.
const OURS: &str = "rollouts-plugin-trafficrouter-glooplatform/";

/// All tables of a scenario; `None` for a deleted one.
pub(super) type Tables = BTreeMap<ObjectKey, Option<RouteTableDoc>>;

/// Checks the tables `after` a call against its expectations. `original` are the tables as created, `named` those after
/// earlier calls with a name.
pub(super) fn check(
    call: &Call,
    first: &ObjectKey,
    original: &Tables,
    before: &Tables,
    after: &Tables,
    named: &BTreeMap<String, Tables>,
) -> Result<()> {
    let says_tables = call.routes.is_some() || call.http.is_some() || call.tables.is_some();
    if call.unchanged || (call.error.is_some() && !says_tables && !call.restored) {
        for (key, after) in after {
            let before = before.get(key).and_then(Option::as_ref);
            ensure!(
                before.map(RouteTableDoc::raw) == after.as_ref().map(RouteTableDoc::raw),
                "{key} was written:\n{}",
                shown(after)
            );
        }
    }
    if call.restored {
        all_equal(original, after, bytes)?;
    }
    if let Some(name) = &call.same {
        let named = named
            .get(name)
            .with_context(|| format!("no call is named {name}"))?;
        all_equal(named, after, bytes)?;
    }
    if call.restored || call.clean {
        for (key, table) in after {
            let annotations = table.as_ref().and_then(RouteTableDoc::annotations);
            let ours = annotations
                .into_iter()
                .flatten()
                .find(|(name, _)| name.starts_with(OURS));
            ensure!(ours.is_none(), "{key} still has {ours:?}");
        }
    }
    for (key, expected) in expected_specs(call, first, original)? {
        let actual = after
            .get(&key)
            .and_then(Option::as_ref)
            .map(|table| with_marks(spec(table)));
        let actual = actual.with_context(|| format!("{key} was deleted"))?;
        same(&key, &actual, &expected)?;
    }
    if let Some(tables) = &call.tables {
        for (key, after) in after {
            if !tables.contains_key(&key.to_string()) {
                let before = before.get(key).and_then(Option::as_ref);
                ensure!(
                    before.map(spec) == after.as_ref().map(spec),
                    "{key} changed:\n{}",
                    shown(after)
                );
            }
        }
    }
    Ok(())
}

/// Checks that every table is valid to Gloo, unless it was invalid before the call or as its owner wrote it.
pub(super) fn check_validity(original: &Tables, before: &Tables, after: &Tables) -> Result<()> {
    let rules = |tables: &Tables, key| tables.get(key).map(broken_rules).unwrap_or_default();
    for (key, table) in after {
        let broken = broken_rules(table);
        ensure!(
            broken.is_empty()
                || [original, before]
                    .iter()
                    .any(|it| !rules(it, key).is_empty()),
            "{key} is not valid to Gloo: {}\n{}",
            broken.join("; "),
            shown(table)
        );
    }
    Ok(())
}

/// Returns the specs that a call expects, with `ours` marks.
fn expected_specs(
    call: &Call,
    first: &ObjectKey,
    original: &Tables,
) -> Result<Vec<(ObjectKey, Value)>> {
    let mut expected = Vec::new();
    if call.routes.is_some() || call.http.is_some() {
        let table = original.get(first).and_then(Option::as_ref);
        let mut spec = spec(table.context("no first table")?).clone();
        if let Some(http) = &call.http {
            json_patch::merge(&mut spec, &json!({"http": http}));
        }
        for (name, destinations) in call.routes.iter().flatten() {
            set_destinations(&mut spec, name, destinations)
                .with_context(|| format!("there is no route {name}"))?;
        }
        expected.push((first.clone(), spec));
    }
    for (name, spec) in call.tables.iter().flatten() {
        expected.push((key(name)?, spec.clone()));
    }
    Ok(expected)
}

fn set_destinations(spec: &mut Value, route: &str, destinations: &Value) -> Option<()> {
    let routes = spec.get_mut("http")?.as_array_mut()?;
    let route = routes
        .iter_mut()
        .find(|it| it.get("name").is_some_and(|name| name == route))?;
    let forward = route.get_mut("forwardTo")?.as_object_mut()?;
    forward.insert("destinations".to_owned(), destinations.clone());
    Some(())
}

fn all_equal(
    expected: &Tables,
    actual: &Tables,
    view: impl Fn(&RouteTableDoc) -> String,
) -> Result<()> {
    for (key, expected) in expected {
        let expected = expected.as_ref().map(&view);
        let actual = actual.get(key).and_then(Option::as_ref).map(&view);
        if let (Some(expected), Some(actual)) = (expected, actual) {
            ensure!(
                expected == actual,
                "{key} is not the same\nactual:\n{actual}\nexpected:\n{expected}"
            );
        }
    }
    Ok(())
}

/// Returns the owner's part of a table as text, in the order of its keys.
fn bytes(table: &RouteTableDoc) -> String {
    let metadata = |key: &str| table.raw().pointer(&format!("/metadata/{key}")).cloned();
    let mut annotations = metadata("annotations");
    if let Some(Value::Object(map)) = &mut annotations {
        // The plugin's annotations are not compared: equal records may have different text.
        map.retain(|key, _| !key.starts_with(OURS));
        if map.is_empty() {
            annotations = None;
        }
    }
    format!(
        "labels {:?}\nannotations {annotations:?}\n{:#}",
        metadata("labels"),
        spec(table)
    )
}

fn spec(table: &RouteTableDoc) -> &Value {
    table.raw().get("spec").unwrap_or(&Value::Null)
}

/// Returns the spec with `ours: true` in place of the plugin's labels on routes.
fn with_marks(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let routes = spec.get_mut("http").and_then(Value::as_array_mut);
    for route in routes
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let Some(labels) = route.get_mut("labels").and_then(Value::as_object_mut) else {
            continue;
        };
        let all = labels.len();
        labels.retain(|key, _| !key.starts_with(OURS));
        let (ours, none) = (labels.len() < all, labels.is_empty());
        if ours {
            route.insert("ours".to_owned(), Value::Bool(true));
            if none {
                route.remove("labels");
            }
        }
    }
    spec
}

fn same(key: &ObjectKey, actual: &Value, expected: &Value) -> Result<()> {
    ensure!(
        actual == expected,
        "{key} is not as expected\nactual:   {}\nexpected: {}",
        routes_of(actual),
        routes_of(expected)
    );
    Ok(())
}

/// Formats a spec with one line per route and sorted keys, so that two can be compared by eye.
fn routes_of(spec: &Value) -> String {
    let mut sorted = spec.clone();
    sorted.sort_all_objects();
    let Value::Object(fields) = &sorted else {
        return sorted.to_string();
    };
    let mut lines = String::new();
    let other: Map<String, Value> = fields
        .iter()
        .filter(|(_, value)| !value.is_array())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if !other.is_empty() {
        lines.push_str(&Value::Object(other).to_string());
    }
    for (key, list) in fields {
        for (index, route) in list.as_array().into_iter().flatten().enumerate() {
            lines.push_str(&format!("\n  {key}[{index}] {route}"));
        }
    }
    lines
}

fn broken_rules(table: &Option<RouteTableDoc>) -> Vec<String> {
    let spec = table.as_ref().and_then(|table| table.spec().ok());
    spec.map(|spec| violations(&spec).iter().map(ToString::to_string).collect())
        .unwrap_or_default()
}

fn shown(table: &Option<RouteTableDoc>) -> String {
    table.as_ref().map_or_else(
        || "deleted".to_owned(),
        |table| format!("{:#}", table.raw()),
    )
}
