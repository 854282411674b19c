//! The warnings of a plan, which the plugin logs.

use route_planner::{AppliedWeights, Intent, IntentKind, ManagedRouteUpdate, ManagedRoutes};
use serde_json::{Value, json};

use crate::table::{self, Table};

const OWNER_EDIT: &str = "route r was changed to other destinations by its owner during the rollout; its record is removed, and nothing is restored in it";

fn weight(desired: i32) -> Intent {
    table::intent("shop/reviews", desired, 100, vec![])
}

fn with_experiment(desired: i32, service: &str) -> Intent {
    table::intent(
        "shop/reviews",
        desired,
        100,
        vec![table::experiment(service, 5)],
    )
}

/// Checks the warnings of `intent` for a table whose only route has these destinations.
#[track_caller]
fn check(destinations: Value, intent: &Intent, expect: &[&str]) {
    check_after(destinations, &[], None, intent, expect);
}

/// Checks the warnings of `intent` after the calls `before`, and after the owner replaced the routes by `edited`.
#[track_caller]
fn check_after(
    destinations: Value,
    before: &[Intent],
    edited: Option<Value>,
    intent: &Intent,
    expect: &[&str],
) {
    let route = json!({"name": "r", "forwardTo": {"destinations": destinations}});
    let spec = json!({"defaultDestination": "reviews", "http": [route]});
    let mut table = Table::new("shop/shop", table::expand(spec));
    for intent in before {
        table.apply(intent).unwrap();
    }
    if let Some(http) = edited {
        let mut spec = table.document()["spec"].clone();
        spec["http"] = http;
        table.replace_spec(table::expand(spec));
    }
    let plan = table.apply(intent).unwrap();
    let warnings = plan.warnings.iter().map(ToString::to_string);
    assert_eq!(warnings.collect::<Vec<_>>(), expect);
}

#[test]
fn a_valid_table_gives_no_warning() {
    for destinations in [
        json!(["reviews"]),
        json!(["reviews", "legacy"]),
        json!(["reviews 80", "legacy 20"]),
    ] {
        for intent in [
            weight(0),
            weight(25),
            with_experiment(0, "exp"),
            weight(100),
        ] {
            check(destinations.clone(), &intent, &[]);
        }
    }
}

#[test]
fn invalid_weights_of_the_owner() {
    let sum = |sum: u32| {
        format!(
            "route r: Gloo rejects the owner's weights: weights of a route must sum to 100, found {sum}: correct them"
        )
    };
    let zero = "route r: Gloo rejects the owner's weights: destinations with weight 0 or none share the rest of 100 and need at least 1 each, but only 0 is left for Service shop/reviews-canary: remove it, or give each destination a weight";
    check(json!(["reviews 80", "legacy 30"]), &weight(0), &[]);
    check(
        json!(["reviews 80", "legacy 30"]),
        &weight(25),
        &[&sum(110)],
    );
    check(json!(["reviews 60"]), &weight(25), &[&sum(60)]);
    let listed = json!(["reviews-canary 0", "reviews 100"]);
    check(listed.clone(), &weight(0), &[]);
    for intent in [weight(25), with_experiment(0, "exp"), weight(100)] {
        check(listed.clone(), &intent, &[zero]);
    }
}

#[test]
fn a_share_of_the_canary_in_the_owners_list() {
    let destinations = json!(["reviews", "reviews-canary"]);
    check(
        destinations,
        &weight(0),
        &[
            "route r: the owner's weights give reviews-canary a share while nothing is rolled out, which the plugin removes: remove reviews-canary from the source of the table",
        ],
    );
}

/// Without a record, a route that was split at full weight looks like one whose owner points it to the canary.
#[test]
fn a_route_to_the_canary_alone_without_record() {
    let applied = AppliedWeights {
        canary: 100,
        ..AppliedWeights::default()
    };
    let mut intent = weight(0);
    intent.applied = Some(applied);
    let route = |name: &str, destination: &str| json!({"name": name, "forwardTo": {"destinations": [destination]}});
    let http = [route("a", "reviews"), route("b", "reviews-canary 100")];
    let mut table = Table::new("shop/shop", table::expand(json!({ "http": http })));
    let plan = table.apply(&intent).unwrap();
    let warnings: Vec<String> = plan.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "route b: 100 % of the traffic goes to reviews-canary and none to the stable Service, and the table has no record of a split; if that is not intended, set the stable Service in the route"
        ]
    );
    assert!(plan.is_noop());
}

#[test]
fn an_experiment_without_a_service() {
    check(
        json!(["reviews"]),
        &with_experiment(50, ""),
        &[
            "an experiment's Service has no name and gets no traffic: declare a containerPort; if there is one, abort and retry the rollout",
        ],
    );
}

#[test]
fn edits_of_the_owner() {
    let after = |edited: Value, desired, expect: &[&str]| {
        let destinations = json!(["reviews 80", "legacy 20"]);
        let edited = json!([edited]);
        let split = [weight(25)];
        check_after(destinations, &split, Some(edited), &weight(desired), expect);
    };
    let list = |list: Value| json!({"name": "r", "forwardTo": {"destinations": list}});
    after(
        list(json!(["reviews 60", "reviews-canary 20", "legacy 40"])),
        50,
        &[],
    );
    after(list(json!(["reviews-v2"])), 0, &[OWNER_EDIT]);
    // The default destination is the Rollout's, so the route is split from there.
    after(json!({"name": "r", "forwardTo": {}}), 50, &[]);
    after(
        json!({"name": "other", "matchers": [{"uri": {"prefix": "/o"}}], "forwardTo": {"destinations": ["reviews"]}}),
        25,
        &[
            "route r was split and is not found any more: its record is kept until the rollout ends; if the route is in another table now, restore its destinations there",
        ],
    );
}

#[test]
fn a_table_with_managed_routes_only() {
    let ours = |key| format!("rollouts-plugin-trafficrouter-glooplatform/{key}");
    let labels = json!({ ours("namespace"): "shop", ours("rollout"): "reviews", ours("managed-route"): "hdr" });
    let managed = json!([{"name": "hdr", "labels": labels, "forwardTo": {"destinations": ["reviews-canary"]}}]);
    let mut remove = weight(0);
    remove.kind = IntentKind::RemoveManagedRoutes;
    check_after(
        json!(["reviews"]),
        &[],
        Some(managed),
        &remove,
        &[
            "the table has no http routes except managed ones, which stay because a table needs at least one: restore the owner's routes or delete the table",
        ],
    );
}

/// The canary's part of a share of 1 is 0 for each weight below a half. The controller records the weight, but no table has it.
#[test]
fn a_share_that_is_too_small_to_split_has_lost_no_record() {
    let applied = AppliedWeights {
        stable: 99,
        canary: 1,
        ..AppliedWeights::default()
    };
    let mut intent = weight(25);
    intent.applied = Some(applied);
    check(json!(["legacy 99", "reviews 1"]), &intent, &[]);
}

/// The Rollouts are sorted in front of a route, whichever of them comes first.
#[test]
fn managed_routes_of_two_rollouts_for_the_same_requests() {
    let add = |table: &mut Table, rollout: &str, name: &str, value: &str| {
        let step =
            json!({"name": name, "match": [{"headerName": "x", "headerValue": {"exact": value}}]});
        let route = table::header_route(&step);
        let mut intent = table::intent(rollout, 25, 100, vec![]);
        table.apply(&intent).unwrap();
        intent.managed = ManagedRoutes {
            order: vec![name.into()],
            in_force: vec![route.clone()],
            update: ManagedRouteUpdate::AsPlanned,
        };
        intent.kind = IntentKind::SetManagedRoute(route);
        let warnings = table.apply(&intent).unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let (reviews, ratings) = (("shop/reviews", "testers"), ("shop/ratings", "staff"));
    let warning = "managed route testers gets no requests: managed route staff of Rollout shop/ratings is before it and has the same matchers; give the step of one of them another match";
    for ([first, second], value, expect) in [
        ([reviews, ratings], "1", &[warning] as &[&str]),
        ([ratings, reviews], "1", &[warning]),
        ([reviews, ratings], "2", &[]),
    ] {
        let route =
            json!({"name": "r", "forwardTo": {"destinations": ["reviews 60", "ratings 40"]}});
        let spec = table::expand(json!({ "http": [route] }));
        let mut table = Table::new("shop/shop", spec);
        assert_eq!(add(&mut table, first.0, first.1, "1"), [""; 0]);
        assert_eq!(add(&mut table, second.0, second.1, value), expect);
    }
}
