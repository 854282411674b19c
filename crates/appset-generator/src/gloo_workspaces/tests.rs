//! From a request for Workspaces to its answer, with Workspaces and clusters at hand.

use std::collections::BTreeSet;

use gloo_types::Resource;
use proptest::{collection, option, prelude::*, sample};
use serde_json::json;

use super::*;
use crate::SourceQuery;
use crate::testing::{query, refused};

const CONFIG: &str = "
glooWorkspaces: {clusterMap: {c2: prod-eu}}
profiles:
  default: {}
  team-a: {namespaces: [shop]}
";

fn document<K: Resource>(name: &str, labels: &Value, spec: &Value) -> Arc<Document<K>> {
    let metadata = json!({"name": name, "namespace": "gloo-mesh", "labels": labels});
    let object = json!({"kind": K::KIND, "metadata": metadata, "spec": spec});
    Arc::new(Document::from_value(object).unwrap())
}

fn workspace(name: &str, clusters: &Value) -> Arc<Document<Workspace>> {
    document(
        name,
        &json!({"team": name}),
        &json!({"workloadClusters": clusters}),
    )
}

fn cluster(name: &str, labels: &Value) -> Arc<Document<KubernetesCluster>> {
    document(name, labels, &json!({}))
}

/// The sets for `parameters`, as JSON. c1 and c2 are registered.
fn sets(
    parameters: &Value,
    workspaces: &[Arc<Document<Workspace>>],
) -> Result<Vec<Value>, Failure> {
    let SourceQuery::GlooWorkspaces(query) = query(CONFIG, "default", parameters)?.source else {
        panic!("another source");
    };
    let clusters = [
        cluster("c1", &json!({"region": "us"})),
        cluster("c2", &json!({"region": "eu"})),
    ];
    let sets = query.sets(
        &[("in-cluster".to_owned(), workspaces.to_vec())].into(),
        &[("in-cluster".to_owned(), clusters.to_vec())].into(),
    )?;
    Ok(sets.iter().map(|set| json!(set)).collect())
}

fn two() -> [Arc<Document<Workspace>>; 2] {
    let web = json!([
        {"name": "c*", "namespaces": [{"name": "web"}, {"name": "web-*"}]},
        {"name": "c1", "namespaces": [{"name": "web-config"}]}
    ]);
    let ops = json!([{"selector": {"region": "eu"}, "configEnabled": false, "namespaces": [{"name": "ops"}]}]);
    [workspace("web", &web), workspace("ops", &ops)]
}

#[test]
fn a_set_for_each_cluster() {
    insta::assert_snapshot!(json!(sets(&json!({}), &two()).unwrap()), @r#"[{"gloo":{"cluster":"prod-eu","clusterLabels":{"region":"eu"},"configEnabled":false,"glooCluster":"c2","key":"ops/c2","namespaces":["ops"],"namespacesCsv":"ops","registered":true,"slug":"ops-c2","wildcard":false,"workspace":"ops"}},{"gloo":{"cluster":"c1","clusterLabels":{"region":"us"},"configEnabled":true,"glooCluster":"c1","key":"web/c1","namespaces":["web","web-*","web-config"],"namespacesCsv":"web,web-*,web-config","registered":true,"slug":"web-c1","wildcard":true,"workspace":"web"}},{"gloo":{"cluster":"prod-eu","clusterLabels":{"region":"eu"},"configEnabled":true,"glooCluster":"c2","key":"web/c2","namespaces":["web","web-*"],"namespacesCsv":"web,web-*","registered":true,"slug":"web-c2","wildcard":true,"workspace":"web"}}]"#);
}

#[test]
fn a_set_for_each_namespace() {
    let parameters = json!({"expandNamespaces": "true", "workspaces": ["ops"]});
    insta::assert_snapshot!(json!(sets(&parameters, &two()).unwrap()), @r#"[{"gloo":{"cluster":"prod-eu","clusterLabels":{"region":"eu"},"configEnabled":false,"glooCluster":"c2","key":"ops/c2/ops","namespace":"ops","registered":true,"slug":"ops-c2-ops","wildcard":false,"workspace":"ops"}}]"#);
}

/// The keys of the sets.
#[track_caller]
fn selected(parameters: Value, expect: &str) {
    let sets = sets(&parameters, &two()).unwrap();
    let keys = sets.iter().map(|set| set["gloo"]["key"].as_str().unwrap());
    assert_eq!(keys.collect::<Vec<_>>().join(" "), expect, "{parameters}");
}

#[test]
fn what_is_selected() {
    selected(json!({}), "ops/c2 web/c1 web/c2");
    selected(json!({"workspaces": ["web"]}), "web/c1 web/c2");
    selected(json!({"workspaces": ["o*", "x*"]}), "ops/c2");
    selected(
        json!({"selector": {"labels": {"team": "web"}}}),
        "web/c1 web/c2",
    );
    selected(
        json!({"workspaces": ["web"], "selector": {"labels": {"team": "ops"}}}),
        "",
    );
    selected(json!({"cluster": "c1"}), "web/c1");
    // Argo CD's name counts.
    selected(json!({"cluster": "prod-eu"}), "ops/c2 web/c2");
    selected(json!({"cluster": "c2"}), "");
    selected(
        json!({"expandNamespaces": true, "cluster": "c1"}),
        "web/c1/web web/c1/web-* web/c1/web-config",
    );
}

/// What a workspace with these `clusters` has of which, as cluster, registered, configuration, wildcard and namespaces.
#[track_caller]
fn shared(clusters: Value, expect: &[&str]) {
    let sets = sets(&json!({}), &[workspace("web", &clusters)]).unwrap();
    let shown: Vec<String> = sets
        .iter()
        .map(|set| {
            let fields = [
                "glooCluster",
                "registered",
                "configEnabled",
                "wildcard",
                "namespacesCsv",
            ];
            let texts = fields.map(|field| match &set["gloo"][field] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            texts.join(" ")
        })
        .collect();
    assert_eq!(shown, expect, "{clusters}");
}

#[test]
fn what_a_workspace_has_of_a_cluster() {
    shared(json!([]), &[]);
    shared(
        json!([{"namespaces": [{"name": "a"}]}]),
        &["c1 true true false a", "c2 true true false a"],
    );
    shared(
        json!([{"name": "*"}]),
        &["c1 true true false ", "c2 true true false "],
    );
    shared(
        json!([{"selector": {"region": "us"}, "namespaces": [{"name": "b*"}]}]),
        &["c1 true true true b*"],
    );
    shared(json!([{"name": "c1", "selector": {"region": "eu"}}]), &[]);
    // Which namespaces have a label is known in their cluster only.
    shared(
        json!([{"name": "c1", "namespaces": [{"labels": {"a": "b"}}, {}]}]),
        &["c1 true true true *"],
    );
    shared(
        json!([
            {"name": "c1", "configEnabled": false, "namespaces": [{"name": "b"}, {"name": "a"}]},
            {"name": "*", "configEnabled": false, "namespaces": [{"name": "b"}]}
        ]),
        &["c1 true false false a,b", "c2 true false false b"],
    );
    shared(
        json!([{"name": "c1"}, {"name": "c*", "configEnabled": false}]),
        &["c1 true true false ", "c2 true false false "],
    );
}

/// A registration that is lost for a moment must not cost Applications.
#[test]
fn a_cluster_that_is_named_need_not_be_registered() {
    shared(
        json!([{"name": "c3", "namespaces": [{"name": "a"}]}]),
        &["c3 false true false a"],
    );
    shared(json!([{"name": "c3*"}]), &[]);
    shared(json!([{"name": "c3", "selector": {"region": "us"}}]), &[]);
}

#[test]
fn configuration_may_be_read_from_some_namespaces_only() {
    let clusters = json!([{"name": "c1", "namespaces": [
        {"name": "a", "configEnabled": true}, {"name": "b", "configEnabled": false}
    ]}]);
    let sets = sets(
        &json!({"expandNamespaces": true}),
        &[workspace("web", &clusters)],
    )
    .unwrap();
    let read: Vec<_> = sets
        .iter()
        .map(|set| &set["gloo"]["configEnabled"])
        .collect();
    assert_eq!(read, [&json!(true), &json!(false)]);
}

#[test]
fn what_is_refused() {
    let missing = json!({"workspaces": ["w*", "wbe"]});
    refused(
        sets(&missing, &two()),
        "missing_workspace Workspace gloo-mesh/wbe not found: create it",
    );
    refused(
        query(CONFIG, "team-a", &json!({})),
        "no namespace is allowed by both glooWorkspaces.namespace and the profile",
    );
    refused(
        query(CONFIG, "default", &json!({"workspace": "web"})),
        "did you mean workspaces?",
    );
    let broken = workspace("web", &json!([{"name": 7}]));
    refused(
        sets(&json!({}), &[broken]),
        "upstream Workspace gloo-mesh/web: unexpected value at spec.workloadClusters[0].name",
    );
}

prop_compose! {
    fn selectors()(
        name in option::of(sample::select(vec!["", "*", "c1", "c2", "c3", "c*"])),
        region in option::of(sample::select(vec!["us", "eu", "moon"])),
        namespaces in collection::vec(sample::select(vec!["", "a", "b", "a*", "*"]), 0..4),
    ) -> Value {
        let namespaces: Vec<_> = namespaces.iter().map(|name| json!({"name": name})).collect();
        let selector = region.map(|region| json!({"region": region}));
        let mut entry = json!({"namespaces": namespaces});
        entry["name"] = json!(name.unwrap_or_default());
        entry["selector"] = selector.unwrap_or_else(|| json!({}));
        entry
    }
}

proptest! {
    #[test]
    fn every_set_has_a_key_and_a_slug_of_its_own(
        clusters in collection::vec(collection::vec(selectors(), 0..4), 0..4),
        expand in any::<bool>(),
    ) {
        let workspaces: Vec<_> = clusters
            .iter()
            .enumerate()
            .map(|(index, clusters)| workspace(&format!("w-{index}"), &json!(clusters)))
            .collect();
        let sets = sets(&json!({"expandNamespaces": expand}), &workspaces).unwrap();
        for field in ["key", "slug"] {
            let texts: BTreeSet<_> = sets.iter().map(|set| set["gloo"][field].as_str()).collect();
            prop_assert_eq!(texts.len(), sets.len());
        }
    }
}
