//! What is asked of a table and of a configuration before a promotion is held.

use route_planner::{plan, promotion::guarded_services};
use serde_json::{Value, json};

use crate::table::{self, Table};

const ROLLOUT: &str = "shop/reviews";

/// Sets the weights in turn, and tells whether the last one takes traffic from the canary.
#[track_caller]
fn check_taken(destinations: Value, weights: &[i32], expect: bool) {
    let spec = table::expand(
        json!({"http": [{"name": "r", "forwardTo": {"destinations": destinations}}]}),
    );
    let mut table = Table::new("shop/shop", spec);
    let (last, before) = weights.split_last().unwrap();
    for weight in before {
        table.set_weight(ROLLOUT, *weight, 100, vec![]).unwrap();
    }
    let intent = table::intent(ROLLOUT, *last, 100, vec![]);
    let plan = plan(&table.config(ROLLOUT), &intent, &table.doc()).unwrap();
    assert_eq!(plan.takes_from_canary(), expect, "{weights:?}");
}

#[test]
fn traffic_is_taken_from_the_canary_of_a_split_route_only() {
    let destinations = || json!(["reviews"]);
    check_taken(destinations(), &[0], false);
    check_taken(destinations(), &[25], false);
    check_taken(destinations(), &[25, 50], false);
    check_taken(destinations(), &[25, 25], false);
    check_taken(destinations(), &[25, 0], true);
    check_taken(destinations(), &[100, 0], true);
    check_taken(destinations(), &[100, 50], true);
    check_taken(json!(["reviews 80", "legacy 20"]), &[1, 0], true);
    // The owner's own share of the canary.
    check_taken(json!(["reviews 80", "reviews-canary 20"]), &[0], false);
}

#[track_caller]
fn check_guarded(plugin: Value, change: impl Fn(&mut route_planner::Intent), expect: bool) {
    let mut table = Table::new("shop/shop", json!({}));
    let selector = table.plugin.as_object_mut().unwrap();
    selector.extend(plugin.as_object().unwrap().clone());
    let mut intent = table::intent(ROLLOUT, 0, 100, vec![]);
    change(&mut intent);
    let config = table.config(ROLLOUT);
    let services = guarded_services(&config, &intent);
    assert_eq!(
        services,
        expect.then_some(("reviews", "reviews-canary")),
        "{plugin}"
    );
}

#[test]
fn a_promotion_is_held_only_between_the_two_services_that_the_controller_turns() {
    let same = |_: &mut route_planner::Intent| {};
    check_guarded(json!({}), same, true);
    check_guarded(
        json!({"stableDestination": {"port": {"number": 80}}}),
        same,
        true,
    );
    check_guarded(
        json!({"stableDestination": {"name": "reviews"}}),
        same,
        true,
    );
    for plugin in [
        json!({"stableDestination": {"name": "root"}}),
        json!({"canaryDestination": {"name": "preview"}}),
        json!({"stableDestination": {"namespace": "global"}}),
        json!({"stableDestination": {"kind": "VIRTUAL_DESTINATION"}}),
        json!({"subset": {"service": "reviews"}}),
        json!({"stableDestination": {"subset": {"v": "1"}}, "canaryDestination": {"subset": {"v": "2"}}}),
    ] {
        check_guarded(plugin, same, false);
    }
    check_guarded(json!({}), |intent| intent.services.ping_pong = true, false);
    check_guarded(
        json!({}),
        |intent| intent.kind = table::weight(1, 100, vec![]),
        false,
    );
    let experiment = || table::weight(0, 100, vec![table::experiment("e", 5)]);
    check_guarded(json!({}), |intent| intent.kind = experiment(), false);
    let removal = route_planner::IntentKind::RemoveManagedRoutes;
    check_guarded(json!({}), |intent| intent.kind = removal.clone(), false);
}
