//! Measures planning on tables of several sizes: CPU time in milliseconds, bytes of record per route, and peak memory.
//!
//! Run it with `cargo run --release --package route-planner --example plan_times [rounds]`. Times are medians of the rounds.
//! Memory is the peak of the process so far, before and after planning, so the largest table comes last.

#![allow(clippy::print_stdout, reason = "it prints its measurements")]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "it reads only JSON that it built itself"
)]

use std::hint::black_box;

use gloo_types::{ObjectKey, RouteTableDoc};
use route_planner::{
    ANNOTATION, HeaderMatch, HeaderRoute, Intent, IntentKind, ManagedRoute, PluginConfig,
    TextMatch, WeightSplit, plan,
};
use serde_json::{Value, json};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    println!("routes  nothing   weight   header     rest  record/route  table MiB  peak MiB");
    for size in SIZES {
        let split = RouteTableDoc::from_value(split_table(size)).expect("a RouteTable");
        let made = peak_memory();
        let again = plan(&config(), &weight(25), &split).expect("a plan");
        assert!(again.is_noop(), "SetWeight 25 makes another table");
        let times = [
            median(rounds, &weight(25), &split),
            median(rounds, &weight(50), &split),
            median(rounds, &header(), &split),
            median(rounds, &weight(0), &split),
        ];
        let [nothing, other, header, rest] = times;
        let record = split.annotations().and_then(|all| all.get(ANNOTATION));
        let record = record.map_or(0, String::len);
        println!(
            "{size:>6} {nothing:>8.2} {other:>8.2} {header:>8.2} {rest:>8.2} {:>13} {:>10} {:>9}",
            record / size,
            made / 1024,
            peak_memory() / 1024
        );
    }
}

fn median(rounds: usize, intent: &Intent, table: &RouteTableDoc) -> f64 {
    let config = config();
    let routes = table.raw().pointer("/spec/http").and_then(Value::as_array);
    // The kernel counts CPU time in milliseconds, so a small table is planned many times in a row.
    let times_in_a_row = (SIZES[3] / routes.map_or(1, Vec::len).max(1)).max(1);
    let mut times: Vec<f64> = (0..rounds.max(1))
        .map(|_| {
            let start = cpu_time();
            for _ in 0..times_in_a_row {
                // A table beyond the limits of the API server is refused, but only after it has been planned.
                let _ = black_box(plan(&config, intent, table));
            }
            (cpu_time() - start) / times_in_a_row as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A table after SetWeight 25, built by hand: planning refuses this weight for the largest table.
fn split_table(size: usize) -> Value {
    let small = RouteTableDoc::from_value(table(1)).expect("a RouteTable");
    let planned = plan(&config(), &weight(25), &small).expect("a plan");
    let small = planned.applied_to(&small).expect("a patch that applies");
    let record = small.annotations().and_then(|all| all.get(ANNOTATION));
    let mut record: Value = serde_json::from_str(record.expect("a record")).expect("JSON");
    let entry = record["rollouts"]["shop/reviews"]["routes"][0].take();
    let destinations = &small.raw()["spec"]["http"][0]["forwardTo"]["destinations"];

    let mut table = table(size);
    let routes = table["spec"]["http"].as_array_mut().expect("routes");
    let mut entries = Vec::with_capacity(size);
    for (at, route) in routes.iter_mut().enumerate() {
        route["forwardTo"]["destinations"] = destinations.clone();
        let mut entry = entry.clone();
        entry[0] = route["name"].clone();
        entry[1] = json!(at);
        entry[2] = hash_of(at);
        entries.push(entry);
    }
    record["rollouts"]["shop/reviews"]["routes"] = Value::Array(entries);
    table["metadata"]["annotations"] = json!({ANNOTATION: record.to_string()});
    table
}

/// The hash in the record for the route at `at`. It is read from the plan for a table with only that route.
fn hash_of(at: usize) -> Value {
    let mut one = table(0);
    one["spec"]["http"] = json!([route(at)]);
    let one = RouteTableDoc::from_value(one).expect("a RouteTable");
    let planned = plan(&config(), &weight(25), &one).expect("a plan");
    let one = planned.applied_to(&one).expect("a patch that applies");
    let record = one.annotations().and_then(|all| all.get(ANNOTATION));
    let record: Value = serde_json::from_str(record.expect("a record")).expect("JSON");
    record["rollouts"]["shop/reviews"]["routes"][0][2].clone()
}

fn table(size: usize) -> Value {
    let routes: Vec<Value> = (0..size).map(route).collect();
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": "shop", "namespace": "shop", "resourceVersion": "1", "generation": 1},
        "spec": {"hosts": ["shop.example.com"], "http": routes},
    })
}

fn route(at: usize) -> Value {
    json!({
        "name": format!("route-{at}"),
        "labels": {"team": "shop"},
        "matchers": [{"uri": {"prefix": format!("/items/{at}")}, "method": "GET"}],
        "forwardTo": {
            "pathRewrite": "/",
            "destinations": [{"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": 8080}}],
        },
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

fn header() -> Intent {
    let mut intent = weight(25);
    intent.kind = IntentKind::SetManagedRoute(ManagedRoute::Header(HeaderRoute {
        name: "hdr".to_owned(),
        matches: vec![HeaderMatch {
            name: "x-canary".to_owned(),
            value: TextMatch {
                exact: "1".to_owned(),
                ..TextMatch::default()
            },
        }],
    }));
    intent
}

/// CPU time of this process in milliseconds. Unlike wall time, it does not depend on other processes.
fn cpu_time() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse::<f64>().ok());
    nanoseconds.unwrap_or_default() / 1e6
}

/// Peak resident memory of this process in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}
