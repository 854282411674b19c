//! Generates worlds from seeds: tables, policies, Rollouts and their steps.

mod routes;

use fastrand::Rng;
use serde_json::{Value, json};

use self::routes::{Context, destination, route};
use super::requests::{self, POOL, chance, pick};
use super::steps::{Act, Part};
use super::text::{PATHS, Text, VALUES};
use super::world::{Canary, EXPERIMENT, HOST, NAMESPACE, Step, World};

/// The stable Services of the Rollouts.
const ROLLOUTS: [&str; 2] = ["reviews", "ratings"];
const METHODS: [&str; 2] = ["GET", "POST"];
/// The headers of steps, and a value that a step may ask for.
const STEP_HEADERS: [(&str, &str); 3] = [("x-tester", "yes"), ("x-env", "prod"), ("x-ver", "v1")];

/// Generates the world of a seed.
#[must_use]
pub fn world(seed: u64) -> World {
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let port = rng.bool().then_some(8080);
    let mut world = World {
        seed,
        tables: tables(rng, port),
        mirrors: Vec::new(),
        timeouts: Vec::new(),
        services: vec![experiment(rng, port)],
        canaries: Vec::new(),
        history: Vec::new(),
        requests: Vec::new(),
    };
    policies(rng, &mut world);
    canaries(rng, &mut world);
    history(rng, &mut world);
    world.requests = requests::of(rng, &world);
    world
}

fn tables(rng: &mut Rng, port: Option<u32>) -> Vec<Value> {
    if chance(rng, 35) {
        return delegation(rng, port);
    }
    let context = Context { port, within: None };
    let mut routes = routes_of(rng, &context, 2..7);
    if chance(rng, 50) {
        routes.push(json!({"name": "rest", "forwardTo": {"destinations": [destination("reviews", port, None)]}}));
    }
    let mut root = table("root", json!({"hosts": [HOST], "http": routes}));
    default_destination(rng, &mut root, port);
    layer_4(rng, &mut root, port);
    vec![root]
}

/// A root that delegates to one or two tables.
fn delegation(rng: &mut Rng, port: Option<u32>) -> Vec<Value> {
    let within = match rng.u32(0..10) {
        0..5 => "/shop",
        5..7 => "/reviews",
        _ => "/",
    };
    let children = if rng.bool() { 1 } else { 2 };
    let by_label = rng.bool();
    let selectors = match by_label {
        true => json!([{"labels": {"part": "child"}, "namespace": NAMESPACE}]),
        false => (0..children)
            .map(|child| json!({"name": format!("child-{child}"), "namespace": NAMESPACE}))
            .collect(),
    };
    let mut delegate = json!({"routeTables": selectors});
    if chance(rng, 60) {
        set(&mut delegate, "sortMethod", json!("ROUTE_SPECIFICITY"));
    }
    let mut delegating = json!({"name": "down", "delegate": delegate});
    if within != "/" || rng.bool() {
        set(
            &mut delegating,
            "matchers",
            json!([{"uri": {"prefix": within}}]),
        );
    }
    let context = Context { port, within: None };
    let mut http = routes_of(rng, &context, 0..3);
    http.push(delegating);
    http.extend(routes_of(rng, &context, 0..2));
    let mut tables = vec![table("root", json!({"hosts": [HOST], "http": http}))];
    for child in 0..children {
        let within = (within != "/").then_some(within);
        let context = Context { port, within };
        let http = routes_of(rng, &context, 2..5);
        let mut child = table(&format!("child-{child}"), json!({"http": http}));
        if let Some(spec) = child.get_mut("spec").filter(|_| rng.bool()) {
            set(spec, "weight", json!(rng.i32(-1..3)));
        }
        if by_label && let Some(metadata) = child.get_mut("metadata") {
            set(metadata, "labels", json!({"part": "child"}));
            let second = rng.u32(0..9);
            let created = format!("2026-01-01T00:00:0{second}Z");
            set(metadata, "creationTimestamp", json!(created));
        }
        default_destination(rng, &mut child, port);
        tables.push(child);
    }
    for table in &mut tables {
        default_destination(rng, table, port);
    }
    tables
}

fn table(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    })
}

fn routes_of(rng: &mut Rng, context: &Context<'_>, count: std::ops::Range<usize>) -> Vec<Value> {
    let count = rng.usize(count);
    (0..count).map(|index| route(rng, context, index)).collect()
}

/// Sets a default destination if a route has none of its own.
fn default_destination(rng: &mut Rng, table: &mut Value, port: Option<u32>) {
    let routes = table.pointer("/spec/http").and_then(Value::as_array);
    let is_without = |route: &Value| {
        let forward = route.get("forwardTo");
        forward.is_some_and(|forward| forward.get("destinations").is_none())
    };
    let is_needed = routes.is_some_and(|routes| routes.iter().any(is_without));
    if let Some(spec) = table.get_mut("spec").filter(|_| is_needed)
        && spec.get("defaultDestination").is_none()
    {
        let to = if chance(rng, 60) { "reviews" } else { "cart" };
        set(spec, "defaultDestination", destination(to, port, None));
    }
}

/// Adds TCP and TLS routes.
fn layer_4(rng: &mut Rng, table: &mut Value, port: Option<u32>) {
    let forward = json!({"destinations": [destination("reviews", port, None)]});
    let split = json!({"destinations": [
        destination("reviews", port, Some(60)), destination("legacy", port, Some(40)),
    ]});
    let Some(spec) = table.get_mut("spec") else {
        return;
    };
    if chance(rng, 15) {
        let first = json!({"matchers": [{"port": 9000}], "forwardTo": split});
        let second = json!({"matchers": [{"port": 9001}], "forwardTo": forward});
        set(spec, "tcp", json!([first, second]));
    }
    if chance(rng, 10) {
        let matcher = json!({"sniHosts": [HOST], "port": 8443});
        set(
            spec,
            "tls",
            json!([{"matchers": [matcher], "forwardTo": split}]),
        );
    }
}

pub(super) fn set(object: &mut Value, key: &str, value: Value) {
    if let Value::Object(object) = object {
        object.insert(key.to_owned(), value);
    }
}

/// The Service of an experiment, as the controller creates it: with all ports of the containers, in their order.
fn experiment(rng: &mut Rng, port: Option<u32>) -> Value {
    let mut ports = vec![json!({"name": "http", "port": 8080, "targetPort": 8080})];
    // Without a port in the route, the Service must have only one.
    if port.is_some() && rng.bool() {
        let at = usize::from(chance(rng, 70));
        ports.insert(
            at,
            json!({"name": "metrics", "port": 9090, "targetPort": 9090}),
        );
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": EXPERIMENT, "namespace": NAMESPACE},
        "spec": {"ports": ports},
    })
}

/// Policies by the labels of routes and tables. No route has two of one kind.
fn policies(rng: &mut Rng, world: &mut World) {
    let policy = |kind: &str, name: &str, selector: Value, config: Value| {
        let group = if kind == "MirrorPolicy" {
            "trafficcontrol"
        } else {
            "resilience"
        };
        json!({
            "apiVersion": format!("{group}.policy.gloo.solo.io/v2"),
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"applyToRoutes": [selector], "config": config},
        })
    };
    let config = json!({"requestTimeout": "7s", "retries": {"attempts": 1, "retryOn": "5xx"}});
    if chance(rng, 40) {
        let by = json!({"route": {"labels": {"speed": "slow"}}});
        world.timeouts = vec![policy("RetryTimeoutPolicy", "slow", by, config)];
    } else if chance(rng, 30) {
        // The label of a table. Its routes inherit it.
        for table in &mut world.tables {
            if let Some(metadata) = table.get_mut("metadata").filter(|_| rng.bool()) {
                let mut labels = metadata.get("labels").cloned().unwrap_or_else(|| json!({}));
                set(&mut labels, "tier", json!("edge"));
                set(metadata, "labels", labels);
            }
        }
        let by = json!({"route": {"labels": {"tier": "edge"}, "namespace": NAMESPACE}});
        world.timeouts = vec![policy("RetryTimeoutPolicy", "edge", by, config)];
    }
    if chance(rng, 40) {
        let to = json!({"destination": destination("audit", None, None)});
        let by = match chance(rng, 70) {
            true => json!({"route": {"labels": {"copy": "all"}}}),
            false => json!({"withDestinations": {"selector": {"name": "cart"}}}),
        };
        world.mirrors = vec![policy("MirrorPolicy", "audit", by, to)];
    }
}

/// One or two Rollouts whose stable Service is in a table.
fn canaries(rng: &mut Rng, world: &mut World) {
    for name in ROLLOUTS {
        let tables = world.tables_of(name);
        if tables.is_empty() || (!world.canaries.is_empty() && chance(rng, 50)) {
            continue;
        }
        let has = |kind: &str| {
            let route = world.tables.iter().find_map(|it| it.get("spec")?.get(kind));
            route.is_some() && name == "reviews"
        };
        let tcp = (has("tcp") && chance(rng, 70)).then(|| rng.u32(9000..9002));
        world.canaries.push(Canary {
            name: name.to_owned(),
            tcp,
            tls: (has("tls") && chance(rng, 70)).then_some(8443),
            tables,
            is_top: chance(rng, 15),
            needs_all: chance(rng, 15),
            managed: Vec::new(),
        });
    }
}

fn history(rng: &mut Rng, world: &mut World) {
    if world.canaries.is_empty() {
        return;
    }
    let count = rng.usize(2..7);
    let mut weights = vec![0; world.canaries.len()];
    let mut is_over = vec![false; world.canaries.len()];
    for index in 0..count {
        let who = rng.usize(0..world.canaries.len());
        let (Some(weight), Some(over)) = (weights.get_mut(who), is_over.get_mut(who)) else {
            continue;
        };
        if *over {
            continue;
        }
        let act = match rng.u32(0..100) {
            0..34 => {
                *weight = pick(rng, &[1, 5, 10, 25, 33, 50, 75, 99, 100]).unwrap_or(50);
                Act::Weight(*weight)
            }
            34..56 => header(rng, index),
            56..80 => mirror(rng, index),
            // The Service of an experiment belongs to one Rollout.
            80..86 if *weight <= 75 && who == 0 => Act::Experiment(rng.i32(3..21)),
            80..88 => removal(rng, world, who),
            _ if index < 2 => Act::Weight(*weight),
            other => {
                *over = true;
                if other < 96 { Act::Abort } else { Act::Promote }
            }
        };
        world.history.push(Step { who, act });
    }
    for (who, canary) in world.canaries.iter_mut().enumerate() {
        let own = world.history.iter().filter(|step| step.who == who);
        for name in own.filter_map(|step| step.act.name()) {
            if !canary.managed.iter().any(|known| known == name) {
                let at = rng.usize(0..=canary.managed.len());
                canary.managed.insert(at, name.to_owned());
            }
        }
    }
}

fn header(rng: &mut Rng, index: usize) -> Act {
    let entry = |rng: &mut Rng| {
        let (name, value) = pick(rng, &STEP_HEADERS).unwrap_or_default();
        let value = match rng.u32(0..10) {
            0..5 => Text::Exact(value.to_owned()),
            5..8 => Text::Prefix(value.get(..1).unwrap_or_default().to_owned()),
            _ => {
                let index = usize::from(name == "x-ver");
                let pattern = VALUES.get(index).copied();
                pattern.map_or(Text::Exact(value.to_owned()), Text::Pattern)
            }
        };
        (name.to_owned(), value)
    };
    let count = if chance(rng, 70) { 1 } else { 2 };
    Act::Header {
        name: format!("hdr{index}"),
        entries: (0..count).map(|_| entry(rng)).collect(),
    }
}

fn mirror(rng: &mut Rng, index: usize) -> Act {
    let entry = |rng: &mut Rng| {
        let mut part = Part::default();
        if chance(rng, 35) {
            part.method = pick(rng, &METHODS).map(str::to_owned);
        }
        if chance(rng, 75) {
            let path = pick(rng, &POOL).unwrap_or("/").to_owned();
            part.path = Some(match rng.u32(0..10) {
                0..2 => Text::Exact(path),
                2..9 => Text::Prefix(path),
                _ => pick(rng, PATHS).map_or(Text::Prefix(path), Text::Pattern),
            });
        }
        let is_empty = part.method.is_none() && part.path.is_none();
        if is_empty || chance(rng, 15) {
            let value = Text::Exact("yes".to_owned());
            part.headers.push(("x-tester".to_owned(), value));
        }
        part
    };
    let count = if chance(rng, 75) { 1 } else { 2 };
    Act::Mirror {
        name: format!("mir{index}"),
        entries: (0..count).map(|_| entry(rng)).collect(),
    }
}

/// A step that removes an earlier managed route.
fn removal(rng: &mut Rng, world: &World, who: usize) -> Act {
    let own = world.history.iter().filter(|step| step.who == who);
    let routes: Vec<Act> = own
        .filter(|step| step.act.name().is_some())
        .map(|step| step.act.clone())
        .collect();
    match pick(rng, &routes) {
        Some(Act::Header { name, .. }) => Act::Header {
            name,
            entries: Vec::new(),
        },
        Some(Act::Mirror { name, .. }) => Act::Mirror {
            name,
            entries: Vec::new(),
        },
        _ => Act::Weight(25),
    }
}
