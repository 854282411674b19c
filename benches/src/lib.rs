//! Work whose size can be doubled, for `examples/scaling.rs`, which measures times, and for `tests/scaling.rs`, which counts
//! allocations.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use appset_generator::{ByCluster, Config, Failure, Namespaces, Request, Rollout, SourceQuery};
use gloo_types::{Document, RouteTable, RouteTableDoc};
use serde_json::{Value, json};

/// Work whose time is to grow with its size.
pub struct Case {
    /// What there are many of.
    pub name: &'static str,
    /// Returns the work for a size. Only the work is measured.
    pub prepare: fn(usize) -> Box<dyn Fn()>,
    /// The factor by which `cargo xtask bench --scaling` divides its sizes, for work whose size grows faster than its number.
    pub share: usize,
}

/// All work that a caller or a tenant can make large.
pub const CASES: &[Case] = &[
    Case::new("unknown keys in a request", |n| {
        request(HELLO, &keys("", n, ""))
    }),
    Case::new("keys in an object of a request", |n| {
        request(HELLO, &keys("\"a\":{", n, "}"))
    }),
    Case::new("bytes of a long key, and keys below it", |n| {
        let open = format!("\"a\":{{\"{}\":{{", "k".repeat(n));
        request(HELLO, &keys(&open, n, "}}"))
    }),
    Case::new("bytes of an unknown key", |n| {
        request(HELLO, &format!("\"{}\":\"\"", "k".repeat(n)))
    }),
    Case::new("items of a list in a request", |n| {
        request(HELLO, &format!("\"a\":[{}1]", "1,".repeat(n)))
    }),
    Case::new("aliases of a short text", |n| {
        let alias = repeat(n, |n| format!("\"{n:05x}\":\"input.a\""));
        request(HELLO, &format!("\"a\":\"x\",\"alias\":{{{alias}}}"))
    }),
    Case::new("images in a request", |n| request(IMAGES, &images(n, "v1"))),
    Case::new("images, and bytes of their illegal tag", |n| {
        let tag = "x".repeat(n);
        request(
            IMAGES,
            &format!("\"onInvalidTag\":\"skip\",{}", images(n, &tag)),
        )
    }),
    Case::new("namespaces in a request", |n| {
        let config = "rollouts: {namespaces: '*'}";
        request(
            config,
            &format!("\"namespaces\":[{}]", repeat(n, |n| format!("\"n{n}\""))),
        )
    }),
    Case::new("sets in a configuration", |n| {
        let config = format!(
            "static: {{hello: {{sets: [{}]}}}}",
            repeat(n, |n| format!("{{a: {n}}}"))
        );
        let request = Request::from_body(br#"{"input":{}}"#);
        let request = request.unwrap_or_else(|_| unreachable!("the body is valid"));
        Box::new(move || {
            let config = Config::from_yaml(&config);
            let config = config.unwrap_or_else(|error| unreachable!("{error}"));
            let known = Namespaces::default();
            let _query = black_box(config.query(None, None, request.clone(), &known));
        })
    }),
    Case::new("routes in a RouteTable", |n| {
        let routes = (0..n).map(|n| route(&format!("r{n}")));
        routes_of(
            vec![table("t", "shop.example.com", routes.collect())],
            &json!({"name": "t"}),
        )
    }),
    Case::new("RouteTables", |n| {
        routes_of(tables(n), &json!({"labels": {"app": "web"}}))
    }),
    Case::new("RouteTables, selected by their names", |n| {
        // A request names at most 1,000.
        let names: Vec<_> = (0..n.min(1000)).map(|n| format!("t{n}")).collect();
        routes_of(tables(n), &json!({"names": names}))
    }),
    Case::new("Rollouts, and RouteTables that they select", |n| {
        rollouts(n, tables(n), |n| json!({"name": format!("t{n}")}))
    }),
    Case::new(
        "Rollouts, and RouteTables that they select by a label",
        |n| {
            let table = |n| labelled(&format!("t{n}"), &format!("a{n}"), vec![route("r")]);
            let tables = (0..n).map(table).collect();
            rollouts(n, tables, |n| json!({"labels": {"app": format!("a{n}")}}))
        },
    ),
    Case::new("Rollouts, and routes of their only RouteTable", |n| {
        let routes = (0..n).map(|n| route(&format!("r{n}"))).collect();
        let table = table("t", "shop.example.com", routes);
        rollouts(n, vec![table], |_| json!({"name": "t"}))
    }),
    Case::new("RouteTables that delegate to all by a label", |n| {
        let delegate = json!({"routeTables": [{"labels": {"app": "web"}}]});
        let down = json!({"name": "down", "delegate": delegate});
        let table = |n| table(&format!("t{n}"), "", vec![down.clone(), route("r")]);
        routes_of(
            (0..n).map(table).collect(),
            &json!({"labels": {"app": "web"}}),
        )
    }),
    Case {
        // A thousand layers of two tables at the first size of the example.
        share: 10,
        ..Case::new(
            "layers of two RouteTables that delegate to both below",
            layers,
        )
    },
];

impl Case {
    const fn new(name: &'static str, prepare: fn(usize) -> Box<dyn Fn()>) -> Self {
        Self {
            name,
            prepare,
            share: 1,
        }
    }
}

const HELLO: &str = "static: {hello: {sets: [{key1: val1}, {key1: val2}]}}";
const IMAGES: &str = "imageDigests: {registries: {'localhost:5000': {repositories: ['myorg/*']}}}";

/// Reads a request with `parameters`, and answers it or refuses it.
fn request(config: &str, parameters: &str) -> Box<dyn Fn()> {
    let config = Config::from_yaml(config).unwrap_or_else(|error| unreachable!("{error}"));
    let body = format!("{{\"input\":{{\"parameters\":{{{parameters}}}}}}}");
    Box::new(move || {
        let answered = Request::from_body(body.as_bytes()).and_then(|request| {
            let query = config.query(None, None, request, &Namespaces::default())?;
            match query.source {
                SourceQuery::Static(sets) => query.output.answer(sets.into_sets())?.to_body(0),
                _ => Err(Failure::Internal),
            }
        });
        let _answered = black_box(answered);
    })
}

/// Answers a request for the routes of the `tables` that `selector` selects.
fn routes_of(tables: Vec<Arc<RouteTableDoc>>, selector: &Value) -> Box<dyn Fn()> {
    let config = Config::from_yaml("{cluster: c1, glooRoutes: {namespaces: [shop]}}");
    let config = config.unwrap_or_else(|error| unreachable!("{error}"));
    let body = json!({"input": {"parameters": {"routeTableSelector": selector}}}).to_string();
    let tables: ByCluster<RouteTable> = [("c1".to_owned(), tables)].into();
    Box::new(move || {
        let answered = Request::from_body(body.as_bytes()).and_then(|request| {
            let query = config.query(None, None, request, &Namespaces::default())?;
            match &query.source {
                SourceQuery::GlooRoutes(routes) => query
                    .output
                    .answer(routes.sets(&tables, &|| Ok(()))?)?
                    .to_body(0),
                _ => Err(Failure::Internal),
            }
        });
        black_box(answered).unwrap_or_else(|failure| unreachable!("{failure}"));
    })
}

/// Answers a request for `n` Rollouts, each of which selects some of the `tables`.
fn rollouts(
    n: usize,
    tables: Vec<Arc<RouteTableDoc>>,
    selector: fn(usize) -> Value,
) -> Box<dyn Fn()> {
    let config = Config::from_yaml("{cluster: c1, rollouts: {namespaces: [shop]}}");
    let config = config.unwrap_or_else(|error| unreachable!("{error}"));
    let rollout = |n| {
        let plugins = json!({"solo-io/glooplatform": {"routeTableSelector": selector(n)}});
        let canary = json!({"stableService": "s", "canaryService": "c", "trafficRouting": {"plugins": plugins}});
        document::<Rollout>(
            "Rollout",
            &format!("r{n}"),
            "web",
            &json!({"strategy": {"canary": canary}}),
        )
    };
    let rollouts: ByCluster<Rollout> = [("c1".to_owned(), (0..n).map(rollout).collect())].into();
    let tables: ByCluster<RouteTable> = [("c1".to_owned(), tables)].into();
    Box::new(move || {
        let answered = Request::from_body(br#"{"input":{}}"#).and_then(|request| {
            let query = config.query(None, None, request, &Namespaces::default())?;
            match &query.source {
                SourceQuery::Rollouts(found) => query
                    .output
                    .answer(found.sets(&rollouts, &tables, &|| Ok(()))?)?
                    .to_body(0),
                _ => Err(Failure::Internal),
            }
        });
        black_box(answered).unwrap_or_else(|failure| unreachable!("{failure}"));
    })
}

/// Makes `n` layers of two tables. Each delegates to both of the next layer, so there are 2ⁿ ways from the top to the bottom.
fn layers(n: usize) -> Box<dyn Fn()> {
    let mut tables = Vec::new();
    for layer in 0..n {
        for side in 0..2 {
            let below =
                |side| json!({"name": format!("l{}-{side}", layer + 1), "namespace": "shop"});
            let delegate = json!({"routeTables": [below(0), below(1)]});
            let hosts = if layer == 0 { "shop.example.com" } else { "" };
            let mut routes = vec![json!({"name": "down", "delegate": delegate})];
            if layer + 1 == n {
                routes = vec![route("bottom")];
            }
            tables.push(table(&format!("l{layer}-{side}"), hosts, routes));
        }
    }
    routes_of(tables, &json!({"name": format!("l{}-0", n - 1)}))
}

fn tables(n: usize) -> Vec<Arc<RouteTableDoc>> {
    let table = |n| table(&format!("t{n}"), "shop.example.com", vec![route("r")]);
    (0..n).map(table).collect()
}

fn table(name: &str, host: &str, routes: Vec<Value>) -> Arc<RouteTableDoc> {
    let hosts: Vec<&str> = Some(host)
        .filter(|host| !host.is_empty())
        .into_iter()
        .collect();
    let spec = json!({"hosts": hosts, "http": routes});
    document("RouteTable", name, "web", &spec)
}

fn labelled(name: &str, app: &str, routes: Vec<Value>) -> Arc<RouteTableDoc> {
    document("RouteTable", name, app, &json!({"http": routes}))
}

fn route(name: &str) -> Value {
    let destination = json!({"ref": {"name": "web", "namespace": "shop"}, "port": {"number": 80}});
    json!({"name": name, "forwardTo": {"destinations": [destination]}})
}

fn document<K: gloo_types::Resource>(
    kind: &str,
    name: &str,
    app: &str,
    spec: &Value,
) -> Arc<Document<K>> {
    let metadata = json!({"name": name, "namespace": "shop", "labels": {"app": app}});
    let document = Document::from_value(json!({"kind": kind, "metadata": metadata, "spec": spec}));
    Arc::new(document.unwrap_or_else(|error| unreachable!("{error}")))
}

fn keys(open: &str, n: usize, close: &str) -> String {
    format!(
        "{open}{}{close}",
        repeat(n, |n| format!("\"{n:05x}\":\"\""))
    )
}

fn images(n: usize, tag: &str) -> String {
    let images = repeat(n, |n| format!("\"{n:05x}\":\"myorg/front\""));
    format!("\"tag\":\"{tag}\",\"images\":{{{images}}}")
}

/// Returns `n` items with commas between them.
fn repeat(n: usize, item: impl Fn(usize) -> String) -> String {
    (0..n).fold(String::new(), |mut text, n| {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}", item(n));
        text
    })
}
