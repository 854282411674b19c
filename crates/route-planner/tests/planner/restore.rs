//! Tables of Rollouts that were deleted during an update.

use gloo_types::ObjectKey;
use route_planner::{IntentKind, ManagedRouteUpdate, ManagedRoutes, Warning, at_rest, involved};
use serde_json::{Value, json};

use crate::table::{self, Table, header_route};

fn spec() -> Value {
    table::expand(json!({
        "defaultDestination": "reviews",
        "http": [
            {"name": "list", "forwardTo": {"destinations": ["reviews 80", "legacy 20"]}},
            {"name": "rest", "forwardTo": {"pathRewrite": "/"}},
            {"name": "shared", "forwardTo": {"destinations": ["reviews", "ratings"]}},
        ],
        "tcp": [{"forwardTo": {"destinations": ["reviews"]}}],
    }))
}

fn table() -> Table {
    let mut table = Table::new("mesh/shop", spec());
    table.plugin["tcpRoutes"] = json!([{"port": 3306}]);
    table
}

fn split(table: &mut Table, rollout: &str, weight: i32) {
    table.set_weight(rollout, weight, 100, vec![]).unwrap();
}

/// Adds a header route to the table.
fn add_header_route(table: &mut Table, rollout: &str, weight: i32) {
    let step =
        json!({"name": "hdr", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]});
    let route = header_route(&step);
    let mut intent = table::intent(rollout, weight, 100, vec![]);
    intent.managed = ManagedRoutes {
        order: vec!["hdr".into()],
        in_force: vec![route.clone()],
        update: ManagedRouteUpdate::AsPlanned,
    };
    intent.kind = IntentKind::SetManagedRoute(route);
    table.apply(&intent).unwrap();
}

fn remaining(table: &Table) -> Vec<String> {
    let involved = involved(&table.doc()).unwrap();
    involved.iter().map(ObjectKey::to_string).collect()
}

#[test]
fn the_owners_spec_is_restored_exactly() {
    for weight in [1, 25, 100] {
        let mut table = table();
        split(&mut table, "shop/reviews", weight);
        add_header_route(&mut table, "shop/reviews", weight);
        assert_eq!(remaining(&table), ["shop/reviews"]);
        table.restore("shop/reviews");
        assert_eq!(table.document()["spec"].to_string(), spec().to_string());
        assert_eq!(table.annotation(), None);
        assert_eq!(remaining(&table), Vec::<String>::new());
    }
}

#[test]
fn managed_routes_without_a_split_are_removed() {
    let mut table = table();
    add_header_route(&mut table, "shop/reviews", 0);
    assert_eq!(remaining(&table), ["shop/reviews"]);
    table.restore("shop/reviews");
    assert_eq!(table.document()["spec"].to_string(), spec().to_string());
}

#[test]
fn changes_of_another_rollout_stay() {
    let mut together = table();
    let mut alone = table();
    for table in [&mut together, &mut alone] {
        add_header_route(table, "shop/ratings", 0);
        split(table, "shop/ratings", 50);
    }
    split(&mut together, "shop/reviews", 25);
    add_header_route(&mut together, "shop/reviews", 25);
    assert_eq!(remaining(&together), ["shop/ratings", "shop/reviews"]);
    together.restore("shop/reviews");
    assert_eq!(remaining(&together), ["shop/ratings"]);
    assert_eq!(
        together.document()["spec"].to_string(),
        alone.document()["spec"].to_string()
    );
    assert_eq!(together.annotation(), alone.annotation());
}

#[test]
fn at_rest_a_table_is_as_its_owner_wrote_it() {
    let mut table = table();
    assert_eq!(at_rest(&table.doc()).unwrap().raw(), table.doc().raw());
    split(&mut table, "shop/ratings", 50);
    split(&mut table, "shop/reviews", 100);
    add_header_route(&mut table, "shop/reviews", 100);
    let doc = table.doc();
    let rest = at_rest(&doc).unwrap();
    assert_eq!(rest.raw()["spec"].to_string(), spec().to_string());
}

#[test]
fn weights_that_the_owner_changed_during_the_split_sum_to_100() {
    let spec = json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews 80", "legacy 20"]}}]});
    let mut table = Table::new("mesh/shop", table::expand(spec));
    split(&mut table, "shop/reviews", 50);
    let live = json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews 30", "reviews-canary 30", "legacy 40"]}}]});
    table.replace_spec(table::expand(live));
    table.restore("shop/reviews");
    let expect = json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews 60", "legacy 40"]}}]});
    assert_eq!(table.document()["spec"], table::expand(expect));
}

#[test]
fn a_table_without_changes_of_the_rollout_is_not_changed() {
    let mut table = table();
    assert!(table.restore("shop/reviews").is_noop());
    split(&mut table, "shop/reviews", 25);
    assert!(table.restore("shop/somebody").is_noop());
    assert!(table.restore("other/reviews").is_noop());
}

#[test]
fn a_removed_route_is_a_warning() {
    let mut table = table();
    split(&mut table, "shop/reviews", 25);
    let mut spec = table.document()["spec"].clone();
    spec["http"].as_array_mut().unwrap().remove(0);
    table.replace_spec(spec);
    let plan = table.restore("shop/reviews");
    let route = "route list".to_owned();
    assert_eq!(plan.warnings, [Warning::RouteGone { route }]);
    assert_eq!(remaining(&table), Vec::<String>::new());
}
