//! Generates HTTP routes: matchers of all kinds, rewrites, destinations, labels, redirects and direct responses.

use fastrand::Rng;
use serde_json::{Value, json};

use super::{POOL, chance, pick, set};
use crate::meaning::text::PATHS;
use crate::meaning::world::NAMESPACE;

/// What the routes of a table have in common.
pub(super) struct Context<'a> {
    /// The port of all destinations.
    pub(super) port: Option<u32>,
    /// The prefix of the delegating route. All paths lie within it.
    pub(super) within: Option<&'a str>,
}

/// Names of routes. A table may have one twice.
const NAMES: [&str; 4] = ["a", "b", "c", "main"];
/// Conditions on headers and query parameters.
const HEADERS: [&str; 6] = [
    r#"{"name":"x-env","value":"prod"}"#,
    r#"{"name":"x-env","value":"prod","invertMatch":true}"#,
    r#"{"name":"x-user"}"#,
    r#"{"name":"x-user","invertMatch":true}"#,
    r#"{"name":"x-ver","value":"v[0-9]+","regex":true}"#,
    r#"{"name":"x-ver","value":"v[0-9]+","regex":true,"invertMatch":true}"#,
];
const QUERIES: [&str; 3] = [
    r#"{"name":"q","value":"1"}"#,
    r#"{"name":"q"}"#,
    r#"{"name":"q","value":"[0-9]+","regex":true}"#,
];

pub(super) fn destination(name: &str, port: Option<u32>, weight: Option<u32>) -> Value {
    let mut to = json!({"ref": {"name": name, "namespace": NAMESPACE}});
    if let Some(port) = port {
        set(&mut to, "port", json!({"number": port}));
    }
    if let Some(weight) = weight {
        set(&mut to, "weight", json!(weight));
    }
    to
}

pub(super) fn route(rng: &mut Rng, context: &Context<'_>, index: usize) -> Value {
    let mut route = json!({});
    match rng.u32(0..10) {
        0..2 => {}
        2 => set(&mut route, "name", json!(pick(rng, &NAMES))),
        _ => set(&mut route, "name", json!(format!("r{index}"))),
    }
    let matchers = matchers(rng, context);
    let by_regex = matchers.iter().any(|it| it.pointer("/uri/regex").is_some());
    if !matchers.is_empty() {
        set(&mut route, "matchers", json!(matchers));
    }
    match rng.u32(0..100) {
        0..6 => set(&mut route, "redirect", redirect(rng)),
        6..14 => {
            let body = format!("direct {index}");
            set(
                &mut route,
                "directResponse",
                json!({"status": 200, "body": body}),
            );
        }
        _ => forward(rng, context, by_regex, &mut route),
    }
    route
}

fn redirect(rng: &mut Rng) -> Value {
    match rng.u32(0..3) {
        0 => json!({"hostRedirect": "other.example.com"}),
        1 => json!({"pathRedirect": "/moved", "responseCode": "FOUND"}),
        _ => json!({"hostRedirect": "other.example.com", "pathRedirect": "/moved"}),
    }
}

/// Sets `forwardTo` and the labels of policies.
fn forward(rng: &mut Rng, context: &Context<'_>, by_regex: bool, route: &mut Value) {
    let (names, mut forward) = destinations(rng, context.port);
    if chance(rng, 35) {
        rewrite(rng, by_regex, &mut forward);
    }
    if chance(rng, 15) {
        match rng.bool() {
            true => set(&mut forward, "hostRewrite", json!("up.example.com")),
            false => set(&mut forward, "autoHostRewrite", json!(true)),
        }
    }
    set(route, "forwardTo", forward);
    let mut labels = json!({});
    if chance(rng, 30) {
        set(&mut labels, "speed", json!("slow"));
    }
    let is_source = names
        .iter()
        .any(|name| *name != "cart" && *name != "legacy");
    if !is_source && chance(rng, 40) {
        set(&mut labels, "copy", json!("all"));
    }
    if labels != json!({}) {
        set(route, "labels", labels);
    }
}

fn rewrite(rng: &mut Rng, by_regex: bool, forward: &mut Value) {
    if by_regex || chance(rng, 30) {
        let pattern = json!({"googleRe2": {}, "regex": "^/(shop|reviews)/(.*)"});
        let rewrite = json!({"pattern": pattern, "substitution": r"/in/\1/\2"});
        set(forward, "regexRewrite", rewrite);
    } else {
        let path = pick(rng, &["/", "/v1", "/api/x"]).unwrap_or("/");
        set(forward, "pathRewrite", json!(path));
    }
}

/// The names of destinations, and a `forwardTo` with these.
fn destinations(rng: &mut Rng, port: Option<u32>) -> (Vec<&'static str>, Value) {
    let lists: [&[(&str, Option<u32>)]; 10] = [
        &[("reviews", None)],
        &[("reviews", None)],
        &[("reviews", Some(80)), ("legacy", Some(20))],
        &[("legacy", Some(30)), ("reviews", Some(70))],
        &[("reviews", Some(60)), ("ratings", Some(40))],
        &[
            ("reviews", Some(50)),
            ("ratings", None),
            ("legacy", Some(20)),
        ],
        &[("ratings", None)],
        &[("legacy", None)],
        &[("cart", None)],
        // The default destination, which may be a source.
        &[],
    ];
    let list = pick(rng, &lists).unwrap_or_default();
    let names = list.iter().map(|(name, _)| *name).collect();
    if list.is_empty() {
        return (vec!["reviews"], json!({}));
    }
    let list: Vec<Value> = list
        .iter()
        .map(|(name, weight)| destination(name, port, *weight))
        .collect();
    (names, json!({"destinations": list}))
}

fn matchers(rng: &mut Rng, context: &Context<'_>) -> Vec<Value> {
    let count = match rng.u32(0..10) {
        0 => 0,
        1..8 => 1,
        _ => 2,
    };
    (0..count).map(|_| matcher(rng, context)).collect()
}

fn matcher(rng: &mut Rng, context: &Context<'_>) -> Value {
    let mut matcher = json!({});
    if let Some(uri) = uri(rng, context) {
        set(&mut matcher, "uri", uri);
    }
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    if chance(rng, 20) {
        let header = pick(rng, &HEADERS).map(parse);
        set(&mut matcher, "headers", json!([header]));
    }
    if chance(rng, 8) {
        let query = pick(rng, &QUERIES).map(parse);
        set(&mut matcher, "queryParameters", json!([query]));
    }
    if chance(rng, 12) {
        set(&mut matcher, "method", json!(pick(rng, &super::METHODS)));
    }
    matcher
}

fn uri(rng: &mut Rng, context: &Context<'_>) -> Option<Value> {
    let Some(within) = context.within else {
        let path = pick(rng, &POOL).unwrap_or("/");
        return Some(match rng.u32(0..100) {
            0..60 => json!({"prefix": path}),
            60..75 => json!({"exact": path}),
            75..85 => json!({"regex": pick(rng, PATHS)?.regex}),
            85..92 => json!({"prefix": path, "ignoreCase": true}),
            _ => return None,
        });
    };
    // The model cannot join other matchers with the parent's.
    let inside: Vec<&str> = POOL
        .into_iter()
        .filter(|path| path.starts_with(within))
        .collect();
    let path = pick(rng, &inside).unwrap_or(within);
    match rng.u32(0..100) {
        0..65 => Some(json!({"prefix": path})),
        65..85 => Some(json!({"exact": path})),
        _ => None,
    }
}
