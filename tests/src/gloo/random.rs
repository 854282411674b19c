//! Random RouteTables with valid and invalid parts.
#![expect(clippy::indexing_slicing, reason = "the indices come from the slices")]

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// The table of a seed: a valid one with most parts of the API, and some changes.
#[must_use]
pub fn table(seed: u64) -> Value {
    let rng = &mut Rng::with_seed(seed);
    let mut spec = spec(rng);
    for _ in 0..rng.usize(0..3) {
        change(rng, &mut spec);
    }
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": format!("t{seed}"), "namespace": "shop"},
        "spec": spec,
    })
}

fn spec(rng: &mut Rng) -> Value {
    let actions = [
        forward(rng, true),
        forward(rng, true),
        json!({"delegate": {"routeTables": [{"labels": {"part": "child"}, "namespace": "shop"}], "sortMethod": "ROUTE_SPECIFICITY", "allowedRoutes": [{"cloudProvider": {"aws": {"regions": ["us-.*"]}}}]}}),
        json!({"redirect": {"hostRedirect": "www.example.com", "pathRedirect": "/x", "responseCode": "FOUND"}}),
        json!({"directResponse": {"status": rng.u32(100..600), "body": "no"}}),
        json!({"graphql": {"schema": {"name": "s", "namespace": "shop", "clusterName": "one"}, "options": {"logSensitiveInfo": true}}}),
    ];
    let mut http = vec![];
    for index in 0..rng.usize(1..4) {
        let mut route = pick(rng, &actions).clone();
        route["name"] = json!(format!("r{index}"));
        route["labels"] = json!({"route": "r"});
        route["matchers"] = matchers(rng, index);
        http.push(route);
    }
    let mut spec = json!({"http": http});
    let has_forward = http.iter().any(|route| route.get("forwardTo").is_some());
    let optional = [
        ("hosts", json!(["www.example.com"])),
        ("tcp", json!([forward(rng, false)])),
        ("tls", json!([forward(rng, false)])),
        ("weight", json!(rng.i32(-5..5))),
        ("virtualServiceAnnotations", json!({"a": "b"})),
        (
            "portalMetadata",
            json!({"apiProductId": "shop", "apiVersion": "v1", "title": "Shop", "customMetadata": {"a": "b"}}),
        ),
        (
            "workloadSelectors",
            json!([{"selector": {"labels": {"app": "web"}}, "kind": "KUBE", "port": {"number": 80}}]),
        ),
    ];
    for (key, value) in optional {
        if rng.bool() {
            spec[key] = value;
        }
    }
    for layer in ["tcp", "tls"] {
        if let Some(route) = spec.pointer_mut(&format!("/{layer}/0")) {
            route["matchers"] = json!([{"port": 8443}]);
        }
    }
    if let Some(matcher) = spec.pointer_mut("/tls/0/matchers/0") {
        matcher["sniHosts"] = json!(["*.example.com"]);
    }
    let of_a_root = [
        (
            "virtualGateways",
            json!([{"name": "gateway", "namespace": "mesh"}]),
        ),
        (
            "applyToDestinations",
            json!([{"selector": {"name": "web"}, "port": {"name": "http"}}]),
        ),
        ("failureMode", json!("FREEZE_CONFIG")),
    ];
    for (key, value) in of_a_root {
        if spec.get("hosts").is_some() && rng.bool() {
            spec[key] = value;
        }
    }
    if has_forward && rng.bool() {
        spec["defaultDestination"] = destination(rng, "rest", None);
    }
    spec
}

fn forward(rng: &mut Rng, is_http: bool) -> Value {
    let weights: &[Option<u32>] = match rng.u32(0..24) {
        0 => &[Some(100), None],
        1..6 => &[None],
        6..12 => &[Some(60), Some(40)],
        12..18 => &[Some(100)],
        _ => &[Some(50), Some(20), None],
    };
    let names = ["web", "web-canary", "dr"];
    let named = names.iter().zip(weights);
    let to: Vec<Value> = named
        .map(|(name, weight)| destination(rng, name, *weight))
        .collect();
    let mut forward = json!({"destinations": to});
    if is_http && rng.bool() {
        forward["pathRewrite"] = json!("/");
    } else if is_http && rng.bool() {
        let pattern = json!({"googleRe2": {"maxProgramSize": 10}, "regex": "a.*"});
        forward["regexRewrite"] = json!({"pattern": pattern, "substitution": "b"});
    }
    if is_http && rng.bool() {
        forward["autoHostRewrite"] = json!(rng.bool());
    }
    json!({"forwardTo": forward})
}

fn destination(rng: &mut Rng, name: &str, weight: Option<u32>) -> Value {
    let mut to = json!({"ref": {"name": name, "namespace": "shop", "cluster": "one"}});
    if rng.u32(0..6) == 0 {
        let options = json!({"invocationStyle": "ASYNC", "requestTransformation": "REQUEST_DISABLE", "responseTransformation": "RESPONSE_DEFAULT"});
        to = json!({"awsLambda": {"cloudProvider": {"name": "aws"}, "function": name, "qualifier": "1", "options": options}});
    }
    if let Some(weight) = weight {
        to["weight"] = json!(weight);
    }
    match rng.u32(0..4) {
        0 => to["port"] = json!({"number": rng.u32(1..65536)}),
        1 => to["port"] = json!({"name": "http"}),
        2 => to["subset"] = json!({"version": "v1"}),
        _ => {
            let virtual_one = "VIRTUAL_DESTINATION";
            let kinds = [virtual_one, virtual_one, "EXTERNAL_SERVICE"];
            to["kind"] = json!(pick(rng, &kinds));
        }
    }
    to
}

fn matchers(rng: &mut Rng, index: usize) -> Value {
    let kinds = ["exact", "prefix", "regex"];
    let kind = *pick(rng, &kinds);
    json!([{
        "uri": {kind: format!("/{index}"), "ignoreCase": rng.bool()},
        "headers": [{"name": "x-user", "value": "1", "regex": rng.bool()}, {"name": "x-b", "invertMatch": true}],
        "queryParameters": [{"name": "q", "value": "1"}],
        "method": "GET",
        "port": 8080,
    }])
}

/// Changes a random part.
fn change(rng: &mut Rng, spec: &mut Value) {
    let mut paths = Vec::new();
    collect(spec, "", &mut paths);
    let mut path = pick(rng, &paths).clone();
    // Most paths are deep.
    for _ in 0..rng.usize(0..4) {
        let other = pick(rng, &paths);
        if other.matches('/').count() < path.matches('/').count() {
            path.clone_from(other);
        }
    }
    let (above, key) = path.rsplit_once('/').unwrap_or_default();
    let Some(value) = spec.pointer(&path).cloned() else {
        return;
    };
    let others = [
        json!(null),
        json!({}),
        json!([]),
        json!(""),
        json!("x y"),
        json!(true),
        json!("75"),
    ];
    let numbers = [
        -1.0,
        0.0,
        1.0,
        1.5,
        99.0,
        100.0,
        599.0,
        600.0,
        65535.0,
        65536.0,
        4_294_967_296.0,
    ];
    let changed = match &value {
        Value::Number(_) if rng.u32(0..3) > 0 => {
            let number = *pick(rng, &numbers);
            match number {
                1.5 => json!(number),
                #[expect(clippy::cast_possible_truncation, reason = "whole numbers of 33 bits")]
                whole => json!(whole as i64),
            }
        }
        Value::String(_) if rng.bool() => json!(pick(rng, &["UNKNOWN", "EXTERNAL_SERVICE", "VM"])),
        Value::Array(items) if rng.bool() && !items.is_empty() => {
            let times = *pick(
                rng,
                if key == "destinations" {
                    &[0, 101]
                } else {
                    &[0, 2]
                },
            );
            items
                .iter()
                .cycle()
                .take(items.len() * times)
                .cloned()
                .collect()
        }
        _ => pick(rng, &others).clone(),
    };
    let Some(above) = spec.pointer_mut(above) else {
        return;
    };
    match above {
        Value::Object(fields) => match rng.u32(0..7) {
            0 | 6 => drop(fields.remove(key)),
            1 => rename(fields, key, &format!("{key}s")),
            2 => rename(fields, key, &snake(key)),
            3 => {
                let is_uri = path.contains("/uri/");
                let key = if is_uri { "suffix" } else { "futureField" };
                fields.insert(key.to_owned(), json!("x"));
            }
            _ => drop(fields.insert(key.to_owned(), changed)),
        },
        Value::Array(items) => match key.parse::<usize>() {
            Ok(index) if rng.bool() => drop(items.remove(index)),
            Ok(index) => items[index] = changed,
            Err(_) => {}
        },
        _ => {}
    }
}

fn rename(fields: &mut Map<String, Value>, key: &str, to: &str) {
    if let Some(value) = fields.remove(key) {
        fields.insert(to.to_owned(), value);
    }
}

/// The name that a field has in the protos.
fn snake(key: &str) -> String {
    let words = key.chars().flat_map(|letter| {
        let is_upper = letter.is_ascii_uppercase();
        is_upper
            .then_some('_')
            .into_iter()
            .chain([letter.to_ascii_lowercase()])
    });
    words.collect()
}

fn collect(value: &Value, path: &str, paths: &mut Vec<String>) {
    let mut inner = |key: &str, value: &Value| {
        let path = format!("{path}/{key}");
        collect(value, &path, paths);
        paths.push(path);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| inner(key, value)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| inner(&index.to_string(), value));
        }
        _ => {}
    }
}

fn pick<'a, T>(rng: &mut Rng, items: &'a [T]) -> &'a T {
    &items[rng.usize(0..items.len())]
}
