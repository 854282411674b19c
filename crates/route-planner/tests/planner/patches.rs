//! The JSON Patch that is sent to the API server.

use insta::assert_snapshot;
use route_planner::plan;
use serde_json::json;

use crate::table::{self, Table};

/// The operations of a plan, one per line.
fn patch(table: &Table, weight: i32) -> String {
    let intent = table::intent("shop/reviews", weight, 100, vec![]);
    let plan = plan(&table.config("shop/reviews"), &intent, &table.doc()).unwrap();
    let operations = plan.to_json_patch().0;
    operations
        .iter()
        .map(|operation| serde_json::to_string(operation).unwrap() + "\n")
        .collect()
}

fn table() -> Table {
    Table::new(
        "shop/shop",
        table::expand(json!({"http": [
            {"name": "x", "forwardTo": {"destinations": ["ratings"]}},
            {"name": "r", "forwardTo": {"pathRewrite": "/", "destinations": ["reviews 80", "legacy 20"]}},
        ]})),
    )
}

#[test]
fn a_plan_without_edits_is_an_empty_patch() {
    assert_eq!(patch(&table(), 0), "");
}

#[test]
fn a_split_is_guarded_by_version_and_by_tests() {
    let mut table = table();
    assert_snapshot!(patch(&table, 25), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"1"}
{"op":"test","path":"/spec/http/1/forwardTo","value":{"pathRewrite":"/","destinations":[{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80},"weight":80},{"ref":{"name":"legacy","namespace":"shop"},"port":{"number":80},"weight":20}]}}
{"op":"replace","path":"/spec/http/1/forwardTo/destinations/0/weight","value":60}
{"op":"add","path":"/spec/http/1/forwardTo/destinations/1","value":{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80},"weight":20}}
{"op":"add","path":"/metadata/annotations","value":{"rollouts-plugin-trafficrouter-glooplatform/changes":"{\"version\":2,\"rollouts\":{\"shop/reviews\":{\"splits\":[{\"share\":80,\"originals\":[[0,{\"ref\":{\"name\":\"reviews\",\"namespace\":\"shop\"},\"port\":{\"number\":80},\"weight\":80}]],\"foreign\":[\"SERVICE shop/legacy port 80\"],\"added\":[{\"namespace\":\"shop\",\"name\":\"reviews-canary\"}],\"stable\":\"listed\"}],\"routes\":[[\"r\",1,\"cbf29ce484222325\",0]]}}}"}}
"#);
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    assert_snapshot!(patch(&table, 50), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"2"}
{"op":"test","path":"/spec/http/1/forwardTo","value":{"pathRewrite":"/","destinations":[{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80},"weight":60},{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80},"weight":20},{"ref":{"name":"legacy","namespace":"shop"},"port":{"number":80},"weight":20}]}}
{"op":"replace","path":"/spec/http/1/forwardTo/destinations/0/weight","value":40}
{"op":"replace","path":"/spec/http/1/forwardTo/destinations/1/weight","value":40}
"#);
    assert_snapshot!(patch(&table, 100), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"2"}
{"op":"test","path":"/spec/http/1/forwardTo","value":{"pathRewrite":"/","destinations":[{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80},"weight":60},{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80},"weight":20},{"ref":{"name":"legacy","namespace":"shop"},"port":{"number":80},"weight":20}]}}
{"op":"replace","path":"/spec/http/1/forwardTo/destinations/1/weight","value":80}
{"op":"remove","path":"/spec/http/1/forwardTo/destinations/0"}
{"op":"test","path":"/metadata/annotations/rollouts-plugin-trafficrouter-glooplatform~1changes","value":"{\"version\":2,\"rollouts\":{\"shop/reviews\":{\"splits\":[{\"share\":80,\"originals\":[[0,{\"ref\":{\"name\":\"reviews\",\"namespace\":\"shop\"},\"port\":{\"number\":80},\"weight\":80}]],\"foreign\":[\"SERVICE shop/legacy port 80\"],\"added\":[{\"namespace\":\"shop\",\"name\":\"reviews-canary\"}],\"stable\":\"listed\"}],\"routes\":[[\"r\",1,\"cbf29ce484222325\",0]]}}}"}
{"op":"add","path":"/metadata/annotations/rollouts-plugin-trafficrouter-glooplatform~1changes","value":"{\"version\":2,\"rollouts\":{\"shop/reviews\":{\"splits\":[{\"share\":80,\"originals\":[[0,{\"ref\":{\"name\":\"reviews\",\"namespace\":\"shop\"},\"port\":{\"number\":80},\"weight\":80}]],\"foreign\":[\"SERVICE shop/legacy port 80\"],\"added\":[{\"namespace\":\"shop\",\"name\":\"reviews-canary\"}]}],\"routes\":[[\"r\",1,\"cbf29ce484222325\",0]]}}}"}
"#);
    table.set_weight("shop/reviews", 100, 100, vec![]).unwrap();
    assert_snapshot!(patch(&table, 0), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"3"}
{"op":"test","path":"/spec/http/1/forwardTo","value":{"pathRewrite":"/","destinations":[{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80},"weight":80},{"ref":{"name":"legacy","namespace":"shop"},"port":{"number":80},"weight":20}]}}
{"op":"remove","path":"/spec/http/1/forwardTo/destinations/0"}
{"op":"add","path":"/spec/http/1/forwardTo/destinations/0","value":{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80},"weight":80}}
{"op":"test","path":"/metadata/annotations/rollouts-plugin-trafficrouter-glooplatform~1changes","value":"{\"version\":2,\"rollouts\":{\"shop/reviews\":{\"splits\":[{\"share\":80,\"originals\":[[0,{\"ref\":{\"name\":\"reviews\",\"namespace\":\"shop\"},\"port\":{\"number\":80},\"weight\":80}]],\"foreign\":[\"SERVICE shop/legacy port 80\"],\"added\":[{\"namespace\":\"shop\",\"name\":\"reviews-canary\"}]}],\"routes\":[[\"r\",1,\"cbf29ce484222325\",0]]}}}"}
{"op":"remove","path":"/metadata/annotations"}
"#);
}

#[test]
fn a_default_destination_is_inserted_and_removed_again() {
    let spec =
        json!({"defaultDestination": "reviews", "http": [{"forwardTo": {"pathRewrite": "/"}}]});
    let mut table = Table::new("shop/shop", table::expand(spec));
    table.annotate_other("team", "a");
    assert_snapshot!(patch(&table, 25), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"1"}
{"op":"test","path":"/spec/http/0/forwardTo","value":{"pathRewrite":"/"}}
{"op":"add","path":"/spec/http/0/forwardTo/destinations","value":[{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80},"weight":75},{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80},"weight":25}]}
{"op":"add","path":"/metadata/annotations/rollouts-plugin-trafficrouter-glooplatform~1changes","value":"{\"version\":2,\"rollouts\":{\"shop/reviews\":{\"splits\":[{\"share\":100,\"added\":[{\"namespace\":\"shop\",\"name\":\"reviews\"},{\"namespace\":\"shop\",\"name\":\"reviews-canary\"}],\"list\":\"absent\"}],\"routes\":[[\"\",0,\"cbf29ce484222325\",0]]}}}"}
"#);
    table.set_weight("shop/reviews", 25, 100, vec![]).unwrap();
    assert_snapshot!(patch(&table, 0), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"2"}
{"op":"test","path":"/spec/http/0/forwardTo","value":{"pathRewrite":"/","destinations":[{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80},"weight":75},{"ref":{"name":"reviews-canary","namespace":"shop"},"port":{"number":80},"weight":25}]}}
{"op":"remove","path":"/spec/http/0/forwardTo/destinations"}
{"op":"test","path":"/metadata/annotations/rollouts-plugin-trafficrouter-glooplatform~1changes","value":"{\"version\":2,\"rollouts\":{\"shop/reviews\":{\"splits\":[{\"share\":100,\"added\":[{\"namespace\":\"shop\",\"name\":\"reviews\"},{\"namespace\":\"shop\",\"name\":\"reviews-canary\"}],\"list\":\"absent\"}],\"routes\":[[\"\",0,\"cbf29ce484222325\",0]]}}}"}
{"op":"remove","path":"/metadata/annotations/rollouts-plugin-trafficrouter-glooplatform~1changes"}
"#);
}

#[test]
fn a_patch_applies_to_no_other_version() {
    let table = table();
    let intent = table::intent("shop/reviews", 25, 100, vec![]);
    let plan = plan(&table.config("shop/reviews"), &intent, &table.doc()).unwrap();
    let mut changed = table.document().clone();
    changed["metadata"]["resourceVersion"] = json!("2");
    json_patch::patch(&mut changed, &plan.to_json_patch()).unwrap_err();
    let mut changed = table.document().clone();
    changed["spec"]["http"][1]["forwardTo"]["pathRewrite"] = json!("/other");
    json_patch::patch(&mut changed, &plan.to_json_patch()).unwrap_err();
}

#[test]
fn edits_have_readable_messages() {
    let mut table = table();
    let sentence = |table: &mut Table, weight| {
        let plan = table
            .set_weight("shop/reviews", weight, 100, vec![])
            .unwrap();
        let edits: Vec<String> = plan.edits.iter().map(ToString::to_string).collect();
        let skipped: Vec<String> = plan.skipped.iter().map(ToString::to_string).collect();
        [edits, skipped].concat().join("\n")
    };
    assert_snapshot!(sentence(&mut table, 25), @r"
route r: Service shop/reviews 80 to 60, Service shop/reviews-canary inserted at 20
annotation written
route x forwards to Service shop/ratings
");
    assert_snapshot!(sentence(&mut table, 100), @r"
route r: Service shop/reviews-canary 20 to 80, Service shop/reviews removed
annotation written
route x forwards to Service shop/ratings
");
    assert_snapshot!(sentence(&mut table, 0), @r"
route r: Service shop/reviews-canary removed, Service shop/reviews inserted at 80
annotation removed
route x forwards to Service shop/ratings
");
}

#[test]
fn values_that_an_api_server_encodes_differently_are_not_tested() {
    let forward = json!({
        "pathRewrite": "/a?b&c",
        "regexRewrite": {"substitution": "/x", "pattern": {"regex": "(?P<x>.)"}},
        "futureList": [null],
        "futureFloat": 0.5,
        "destinations": ["reviews"],
    });
    let table = Table::new(
        "shop/shop",
        table::expand(json!({"http": [{"name": "r", "forwardTo": forward}]})),
    );
    let patch = patch(&table, 25);
    let tests: Vec<&str> = patch
        .lines()
        .filter(|line| line.contains(r#""op":"test""#))
        .collect();
    assert_snapshot!(tests.join("\n"), @r#"
{"op":"test","path":"/metadata/resourceVersion","value":"1"}
{"op":"test","path":"/spec/http/0/forwardTo/regexRewrite/substitution","value":"/x"}
{"op":"test","path":"/spec/http/0/forwardTo/destinations","value":[{"ref":{"name":"reviews","namespace":"shop"},"port":{"number":80}}]}
"#);
}
