//! Requests to the source `gloo-routes` and their answers.

use gloo_types::ObjectKey;
use route_planner::{Intent, PluginConfig, WeightSplit};
use serde_json::json;

use super::*;
use crate::SourceQuery;
use crate::testing::{found, query, refused};

const CONFIG: &str = "
cluster: c1
glooRoutes: {namespaces: [edge, shop]}
profiles:
  default: {}
  team-a: {namespaces: [shop]}
";

fn tables() -> Vec<Arc<RouteTableDoc>> {
    let managed = "rollouts-plugin-trafficrouter-glooplatform";
    let web = json!({
        "apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "demo"}},
        "spec": {"hosts": ["a.example.com", "b.example.com"], "http": [
            {"name": "header", "labels": {
                format!("{managed}/namespace"): "shop",
                format!("{managed}/rollout"): "demo",
                format!("{managed}/managed-route"): "header"
            }, "forwardTo": {"destinations": [{"ref": {"name": "canary"}}]}},
            {"name": "demo", "labels": {"route": "demo"},
             "matchers": [{"method": "GET"}, {"uri": {"prefix": "/demo"}}],
             "forwardTo": {"destinations": [{"ref": {"name": "stable"}, "weight": 90}, {"ref": {"name": "canary"}, "weight": 10}]}},
            {"name": "away", "redirect": {"hostRedirect": "x"}},
            {"forwardTo": {"destinations": [{"ref": {"name": "stable"}}]}}
        ]}
    });
    let api = json!({
        "apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable",
        "metadata": {"name": "api", "namespace": "edge"},
        "spec": {"http": [{"name": "v1", "forwardTo": {"destinations": [{"ref": {"name": "api"}}]}}]}
    });
    [web, api]
        .map(|table| Arc::new(RouteTableDoc::from_value(table).unwrap()))
        .to_vec()
}

/// Returns the answer to `parameters`.
fn answer(profile: &str, parameters: Value) -> Result<String, Failure> {
    let query = query(CONFIG, profile, &parameters)?;
    let SourceQuery::GlooRoutes(routes) = query.source else {
        panic!("another source");
    };
    let tables = found(routes.places(), &tables());
    let answer = query.output.answer(routes.sets(&tables, &|| Ok(()))?)?;
    Ok(String::from_utf8(answer.to_body(0).unwrap()).unwrap())
}

fn web() -> Value {
    json!({"name": "web", "namespace": "shop"})
}

/// Weights, the canary's destination and managed routes are absent, because they change during a canary.
#[test]
fn a_set_for_each_route() {
    let routes = answer("default", json!({"routeTableSelector": web()})).unwrap();
    insta::assert_snapshot!(routes, @r##"{"output":{"parameters":[{"gloo":{"cluster":"c1","configError":"the route has no name: give it one","delegated":false,"host":"a.example.com","hosts":["a.example.com","b.example.com"],"hostsCsv":"a.example.com,b.example.com","hostsKnown":true,"key":"c1/shop/web/#3","route":{"labels":{},"name":"","path":"","pathKnown":true,"pathType":"","paths":[{"path":"","type":""}]},"routeTable":{"labels":{"app":"demo"},"name":"web","namespace":"shop"},"slug":"c1-shop-web-3-b291b3f492d5b99a"}},{"gloo":{"cluster":"c1","configError":"","delegated":false,"host":"a.example.com","hosts":["a.example.com","b.example.com"],"hostsCsv":"a.example.com,b.example.com","hostsKnown":true,"key":"c1/shop/web/demo","route":{"labels":{"route":"demo"},"name":"demo","path":"/demo","pathKnown":true,"pathType":"prefix","paths":[{"path":"","type":""},{"path":"/demo","type":"prefix"}]},"routeTable":{"labels":{"app":"demo"},"name":"web","namespace":"shop"},"slug":"c1-shop-web-demo"}}]}}"##);
}

#[test]
fn a_set_for_each_table() {
    let both = json!({"names": ["web", "api"]});
    let parameters =
        json!({"routeTableSelector": both, "granularity": "table", "outputKey": "table"});
    insta::assert_snapshot!(answer("default", parameters).unwrap(), @r#"{"output":{"parameters":[{"table":{"cluster":"c1","configError":"it has no hosts, and no readable table delegates to it","delegated":true,"host":"","hosts":[],"hostsCsv":"","hostsKnown":false,"key":"c1/edge/api","routeTable":{"labels":{},"name":"api","namespace":"edge"},"slug":"c1-edge-api"}},{"table":{"cluster":"c1","configError":"","delegated":false,"host":"a.example.com","hosts":["a.example.com","b.example.com"],"hostsCsv":"a.example.com,b.example.com","hostsKnown":true,"key":"c1/shop/web","routeTable":{"labels":{"app":"demo"},"name":"web","namespace":"shop"},"slug":"c1-shop-web"}}]}}"#);
}

#[test]
fn tables_and_routes_are_selected_by_name_and_label() {
    let keys = |parameters: Value| {
        let answer: Value = serde_json::from_str(&answer("default", parameters).unwrap()).unwrap();
        let sets = answer["output"]["parameters"].as_array().unwrap().clone();
        let keys: Vec<_> = sets
            .iter()
            .map(|set| set["gloo"]["key"].to_string())
            .collect();
        keys.join(" ")
    };
    let all = json!({"names": ["web", "api"]});
    assert_eq!(
        keys(json!({"routeTableSelector": all})),
        r##""c1/edge/api/v1" "c1/shop/web/#3" "c1/shop/web/demo""##
    );
    let by_label =
        json!({"routeTableSelector": all, "routeSelector": {"labels": {"route": "demo"}}});
    assert_eq!(keys(by_label), r#""c1/shop/web/demo""#);
    // A route without the label is not selected, as in the router. Gloo's own plugin for Argo Rollouts selects it.
    let by_other_label =
        json!({"routeTableSelector": all, "routeSelector": {"name": "v1", "labels": {"x": "y"}}});
    assert_eq!(keys(by_other_label), r#""c1/edge/api/v1""#);
    let by_name =
        json!({"routeTableSelector": all, "routeSelector": {"name": "v1"}, "cluster": "c1"});
    assert_eq!(keys(by_name), r#""c1/edge/api/v1""#);
    let by_table_label = json!({"routeTableSelector": {"labels": {"app": "demo"}}});
    assert_eq!(
        keys(by_table_label),
        r##""c1/shop/web/#3" "c1/shop/web/demo""##
    );
}

#[test]
fn invalid_requests_are_refused() {
    let refused = |profile, parameters: Value, expect: &str| {
        refused(answer(profile, parameters), expect);
    };
    refused(
        "default",
        json!({}),
        "routeTableSelector is empty: set name, names, labels or matchExpressions",
    );
    let other = json!({"routeTableSelector": {"name": "web", "namespace": "kube-system"}});
    refused("default", other, "namespace kube-system is not allowed");
    let edge = json!({"routeTableSelector": {"name": "api", "namespace": "edge"}});
    refused("team-a", edge, "namespace edge is not allowed");
    let both = json!({"routeTableSelector": {"names": ["web", "wbe"]}, "onEmpty": "allow"});
    refused(
        "default",
        both,
        "missing_table RouteTable edge/wbe or shop/wbe not found: create it or correct routeTableSelector",
    );
    let typo = json!({"routeTableSelector": {"labels": {"app": "dmeo"}}});
    refused("default", typo, "guard_empty");
    let elsewhere = json!({"routeTableSelector": web(), "cluster": "c2"});
    refused("default", elsewhere.clone(), "guard_empty");
    let mut allowed = elsewhere;
    allowed["onEmpty"] = json!("allow");
    assert_eq!(
        answer("default", allowed).unwrap(),
        r#"{"output":{"parameters":[]}}"#
    );
}

/// Returns a table whose route demo sends all requests to stable, after the Rollout shop/demo has set the weight `canary`.
fn split(canary: i32) -> Arc<RouteTableDoc> {
    let table = json!({
        "kind": "RouteTable", "metadata": {"name": "split", "namespace": "shop"},
        "spec": {
            "defaultDestination": {"ref": {"name": "other"}, "port": {"number": 8080}},
            "http": [
                {"name": "demo", "forwardTo": {"destinations": [{"ref": {"name": "stable"}, "port": {"name": "http"}}]}},
                {"name": "rest", "forwardTo": {}},
                {"name": "far", "forwardTo": {"destinations": [
                    {"ref": {"name": "stable", "namespace": "edge", "cluster": "c2"}, "weight": 80},
                    {"ref": {"name": "vd"}, "kind": "VIRTUAL_DESTINATION"},
                    {"awsLambda": {"function": "f"}, "weight": 5}
                ]}}
            ]
        }
    });
    let rollout = ObjectKey::new("shop", "demo");
    let block = json!({"routeTableSelector": {"name": "split"}}).to_string();
    let config = PluginConfig::from_json(block.as_bytes(), &rollout, &[]).unwrap();
    let split = WeightSplit::percent(canary);
    let intent = Intent::set_weight(rollout, "stable", "canary", split);
    let mut table = RouteTableDoc::from_value(table).unwrap();
    let patch = route_planner::plan(&config, &intent, &table)
        .unwrap()
        .to_json_patch();
    let mut after = table.raw().clone();
    json_patch::patch(&mut after, &patch).unwrap();
    table = RouteTableDoc::from_value(after).unwrap();
    Arc::new(table)
}

/// Returns the routes of that table in the sets for the parameters `more`.
fn split_routes(canary: i32, more: Value) -> Vec<Value> {
    let mut parameters = json!({"routeTableSelector": {"name": "split", "namespace": "shop"}});
    parameters
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap());
    let SourceQuery::GlooRoutes(routes) = query(CONFIG, "default", &parameters).unwrap().source
    else {
        panic!("another source");
    };
    let sets = routes
        .sets(&found(routes.places(), &[split(canary)]), &|| Ok(()))
        .unwrap();
    sets.iter()
        .map(|set| json!(set)["gloo"]["route"].clone())
        .collect()
}

#[test]
fn destinations_and_weights_are_optional() {
    assert_eq!(split_routes(0, json!({})), split_routes(25, json!({})));
    let destinations = split_routes(
        25,
        json!({"include": ["destinations"], "routeSelector": {"name": "demo"}}),
    );
    insta::assert_snapshot!(json!(destinations), @r#"[{"destinations":[{"cluster":"","kind":"SERVICE","name":"stable","namespace":"shop","port":"http"},{"cluster":"","kind":"SERVICE","name":"canary","namespace":"shop","port":"http"}],"labels":{},"name":"demo","path":"","pathKnown":false,"pathType":"","paths":[{"path":"","type":""}]}]"#);
    let weights = split_routes(25, json!({"include": ["weights"]}));
    insta::assert_snapshot!(json!(weights), @r#"[{"destinations":[{"cluster":"","kind":"SERVICE","name":"stable","namespace":"shop","port":"http","weight":"75"},{"cluster":"","kind":"SERVICE","name":"canary","namespace":"shop","port":"http","weight":"25"}],"labels":{},"name":"demo","path":"","pathKnown":false,"pathType":"","paths":[{"path":"","type":""}]},{"destinations":[{"cluster":"c2","kind":"SERVICE","name":"stable","namespace":"edge","port":"","weight":"80"},{"cluster":"","kind":"VIRTUAL_DESTINATION","name":"vd","namespace":"shop","port":"","weight":"15"}],"labels":{},"name":"far","path":"","pathKnown":false,"pathType":"","paths":[{"path":"","type":""}]},{"destinations":[{"cluster":"","kind":"SERVICE","name":"other","namespace":"shop","port":"8080","weight":"100"}],"labels":{},"name":"rest","path":"","pathKnown":false,"pathType":"","paths":[{"path":"","type":""}]}]"#);
}

/// Checks the names of the selected routes, which must not depend on the weight of the canary.
#[track_caller]
fn check_routes(more: Value, expect: &str) {
    for canary in [0, 25, 100] {
        let routes = split_routes(canary, more.clone());
        let names = routes.iter().map(|route| route["name"].as_str().unwrap());
        assert_eq!(
            names.collect::<Vec<_>>().join(" "),
            expect,
            "{more} {canary}"
        );
    }
}

#[test]
fn routes_are_selected_by_destinations_of_their_owner() {
    check_routes(json!({"stableService": {"name": "stable"}}), "demo");
    check_routes(
        json!({"stableService": {"name": "stable", "namespace": "edge"}}),
        "far",
    );
    check_routes(json!({"stableService": {"name": "canary"}}), "");
    check_routes(json!({"stableService": {"name": "other"}}), "rest");
    check_routes(json!({"stableService": {"name": "vd"}}), "");
    check_routes(json!({"destinationKinds": ["VIRTUAL_DESTINATION"]}), "far");
    check_routes(
        json!({"destinationKinds": ["SERVICE", "EXTERNAL_SERVICE"]}),
        "demo far rest",
    );
    check_routes(json!({"destinationKinds": ["EXTERNAL_SERVICE"]}), "");
}

#[test]
fn invalid_parameters_about_destinations_are_refused() {
    let refused = |more: Value, expect: &str| {
        let mut parameters = json!({"routeTableSelector": web()});
        parameters
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap());
        refused(answer("default", parameters), expect);
    };
    refused(
        json!({"include": ["weight"]}),
        r#"include[0] is "weight", it must be destinations or weights"#,
    );
    refused(
        json!({"include": ["weights"], "granularity": "table"}),
        "include contradicts granularity",
    );
    refused(
        json!({"destinationKinds": ["Service"]}),
        "destinationKinds[0]",
    );
    refused(
        json!({"stableService": {"namespace": "x"}}),
        "stableService is empty: set name in it",
    );
}

/// Returns key and `configError` of each set of a table with these routes.
fn errors(http: &Value) -> Vec<(String, String)> {
    let table = json!({
        "kind": "RouteTable", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"hosts": ["a.io"], "http": http},
    });
    let table = Arc::new(RouteTableDoc::from_value(table).unwrap());
    let query = query(CONFIG, "default", &json!({"routeTableSelector": web()})).unwrap();
    let SourceQuery::GlooRoutes(routes) = query.source else {
        panic!("another source");
    };
    let sets = routes
        .sets(&found(routes.places(), &[table]), &|| Ok(()))
        .unwrap();
    let text = |set: &ParameterSet, key| match set.at(&format!("gloo.{key}")) {
        Some(Field::Text(text)) => text.to_string(),
        other => panic!("{other:?}"),
    };
    sets.iter()
        .map(|set| (text(set, "key"), text(set, "configError")))
        .collect()
}

/// An ambiguous route must not make the call fail.
#[test]
fn routes_without_a_unique_name_have_a_config_error() {
    let shown = errors(&json!([
        {"name": "a", "forwardTo": {}},
        {"name": "b", "forwardTo": {}},
        {"forwardTo": {}},
        {"name": "b", "forwardTo": {}},
    ]));
    let twice = "two routes of the table have this name: give them different ones";
    let expect = [
        ("c1/shop/web/#3", "the route has no name: give it one"),
        ("c1/shop/web/a", ""),
        ("c1/shop/web/b#2", twice),
        ("c1/shop/web/b#4", twice),
    ];
    assert_eq!(
        shown,
        expect.map(|(key, error)| (key.to_owned(), error.to_owned()))
    );
}

/// The parent may be in another namespace, if the profile may read it.
#[test]
fn a_delegated_table_has_the_hosts_of_its_parent() {
    let parent = json!({
        "kind": "RouteTable", "metadata": {"name": "gate", "namespace": "edge"},
        "spec": {"hosts": ["a.io"], "http": [{
            "matchers": [{"uri": {"prefix": "/shop"}}],
            "delegate": {"routeTables": [{"namespace": "shop"}]},
        }]},
    });
    let child = json!({
        "kind": "RouteTable", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"http": [{"name": "r", "matchers": [{"uri": {"exact": "/cart"}}], "forwardTo": {}}]},
    });
    let tables = [parent, child].map(|table| Arc::new(RouteTableDoc::from_value(table).unwrap()));
    let shown = |profile| {
        let query = query(CONFIG, profile, &json!({"routeTableSelector": web()})).unwrap();
        let SourceQuery::GlooRoutes(routes) = query.source else {
            panic!("another source");
        };
        let readable = found(routes.places(), &tables);
        let sets = routes.sets(&readable, &|| Ok(())).unwrap();
        let set = json!(sets[0])["gloo"].clone();
        format!(
            "{} {} {} {}",
            set["hosts"], set["hostsKnown"], set["route"]["path"], set["route"]["pathType"]
        )
    };
    assert_eq!(shown("default"), r#"["a.io"] true "/shop/cart" "exact""#);
    assert_eq!(shown("team-a"), r#"[] false "/cart" "exact""#);
}

#[test]
fn a_star_means_all_namespaces() {
    let config = "glooRoutes: {namespaces: ['*']}";
    let query = query(
        config,
        "default",
        &json!({"routeTableSelector": {"names": ["web", "api"]}}),
    );
    let SourceQuery::GlooRoutes(routes) = query.unwrap().source else {
        panic!("another source");
    };
    let places = routes.places();
    assert!(places[0].is_all());
    assert_eq!(
        routes
            .sets(&found(places, &tables()), &|| Ok(()))
            .unwrap()
            .len(),
        3
    );
    assert!(
        routes
            .sets(&ByCluster::new(), &|| Ok(()))
            .unwrap_err()
            .to_string()
            .contains("RouteTable */api not found")
    );
}

/// Both clusters have the same tables, except `api`, which only east has.
#[test]
fn one_answer_has_the_sets_of_several_clusters() {
    let config = "
clusters: {east: {}, west: {}}
glooRoutes: {namespaces: [edge, shop]}";
    let ask = |parameters: Value| {
        let SourceQuery::GlooRoutes(routes) = query(config, "default", &parameters)?.source else {
            panic!("another source");
        };
        let mut tables = found(routes.places(), &tables());
        if let Some(west) = tables.get_mut("west") {
            west.retain(|table| table.key().name != "api");
        }
        let sets = routes.sets(&tables, &|| Ok(()))?;
        let keys = sets.iter().map(|set| {
            let gloo = &json!(set)["gloo"];
            let (key, cluster) = (&gloo["key"], gloo["cluster"].as_str().unwrap());
            let key = key.as_str().unwrap();
            assert!(key.starts_with(cluster), "{key} {cluster}");
            key.to_owned()
        });
        Ok::<_, Failure>(keys.collect::<Vec<_>>().join(" "))
    };
    let demo = |more: Value| {
        let mut parameters = json!({"routeTableSelector": {"labels": {"app": "demo"}}, "routeSelector": {"name": "demo"}});
        parameters
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap());
        parameters
    };
    let both = "east/shop/web/demo west/shop/web/demo";
    assert_eq!(ask(demo(json!({}))).unwrap(), both);
    assert_eq!(
        ask(demo(json!({"cluster": "west"}))).unwrap(),
        "west/shop/web/demo"
    );
    assert_eq!(ask(demo(json!({"cluster": "south"}))).unwrap(), "");
    let expressions = json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]});
    assert_eq!(
        ask(demo(json!({"routeTableSelector": expressions}))).unwrap(),
        both
    );
    let api = json!({"routeTableSelector": {"name": "api"}});
    refused(
        ask(api),
        "missing_table cluster west: RouteTable edge/api or shop/api not found",
    );
}
