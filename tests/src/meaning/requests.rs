//! Derives requests from a world: those that match a route and a step, those that nearly do, and foreign ones.

use std::collections::BTreeSet;

use fastrand::Rng;
use serde_json::Value;

use super::steps::{Act, Part};
use super::text::{Text, pattern};
use super::world::{Request, World};

/// The limit of requests of a world.
const LIMIT: usize = 36;

/// The paths of matchers and of steps. Many lie within others.
pub(super) const POOL: [&str; 7] = [
    "/",
    "/shop",
    "/shop/legacy",
    "/shop/legacy/orders",
    "/reviews",
    "/reviews/v2",
    "/cart",
];

/// Returns the requests of a world, in an order of their own.
pub(super) fn of(rng: &mut Rng, world: &World) -> Vec<Request> {
    let mut requests = BTreeSet::new();
    let http = |table: &Value| {
        table
            .pointer("/spec/http")
            .and_then(Value::as_array)
            .cloned()
    };
    let routes: Vec<Value> = world.tables.iter().filter_map(http).flatten().collect();
    let steps: Vec<&Act> = world.history.iter().map(|step| &step.act).collect();
    for route in &routes {
        let matchers = route.get("matchers").and_then(Value::as_array);
        let any = [Value::Null];
        for matcher in matchers.map_or(any.as_slice(), Vec::as_slice) {
            let matching = matching(rng, matcher);
            requests.insert(near(rng, &matching));
            for step in &steps {
                let mut request = matching.clone();
                if meet(rng, step, matcher, &mut request) {
                    requests.insert(near(rng, &request));
                    requests.insert(request);
                }
            }
            requests.insert(matching);
        }
    }
    requests.insert(request("/elsewhere"));
    let mut requests: Vec<Request> = requests.into_iter().collect();
    rng.shuffle(&mut requests);
    requests.truncate(LIMIT);
    requests.extend(layer_4(world));
    requests
}

fn request(path: &str) -> Request {
    Request {
        method: "GET".to_owned(),
        path: path.to_owned(),
        ..Request::default()
    }
}

/// A request that meets a matcher.
fn matching(rng: &mut Rng, matcher: &Value) -> Request {
    let samples = text_of(matcher.get("uri")).map(|text| text.samples());
    let mut path = samples.and_then(|samples| pick(rng, &samples));
    if matcher.pointer("/uri/ignoreCase").is_some() && rng.bool() {
        path = path.map(|path| path.to_ascii_uppercase());
    }
    let path = path.or_else(|| pick(rng, &POOL).map(str::to_owned));
    let mut request = request(&clean(&path.unwrap_or_default()));
    if let Some(method) = matcher.get("method").and_then(Value::as_str) {
        request.method = method.to_owned();
    } else if chance(rng, 25) {
        request.method = "POST".to_owned();
    }
    for header in list(matcher, "headers") {
        let value = value_of(rng, header);
        let is_inverted = header.get("invertMatch").is_some();
        if !is_inverted && let Some(name) = header.get("name").and_then(Value::as_str) {
            request.headers.insert(name.to_owned(), value);
        }
    }
    for parameter in list(matcher, "queryParameters") {
        let value = parameter.get("regex").map_or("1", |_| "42");
        request.path = format!("{}?q={value}", request.path_only());
    }
    request
}

/// Adds what a step asks for. Returns whether it is a header or mirror step.
fn meet(rng: &mut Rng, step: &Act, matcher: &Value, request: &mut Request) -> bool {
    match step {
        Act::Header { entries, .. } => {
            for entry in entries {
                insert(rng, entry, request);
            }
            true
        }
        Act::Mirror { entries, .. } => {
            let Some(part) = pick(rng, entries) else {
                return false;
            };
            let Part {
                method,
                path,
                headers,
            } = part;
            request.method = method.unwrap_or_else(|| request.method.clone());
            let samples = path.map(|path| path.samples()).unwrap_or_default();
            let prefix = matcher.pointer("/uri/prefix").and_then(Value::as_str);
            // Prefer a path that meets both.
            let both = samples
                .iter()
                .find(|it| it.starts_with(prefix.unwrap_or("/")));
            if let Some(path) = both.cloned().or_else(|| pick(rng, &samples)) {
                let query = request
                    .path
                    .strip_prefix(request.path_only())
                    .unwrap_or_default();
                request.path = format!("{}{query}", clean(&path));
            }
            headers.iter().for_each(|entry| insert(rng, entry, request));
            true
        }
        _ => false,
    }
}

fn insert(rng: &mut Rng, (name, value): &(String, Text), request: &mut Request) {
    if let Some(value) = pick(rng, &value.samples()) {
        request.headers.insert(name.clone(), value);
    }
}

/// A request with one difference.
fn near(rng: &mut Rng, request: &Request) -> Request {
    let mut near = request.clone();
    match rng.u32(0..6) {
        0 => near.path = clean(&format!("{}/items", request.path_only())),
        1 => near.path = format!("{}x", request.path_only()),
        2 => near.path = format!("{}?q=1", request.path_only()),
        3 => {
            near.method = match request.method.as_str() {
                "GET" => "POST".to_owned(),
                _ => "GET".to_owned(),
            };
        }
        4 => drop(near.headers.pop_first()),
        _ => {
            let value = pick(rng, &["no", "prod", "yesx", "v2"]).unwrap_or_default();
            let name = pick(rng, &["x-tester", "x-env", "x-user", "x-ver"]).unwrap_or_default();
            near.headers.insert(name.to_owned(), value.to_owned());
        }
    }
    near
}

/// A connection of each TCP and TLS route.
fn layer_4(world: &World) -> Vec<Request> {
    let mut requests = Vec::new();
    for kind in ["tcp", "tls"] {
        for table in &world.tables {
            let routes = table.get("spec").map_or(0, |spec| list(spec, kind).count());
            requests.extend((0..routes).map(|index| Request {
                route: format!("{kind}{index}"),
                ..request("/")
            }));
        }
    }
    requests
}

/// The condition of a `uri`.
fn text_of(uri: Option<&Value>) -> Option<Text> {
    let uri = uri?;
    let text = |key| uri.get(key).and_then(Value::as_str).map(str::to_owned);
    let exact = text("exact").map(Text::Exact);
    let prefix = || text("prefix").map(Text::Prefix);
    exact
        .or_else(prefix)
        .or_else(|| pattern(&text("regex")?).map(Text::Pattern))
}

fn value_of(rng: &mut Rng, header: &Value) -> String {
    let value = header.get("value").and_then(Value::as_str);
    let pattern = value.and_then(pattern);
    let sample = pattern.and_then(|pattern| pick(rng, pattern.samples));
    sample.or(value).unwrap_or("someone").to_owned()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    let items = value.get(key).and_then(Value::as_array);
    items.into_iter().flatten()
}

/// Without a doubled slash.
fn clean(path: &str) -> String {
    path.replace("//", "/")
}

pub(super) fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(0..100) < percent
}

pub(super) fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> Option<T> {
    rng.choice(from).cloned()
}
