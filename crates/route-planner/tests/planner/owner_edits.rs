//! Edits of the owner in the middle of a canary: what the next SetWeight makes of them.

use route_planner::{AppliedWeights, Intent, PodHashes, ServicePair};
use serde_json::{Value, json};

use crate::table::{self, Table};

/// Splits the routes `http` at 25 %, replaces them by `edited`, and checks the routes after weight `desired`.
#[track_caller]
fn check(http: Value, edited: Value, desired: i32, expect: Value) {
    check_with(json!({}), http, edited, desired, expect);
}

/// As [`check`], with more keys of the plugin block.
#[track_caller]
fn check_with(keys: Value, http: Value, edited: Value, desired: i32, expect: Value) {
    let expand = |http: Value| table::expand(json!({ "http": http }));
    let mut table = Table::new("shop/shop", expand(http));
    let keys = keys.as_object().unwrap().clone();
    table.plugin.as_object_mut().unwrap().extend(keys);
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    table.replace_spec(expand(edited));
    let set = table.set_weight("shop/reviews", desired, 100, vec![]);
    set.unwrap();
    assert_eq!(table.document()["spec"], expand(expect));
}

fn route(name: &str, path: &str, destinations: Value) -> Value {
    json!({"name": name, "matchers": [{"uri": {"prefix": path}}], "forwardTo": {"destinations": destinations}})
}

#[test]
fn a_split_route_gets_other_matchers_and_another_destination() {
    let other = |reviews: Value, canary: Value| {
        let mut all = vec![reviews, canary, json!("legacy 10"), json!("other 10")];
        all.retain(|it| !it.is_null());
        json!([route("r", "/new", json!(all))])
    };
    check(
        json!([route("r", "/", json!(["reviews 80", "legacy 20"]))]),
        other(json!("reviews 60"), json!("reviews-canary 20")),
        0,
        other(json!("reviews 80"), Value::Null),
    );
}

/// A route to the canary without a weight is a preview that its owner wrote, and not the split route that was removed.
#[test]
fn a_split_route_is_replaced_by_a_preview_of_the_canary() {
    let edited = json!([
        route("preview", "/preview", json!(["reviews-canary"])),
        route("all", "/all", json!(["reviews"])),
    ]);
    let http = json!([route("r", "/", json!(["reviews"]))]);
    check(http, edited.clone(), 0, edited);
}

#[test]
fn the_original_list_with_an_idle_destination_is_applied_again() {
    let http = json!([route("r", "/", json!(["reviews 100", "legacy 0"]))]);
    check(http.clone(), http.clone(), 0, http);
}

/// A destination that the canary's pattern describes more precisely is not the stable one.
#[test]
fn both_versions_are_listed_as_subsets_of_one_service() {
    let keys = json!({"canaryDestination": {"name": "reviews", "subset": {"version": "v2"}}});
    let canary = |weight: u32| json!({"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": 80}, "subset": {"version": "v2"}, "weight": weight});
    let http = |stable: &str, weight| json!([route("r", "/", json!([stable, canary(weight)]))]);
    check_with(
        keys,
        http("reviews 100", 0),
        http("reviews 75", 25),
        50,
        http("reviews 50", 50),
    );
}

/// The order of the keys stays too, although the same place is in the list twice.
#[test]
fn an_idle_destination_is_restored_as_it_was_written() {
    let idle = json!({"weight": 0, "ref": {"name": "legacy", "namespace": "shop"}, "port": {"number": 80}});
    let http = json!([route("r", "/", json!(["reviews 80", idle, "legacy 20"]))]);
    let spec = table::expand(json!({ "http": http }));
    let mut table = Table::new("shop/shop", spec.clone());
    for desired in [25, 0] {
        let set = table.set_weight("shop/reviews", desired, 100, vec![]);
        set.unwrap();
    }
    assert_eq!(table.document()["spec"].to_string(), spec.to_string());
}

/// A route in front of a split route is no reason to write the annotation again.
#[test]
fn a_route_is_inserted_before_a_split_route() {
    let mut table = Table::new(
        "shop/shop",
        table::expand(json!({"http": [route("r", "/", json!(["reviews"]))]})),
    );
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    let mut spec = table.document()["spec"].clone();
    let inserted = route("new", "/new", json!([{"ref": {"name": "other"}}]));
    spec["http"].as_array_mut().unwrap().insert(0, inserted);
    table.replace_spec(spec);
    let plan = table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    assert!(plan.is_noop(), "{:?}", plan.edits);
}

#[test]
fn a_share_that_is_too_small_for_a_weight_is_not_recorded() {
    let http = json!([route("r", "/", json!(["reviews 1", "legacy 99"]))]);
    let mut table = Table::new("shop/shop", table::expand(json!({ "http": http })));
    let plan = table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    assert!(plan.is_noop(), "{:?}", plan.edits);
}

#[test]
fn the_copy_of_a_destination_has_its_port_with_unknown_fields() {
    let destination = |name: &str, weight: u32| json!({"ref": {"name": name, "namespace": "shop"}, "port": {"number": 80, "future": true}, "weight": weight});
    let http = |all: Value| json!([route("r", "/", all)]);
    let split = http(json!([
        destination("reviews", 75),
        destination("reviews-canary", 25)
    ]));
    check_with(
        json!({"stableDestination": {"port": {"number": 80}}}),
        http(json!([destination("reviews", 100)])),
        split.clone(),
        25,
        split,
    );
}

/// Splits a route with the destinations `old` at 25 % and again at 100 %, applies the owner's manifest with `new` instead, which does not
/// touch the annotation, and checks the list at 60 % and that the table is the owner's at the end.
#[track_caller]
fn check_applied(old: Value, new: Value, at_60: Value) {
    // A table has a default destination as long as a route needs one.
    let spec = |list: &Value| {
        let mut spec = json!({"http": [{"name": "r", "forwardTo": {}}]});
        match list.is_null() {
            true => spec["defaultDestination"] = json!("reviews"),
            false => spec["http"][0]["forwardTo"]["destinations"] = list.clone(),
        }
        table::expand(spec)
    };
    for (weight, calls) in [25, 100].into_iter().flat_map(|weight| {
        let ways: [&[i32]; 3] = [&[0], &[60, 0], &[]];
        ways.map(|calls| (weight, calls))
    }) {
        let mut table = Table::new("shop/shop", spec(&old));
        let set = |table: &mut Table, weight| {
            let set = table.set_weight("shop/reviews", weight, 100, vec![]);
            set.unwrap();
        };
        set(&mut table, weight);
        table.replace_spec(spec(&new));
        for weight in calls {
            set(&mut table, *weight);
            if *weight == 60 {
                assert_eq!(table.document()["spec"]["http"], spec(&at_60)["http"]);
            }
        }
        // A deleted Rollout.
        table.restore("shop/reviews");
        assert_eq!(table.document()["spec"], spec(&new), "{weight}, {calls:?}");
        assert_eq!(table.annotation(), None);
    }
}

#[test]
fn an_edited_list_is_applied_and_the_annotation_stays() {
    let both = ["reviews 20", "reviews-canary 30", "legacy"];
    let alone = json!(["reviews 40", "reviews-canary 60"]);
    // Weights are added, removed and changed.
    for (old, new, at_60) in [
        (
            json!(["reviews 100"]),
            json!(["reviews", "legacy"]),
            json!(both),
        ),
        (
            json!(["reviews 60", "legacy 40"]),
            json!(["reviews", "legacy"]),
            json!(both),
        ),
        (
            json!(["reviews", "legacy"]),
            json!(["reviews 80", "legacy"]),
            json!(["reviews 32", "reviews-canary 48", "legacy"]),
        ),
        (
            json!(["reviews"]),
            json!(["legacy", "reviews 20"]),
            json!(["legacy", "reviews 8", "reviews-canary 12"]),
        ),
        (json!(["reviews"]), json!(["reviews 100"]), alone.clone()),
        (json!(["reviews 100"]), json!(["reviews"]), alone.clone()),
        // What has weight 0 in the list is added and removed.
        (
            json!(["reviews 100", "legacy 0"]),
            json!(["reviews 100"]),
            alone.clone(),
        ),
        (
            json!(["reviews 100", "reviews-canary 0"]),
            json!(["reviews"]),
            alone.clone(),
        ),
        (
            json!(["reviews"]),
            json!(["reviews 100", "reviews-canary 0"]),
            alone.clone(),
        ),
        (
            json!(["reviews 100", "reviews-canary 0"]),
            json!(["reviews 100"]),
            alone.clone(),
        ),
        // A list takes the place of the default destination.
        (json!(null), json!(["reviews"]), alone.clone()),
        (json!(null), json!(["reviews 100"]), alone.clone()),
        (json!(null), json!(["reviews", "legacy"]), json!(both)),
        (json!(["reviews 100"]), json!(null), alone),
    ] {
        check_applied(old, new, at_60);
    }
}

/// Planning gives no destination weight 0, so a list with one is not what is left of the split.
#[test]
fn a_split_route_is_replaced_by_one_that_lists_the_canary() {
    let edited = json!([route(
        "new",
        "/new",
        json!(["reviews 100", "reviews-canary 0"])
    )]);
    let http = json!([route("r", "/", json!(["reviews"]))]);
    check(http, edited.clone(), 0, edited);
}

/// Takes the inserted canary out of a split list. The weights that are left are those of planning, which is known from their sum or
/// only from the weights that were set.
#[track_caller]
fn check_taken_out(list: Value, left: Value, is_known_from_sum: bool) {
    let http = |list: &Value| json!([route("r", "/", list.clone())]);
    let spec = |list: &Value| table::expand(json!({ "http": http(list) }));
    let applied = AppliedWeights {
        stable: 75,
        canary: 25,
        ..AppliedWeights::default()
    };
    for applied in [Some(applied), None] {
        let mut table = Table::new("shop/shop", spec(&list));
        let mut intent = table::intent("shop/reviews", 25, 100, vec![]);
        table.apply(&intent).unwrap();
        table.replace_spec(spec(&left));
        intent.kind = table::weight(0, 100, vec![]);
        let is_known = applied.is_some() || is_known_from_sum;
        intent.applied = applied;
        table.apply(&intent).unwrap();
        let expect = if is_known { &list } else { &left };
        assert_eq!(table.document()["spec"], spec(expect));
    }
}

#[test]
fn the_canary_is_taken_out_of_a_split_list() {
    check_taken_out(json!(["reviews 100"]), json!(["reviews 75"]), true);
    check_taken_out(
        json!(["reviews", "legacy 20"]),
        json!(["reviews 60", "legacy 20"]),
        true,
    );
    // Any sum is valid beside a destination without a weight.
    check_taken_out(
        json!(["reviews", "legacy"]),
        json!(["reviews 37", "legacy"]),
        false,
    );
}

/// The record says which parts of a destination were compared.
#[test]
fn the_port_is_removed_from_the_plugin_block_of_a_split_route() {
    let to = |port: u32, weight: u32| json!({"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": port}, "weight": weight});
    let http = json!([route("r", "/", json!([to(9090, 50), to(8080, 50)]))]);
    let spec = table::expand(json!({ "http": http }));
    let mut table = Table::new("shop/shop", spec.clone());
    let plugin = table.plugin.clone();
    table.plugin["stableDestination"] = json!({"port": {"number": 8080}});
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    table.plugin = plugin;
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    assert_eq!(table.document()["spec"], spec);
}

/// Weight 0 takes the owner's share of the canary away, and the record keeps it.
#[test]
fn a_destination_is_added_beside_a_listed_canary() {
    check(
        json!([route("r", "/", json!(["reviews 50", "reviews-canary 50"]))]),
        json!([route(
            "r",
            "/",
            json!(["reviews 60", "reviews-canary 20", "legacy 20"])
        )]),
        0,
        json!([route("r", "/", json!(["reviews 80", "legacy 20"]))]),
    );
}

/// Nobody knows whether an unreadable route is the lost one, so the record of the lost one stays.
#[test]
fn a_split_route_gets_other_matchers_and_cannot_be_read() {
    let http = |path: &str, all: Value| table::expand(json!({"http": [route("r", path, all)]}));
    let mut table = Table::new("shop/shop", http("/", json!(["reviews"])));
    let mut set = |edited: Value, desired: i32| {
        table.replace_spec(edited);
        table
            .set_weight("shop/reviews", desired, 100, vec![])
            .unwrap();
        table.document()["spec"].clone()
    };
    set(http("/", json!(["reviews"])), 100);
    let unreadable = http("/new", json!(["reviews-canary 100", 5]));
    assert_eq!(set(unreadable.clone(), 0), unreadable);
    let corrected = http("/new", json!(["reviews-canary 100"]));
    assert_eq!(set(corrected, 0), http("/new", json!(["reviews"])));
}

#[test]
fn stable_and_another_weight_are_replaced() {
    for edited in ["other 45", "reviews 45"] {
        let name = edited.trim_end_matches(" 45");
        let mut stable = json!({"ref": {"name": name, "namespace": "shop", "cluster": "west"}, "port": {"number": 80}, "weight": 45});
        let live = json!([stable, "reviews-canary 15", "legacy 30"]);
        stable["weight"] = json!(70);
        check(
            json!([route("r", "/", json!(["reviews 60", "legacy 40"]))]),
            json!([route("r", "/", live)]),
            0,
            json!([route("r", "/", json!([stable, "legacy 30"]))]),
        );
    }
}

/// Weight 0 has to take the owner's canary away. Without its share, stable is not brought back.
#[test]
fn stable_is_replaced_beside_a_listed_canary() {
    let http = |stable: &str, canary: &str| json!([route("r", "/", json!([stable, canary]))]);
    check(
        http("reviews 50", "reviews-canary 50"),
        http("other 75", "reviews-canary 25"),
        0,
        json!([route("r", "/", json!(["reviews 25", "other 75"]))]),
    );
    check(
        http("reviews 100", "reviews-canary 0"),
        http("other 75", "reviews-canary 25"),
        0,
        http("other 100", "reviews-canary 0"),
    );
}

/// The intent of a Rollout whose versions are subsets of the Service `reviews`.
fn of_subsets(desired: i32) -> Intent {
    let mut intent = table::intent("shop/reviews", desired, 100, vec![]);
    intent.services = ServicePair::new("", "");
    intent.hashes = Some(PodHashes {
        stable: "old".to_owned(),
        canary: "new".to_owned(),
        others: true,
    });
    intent
}

/// The subset of stable stays until the Pods of the other version are gone, so this is not rest yet.
#[test]
fn weight_0_is_planned_again_while_the_record_of_subsets_is_unreadable() {
    let spec = table::expand(json!({"http": [route("r", "/", json!(["reviews"]))]}));
    let mut table = Table::new("shop/shop", spec);
    table.plugin["subset"] = json!({"service": "reviews"});
    table.apply(&of_subsets(25)).unwrap();
    table.annotate("{");
    let config = table.config("shop/reviews");
    for _ in 0..2 {
        let plan = route_planner::plan(&config, &of_subsets(0), &table.doc()).unwrap();
        assert_eq!(plan.left().count(), 1);
        table.edit(&plan.to_json_patch());
    }
}

/// A route without a name.
fn unnamed(path: &str, destinations: Value) -> Value {
    json!({"matchers": [{"uri": {"prefix": path}}], "forwardTo": {"destinations": destinations}})
}

#[test]
fn the_stable_subset_gets_another_port_before_the_rollout_is_deleted() {
    let spec = |port: u32| json!({"http": [unnamed("/", json!([{"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": port}}]))]});
    let mut table = Table::new("shop/shop", spec(80));
    table.plugin["subset"] = json!({"service": "reviews"});
    table.apply(&of_subsets(25)).unwrap();
    let mut edited = table.document()["spec"].clone();
    let stable = edited.pointer_mut("/http/0/forwardTo/destinations/0");
    stable.unwrap()["port"]["number"] = json!(9090);
    table.replace_spec(edited);
    table.restore("shop/reviews");
    assert_eq!(table.document()["spec"], spec(9090));
}

/// The intent of a Rollout whose Services are exchanged after each update.
fn of_pair(stable: &str, canary: &str, desired: i32) -> Intent {
    let mut intent = table::intent("shop/reviews", desired, 100, vec![]);
    intent.services = ServicePair::new(stable, canary);
    intent.services.ping_pong = true;
    intent
}

#[test]
fn the_stable_service_of_a_pair_gets_another_cluster() {
    let destination = |name: &str, cluster: &str, weight: u32| json!({"ref": {"name": name, "namespace": "shop", "cluster": cluster}, "weight": weight});
    let spec = |all: Value| json!({"http": [unnamed("/", all)]});
    let mut table = Table::new("shop/shop", spec(json!([destination("ping", "east", 100)])));
    let set = |table: &mut Table, stable: &str, canary: &str, desired: i32| {
        table.apply(&of_pair(stable, canary, desired)).unwrap();
    };
    set(&mut table, "pong", "ping", 0);
    table.replace_spec(spec(json!([destination("pong", "west", 100)])));
    set(&mut table, "pong", "ping", 0);
    set(&mut table, "ping", "pong", 0);
    let expect = spec(json!([destination("ping", "west", 100)]));
    assert_eq!(table.document()["spec"], expect);
    assert_eq!(table.annotation(), None);
}

/// The record names the destination that was stable then, which is in the list, so nothing has taken its place.
#[test]
fn stable_and_canary_are_exchanged_and_listed() {
    let spec = table::expand(json!({"http": [
        unnamed("/", json!(["legacy 45", "reviews-canary", "reviews 55"])),
    ]}));
    let mut table = Table::new("shop/shop", spec.clone());
    let mut exchanged = table::intent("shop/reviews", 0, 100, vec![]);
    exchanged.services = ServicePair::new("reviews-canary", "reviews");
    table.apply(&exchanged).unwrap();
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    assert_eq!(table.document()["spec"], spec);
}

/// Each call finds the routes in the order in which the one before has recorded them.
#[test]
fn a_route_is_inserted_between_routes_with_equal_matchers() {
    let split = || unnamed("/a", json!(["reviews 75", "reviews-canary 25"]));
    let original = |weight: u32| unnamed("/a", json!([format!("reviews {weight}")]));
    check(
        json!([original(80), original(80)]),
        json!([split(), unnamed("/a", json!(["reviews"])), split()]),
        25,
        json!([split(), split(), split()]),
    );
}

#[test]
fn routes_with_equal_matchers_are_told_apart_by_their_other_destinations() {
    let other = |all: Value| unnamed("/a", all);
    let (with_legacy, alone) = (json!(["reviews 80", "legacy 20"]), json!(["reviews"]));
    let split = json!(["reviews 60", "reviews-canary 20", "legacy 20"]);
    check(
        json!([other(with_legacy.clone()), other(alone.clone())]),
        json!([
            other(json!(["reviews 75", "reviews-canary 25"])),
            other(split)
        ]),
        0,
        json!([other(alone), other(with_legacy)]),
    );
}

#[test]
fn routes_with_equal_matchers_are_told_apart_by_their_names() {
    let listed = json!(["reviews 100", "reviews-canary 0"]);
    let split = || json!(["reviews 75", "reviews-canary 25"]);
    let http = |item: Value, other: Value| [route("item", "/a", item), unnamed("/a", other)];
    let first = route("first", "/first", json!(["legacy"]));
    let with_first = |[item, other]: [Value; 2]| json!([first, item, other]);
    check(
        json!(http(listed.clone(), json!(["reviews"]))),
        with_first(http(split(), split())),
        0,
        with_first(http(listed, json!(["reviews"]))),
    );
}

#[test]
fn a_new_route_gets_the_matchers_of_a_split_route() {
    let new = unnamed("/a", json!(["reviews"]));
    check(
        json!([unnamed("/a", json!(["reviews"]))]),
        json!([
            unnamed("/b", json!(["reviews 75", "reviews-canary 25"])),
            new
        ]),
        0,
        json!([unnamed("/b", json!(["reviews"])), new]),
    );
}

/// The preview has a weighted canary, as a split route has, but the name and the matchers are those of the other route.
#[test]
fn a_split_route_gets_other_destinations_beside_a_preview() {
    let edited = json!([
        route(
            "preview",
            "/preview",
            json!(["reviews-canary 10", "legacy 90"])
        ),
        route("r", "/", json!(["other"])),
    ]);
    check(
        json!([route("r", "/", json!(["reviews"]))]),
        edited.clone(),
        0,
        edited,
    );
}

/// Sets weight 0 for the routes `http`, replaces them by `edited`, and sets it again. Checks that they are `expect` after the Rollout
/// was deleted.
#[track_caller]
fn check_restored(http: Value, edited: Value, expect: Value) {
    let spec = |http: Value| table::expand(json!({ "http": http }));
    let mut table = Table::new("shop/shop", spec(http));
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    table.replace_spec(spec(edited));
    table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
    table.restore("shop/reviews");
    assert_eq!(table.document()["spec"], spec(expect));
}

#[test]
fn stable_gets_another_cluster_while_weight_0_takes_a_listed_canary_away() {
    let stable = |mut stable: Value| {
        stable["ref"] = json!({"name": "reviews", "namespace": "shop", "cluster": "west"});
        stable
    };
    check_restored(
        json!([unnamed("/", json!(["reviews", "reviews-canary"]))]),
        json!([unnamed("/", json!([stable(json!({"weight": 100}))]))]),
        json!([unnamed("/", json!([stable(json!({})), "reviews-canary"]))]),
    );
}

/// The destination without a weight gets 1 of 100, so the canary's share does not show in the weights of the record.
#[test]
fn the_canary_is_listed_without_weight_beside_another_destination() {
    let http = json!([unnamed(
        "/",
        json!(["reviews 99", "reviews-canary", "legacy"])
    )]);
    let live = json!([unnamed("/", json!(["reviews 99", "legacy"]))]);
    check_restored(http.clone(), live, http);
}

/// Planning gives stable a weight, so the route without one is new.
#[test]
fn a_route_with_equal_matchers_is_inserted_before_one_that_lists_the_canary() {
    let listed = unnamed("/", json!(["reviews", "reviews-canary"]));
    let new = unnamed("/", json!(["reviews"]));
    check_restored(
        json!([listed]),
        json!([new, unnamed("/", json!(["reviews 100"]))]),
        json!([new, listed]),
    );
}

#[test]
fn routes_with_equal_matchers_are_applied_again() {
    let moved =
        json!({"ref": {"name": "reviews", "namespace": "shop", "cluster": "west"}, "weight": 60});
    for other in [json!(["reviews-canary 1"]), json!([moved, "legacy 40"])] {
        let http = |split: Value| json!([unnamed("/", other.clone()), unnamed("/", split)]);
        let listed = http(json!(["reviews", "reviews-canary"]));
        check_restored(listed.clone(), listed.clone(), listed.clone());
        let alone = http(json!(["reviews"]));
        check_restored(listed, alone.clone(), alone);
    }
}

/// At full weight stable stays with weight 0. The route that is not selected has the same matchers.
#[test]
fn a_listed_canary_gets_full_weight_and_zero_weights_stay() {
    let spec = table::expand(json!({"http": [
        unnamed("/", json!(["reviews 100"])),
        route("r", "/", json!(["reviews", "reviews-canary"])),
    ]}));
    let mut table = Table::new("shop/shop", spec);
    table.plugin["zeroWeight"] = json!("keep");
    table.plugin["routeSelector"] = json!({"name": "r"});
    table.set_weight("shop/reviews", 100, 100, vec![]).unwrap();
}

/// Without the first route, the name says something about the second, but nothing that the record has.
#[test]
fn the_first_of_two_routes_with_equal_names_and_matchers_is_removed() {
    let last = |all: Value| route("r", "/", all);
    check(
        json!([
            last(json!(["reviews"])),
            last(json!(["reviews 80", "legacy 20"]))
        ]),
        json!([last(json!([
            "reviews 60",
            "reviews-canary 20",
            "legacy 20"
        ]))]),
        0,
        json!([last(json!(["reviews 80", "legacy 20"]))]),
    );
}

#[test]
fn a_share_is_too_small_for_a_listed_canary() {
    let http = json!([unnamed(
        "/",
        json!(["reviews 1", "reviews-canary 0", "legacy 99"])
    )]);
    let spec = table::expand(json!({ "http": http }));
    let mut table = Table::new("shop/shop", spec.clone());
    for desired in [25, 0] {
        let set = table.set_weight("shop/reviews", desired, 100, vec![]);
        set.unwrap();
    }
    assert_eq!(table.document()["spec"], spec);
}

/// The record is lost. That of the other route is rebuilt, so the refused one looks like a copy of it.
#[track_caller]
fn check_refused(mut intent: Intent, http: Value) {
    let spec = table::expand(json!({ "http": http }));
    let mut table = Table::new("shop/shop", spec.clone());
    intent.applied = Some(AppliedWeights {
        stable: 75,
        canary: 25,
        ..AppliedWeights::default()
    });
    let plan = table.apply(&intent).unwrap();
    assert_eq!(plan.left().count(), 1);
    assert_eq!(table.document()["spec"], spec);
}

#[test]
fn a_route_to_the_canary_is_refused() {
    check_refused(
        of_pair("ping", "pong", 25),
        json!([
            unnamed("/a", json!(["ping 75", "pong 25"])),
            unnamed("/b", json!(["legacy 100", "pong 25"])),
        ]),
    );
    // This one is rebuilt too.
    let stable = json!({"ref": {"name": "reviews", "namespace": "shop"}, "subset": {"version": "v2"}, "weight": 75});
    check_refused(
        table::intent("shop/reviews", 25, 100, vec![]),
        json!([
            unnamed("/a", json!(["reviews 37", "reviews-canary 13", "legacy"])),
            unnamed("/b", json!([stable, "reviews-canary 25"])),
        ]),
    );
}

/// Planning wrote the whole list, of which the owner changed the first destination.
#[test]
fn stable_is_removed_or_replaced_in_the_list_of_a_default_destination() {
    let spec = |list: Value| {
        let mut spec = json!({"defaultDestination": "reviews", "http": [unnamed("/", list)]});
        if spec["http"][0]["forwardTo"]["destinations"].is_null() {
            spec["http"][0]["forwardTo"] = json!({});
        }
        table::expand(spec)
    };
    let other =
        |weight: u32| json!({"ref": {"name": "reviews", "namespace": "prod"}, "weight": weight});
    for (edited, expect) in [
        (json!(["reviews-canary 100"]), Value::Null),
        (
            json!([other(75), "reviews-canary 25"]),
            json!(["reviews", other(75)]),
        ),
    ] {
        let mut table = Table::new("shop/shop", spec(Value::Null));
        table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
        table.replace_spec(spec(edited));
        table.set_weight("shop/reviews", 0, 100, vec![]).unwrap();
        assert_eq!(table.document()["spec"], spec(expect));
    }
}

/// Each of the Services is inserted in the route that lists the other one.
#[test]
fn routes_to_both_services_of_a_pair_are_applied_again() {
    let spec = table::expand(json!({"http": [
        unnamed("/a", json!(["pong"])),
        unnamed("/b", json!(["ping 100"])),
    ]}));
    let mut table = Table::new("shop/shop", spec.clone());
    table.apply(&of_pair("ping", "pong", 25)).unwrap();
    table.replace_spec(spec.clone());
    table.restore("shop/reviews");
    assert_eq!(table.document()["spec"], spec);
}
