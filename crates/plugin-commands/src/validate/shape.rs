//! The keys and types of the objects that people write, and what of an object does not fit.
//!
//! A shape is JSON: an object lists the known keys, of which those with `!` are required; `*` stands for any key; a list holds
//! the shape of its items; a text names a type, or the values that a text may have, with `|` between them. The shapes are those of the CustomResourceDefinitions: tests compare
//! `rollout.json` with the newest tested release of Argo Rollouts (`tests/go/rollouts/validation_test.go`), and `route-table.json`
//! with the types of `gloo_types`.

use std::sync::LazyLock;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use strict_json::{Problem, hint, resembles};

static ROLLOUT: LazyLock<Value> = LazyLock::new(|| parse(include_str!("shapes/rollout.json")));
static ROUTE_TABLE: LazyLock<Value> =
    LazyLock::new(|| parse(include_str!("shapes/route-table.json")));

/// `metadata` of any kind.
static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let keys = [
        "name",
        "generateName",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    ];
    keys.into_iter().map(|key| (key, "any")).collect()
});
/// The objects of a table that planning reads. Each key that is not known there is reported.
const PLANNED: [&str; 6] = [
    "matchers",
    "uri",
    "destinations",
    "defaultDestination",
    "ref",
    "port",
];

/// What does not fit the shape, with its path and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The API server refuses it.
    Wrong(String, String),
    /// A key that the API server removes or ignores.
    Unknown(String, String),
}

/// Compares `metadata` and the `spec` of a Rollout, apart from its Pod template and plugin blocks.
pub(super) fn of_rollout(object: &Value) -> Vec<Misfit> {
    misfits(&ROLLOUT, object, false)
}

/// Compares `metadata` and the `spec` of a RouteTable. Gloo may have keys that are not known here, so apart from [`PLANNED`] objects only
/// a key that resembles a known one, or that is known in another place, is reported.
pub(super) fn of_route_table(object: &Value) -> Vec<Misfit> {
    misfits(&ROUTE_TABLE, object, true)
}

fn misfits(shape: &Value, object: &Value, has_others: bool) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    for (key, shape, has_others) in [("metadata", &*METADATA, false), ("spec", shape, has_others)] {
        let mut found = Found {
            whole: shape,
            misfits,
            has_others,
        };
        found.walk(shape, object.get(key).unwrap_or(&Value::Null), key);
        misfits = found.misfits;
    }
    misfits
}

/// Finds the objects of a shape that have `key`.
fn places_of(shape: &Value, key: &str, at: &str) -> Vec<String> {
    match shape {
        Value::Object(fields) => {
            let inner = fields.iter().flat_map(|(name, shape)| {
                let name = name.trim_end_matches('!');
                let own = (name == key).then(|| at.to_owned());
                let inner = places_of(shape, key, &format!("{at}.{name}"));
                own.into_iter().chain(inner)
            });
            inner.collect()
        }
        Value::Array(items) => {
            let at = format!("{at}[]");
            let inner = items.iter().flat_map(|shape| places_of(shape, key, &at));
            inner.collect()
        }
        _ => Vec::new(),
    }
}

fn parse(shape: &str) -> Value {
    // A test reads them.
    serde_json::from_str(shape).unwrap_or_default()
}

struct Found<'a> {
    whole: &'a Value,
    misfits: Vec<Misfit>,
    /// Whether the object may have keys that the shape lacks.
    has_others: bool,
}

impl Found<'_> {
    /// Compares a value. The API server treats `null` as absent, except in a list.
    fn walk(&mut self, shape: &Value, value: &Value, at: &str) {
        match (shape, value) {
            (_, Value::Null) => {}
            (Value::Object(shape), Value::Object(fields)) => {
                for (key, value) in fields {
                    let at = format!("{at}.{key}");
                    let required = format!("{key}!");
                    let known = [key.as_str(), required.as_str(), "*"];
                    match known.iter().find_map(|key| shape.get(*key)) {
                        Some(shape) => self.walk(shape, value, &at),
                        None => self.unknown(shape, key, at),
                    }
                }
                let required = shape.keys().filter_map(|key| key.strip_suffix('!'));
                for key in required.filter(|key| fields.get(*key).is_none_or(Value::is_null)) {
                    self.wrong(at, format!("{at}.{key} is missing: set it"));
                }
            }
            (Value::Array(shape), Value::Array(items)) => {
                let shape = shape.first().unwrap_or(&Value::Null);
                for (index, item) in items.iter().enumerate() {
                    let at = format!("{at}[{index}]");
                    match (item, shape) {
                        (Value::Null, Value::Object(_)) => self.mistyped(&at, "an object", item),
                        (Value::Null, Value::String(kind)) => self.scalar(kind, item, &at),
                        _ => self.walk(shape, item, &at),
                    }
                }
            }
            (Value::Object(_), _) => self.mistyped(at, "an object", value),
            (Value::Array(_), _) => self.mistyped(at, "a list", value),
            (Value::String(kind), _) => self.scalar(kind, value, at),
            _ => {}
        }
    }

    fn scalar(&mut self, kind: &str, value: &Value, at: &str) {
        const WHOLE: &str = "a whole number";
        let is_int32 = value.as_i64().is_some_and(|it| i32::try_from(it).is_ok());
        let (fits, expected) = match kind {
            "int32" => (is_int32, WHOLE),
            "int64" => (value.is_i64(), WHOLE),
            "integer" => (value.is_i64() || value.is_u64(), WHOLE),
            "int32 or string" => (is_int32 || value.is_string(), "a whole number or a string"),
            "number" => (value.is_number(), "a number"),
            "boolean" => (value.is_boolean(), "true or false"),
            "time" => (
                value.as_str().is_some_and(is_time),
                "a time, such as 2026-01-31T12:00:00Z",
            ),
            "object" => (value.is_object(), "an object"),
            "any" => return,
            _ => (value.is_string(), "a string"),
        };
        if fits {
            let is_known =
                |text: &&str| !kind.contains('|') || kind.split('|').any(|it| it == *text);
            if let Some(text) = value.as_str().filter(|text| !is_known(text)) {
                let known = kind.replace('|', ", ");
                let text = text.escape_debug();
                self.wrong(at, format!("{at} is \"{text}\": use one of {known}"));
            }
            return;
        }
        let problem = match value {
            Value::Number(number) if expected.starts_with(WHOLE) => {
                Problem::value(at, number.to_string(), "a whole number that has 32 bits")
            }
            Value::String(text) if kind == "time" => Problem::value(at, text, expected),
            _ => Problem::wrong_type(at.to_owned(), expected, value),
        };
        self.wrong(at, problem.to_string());
    }

    fn mistyped(&mut self, at: &str, expected: &'static str, value: &Value) {
        let problem = Problem::wrong_type(at.to_owned(), expected, value);
        self.wrong(at, problem.to_string());
    }

    fn wrong(&mut self, at: &str, text: String) {
        self.misfits.push(Misfit::Wrong(at.to_owned(), text));
    }

    fn unknown(&mut self, shape: &serde_json::Map<String, Value>, key: &str, path: String) {
        let known = shape.keys().map(|key| key.trim_end_matches('!'));
        let known: Vec<&str> = known.collect();
        let is_near = resembles(key, &known);
        let below = path
            .strip_suffix(key)
            .unwrap_or(&path)
            .trim_end_matches('.');
        let object = below.rsplit('.').next().unwrap_or_default();
        let object = object.split('[').next().unwrap_or_default();
        let has_others = self.has_others && !PLANNED.contains(&object);
        let below = shape.iter().flat_map(|(name, shape)| {
            let name = name.trim_end_matches('!');
            places_of(shape, key, &format!("{below}.{name}"))
        });
        let below: Vec<String> = below.collect();
        let places = match &below[..] {
            [_] => below,
            _ => places_of(self.whole, key, "spec"),
        };
        let hint = match &places[..] {
            [place] if !is_near => format!(": it belongs to {place}"),
            _ if is_near || !has_others => hint(key, &known),
            _ => return,
        };
        let problem = Problem::UnknownKey {
            path: path.clone(),
            hint,
        };
        self.misfits
            .push(Misfit::Unknown(path, problem.to_string()));
    }
}

/// Whether a text is a time as in RFC 3339, which has a `T`.
fn is_time(text: &str) -> bool {
    text.get(10..11) == Some("T") && text.parse::<Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(found: Vec<Misfit>, expect: &[&str]) {
        let texts = found.iter().map(|misfit| match misfit {
            Misfit::Wrong(_, text) => format!("error: {text}"),
            Misfit::Unknown(_, text) => format!("warning: {text}"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn keys_and_types_of_a_rollout_are_those_of_its_api() {
        let rollout = |spec: Value| of_rollout(&json!({"spec": spec}));
        let canary = |canary: Value| rollout(json!({"strategy": {"canary": canary}}));
        check(rollout(json!({"replicas": 3, "template": {"x": 1}})), &[]);
        check(
            canary(
                json!({"steps": [{"setWeight": null, "pause": {"duration": "5m"}}, {"pause": {"duration": 5}}]}),
            ),
            &[],
        );
        check(
            rollout(json!({"replicas": "3", "restartAt": "today"})),
            &[
                "error: spec.replicas must be a whole number, found a string",
                "error: spec.restartAt is \"today\", it must be a time, such as 2026-01-31T12:00:00Z",
            ],
        );
        check(
            rollout(json!({"restartAt": "2026-01-31T12:00:00.5+01:00"})),
            &[],
        );
        check(
            rollout(json!({"replicas": 1.5, "revisionHistoryLimit": 3_000_000_000_u32})),
            &[
                "error: spec.replicas is \"1.5\", it must be a whole number that has 32 bits",
                "error: spec.revisionHistoryLimit is \"3000000000\", it must be a whole number that has 32 bits",
            ],
        );
        check(
            canary(json!({"abortScaleDownDelaySeconds": "30", "steps": {}})),
            &[
                "error: spec.strategy.canary.abortScaleDownDelaySeconds must be a whole number, found a string",
                "error: spec.strategy.canary.steps must be a list, found an object",
            ],
        );
        check(
            canary(json!({"stabelService": "a", "trafficRouting": {"managedRoutes": [{}, "r"]}})),
            &[
                "warning: unknown key spec.strategy.canary.stabelService, did you mean stableService?",
                "error: spec.strategy.canary.trafficRouting.managedRoutes[0].name is missing: set it",
                "error: spec.strategy.canary.trafficRouting.managedRoutes[1] must be an object, found a string",
            ],
        );
        check(
            canary(json!({"trafficRouting": {"steps": [], "replicas": 1}})),
            &[
                "warning: unknown key spec.strategy.canary.trafficRouting.steps: it belongs to spec.strategy.canary",
                "warning: unknown key spec.strategy.canary.trafficRouting.replicas: use one of alb, ambassador, apisix, appMesh, istio, managedRoutes, maxTrafficWeight, nginx, plugins, smi, traefik",
            ],
        );
        check(
            canary(json!({"steps": [{"pause": {"duration": true}}]})),
            &[
                "error: spec.strategy.canary.steps[0].pause.duration must be a whole number or a string, found a boolean",
            ],
        );
    }

    #[test]
    fn a_misspelt_key_of_a_table_is_told_from_one_that_is_not_known() {
        let table = |spec: Value| of_route_table(&json!({"spec": spec}));
        check(table(json!({"hosts": [], "somethingNew": {}})), &[]);
        check(
            table(json!({"http": [{"pathRewrite": "/"}]})),
            &[
                "warning: unknown key spec.http[0].pathRewrite: it belongs to spec.http[0].forwardTo",
            ],
        );
        check(
            table(
                json!({"http": [{"matcher": [], "forwardTo": {"destinations": [{"wieght": 1, "subset": {"wieght": "1"}}]}}]}),
            ),
            &[
                "warning: unknown key spec.http[0].matcher, did you mean matchers?",
                "warning: unknown key spec.http[0].forwardTo.destinations[0].wieght, did you mean weight?",
            ],
        );
        let destination = |more: Value| {
            table(json!({"http": [{"forwardTo": {"foo": 1, "destinations": [more]}}]}))
        };
        for (key, hint) in [
            ("prot", ", did you mean port?"),
            ("rf", ", did you mean ref?"),
            (
                "targetPort",
                ": use one of ref, awsLambda, kind, port, subset, weight",
            ),
        ] {
            check(
                destination(json!({ key: 1 })),
                &[&format!(
                    "warning: unknown key spec.http[0].forwardTo.destinations[0].{key}{hint}"
                )],
            );
        }
        check(
            destination(json!({"port": {"numbr": 1}})),
            &[
                "warning: unknown key spec.http[0].forwardTo.destinations[0].port.numbr, did you mean number?",
            ],
        );
        check(
            table(json!({"http": [{"matchers": [{"url": {"prefix": "/"}}]}]})),
            &["warning: unknown key spec.http[0].matchers[0].url, did you mean uri?"],
        );
        let labels = json!({"metadata": {"name": "a", "lables": {}}});
        let misspelt = "warning: unknown key metadata.lables, did you mean labels?";
        check(of_route_table(&labels), &[misspelt]);
        check(of_rollout(&labels), &[misspelt]);
        check(
            table(json!({"hosts": [null, "a"], "tls": [null], "weight": null})),
            &[
                "error: spec.hosts[0] must be a string, found null",
                "error: spec.tls[0] must be an object, found null",
            ],
        );
        check(
            table(
                json!({"http": [{"name": 1}, {"forwardTo": {"destinations": {}}}, {"labels": {"a": true}}]}),
            ),
            &[
                "error: spec.http[0].name must be a string, found a number",
                "error: spec.http[1].forwardTo.destinations must be a list, found an object",
                "error: spec.http[2].labels.a must be a string, found a boolean",
            ],
        );
    }

    /// The shape of an OpenAPI schema.
    fn shape(schema: &Value) -> Value {
        let kind = schema.get("type").and_then(Value::as_str);
        match kind.unwrap_or("any") {
            "object" => match (schema.get("properties"), schema.get("additionalProperties")) {
                (Some(Value::Object(fields)), _) => fields
                    .iter()
                    .map(|(key, field)| {
                        let required = schema.get("required").and_then(Value::as_array);
                        let is_required = required.is_some_and(|it| it.contains(&json!(key)));
                        let mark = if is_required { "!" } else { "" };
                        (format!("{key}{mark}"), shape(field))
                    })
                    .collect(),
                (_, Some(each @ Value::Object(_))) => json!({ "*": shape(each) }),
                _ => json!("object"),
            },
            "array" => json!([shape(&schema["items"])]),
            "integer" => schema.get("format").cloned().unwrap_or(json!("integer")),
            "string" => match schema.get("enum").and_then(Value::as_array) {
                Some(values) => {
                    let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
                    json!(values.join("|"))
                }
                None => json!("string"),
            },
            kind => json!(kind),
        }
    }

    #[test]
    fn the_shape_of_a_table_is_that_of_its_types() {
        let definition = gloo_types::crd::route_table();
        let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
        let expected = shape(schema.unwrap());
        assert!(
            *ROUTE_TABLE == expected,
            "shapes/route-table.json must be {expected}"
        );
    }
}
