//! T-22 and T-23: a rollout that a limit of the API server would stop is refused before its first weight, traffic back to
//! stable never is, and the record is small.

use gloo_types::RouteTableDoc;
use route_planner::{ANNOTATION, Intent, plan};
use serde_json::{Value, json};

use crate::table::{self, Table};

fn weight(desired: i32) -> Intent {
    table::intent("shop/reviews", desired, 100, vec![])
}

fn with_header_routes(names: usize) -> Intent {
    let mut intent = weight(25);
    intent.managed.order = (0..names).map(|name| format!("hdr-{name}")).collect();
    intent
}

/// Routes that all lead to stable, each with `padding` bytes in its `forwardTo`.
fn routes(count: usize, padding: usize) -> Vec<Value> {
    let path = format!("/{}", "x".repeat(padding));
    let route = |at: usize| {
        json!({
            "name": format!("r{at}"),
            "matchers": [{"uri": {"prefix": format!("/{at}")}}],
            "forwardTo": {"pathRewrite": path, "destinations": ["reviews"]},
        })
    };
    (0..count).map(route).collect()
}

fn table(routes: &[Value]) -> Table {
    Table::new("mesh/shop", table::expand(json!({ "http": routes })))
}

#[track_caller]
fn check(table: &Table, intent: &Intent, expect: Result<(), &str>) {
    let planned = plan(&table.config("shop/reviews"), intent, &table.doc());
    match (planned, expect) {
        (Ok(plan), Ok(())) => assert!(plan.grows()),
        (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
        (Ok(_), Err(expect)) => panic!("not refused: {expect}"),
        (Err(error), Ok(())) => panic!("{error}"),
    }
}

#[test]
fn t22_operations_of_one_patch() {
    check(&table(&routes(2_499, 0)), &weight(25), Ok(()));
    let refused =
        "2500 routes to split need 10004 operations of one patch, the API server takes 10000";
    check(&table(&routes(2_500, 0)), &weight(25), Err(refused));
    // A header step later on brings a copy of each route.
    check(&table(&routes(1_666, 0)), &with_header_routes(2), Ok(()));
    let refused = "operations of one patch";
    check(
        &table(&routes(1_667, 0)),
        &with_header_routes(2),
        Err(refused),
    );
}

#[test]
fn t22_bytes_of_annotations() {
    let mut table = table(&routes(10, 0));
    table.annotate_other("notes", &"x".repeat(257_000));
    check(&table, &weight(25), Ok(()));
    table.annotate_other("notes", &"x".repeat(258_048));
    check(
        &table,
        &weight(25),
        Err("bytes of annotations, the API server takes 262144"),
    );
}

#[test]
fn t22_bytes_of_one_request() {
    check(&table(&routes(100, 9_000)), &weight(25), Ok(()));
    let refused = "bytes of one request, the API server takes 3145728";
    check(&table(&routes(100, 11_000)), &weight(25), Err(refused));
    check(
        &table(&routes(100, 9_000)),
        &with_header_routes(2),
        Err(refused),
    );
}

#[test]
fn t22_traffic_returns_to_stable_beyond_every_limit() {
    let mut table = table(&routes(100, 0));
    table.annotate_other("notes", &"x".repeat(250_000));
    table.set_weight("shop/reviews", 50, 100, vec![]).unwrap();
    let mut spec = table.document()["spec"].clone();
    let more = table::expand(json!({"http": routes(3_000, 0)}));
    let more = more["http"].as_array().unwrap()[100..].iter().cloned();
    spec["http"].as_array_mut().unwrap().extend(more);
    table.replace_spec(spec);
    check(&table, &weight(60), Err("the API server takes"));
    let plan = table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    assert!(plan.hands_back);
}

#[test]
fn t23_a_route_takes_80_bytes_of_the_record() {
    let routes = routes(1_000, 0);
    let mut table = table(&routes);
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    let bytes = table.annotation().unwrap().len();
    assert!(bytes < 80 * routes.len(), "{bytes}");
    // What is left of it at rest is nothing.
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    let doc: RouteTableDoc = table.doc();
    assert!(
        doc.annotations()
            .is_none_or(|all| !all.contains_key(ANNOTATION))
    );
}
