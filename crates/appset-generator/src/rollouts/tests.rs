//! Requests to the source `rollouts` and their answers.

use std::collections::BTreeSet;

use proptest::{collection, option, prelude::*, sample};
use serde_json::{Value, json};

use super::*;
use crate::SourceQuery;
use crate::testing::{found, query, refused};

const CONFIG: &str = "
cluster: c1
rollouts: {namespaces: [edge, shop]}
profiles:
  default: {}
  team-a: {namespaces: [shop]}
";

/// Returns a Rollout in the namespace shop with the plugin's `block`.
fn rollout(name: &str, block: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
        "metadata": {"name": name, "namespace": "shop", "generation": 7, "labels": {"app": name}},
        "spec": {"strategy": {"canary": {
            "stableService": "stable", "canaryService": "canary",
            "steps": [{"setWeight": 10}, {"pause": {}}],
            "trafficRouting": {"plugins": {"solo-io/glooplatform": block}}
        }}},
        "status": status
    })
}

fn selecting(table: &str) -> Value {
    json!({"routeTableSelector": {"name": table}})
}

/// Returns the status of a Rollout during a canary.
fn in_progress() -> Value {
    json!({
        "phase": "Paused", "observedGeneration": "7", "stableRS": "5f", "currentPodHash": "7c", "currentStepIndex": 1,
        "canary": {"weights": {"canary": {"weight": 10}, "stable": {"weight": 90}}}
    })
}

fn tables() -> Vec<Arc<RouteTableDoc>> {
    let table = |namespace: &str, name: &str, spec: Value| {
        let metadata = json!({"name": name, "namespace": namespace, "labels": {"app": "web"}});
        let table = json!({"kind": "RouteTable", "metadata": metadata, "spec": spec});
        Arc::new(RouteTableDoc::from_value(table).unwrap())
    };
    vec![
        table(
            "shop",
            "web",
            json!({"hosts": ["b.example.com", "a.example.com"], "http": []}),
        ),
        table(
            "shop",
            "more",
            json!({"hosts": ["a.example.com", "c.example.com"], "http": []}),
        ),
        table("shop", "bad", json!({"hosts": 7})),
        table("edge", "gate", json!({"http": []})),
    ]
}

/// Returns the sets for `parameters` as JSON.
fn sets(profile: &str, parameters: &Value, rollouts: &[Value]) -> Result<Vec<Value>, Failure> {
    let SourceQuery::Rollouts(query) = query(CONFIG, profile, parameters)?.source else {
        panic!("another source");
    };
    let rollouts: Vec<Arc<Document<Rollout>>> = rollouts
        .iter()
        .map(|rollout| Arc::new(Document::from_value(rollout.clone()).unwrap()))
        .collect();
    let sets = query.sets(
        &found(query.places(), &rollouts),
        &found(query.table_places(), &tables()),
        &|| Ok(()),
    )?;
    Ok(sets.iter().map(|set| json!(set)).collect())
}

#[test]
fn a_set_during_a_canary() {
    let rollouts = [rollout("demo", &selecting("web"), &in_progress())];
    let sets = sets(
        "default",
        &json!({"include": ["weights", "steps"]}),
        &rollouts,
    )
    .unwrap();
    insta::assert_snapshot!(json!(sets), @r#"[{"gloo":{"host":"b.example.com","hosts":["b.example.com","a.example.com"],"hostsCsv":"b.example.com,a.example.com","routeTables":[{"name":"web","namespace":"shop"}]},"rollout":{"aborted":false,"canaryService":"canary","cluster":"c1","configError":"","currentHash":"7c","fresh":true,"inProgress":true,"key":"c1/shop/demo","labels":{"app":"demo"},"name":"demo","namespace":"shop","phase":"Paused","slug":"c1-shop-demo","stableHash":"5f","stableService":"stable","step":{"count":"2","index":"1"},"weights":{"canary":"10","stable":"90"}}}]"#);
}

#[test]
fn weights_and_steps_are_optional() {
    let of = |status: &Value| {
        let rollouts = [rollout("demo", &selecting("web"), status)];
        sets("default", &json!({}), &rollouts).unwrap()
    };
    let mut later = in_progress();
    later["currentStepIndex"] = json!(2);
    later["canary"]["weights"]["canary"]["weight"] = json!(50);
    assert_eq!(of(&in_progress()), of(&later));
}

#[test]
fn a_set_without_status() {
    let rollouts = [rollout("demo", &selecting("web"), &Value::Null)];
    let sets = sets(
        "default",
        &json!({"include": ["weights", "steps"]}),
        &rollouts,
    )
    .unwrap();
    insta::assert_snapshot!(json!(sets), @r#"[{"gloo":{"host":"b.example.com","hosts":["b.example.com","a.example.com"],"hostsCsv":"b.example.com,a.example.com","routeTables":[{"name":"web","namespace":"shop"}]},"rollout":{"aborted":false,"canaryService":"canary","cluster":"c1","configError":"","currentHash":"","fresh":false,"inProgress":false,"key":"c1/shop/demo","labels":{"app":"demo"},"name":"demo","namespace":"shop","phase":"","slug":"c1-shop-demo","stableHash":"","stableService":"stable","step":{"count":"2","index":""},"weights":{"canary":"","stable":""}}}]"#);
}

#[test]
fn with_ping_pong_the_status_decides_which_service_is_stable() {
    let services = |stable_ping_pong: &str| {
        let mut rollout = rollout(
            "demo",
            &selecting("web"),
            &json!({"canary": {"stablePingPong": stable_ping_pong}}),
        );
        let canary = &mut rollout["spec"]["strategy"]["canary"];
        canary["stableService"] = Value::Null;
        canary["canaryService"] = Value::Null;
        canary["pingPong"] = json!({"pingService": "ping", "pongService": "pong"});
        let sets = sets("default", &json!({}), &[rollout]).unwrap();
        let own = &sets[0]["rollout"];
        format!("{} {}", own["stableService"], own["canaryService"])
    };
    assert_eq!(services("ping"), r#""ping" "pong""#);
    assert_eq!(services("pong"), r#""pong" "ping""#);
    assert_eq!(services(""), r#""pong" "ping""#);
}

/// Checks the tables that a `block` selects for `profile`, or the `configError`.
#[track_caller]
fn joined(profile: &str, block: Value, expect: Result<&str, &str>) {
    let sets = sets(
        profile,
        &json!({}),
        &[rollout("demo", &block, &Value::Null)],
    )
    .unwrap();
    let (gloo, error) = (
        sets[0]["gloo"].to_string(),
        &sets[0]["rollout"]["configError"],
    );
    match expect {
        Ok(expect) => assert_eq!((gloo.as_str(), error.as_str()), (expect, Some(""))),
        Err(expect) => {
            assert!(error.as_str().unwrap().contains(expect), "{error}");
            assert_eq!(
                gloo,
                r#"{"host":"","hosts":[],"hostsCsv":"","routeTables":[]}"#
            );
        }
    }
}

#[test]
fn tables_are_selected_as_the_router_selects_them() {
    let both = json!({"routeTableSelector": {"names": ["web", "more"]}});
    joined(
        "default",
        both,
        Ok(
            r#"{"host":"a.example.com","hosts":["a.example.com","c.example.com","b.example.com"],"hostsCsv":"a.example.com,c.example.com,b.example.com","routeTables":[{"name":"more","namespace":"shop"},{"name":"web","namespace":"shop"}]}"#,
        ),
    );
    let gate = json!({"routeTableSelector": {"name": "gate", "namespace": "edge"}});
    joined(
        "default",
        gate.clone(),
        Ok(
            r#"{"host":"","hosts":[],"hostsCsv":"","routeTables":[{"name":"gate","namespace":"edge"}]}"#,
        ),
    );
    let labelled = json!({"routeTableSelector": {"labels": {"app": "none"}}});
    joined(
        "default",
        labelled,
        Ok(r#"{"host":"","hosts":[],"hostsCsv":"","routeTables":[]}"#),
    );

    joined(
        "team-a",
        gate,
        Err("RouteTables in namespace edge are not read: have it added to rollouts.namespaces"),
    );
    joined(
        "default",
        selecting("wbe"),
        Err("RouteTable shop/wbe not found: create it"),
    );
    joined(
        "default",
        selecting("bad"),
        Err("RouteTable shop/bad: unexpected value at spec.hosts"),
    );
    joined(
        "default",
        Value::Null,
        Err("routeTableSelector is missing or empty"),
    );
    joined("default", json!([]), Err("must be an object"));
    joined(
        "default",
        json!({"routeTableSelecter": {}}),
        Err("did you mean routeTableSelector?"),
    );
}

#[test]
fn destination_namespaces_are_allowed_as_in_the_router() {
    let mut block = selecting("web");
    block["stableDestination"] = json!({"namespace": "backend"});
    joined(
        "default",
        block.clone(),
        Err("stableDestination.namespace is backend"),
    );
    let config = "rollouts: {namespaces: [shop], destinationNamespaces: [backend]}";
    let SourceQuery::Rollouts(query) = query(config, "default", &json!({})).unwrap().source else {
        panic!("another source");
    };
    let rollout = Document::from_value(rollout("demo", &block, &Value::Null)).unwrap();
    let sets = query.sets(
        &found(query.places(), &[Arc::new(rollout)]),
        &found(query.table_places(), &tables()),
        &|| Ok(()),
    );
    let sets = sets.unwrap();
    assert_eq!(json!(sets)[0]["rollout"]["configError"], "");
}

#[test]
fn rollouts_are_selected_by_plugin_namespace_and_label() {
    let mut other = rollout("other", &selecting("web"), &Value::Null);
    other["spec"]["strategy"]["canary"]["trafficRouting"]["plugins"] = json!({"acme/router": {}});
    let mut second = rollout("second", &Value::Null, &Value::Null);
    second["spec"]["strategy"]["canary"]["trafficRouting"]["plugins"] =
        json!({"solo-io/glooplatformAPI": selecting("web")});
    let mut blue = rollout("blue", &Value::Null, &Value::Null);
    blue["spec"]["strategy"] = json!({"blueGreen": {"activeService": "a"}});
    let mut istio = rollout("istio", &Value::Null, &Value::Null);
    istio["spec"]["strategy"]["canary"]["trafficRouting"] = json!({"istio": {}});
    let mut gate = rollout("gate", &selecting("gate"), &Value::Null);
    gate["metadata"]["namespace"] = json!("edge");
    let all = [
        rollout("demo", &selecting("web"), &Value::Null),
        other,
        second,
        blue,
        istio,
        gate,
    ];
    let keys = |profile: &str, parameters: Value| {
        let sets = sets(profile, &parameters, &all).unwrap();
        let keys = sets
            .iter()
            .map(|set| set["rollout"]["key"].as_str().unwrap());
        keys.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        keys("default", json!({})),
        "c1/edge/gate c1/shop/demo c1/shop/second"
    );
    assert_eq!(keys("team-a", json!({})), "c1/shop/demo c1/shop/second");
    assert_eq!(
        keys("default", json!({"namespaces": ["edge"]})),
        "c1/edge/gate"
    );
    assert_eq!(
        keys("default", json!({"selector": {"labels": {"app": "demo"}}})),
        "c1/shop/demo"
    );
    assert_eq!(
        keys("default", json!({"pluginName": "acme/router"})),
        "c1/shop/other"
    );
    assert_eq!(
        keys("default", json!({"cluster": "c1", "namespaces": ["edge"]})),
        "c1/edge/gate"
    );
    assert_eq!(keys("default", json!({"cluster": "c2"})), "");
}

#[test]
fn an_unknown_cluster_has_no_places() {
    let looked_up = |parameters: Value| match query(CONFIG, "default", &parameters).unwrap().source
    {
        SourceQuery::Rollouts(query) => {
            [query.places(), query.table_places()].map(|places| match places {
                [] => String::new(),
                [place] => place.namespaces.join(" "),
                several => panic!("{several:?}"),
            })
        }
        other => panic!("{other:?}"),
    };
    let none = String::new();
    assert_eq!(looked_up(json!({"cluster": "c2"})), [none.clone(), none]);
    // A Rollout may select tables in other namespaces.
    let one = looked_up(json!({"namespaces": ["shop"]}));
    assert_eq!(one, ["shop", "edge shop"]);
}

#[test]
fn invalid_requests_are_refused() {
    let ask = |profile, parameters: Value| sets(profile, &parameters, &[]);
    refused(
        ask("team-a", json!({"namespaces": ["edge"]})),
        "forbidden namespace edge is not allowed: have it added to rollouts.namespaces",
    );
    refused(
        ask("default", json!({"include": ["weigths"]})),
        r#"invalid_input parameters: include[0] is "weigths", it must be weights or steps"#,
    );
    refused(
        ask("default", json!({"pluginname": "x"})),
        "did you mean pluginName?",
    );
    let unreadable =
        json!({"metadata": {"name": "x", "namespace": "shop"}, "spec": {"strategy": 7}});
    refused(
        sets("default", &json!({}), &[unreadable]),
        "upstream Rollout shop/x: unexpected value at spec.strategy",
    );
}

/// Any status that a controller could have written.
fn statuses() -> impl Strategy<Value = Value> {
    let text = || {
        option::of(sample::select(vec![
            "",
            "5f",
            "7c",
            "<no value>",
            "Paused",
            "8",
        ]))
    };
    let number = || option::of(any::<i32>());
    (
        text(),
        text(),
        text(),
        text(),
        any::<Option<bool>>(),
        number(),
        number(),
    )
        .prop_map(|(phase, stable, current, observed, abort, step, weight)| {
            let weight = weight.map(|weight| json!({"canary": {"weight": weight}}));
            let fields = [
                ("phase", phase.map(Value::from)),
                ("stableRS", stable.map(Value::from)),
                ("currentPodHash", current.map(Value::from)),
                ("observedGeneration", observed.map(Value::from)),
                ("abort", abort.map(Value::from)),
                ("currentStepIndex", step.map(Value::from)),
                (
                    "canary",
                    weight.map(|weights| json!({ "weights": weights })),
                ),
            ];
            let written = fields
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?)));
            json!(written.collect::<BTreeMap<_, _>>())
        })
}

/// Plugin blocks that select a table, select none, or are invalid.
fn blocks() -> impl Strategy<Value = Value> {
    sample::select(vec![
        selecting("web"),
        selecting("bad"),
        selecting("gone"),
        Value::Null,
        json!({"routeTableSelector": 7}),
        json!("block"),
    ])
}

fn is_printable(value: &Value) -> bool {
    match value {
        Value::String(_) | Value::Bool(_) => true,
        Value::Array(items) => items.iter().all(is_printable),
        Value::Object(fields) => fields.values().all(is_printable),
        Value::Null | Value::Number(_) => false,
    }
}

proptest! {
    /// A missing set would delete an Application.
    #[test]
    fn a_rollout_has_its_own_set_in_every_state(
        rollouts in collection::btree_map("[a-z0-9.-]{1,50}", (blocks(), statuses()), 0..5)
    ) {
        let objects: Vec<_> = rollouts
            .iter()
            .map(|(name, (block, status))| rollout(name, block, status))
            .collect();
        let sets = sets("default", &json!({"include": ["weights", "steps"]}), &objects).unwrap();
        prop_assert!(sets.iter().all(is_printable));
        let texts = |key: &str| -> BTreeSet<String> {
            sets.iter().map(|set| set["rollout"][key].to_string()).collect()
        };
        prop_assert_eq!(texts("name").len(), rollouts.len());
        prop_assert_eq!(texts("key").len(), rollouts.len());
        prop_assert_eq!(texts("slug").len(), rollouts.len());
    }
}
