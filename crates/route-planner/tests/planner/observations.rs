//! Questions about a table: what VerifyWeight answers, and when a promotion may be held.

use gloo_types::RouteTableDoc;
use route_planner::promotion::guarded_services;
use route_planner::{Intent, IntentKind, Observation, observe, plan};
use serde_json::{Value, json};

use crate::table::{self, Table};

const ROLLOUT: &str = "shop/reviews";

/// Observes a table that has `weight`, at generation 2 and with `status`, in the mode `verify`.
#[track_caller]
fn check(verify: &str, weight: i32, status: Value, expect: &str) {
    let spec =
        table::expand(json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews"]}}]}));
    let mut table = Table::new("shop/shop", spec);
    table.plugin["verify"] = json!(verify);
    table.set_weight(ROLLOUT, 25, 100, vec![]).unwrap();
    table.set_weight(ROLLOUT, weight, 100, vec![]).unwrap();
    let mut document = table.document().clone();
    document["metadata"]["generation"] = json!(2);
    document["status"] = status;
    let document = RouteTableDoc::from_value(document).unwrap();
    let intent = table::intent(ROLLOUT, weight, 100, vec![]);
    let observation = observe(&table.config(ROLLOUT), &intent, &document).unwrap();
    let text = match observation {
        Observation::Verified => "verified".to_owned(),
        Observation::NotApplied { reason } | Observation::NotAccepted { reason } => {
            format!("not verified: {reason}")
        }
        Observation::Refused { reason } => format!("refused: {reason}"),
        Observation::NotApplicable { reason } => format!("not applicable: {reason}"),
    };
    assert_eq!(text, expect);
}

fn state(approval: &str, message: &str) -> Value {
    json!({"common": {"State": {"observedGeneration": 2, "approval": approval, "message": message}}})
}

#[test]
fn auto_requires_acceptance_only_if_gloo_writes_a_status() {
    for status in [
        Value::Null,
        json!({}),
        json!({"common": {}}),
        json!({"numParentRouteTables": 1}),
    ] {
        check("auto", 25, status.clone(), "verified");
        check(
            "accepted",
            25,
            status,
            "not verified: RouteTable shop/shop: Gloo has not written a status",
        );
    }
}

#[test]
fn accepted_for_this_generation_is_verified() {
    for verify in ["auto", "weights", "accepted"] {
        check(verify, 25, state("ACCEPTED", ""), "verified");
        check(verify, 100, state("WARNING", "no such port"), "verified");
        check(verify, 0, state("ACCEPTED", ""), "verified");
    }
}

#[test]
fn any_other_verdict_is_not_verified_with_a_reason() {
    let why = |text: &str| format!("not verified: RouteTable shop/shop: {text}");
    let refused = |text: &str| format!("refused: RouteTable shop/shop: {text}");
    for verify in ["auto", "accepted"] {
        check(
            verify,
            25,
            state("INVALID", "bad\n route"),
            &refused("Gloo says INVALID: bad route"),
        );
        check(
            verify,
            100,
            state("FAILED", ""),
            &refused("Gloo says FAILED"),
        );
        check(
            verify,
            25,
            state("NEWER_THAN_US", "x"),
            &why("Gloo says NEWER_THAN_US: x"),
        );
        check(
            verify,
            25,
            json!({"common": {"State": {"observedGeneration": 2}}}),
            &why("Gloo says PENDING"),
        );
        let stale =
            json!({"common": {"State": {"observedGeneration": "1", "approval": "ACCEPTED"}}});
        check(verify, 25, stale, &why("Gloo has seen generation 1 of 2"));
        let lower_case =
            json!({"common": {"state": {"observedGeneration": "2", "approval": "INVALID"}}});
        check(verify, 25, lower_case, &refused("Gloo says INVALID"));
    }
}

#[test]
fn weights_mode_ignores_the_verdict_of_gloo() {
    check("weights", 25, state("INVALID", "bad route"), "verified");
    check("weights", 25, json!("odd"), "verified");
}

#[test]
fn at_rest_the_verdict_of_gloo_is_not_required() {
    check(
        "auto",
        0,
        state("INVALID", "bad route"),
        "not applicable: RouteTable shop/shop: Gloo says INVALID: bad route",
    );
}

#[test]
fn other_weights_are_not_verified() {
    let spec = table::expand(
        json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews 80", "legacy 20"]}}]}),
    );
    let mut table = Table::new("shop/shop", spec);
    let config = table.config(ROLLOUT);
    let reason = |table: &Table, weight| {
        let intent = table::intent(ROLLOUT, weight, 100, vec![]);
        match observe(&config, &intent, &table.doc()).unwrap() {
            Observation::NotApplied { reason } => reason,
            other => panic!("{other:?}"),
        }
    };
    insta::assert_snapshot!(reason(&table, 25), @"RouteTable shop/shop: not yet applied: route r: Service shop/reviews 80 to 60, Service shop/reviews-canary inserted at 20");
    table.set_weight(ROLLOUT, 25, 100, vec![]).unwrap();
    insta::assert_snapshot!(reason(&table, 30), @"RouteTable shop/shop: not yet applied: route r: Service shop/reviews 60 to 56, Service shop/reviews-canary 20 to 24");
    insta::assert_snapshot!(reason(&table, 100), @"RouteTable shop/shop: not yet applied: route r: Service shop/reviews-canary 20 to 80, Service shop/reviews removed");
    insta::assert_snapshot!(reason(&table, 0), @"RouteTable shop/shop: not yet applied: route r: Service shop/reviews 60 to 80, Service shop/reviews-canary removed");
}

#[test]
fn an_unreadable_status_is_an_error() {
    let spec = table::expand(json!({"http": [{"forwardTo": {"destinations": ["reviews"]}}]}));
    let mut document = Table::new("shop/shop", spec).document().clone();
    document["status"] = json!({"common": {"State": {"observedGeneration": "two"}}});
    let table = RouteTableDoc::from_value(document).unwrap();
    let config = Table::new("shop/shop", json!({})).config(ROLLOUT);
    let intent = table::intent(ROLLOUT, 0, 100, vec![]);
    let error = observe(&config, &intent, &table).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RouteTable shop/shop: unexpected value at status.common.State.observedGeneration"
    );
}

#[test]
fn an_experiment_without_canary_weight_is_not_rest() {
    let spec =
        table::expand(json!({"http": [{"name": "r", "forwardTo": {"destinations": ["reviews"]}}]}));
    let mut table = Table::new("shop/shop", spec);
    let intent = table::intent(ROLLOUT, 0, 100, vec![table::experiment("exp", 5)]);
    table.apply(&intent).unwrap();
    let mut document = table.document().clone();
    document["status"] = state("PENDING", "");
    let document = RouteTableDoc::from_value(document).unwrap();
    let observation = observe(&table.config(ROLLOUT), &intent, &document).unwrap();
    assert!(
        matches!(observation, Observation::NotAccepted { .. }),
        "{observation:?}"
    );
}

/// Sets the weights one after the other, and checks whether the last one decreases the canary's share.
#[track_caller]
fn check_takes_from_canary(destinations: Value, weights: &[i32], expect: bool) {
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
    check_takes_from_canary(destinations(), &[0], false);
    check_takes_from_canary(destinations(), &[25], false);
    check_takes_from_canary(destinations(), &[25, 50], false);
    check_takes_from_canary(destinations(), &[25, 25], false);
    check_takes_from_canary(destinations(), &[25, 0], true);
    check_takes_from_canary(destinations(), &[100, 0], true);
    check_takes_from_canary(destinations(), &[100, 50], true);
    check_takes_from_canary(json!(["reviews 80", "legacy 20"]), &[1, 0], true);
    // The owner's list gives the canary a share, but the route is not split.
    check_takes_from_canary(json!(["reviews 80", "reviews-canary 20"]), &[0], false);
}

#[track_caller]
fn check_guarded(plugin: Value, change: impl Fn(&mut Intent), expect: bool) {
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
fn a_promotion_is_held_only_between_the_two_services_whose_selectors_change() {
    let same = |_: &mut Intent| {};
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
    let removal = IntentKind::RemoveManagedRoutes;
    check_guarded(json!({}), |intent| intent.kind = removal.clone(), false);
}
