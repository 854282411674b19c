//! Counts the allocations of the hot paths and compares them with `baseline.txt`.
//!
//! Unlike times, counts of allocations and bytes do not depend on the machine, so a test can check them.
//! `BASELINE=overwrite cargo test --all-features -p benches` rewrites the file. Commit it with the change that explains it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::{env, fs};

use allocation_counter::AllocationInfo;
use appset_generator::{ByCluster, Config, Namespaces, Request, SourceQuery};
use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::testing::{CallStream, Recording, recordings};
use route_planner::{Intent, PluginConfig, WeightSplit, plan};
use serde_json::{Value, json};

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.txt");

/// The first lines of the baseline file.
const HEAD: &str = "\
# What `cargo test -p benches` counted: allocations, bytes allocated, and most bytes held at once.
# A count that differs from it by more than 5 % fails the test.
";

/// Largest difference from the baseline, in percent of the baseline.
const TOLERANCE: u64 = 5;

/// Number of routes in the planned tables.
const ROUTES: usize = 1_000;

/// The allocations of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    allocations: u64,
    bytes: u64,
    peak: u64,
}

impl From<AllocationInfo> for Counts {
    fn from(info: AllocationInfo) -> Self {
        Self {
            allocations: info.count_total,
            bytes: info.bytes_total,
            peak: info.bytes_max,
        }
    }
}

#[test]
fn hot_paths_allocate_as_in_the_baseline() {
    let measured = measure();
    if env::var_os("BASELINE").is_some_and(|value| value == "overwrite") {
        fs::write(BASELINE, render(&measured)).expect("the baseline is writable");
        return;
    }
    let baseline = parse(&fs::read_to_string(BASELINE).expect("the baseline is readable"));
    let differences = compare(&baseline, &measured);
    assert!(
        differences.is_empty(),
        "{}\nIf that is intended, run BASELINE=overwrite cargo test -p benches",
        differences.join("\n")
    );
}

/// Measures each operation once, after one run that fills caches.
fn measure() -> Vec<(String, Counts)> {
    let mut measured = Vec::new();
    let mut add = |name: &str, work: &mut dyn FnMut()| {
        work();
        let counts = allocation_counter::measure(&mut *work).into();
        measured.push((name.to_owned(), counts));
    };

    // The newest release is last.
    let recording = recordings(PluginKind::TrafficRouter).last();
    let recording = recording.expect("a recording");
    let (before, call) = last_call(recording, "SetWeight");
    add("decode the first calls of a controller", &mut || {
        let mut calls = CallStream::default();
        assert!(!calls.decode(before).expect("a stream").is_empty());
    });
    let mut calls = CallStream::default();
    calls.decode(before).expect("a stream");
    add("decode a later SetWeight", &mut || {
        assert_eq!(calls.decode(call).expect("a stream").len(), 1);
    });

    let text = table().to_string();
    add("read a table of 1,000 routes", &mut || {
        let value = serde_json::from_str(&text).expect("JSON");
        black_box(RouteTableDoc::from_value(value).expect("a RouteTable"));
    });
    let rest = RouteTableDoc::from_value(table()).expect("a RouteTable");
    let config = config();
    let split = plan(&config, &weight(25), &rest)
        .expect("a plan")
        .applied_to(&rest)
        .expect("a patch that applies");
    for (name, desired, table) in [
        ("plan the first weight on 1,000 routes", 25, &rest),
        ("plan the same weight again on 1,000 routes", 25, &split),
        ("plan another weight on 1,000 routes", 50, &split),
        ("plan weight 0 on 1,000 routes", 0, &split),
    ] {
        let intent = weight(desired);
        add(name, &mut || {
            black_box(plan(&config, &intent, table).expect("a plan"));
        });
    }
    let planned = plan(&config, &weight(50), &split).expect("a plan");
    add("write the JSON Patch of 1,000 routes", &mut || {
        black_box(serde_json::to_vec(&planned.to_json_patch()).expect("JSON"));
    });

    let tables = ByCluster::from([("c1".to_owned(), vec![Arc::new(split)])]);
    let namespaces = Namespaces::default();
    let generator = Config::from_yaml("cluster: c1\nglooRoutes: {namespaces: [shop]}\n")
        .expect("a configuration");
    let body = json!({"input": {"parameters": {"source": "gloo-routes", "routeTableSelector": {"name": "shop"}}}})
        .to_string();
    add("answer a request with 1,000 sets", &mut || {
        let request = Request::from_body(body.as_bytes()).expect("a request");
        let query = generator
            .query(None, Some("t"), request, &namespaces)
            .expect("a query");
        let SourceQuery::GlooRoutes(routes) = &query.source else {
            panic!("another source");
        };
        let sets = routes.sets(&tables, &|| Ok(())).expect("sets");
        assert_eq!(sets.len(), ROUTES);
        black_box(
            query
                .output
                .answer(sets)
                .expect("an answer")
                .to_body(0)
                .expect("JSON"),
        );
    });
    measured
}

/// The bytes before the last call of `method`, and those of the call.
fn last_call(recording: &Recording, method: &str) -> (&'static [u8], &'static [u8]) {
    let mut begin = 0;
    let mut found = None;
    for (name, call) in recording.calls() {
        if name == method {
            found = Some((begin, call));
        }
        begin += call.len();
    }
    let (begin, call) = found.expect("the method was recorded");
    let (before, _) = recording.stream.split_at(begin);
    (before, call)
}

fn table() -> Value {
    let route = |at: usize| {
        json!({
            "name": format!("route-{at}"),
            "labels": {"team": "shop"},
            "matchers": [{"uri": {"prefix": format!("/items/{at}")}, "method": "GET"}],
            "forwardTo": {"destinations": [{
                "ref": {"name": "reviews", "namespace": "shop"},
                "port": {"number": 8080},
            }]},
        })
    };
    let routes: Vec<Value> = (0..ROUTES).map(route).collect();
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": "shop", "namespace": "shop", "resourceVersion": "1", "generation": 1},
        "spec": {"hosts": ["shop.example.com"], "http": routes},
    })
}

fn config() -> PluginConfig {
    let block = br#"{"routeTableSelector":{"name":"shop"}}"#;
    PluginConfig::from_json(block, &ObjectKey::new("shop", "reviews"), &[]).expect("a valid block")
}

fn weight(desired: i32) -> Intent {
    let rollout = ObjectKey::new("shop", "reviews");
    let split = WeightSplit::percent(desired);
    Intent::set_weight(rollout, "reviews", "reviews-canary", split)
}

fn render(measured: &[(String, Counts)]) -> String {
    let mut text = HEAD.to_owned();
    for (name, counts) in measured {
        let Counts {
            allocations,
            bytes,
            peak,
        } = counts;
        writeln!(text, "{name}: {allocations} {bytes} {peak}")
            .expect("writing to a String cannot fail");
    }
    text
}

fn parse(text: &str) -> Vec<(String, Counts)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let (name, numbers) = line.split_once(": ").expect("a name");
        let numbers: Vec<u64> = numbers
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let [allocations, bytes, peak] = numbers.try_into().expect("three numbers");
        let counts = Counts {
            allocations,
            bytes,
            peak,
        };
        (name.to_owned(), counts)
    });
    parsed.collect()
}

/// Returns one line for each count beyond the tolerance, and for each operation that is missing on one side.
fn compare(baseline: &[(String, Counts)], measured: &[(String, Counts)]) -> Vec<String> {
    let find = |all: &[(String, Counts)], name: &str| {
        let found = all.iter().find(|(other, _)| other == name);
        found.map(|(_, counts)| *counts)
    };
    let mut differences = Vec::new();
    for (name, now) in measured {
        let Some(before) = find(baseline, name) else {
            differences.push(format!("{name}: not in the baseline"));
            continue;
        };
        for (unit, before, now) in [
            ("allocations", before.allocations, now.allocations),
            ("bytes", before.bytes, now.bytes),
            ("bytes held at once", before.peak, now.peak),
        ] {
            if before.abs_diff(now) * 100 > before * TOLERANCE {
                differences.push(format!("{name}: {now} {unit}, the baseline has {before}"));
            }
        }
    }
    for (name, _) in baseline {
        if find(measured, name).is_none() {
            differences.push(format!("{name}: in the baseline, not measured"));
        }
    }
    differences
}

#[test]
fn more_than_five_percent_is_a_difference() {
    #[track_caller]
    fn check(allocations: u64, bytes: u64, expect: &[&str]) {
        let counts = |allocations, bytes| Counts {
            allocations,
            bytes,
            peak: 10,
        };
        let baseline = [("decode".to_owned(), counts(100, 1000))];
        let measured = [("decode".to_owned(), counts(allocations, bytes))];
        assert_eq!(compare(&baseline, &measured), expect);
    }
    check(100, 1000, &[]);
    check(105, 950, &[]);
    check(
        106,
        1000,
        &["decode: 106 allocations, the baseline has 100"],
    );
    check(100, 949, &["decode: 949 bytes, the baseline has 1000"]);
    let one = [(
        "plan".to_owned(),
        Counts {
            allocations: 0,
            bytes: 0,
            peak: 0,
        },
    )];
    assert_eq!(compare(&one, &[]), ["plan: in the baseline, not measured"]);
    assert_eq!(compare(&[], &one), ["plan: not in the baseline"]);
    assert_eq!(parse(&render(&one)), one);
}
