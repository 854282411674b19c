//! Requests that are refused: one line that names the table, the Rollout and the remedy. This includes the limits of the API
//! server (T-22 and T-23): SetWeight refuses a rollout that would exceed one before its first weight, but never refuses to
//! move traffic back to stable.

use std::error::Error;

use gloo_types::RouteTableDoc;
use insta::assert_snapshot;
use route_planner::{ANNOTATION, Intent, PodHashes, plan};
use serde_json::{Value, json};

use crate::table::{self, Table};

/// The error and its sources, joined as the caller joins them.
fn refusal(table: &Table, intent: &Intent) -> String {
    let error = plan(&table.config("shop/reviews"), intent, &table.doc()).unwrap_err();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    assert!(!text.contains(['\n', '%']), "{text}");
    text
}

fn on_route(route: Value) -> String {
    let table = Table::new("mesh/shop", table::expand(json!({ "http": [route] })));
    refusal(&table, &table::intent("shop/reviews", 25, 100, vec![]))
}

fn with_intent(change: impl FnOnce(&mut Intent)) -> String {
    let spec = table::expand(json!({"http": [{"forwardTo": {"destinations": ["reviews"]}}]}));
    let mut intent = table::intent("shop/reviews", 25, 100, vec![]);
    change(&mut intent);
    refusal(&Table::new("mesh/shop", spec), &intent)
}

/// The refusal of a weight while the annotation is unreadable. A managed route of another Rollout is no reason to refuse weight 0.
fn with_annotation(text: &str) -> String {
    let label = |name: &str| format!("rollouts-plugin-trafficrouter-glooplatform/{name}");
    let labels = json!({
        label("namespace"): "shop", label("rollout"): "ratings", label("managed-route"): "testers",
    });
    let spec = table::expand(json!({"http": [
        {"name": "testers", "labels": labels, "forwardTo": {"destinations": ["ratings-canary"]}},
        {"name": "ratings", "forwardTo": {"destinations": ["ratings"]}},
        {"name": "r", "forwardTo": {"destinations": ["reviews"]}},
    ]}));
    let mut table = Table::new("mesh/shop", spec);
    table.annotate(text);
    let rest = table::intent("shop/reviews", 0, 100, vec![]);
    let plan = plan(&table.config("shop/reviews"), &rest, &table.doc()).unwrap();
    assert!(plan.is_noop(), "{plan:?}");
    let left: Vec<String> = plan.left().map(|error| error.to_string()).collect();
    let refused = refusal(&table, &table::intent("shop/reviews", 25, 100, vec![]));
    assert_eq!(left, std::slice::from_ref(&refused));
    refused
}

/// B25, B27
#[test]
fn the_error_for_a_table_without_route_to_stable_lists_its_routes() {
    let spec = table::expand(json!({"http": [
        {"name": "other", "forwardTo": {"destinations": ["ratings", "details"]}},
        {"name": "elsewhere", "forwardTo": {"destinations": [{"ref": {"name": "reviews"}}]}},
        {"forwardTo": {"destinations": [{"ref": {"name": "reviews", "namespace": "shop"}, "kind": "VIRTUAL_DESTINATION"}]}},
        {"name": "fn", "forwardTo": {"destinations": [{"awsLambda": {"function": "reviews"}}]}},
        {"name": "child", "delegate": {"routeTables": [{"labels": {"team": "shop"}}]}},
        {"name": "old", "redirect": {"hostRedirect": "x"}},
        {"name": "off", "directResponse": {"status": 404}},
    ]}));
    assert_snapshot!(
        refusal(&Table::new("mesh/shop", spec), &table::intent("shop/reviews", 0, 100, vec![])),
        @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews: check stableService, stableDestination, routeTableSelector and routeSelector; found route other forwards to Service shop/ratings and Service shop/details; route elsewhere forwards to Service mesh/reviews; route http[2] forwards to VirtualDestination shop/reviews; route fn forwards to AWS Lambda reviews; route child delegates to tables labelled team=shop; 2 more (Rollout shop/reviews)"
    );
    assert_snapshot!(
        refusal(
            &Table::new("mesh/shop", json!({"tcp": [{}], "tls": []})),
            &table::intent("shop/reviews", 25, 100, vec![])
        ),
        @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews: check stableService, stableDestination, routeTableSelector and tcpRoutes; found route tcp[0] is a route without action (Rollout shop/reviews)"
    );
}

#[test]
fn routes_that_are_not_selected_are_listed() {
    let spec =
        table::expand(json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews"]}}]}));
    let mut table = Table::new("mesh/shop", spec);
    table.plugin = json!({"routeTableSelector": {"name": "shop"}, "routeSelector": {"name": "x"}});
    assert_snapshot!(
        refusal(&table, &table::intent("shop/reviews", 25, 100, vec![])),
        @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews: check stableService, stableDestination, routeTableSelector and routeSelector; found route r is not selected by routeSelector (Rollout shop/reviews)"
    );
}

#[test]
fn the_port_of_a_route_is_listed_if_ports_distinguish_destinations() {
    let spec = table::expand(
        json!({"http": [{"name": "r", "forwardTo": {"destinations": [
            {"ref": {"name": "reviews", "namespace": "shop"}, "port": {"name": "http"}}
        ]}}]}),
    );
    let mut table = Table::new("mesh/shop", spec);
    let stable = json!({"port": {"number": 8080}});
    table.plugin = json!({"routeTableSelector": {"name": "shop"}, "stableDestination": stable});
    assert_snapshot!(
        refusal(&table, &table::intent("shop/reviews", 25, 100, vec![])),
        @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews port 8080: check stableService, stableDestination, routeTableSelector and routeSelector; found route r forwards to Service shop/reviews port http (Rollout shop/reviews)"
    );
}

/// B22, B23, B32
#[test]
fn another_namespace_kind_or_case_is_not_the_stable_service() {
    let namespace = on_route(
        json!({"name": "r", "forwardTo": {"destinations": [{"ref": {"name": "reviews"}}]}}),
    );
    assert_snapshot!(namespace, @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews: check stableService, stableDestination, routeTableSelector and routeSelector; found route r forwards to Service mesh/reviews (Rollout shop/reviews)");
    let kind = on_route(json!({"name": "r", "forwardTo": {"destinations": [
        {"ref": {"name": "reviews", "namespace": "shop"}, "kind": "EXTERNAL_SERVICE"}
    ]}}));
    assert_snapshot!(kind, @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews: check stableService, stableDestination, routeTableSelector and routeSelector; found route r forwards to ExternalService shop/reviews (Rollout shop/reviews)");
    let case = on_route(json!({"name": "r", "forwardTo": {"destinations": ["Reviews"]}}));
    assert_snapshot!(case, @"RouteTable mesh/shop: no selected route forwards to Service shop/reviews: check stableService, stableDestination, routeTableSelector and routeSelector; found route r forwards to Service shop/Reviews (Rollout shop/reviews)");
}

#[test]
fn foreign_destinations_that_leave_no_share_are_refused() {
    let explicit = on_route(
        json!({"name": "r", "forwardTo": {"destinations": ["reviews", "legacy 60", "dr 60"]}}),
    );
    assert_snapshot!(explicit, @"RouteTable mesh/shop: route r: destinations other than Service shop/reviews take 120 of 100, nothing is left to split: lower their weights (Rollout shop/reviews)");
}

#[test]
fn a_service_that_is_listed_twice_is_refused() {
    let stable = on_route(json!({"name": "r", "forwardTo": {"destinations": [
        "reviews 50", {"ref": {"name": "reviews", "namespace": "shop"}, "port": {"name": "admin"}, "weight": 50}
    ]}}));
    assert_snapshot!(stable, @"RouteTable mesh/shop: route r lists Service shop/reviews more than once (Service shop/reviews port 80, Service shop/reviews port admin): keep one, choose one with stableDestination.cluster, port or subset, or exclude the route with routeSelector (Rollout shop/reviews)");
    let canary = on_route(
        json!({"forwardTo": {"destinations": ["reviews 100", "reviews-canary", "reviews-canary"]}}),
    );
    assert_snapshot!(canary, @"RouteTable mesh/shop: route http[0] lists Service shop/reviews-canary more than once (Service shop/reviews-canary port 80, Service shop/reviews-canary port 80): keep one, choose one with stableDestination.cluster, port or subset, or exclude the route with routeSelector (Rollout shop/reviews)");
}

/// B41
#[test]
fn a_subset_that_the_canary_would_inherit_is_refused() {
    let route = json!({"name": "r", "forwardTo": {"destinations": [
        {"ref": {"name": "reviews", "namespace": "shop"}, "subset": {"version": "v1"}}
    ]}});
    assert_snapshot!(on_route(route), @"RouteTable mesh/shop: route r: the destination Service shop/reviews version=v1 has a subset, which a copy of it would inherit: list the destination of the other version in the route too, or set canaryDestination.subset (Rollout shop/reviews)");
}

#[test]
fn weights_below_zero_and_totals_below_one_are_refused() {
    let desired = with_intent(|intent| intent.kind = table::weight(-1, 100, vec![]));
    assert_snapshot!(desired, @"RouteTable mesh/shop: weight -1 of reviews-canary is negative: weights start at 0 (Rollout shop/reviews)");
    let max = with_intent(|intent| intent.kind = table::weight(1, 0, vec![]));
    assert_snapshot!(max, @"RouteTable mesh/shop: maxTrafficWeight is 0: it must be at least 1 (Rollout shop/reviews)");
    let additional = with_intent(|intent| {
        intent.kind = table::weight(0, 100, vec![table::experiment("exp", i32::MIN)]);
    });
    assert_snapshot!(additional, @"RouteTable mesh/shop: weight -2147483648 of exp is negative: weights start at 0 (Rollout shop/reviews)");
}

/// B60
#[test]
fn missing_and_equal_services_are_refused() {
    let stable = with_intent(|intent| intent.services.stable.clear());
    assert_snapshot!(stable, @"RouteTable mesh/shop: the Rollout names no stable Service: set spec.strategy.canary.stableService (Rollout shop/reviews)");
    let canary = with_intent(|intent| intent.services.canary.clear());
    assert_snapshot!(canary, @"RouteTable mesh/shop: the Rollout names no canary Service: set spec.strategy.canary.canaryService (Rollout shop/reviews)");
    let same = with_intent(|intent| intent.services.canary = intent.services.stable.clone());
    assert_snapshot!(same, @"RouteTable mesh/shop: stable and canary are both Service shop/reviews: name two different Services, or distinguish them with canaryDestination or subset (Rollout shop/reviews)");
}

/// The refusal for a table with `spec`, with the keys of `more` in the plugin block.
fn with_plugin(more: Value, spec: Value, hashes: Option<(&str, &str)>) -> String {
    let mut table = Table::new("mesh/shop", table::expand(spec));
    let block = table.plugin.as_object_mut().unwrap();
    block.extend(more.as_object().unwrap().clone());
    let mut intent = table::intent("shop/reviews", 25, 100, vec![]);
    intent.hashes = hashes.map(|(stable, canary)| PodHashes {
        stable: stable.to_owned(),
        canary: canary.to_owned(),
        others: false,
    });
    refusal(&table, &intent)
}

#[test]
fn roles_that_cannot_be_distinguished_are_refused() {
    let spec = json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews"]}}]});
    let same = with_plugin(
        json!({"stableDestination": {"name": "a"}, "canaryDestination": {"name": "a"}}),
        spec.clone(),
        None,
    );
    assert_snapshot!(same, @"RouteTable mesh/shop: stable and canary are both Service shop/a: name two different Services, or distinguish them with canaryDestination or subset (Rollout shop/reviews)");
    let switched = with_plugin(
        json!({"subset": {"service": "reviews"}}),
        spec,
        Some(("s1", "c1")),
    );
    assert_snapshot!(switched, @"RouteTable mesh/shop: Service reviews is set in subset.service, but the controller makes the Rollout's stable Service select one version only: remove it from spec.strategy.canary, or set another Service in subset.service (Rollout shop/reviews)");
    let twice = with_plugin(
        json!({"subset": {"service": "both"}}),
        json!({"http": [{"name": "r", "forwardTo": {"destinations": ["both 50", {"ref": {"name": "both", "namespace": "shop"}, "subset": {"v": "1"}, "weight": 50}]}}]}),
        Some(("s1", "c1")),
    );
    assert_snapshot!(twice, @"RouteTable mesh/shop: route r lists Service shop/both more than once (Service shop/both port 80, Service shop/both v=1): keep one, choose one with stableDestination.cluster, port or subset, or exclude the route with routeSelector (Rollout shop/reviews)");
}

#[test]
fn an_external_service_in_a_tcp_route_is_refused() {
    let external = with_plugin(
        json!({"tcpRoutes": [{"port": 1}], "canaryDestination": {"kind": "EXTERNAL_SERVICE"}}),
        json!({"tcp": [{"forwardTo": {"destinations": ["reviews"]}}]}),
        None,
    );
    assert_snapshot!(external, @"RouteTable mesh/shop: route tcp[0] is a TCP route, which cannot forward to ExternalService shop/reviews-canary: use another kind, or leave it out of tcpRoutes (Rollout shop/reviews)");
}

#[test]
fn a_value_of_the_wrong_type_is_named_by_its_path() {
    let weight = on_route(json!({"name": "r", "forwardTo": {"destinations": [
        {"ref": {"name": "reviews", "namespace": "shop"}, "weight": "80"}
    ]}}));
    assert_snapshot!(weight, @r#"RouteTable mesh/shop: route r cannot be read: forwardTo.destinations[0].weight is not a whole number from 0 to 100; correct the route (Rollout shop/reviews)"#);
    assert_snapshot!(on_route(json!({"forwardTo": {"destinations": {"a": 1}}})), @"RouteTable mesh/shop: route http[0] cannot be read: forwardTo.destinations is not a list; correct the route (Rollout shop/reviews)");
    assert_snapshot!(on_route(json!("forwardTo")), @r#"RouteTable mesh/shop: route http[0] cannot be read: the route is not an object; correct the route (Rollout shop/reviews)"#);
}

#[test]
fn an_annotation_that_cannot_be_decoded_is_refused() {
    assert_snapshot!(with_annotation("{"), @"RouteTable mesh/shop: annotation rollouts-plugin-trafficrouter-glooplatform/changes is unreadable (EOF while parsing an object at line 1 column 1): restore the table from its source, then remove the annotation (Rollout shop/reviews)");
    assert_snapshot!(with_annotation(r#"{"version":3,"rollouts":{}}"#), @"RouteTable mesh/shop: annotation rollouts-plugin-trafficrouter-glooplatform/changes is unreadable (its version is 3, not 2): restore the table from its source, then remove the annotation (Rollout shop/reviews)");
    assert_snapshot!(with_annotation(r#"{"version":2,"rollouts":{"shop/reviews":{"routes":[["r"]]}}}"#), @"RouteTable mesh/shop: annotation rollouts-plugin-trafficrouter-glooplatform/changes is unreadable (invalid length 1, expected a list of name, position, matchers and split): restore the table from its source, then remove the annotation (Rollout shop/reviews)");
    let destination = json!({"version": 2, "rollouts": {"shop/reviews": {
        "splits": [{"share": 100, "originals": [[0, {"ref": 1}]]}],
        "routes": [["r", 0, "0", 0]],
    }}});
    assert_snapshot!(with_annotation(&destination.to_string()), @"RouteTable mesh/shop: annotation rollouts-plugin-trafficrouter-glooplatform/changes is unreadable (an original that is no destination): restore the table from its source, then remove the annotation (Rollout shop/reviews)");
}

#[test]
fn the_record_of_another_rollout_is_not_decoded() {
    let spec = table::expand(json!({"http": [{"forwardTo": {"destinations": ["reviews"]}}]}));
    let mut table = Table::new("mesh/shop", spec);
    table.annotate(r#"{"version":2,"rollouts":{"shop/ratings":"odd"}}"#);
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    assert_eq!(
        table.annotation(),
        Some(r#"{"version":2,"rollouts":{"shop/ratings":"odd"}}"#)
    );
}

fn weight(desired: i32) -> Intent {
    table::intent("shop/reviews", desired, 100, vec![])
}

fn with_header_routes(names: usize) -> Intent {
    let mut intent = weight(25);
    intent.managed.order = (0..names).map(|name| format!("hdr-{name}")).collect();
    intent
}

/// Routes that forward to stable, each with `padding` bytes in its `forwardTo`.
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

fn table_of(routes: &[Value]) -> Table {
    Table::new("mesh/shop", table::expand(json!({ "http": routes })))
}

#[track_caller]
fn check_limit(table: &Table, intent: &Intent, expect: Result<(), &str>) {
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
    check_limit(&table_of(&routes(2_499, 0)), &weight(25), Ok(()));
    let refused =
        "2500 routes to split need 10004 operations of one patch, the API server takes 10000";
    check_limit(&table_of(&routes(2_500, 0)), &weight(25), Err(refused));
    // A later header step inserts a copy of each route.
    check_limit(&table_of(&routes(1_666, 0)), &with_header_routes(2), Ok(()));
    let refused = "operations of one patch";
    check_limit(
        &table_of(&routes(1_667, 0)),
        &with_header_routes(2),
        Err(refused),
    );
}

#[test]
fn t22_bytes_of_annotations() {
    let mut table = table_of(&routes(10, 0));
    table.annotate_other("notes", &"x".repeat(257_000));
    check_limit(&table, &weight(25), Ok(()));
    table.annotate_other("notes", &"x".repeat(258_048));
    check_limit(
        &table,
        &weight(25),
        Err("bytes of annotations, the API server takes 262144"),
    );
}

#[test]
fn t22_bytes_of_one_request() {
    check_limit(&table_of(&routes(100, 9_000)), &weight(25), Ok(()));
    let refused = "bytes of one request, the API server takes 3145728";
    check_limit(&table_of(&routes(100, 11_000)), &weight(25), Err(refused));
    check_limit(
        &table_of(&routes(100, 9_000)),
        &with_header_routes(2),
        Err(refused),
    );
}

#[test]
fn t22_traffic_returns_to_stable_beyond_every_limit() {
    let mut table = table_of(&routes(100, 0));
    table.annotate_other("notes", &"x".repeat(250_000));
    table.set_weight("shop/reviews", 50, 100, vec![]).unwrap();
    let mut spec = table.document()["spec"].clone();
    let more = table::expand(json!({"http": routes(3_000, 0)}));
    let more = more["http"].as_array().unwrap()[100..].iter().cloned();
    spec["http"].as_array_mut().unwrap().extend(more);
    table.replace_spec(spec);
    check_limit(&table, &weight(60), Err("the API server takes"));
    let plan = table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    assert!(plan.hands_back);
}

#[test]
fn t23_a_route_takes_80_bytes_of_the_record() {
    let routes = routes(1_000, 0);
    let mut table = table_of(&routes);
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    let bytes = table.annotation().unwrap().len();
    assert!(bytes < 80 * routes.len(), "{bytes}");
    // At rest the record is removed.
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    let doc: RouteTableDoc = table.doc();
    assert!(
        doc.annotations()
            .is_none_or(|all| !all.contains_key(ANNOTATION))
    );
}

#[test]
fn a_refusal_of_a_route_and_of_its_header_route_is_one() {
    let destinations = json!([
        "reviews 25",
        {"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": 81}, "weight": 25},
        "reviews-canary 50",
    ]);
    let spec = json!({"http": [{"name": "r", "forwardTo": {"destinations": destinations}}]});
    let table = Table::new("mesh/shop", table::expand(spec));
    let mut intent = table::intent("shop/reviews", 25, 100, vec![]);
    let step =
        json!({"name": "hdr", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]});
    intent.managed.in_force = vec![table::header_route(&step)];
    intent.managed.order = vec!["hdr".to_owned()];
    let plan = plan(&table.config("shop/reviews"), &intent, &table.doc()).unwrap();
    assert_eq!(plan.left().count(), 1);
}
