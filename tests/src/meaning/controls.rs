//! The negative controls: a world without findings, and faults that each must give a finding of its kind.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::check::Fault;
use super::steps::{Act, Part};
use super::text::Text;
use super::world::{Canary, Request, Step, World};

const OBJECTS: &str = "
- apiVersion: networking.gloo.solo.io/v2
  kind: RouteTable
  metadata: {name: root, namespace: shop}
  spec:
    hosts: [shop.example.com]
    http:
    - {name: health, matchers: [{uri: {exact: /healthz}}], directResponse: {status: 200, body: ok}}
    - name: cart
      labels: {copy: all}
      matchers: [{uri: {prefix: /cart}}]
      forwardTo: {destinations: [{ref: {name: cart, namespace: shop}}]}
    - name: reviews
      labels: {speed: slow}
      matchers: [{uri: {prefix: /reviews}}]
      forwardTo:
        pathRewrite: /v1
        hostRewrite: up.example.com
        destinations:
        - {ref: {name: reviews, namespace: shop}, weight: 80}
        - {ref: {name: legacy, namespace: shop}, weight: 20}
    tcp:
    - matchers: [{port: 9000}]
      forwardTo: {destinations: [{ref: {name: reviews, namespace: shop}}]}
- apiVersion: trafficcontrol.policy.gloo.solo.io/v2
  kind: MirrorPolicy
  metadata: {name: audit, namespace: shop}
  spec:
    applyToRoutes: [{route: {labels: {copy: all}}}]
    config: {destination: {ref: {name: audit, namespace: shop}}}
- apiVersion: resilience.policy.gloo.solo.io/v2
  kind: RetryTimeoutPolicy
  metadata: {name: slow, namespace: shop}
  spec:
    applyToRoutes: [{route: {labels: {speed: slow}}}]
    config: {requestTimeout: 7s, retries: {attempts: 1, retryOn: 5xx}}
";

/// A fault, and the kind of finding that it must give.
pub struct Control {
    /// What is wrong.
    pub kind: &'static str,
    /// The fault.
    pub fault: Fault,
}

/// The controls.
pub const CONTROLS: &[Control] = &[
    control("(a) response", |host| replace(host, "\"ok\"", "\"ko\"")),
    control("(a) path", |host| replace(host, "\"/v1\"", "\"/v2\"")),
    control("(a) host", |host| {
        replace(host, "up.example", "down.example");
    }),
    control("(a) policy", |host| replace(host, "7s", "9s")),
    control("(a) headers", |host| {
        let list = "\"request_headers_to_add\":[";
        let other = r#"{"header":{"key":"x-other","value":"1"}},"#;
        replace(host, list, &format!("{list}{other}"));
    }),
    control("(a) destination", |host| {
        replace(host, "shop/cart\"", "shop/legacy\"");
    }),
    control("(a) missing copy", |host| {
        without_mirror(host, "shop/audit");
    }),
    control("(a) destination of a copy", |host| {
        replace(host, "shop/audit", "shop/legacy");
    }),
    control("(b) destination", |host| {
        change(host, "hdr", "cluster", "shop/reviews");
    }),
    control("(b) path", |host| {
        change(host, "hdr", "prefix_rewrite", "/v2");
    }),
    control("(b) host", |host| {
        change(host, "hdr", "host_rewrite_literal", "other");
    }),
    control("(c) missing copy", |host| {
        without_mirror(host, "shop/reviews-canary");
    }),
    control("(c) destination of a copy", |host| {
        let mirror = "[{\"cluster\":\"shop/reviews-canary\"";
        replace(host, mirror, "[{\"cluster\":\"shop/legacy\"");
    }),
    control("(c) path", |host| {
        change(host, "mir", "prefix_rewrite", "/v2");
    }),
    control("(c) policy", |host| {
        route(host, "mir", |route| replace(route, "7s", "9s"));
    }),
    control("(d) share", |host| {
        route(host, "reviews", |route| {
            replace(route, "\"weight\":20}", "\"weight\":23}");
        });
    }),
    control("(d) share in a mirror route", |host| {
        route(host, "mir", |route| {
            replace(route, "\"weight\":20}", "\"weight\":17}");
        });
    }),
    control(
        "(d) a Rollout that is over keeps requests, and VerifyWeight does not object",
        |host| replace(host, "\"shop/reviews\"", "\"shop/reviews-canary\""),
    ),
];

const fn control(kind: &'static str, fault: Fault) -> Control {
    Control { kind, fault }
}

/// A world without findings: a header step, a mirror step, a weight, and an abort.
///
/// # Errors
/// Returns `Err` if the objects are malformed.
pub fn control_world() -> Result<World> {
    let objects: Vec<Value> = serde_saphyr::from_str(OBJECTS)?;
    let of = |kind: &str| -> Vec<Value> {
        let objects = objects
            .iter()
            .filter(|it| it.get("kind").is_some_and(|it| it == kind));
        objects.cloned().collect()
    };
    let header = Act::Header {
        name: "hdr".to_owned(),
        entries: vec![("x-tester".to_owned(), Text::Exact("yes".to_owned()))],
    };
    let mirror = Act::Mirror {
        name: "mir".to_owned(),
        entries: vec![Part {
            method: Some("POST".to_owned()),
            ..Part::default()
        }],
    };
    let acts = [Act::Weight(25), header, mirror, Act::Weight(50), Act::Abort];
    let request = |method: &str, path: &str, tester: Option<&str>| Request {
        route: String::new(),
        method: method.to_owned(),
        path: path.to_owned(),
        headers: tester
            .map(|tester| ("x-tester".to_owned(), tester.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
    };
    Ok(World {
        seed: 0,
        tables: of("RouteTable"),
        mirrors: of("MirrorPolicy"),
        timeouts: of("RetryTimeoutPolicy"),
        services: Vec::new(),
        canaries: vec![Canary {
            name: "reviews".to_owned(),
            tables: vec!["root".to_owned()],
            is_top: false,
            needs_all: false,
            managed: vec!["hdr".to_owned(), "mir".to_owned()],
            tcp: Some(9000),
            tls: None,
        }],
        history: acts.map(|act| Step { who: 0, act }).to_vec(),
        requests: vec![
            request("GET", "/healthz", None),
            request("GET", "/cart/1", None),
            request("GET", "/reviews/items?page=2", None),
            request("POST", "/reviews/items", None),
            request("GET", "/reviews", Some("yes")),
            request("POST", "/reviews", Some("yes")),
            request("GET", "/reviews", Some("no")),
            request("GET", "/elsewhere", Some("yes")),
            Request {
                route: "tcp0".to_owned(),
                ..request("GET", "/", None)
            },
        ],
    })
}

/// Replaces a text in the JSON of a value.
fn replace(value: &mut Value, from: &str, to: &str) {
    if let Ok(changed) = serde_json::from_str(&value.to_string().replace(from, to)) {
        *value = changed;
    }
}

/// Changes the routes of a name.
fn route(host: &mut Value, name: &str, change: impl Fn(&mut Value)) {
    let routes = host.get_mut("routes").and_then(Value::as_array_mut);
    for route in routes.into_iter().flatten() {
        let found = route
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if found.rsplit('/').next() == Some(name) {
            change(route);
        }
    }
}

/// Sets a field in the action of the routes of a name.
fn change(host: &mut Value, name: &str, field: &str, to: &str) {
    route(host, name, |route| {
        if let Some(Value::Object(action)) = route.get_mut("route") {
            action.insert(field.to_owned(), to.into());
        }
    });
}

/// Removes the mirrors to a cluster.
fn without_mirror(host: &mut Value, cluster: &str) {
    let routes = host.get_mut("routes").and_then(Value::as_array_mut);
    for route in routes.into_iter().flatten() {
        let leads = |mirror: &Value| mirror.to_string().contains(cluster);
        if let Some(Value::Object(action)) = route.get_mut("route")
            && action.get("request_mirror_policies").is_some_and(leads)
        {
            action.shift_remove("request_mirror_policies");
        }
    }
}
