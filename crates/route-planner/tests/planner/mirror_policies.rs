//! The MirrorPolicies of mirror routes: which are created, patched and deleted, and which foreign policies are in conflict.

use gloo_types::{MirrorPolicyDoc, MirrorPolicySpec, violations};
use insta::assert_snapshot;
use route_planner::{IntentKind, Plan, PlanError, PolicyChange, belongs_to, plan};
use serde_json::{Value, json};

use crate::table::{self, Table, mirror_route};

fn table() -> Table {
    let destinations = json!(["reviews", "legacy 20"]);
    let spec = json!({"http": [
        {"name": "r", "labels": {"team": "a"}, "forwardTo": {"destinations": destinations}},
        {"name": "s", "matchers": [{"uri": {"prefix": "/s"}}], "forwardTo": {"destinations": ["reviews"]}},
    ]});
    Table::new("mesh/shop", table::expand(spec))
}

fn get(percentage: Option<i32>) -> Value {
    json!({"name": "mir", "match": [{"method": {"exact": "GET"}}], "percentage": percentage})
}

fn planned(table: &Table, kind: IntentKind) -> Plan {
    try_planned(table, kind).unwrap()
}

fn try_planned(table: &Table, kind: IntentKind) -> Result<Plan, PlanError> {
    let mut intent = table::intent("shop/reviews", 0, 100, vec![]);
    intent.kind = kind;
    intent.managed.order = vec!["mir".to_owned()];
    plan(&table.config("shop/reviews"), &intent, &table.doc())
}

fn mirrored(table: &Table, step: &Value) -> Plan {
    planned(table, IntentKind::SetManagedRoute(mirror_route(step)))
}

/// The policies that a plan creates, as an API server would return them.
fn created(plan: &Plan) -> Vec<MirrorPolicyDoc> {
    let changes = plan.policy_changes(&[]).unwrap().into_iter();
    changes
        .map(|change| match change {
            PolicyChange::Create(mut policy) => {
                policy["metadata"]["resourceVersion"] = json!("7");
                MirrorPolicyDoc::from_value(policy).unwrap()
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

fn foreign(spec: Value) -> MirrorPolicyDoc {
    let metadata = json!({"name": "theirs", "namespace": "team"});
    MirrorPolicyDoc::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

#[test]
fn b18_one_policy_selects_the_mirror_routes_of_a_table_and_nothing_else() {
    let plan = mirrored(&table(), &get(Some(30)));
    assert!(plan.needs_policies());
    let changes = plan.policy_changes(&[]).unwrap();
    let [PolicyChange::Create(policy)] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    assert_snapshot!(policy, @r#"{"apiVersion":"trafficcontrol.policy.gloo.solo.io/v2","kind":"MirrorPolicy","metadata":{"name":"rollouts-mirror-79499e1fb7d56052","namespace":"mesh","labels":{"rollouts-plugin-trafficrouter-glooplatform/namespace":"shop","rollouts-plugin-trafficrouter-glooplatform/rollout":"reviews","rollouts-plugin-trafficrouter-glooplatform/managed-route":"mir","rollouts-plugin-trafficrouter-glooplatform/route-table":"shop"}},"spec":{"applyToRoutes":[{"route":{"labels":{"rollouts-plugin-trafficrouter-glooplatform/mirror":"79499e1fb7d56052"}}}],"config":{"destination":{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80}},"percentage":30}}}"#);
    let label = policy
        .pointer("/spec/applyToRoutes/0/route/labels")
        .unwrap();
    let mut table = table();
    table.edit(&plan.to_json_patch());
    let spec = table.doc().spec().unwrap();
    assert_eq!(violations(&spec), []);
    let selected = spec.http.iter().filter(|route| {
        let labels = label.as_object().unwrap().iter();
        labels
            .clone()
            .all(|(key, value)| route.labels.get(key).map(String::as_str) == value.as_str())
    });
    let selected: Vec<&str> = selected.map(|route| route.name.as_str()).collect();
    assert_eq!(selected, ["mir", "mir-2"]);
}

#[test]
fn an_equivalent_policy_is_not_changed() {
    let plan = mirrored(&table(), &get(None));
    let mut live = created(&plan);
    assert_eq!(plan.policy_changes(&live).unwrap(), []);
    let mut raw = live.remove(0).into_raw();
    raw["spec"]["config"]["percentage"] = json!(100.0);
    raw["spec"]["config"]["destination"]["kind"] = json!("SERVICE");
    raw["status"] = json!({"numSelectedRoutes": 2});
    let live = [MirrorPolicyDoc::from_value(raw).unwrap()];
    assert_eq!(plan.policy_changes(&live).unwrap(), []);
}

#[test]
fn a_percentage_is_between_1_and_100_and_defaults_to_100() {
    let percentage = |step: &Value| {
        let policy = created(&mirrored(&table(), step)).remove(0);
        policy.spec().unwrap().config.unwrap().percentage
    };
    assert_eq!(percentage(&get(None)), Some(100.0));
    assert_eq!(percentage(&get(Some(7))), Some(7.0));
    assert_eq!(percentage(&get(Some(100))), Some(100.0));
    for wrong in [-1, 0, 101, 700] {
        let step = IntentKind::SetManagedRoute(mirror_route(&get(Some(wrong))));
        let error = try_planned(&table(), step).unwrap_err().to_string();
        let expect = format!("percentage is {wrong}: use 1 to 100");
        assert!(error.contains(&expect), "{error}");
    }
}

#[test]
fn another_percentage_is_patched() {
    let live = created(&mirrored(&table(), &get(Some(30))));
    let changes = mirrored(&table(), &get(Some(40))).policy_changes(&live);
    let changes = changes.unwrap();
    let [PolicyChange::Patch(key, patch)] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    assert_eq!(key, live[0].key());
    let mut object = live[0].raw().clone();
    json_patch::patch(&mut object, patch).unwrap();
    let spec: MirrorPolicySpec = MirrorPolicyDoc::from_value(object).unwrap().spec().unwrap();
    assert_eq!(spec.config.unwrap().percentage, Some(40.0));
}

#[test]
fn policies_of_removed_mirror_routes_are_deleted() {
    let mut table = table();
    let set = mirrored(&table, &get(None));
    let live = created(&set);
    table.edit(&set.to_json_patch());
    for kind in [
        IntentKind::SetManagedRoute(mirror_route(&json!({"name": "mir"}))),
        IntentKind::RemoveManagedRoutes,
        table::weight(0, 100, vec![]),
    ] {
        let plan = planned(&table, kind);
        assert!(plan.needs_policies());
        let deleted = vec![PolicyChange::Delete(live[0].clone())];
        assert_eq!(plan.policy_changes(&live).unwrap(), deleted);
    }
    let other = planned(
        &table,
        IntentKind::SetManagedRoute(mirror_route(&json!({"name": "x"}))),
    );
    assert!(!other.needs_policies());
    assert_eq!(other.policy_changes(&live).unwrap(), []);
    assert!(belongs_to(&live[0], &table::key("shop/reviews")));
    assert!(!belongs_to(&live[0], &table::key("shop/ratings")));
}

#[test]
fn without_mirror_routes_policies_are_not_read() {
    let table = table();
    assert!(!planned(&table, IntentKind::RemoveManagedRoutes).needs_policies());
    assert!(!planned(&table, table::weight(25, 100, vec![])).needs_policies());
}

/// Checks what a foreign policy with these selectors selects of the mirror route; `None` if the policy does not prevent it.
#[track_caller]
fn check_foreign(selectors: Value, expect: Option<&str>) {
    check_foreign_of(&table(), selectors, expect);
}

#[track_caller]
fn check_foreign_of(table: &Table, selectors: Value, expect: Option<&str>) {
    let plan = mirrored(table, &get(None));
    let changes = plan.policy_changes(&[foreign(json!({"applyToRoutes": selectors}))]);
    let expect = match expect {
        None => Ok(1),
        Some(selects) => Err(format!(
            "RouteTable mesh/shop: route mir would be mirrored by MirrorPolicy team/theirs too, which selects {selects}: \
             change the selector of that policy, or remove the step (Rollout shop/reviews)"
        )),
    };
    let changes = changes.map(|changes| changes.len());
    assert_eq!(changes.map_err(|error| error.to_string()), expect);
}

#[test]
fn a_foreign_policy_that_selects_routes_by_label() {
    check_foreign(json!([]), Some("every route"));
    check_foreign(json!([{}]), Some("every route"));
    let labels = |team: &str| json!({"route": {"labels": {"team": team}}});
    check_foreign(json!([labels("b"), labels("a")]), Some("its labels"));
    check_foreign(
        json!([{"route": {"namespace": "mesh"}}]),
        Some("its labels"),
    );
    check_foreign(json!([labels("b")]), None);
    check_foreign(
        json!([{"route": {"labels": {"team": "a"}, "namespace": "other"}}]),
        None,
    );
    let of_workspace = json!([{"route": {"workspace": "prod"}}]);
    // The table's workspace is not known without a status.
    check_foreign(of_workspace.clone(), Some("its labels"));
    for (workspace, expect) in [("prod", Some("its labels")), ("dev", None)] {
        let mut table = table();
        table.set_status(json!({"ownedByWorkspace": workspace}));
        check_foreign_of(&table, of_workspace.clone(), expect);
        check_foreign_of(&table, json!([labels("a")]), Some("its labels"));
    }
}

#[test]
fn a_foreign_policy_that_selects_routes_by_destination() {
    let check = |selector: Value, kind: &str, expect| {
        let wanted = json!({"selector": selector, "kind": kind});
        check_foreign(json!([{"withDestinations": wanted}]), expect);
    };
    let legacy = Some("its destination Service shop/legacy");
    let stable = Some("its destination Service shop/reviews");
    check(json!({"name": "legacy"}), "SERVICE", legacy);
    check(
        json!({"name": "legacy", "namespace": "shop"}),
        "SERVICE",
        legacy,
    );
    check(
        json!({"name": "legacy", "namespace": "prod"}),
        "SERVICE",
        None,
    );
    check(json!({"name": "legacy"}), "VIRTUAL_DESTINATION", None);
    check(json!({"name": "ratings"}), "SERVICE", None);
    // Labels and the cluster of the Service are not known.
    check(json!({"labels": {"app": "legacy"}}), "SERVICE", stable);
    check(
        json!({"labels": {"app": "x"}, "namespace": "prod"}),
        "SERVICE",
        None,
    );
    check(
        json!({"name": "reviews", "cluster": "east"}),
        "SERVICE",
        stable,
    );
    check_foreign(json!([{"withDestinations": {}}]), stable);
}
