//! The sources that read objects: from the files of a directory, and from API servers that do not answer.

use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Generator, Reply, kubeconfig};

const TABLE: &str = "
kind: RouteTable
metadata: {name: web, namespace: shop, labels: {app: demo}}
spec:
  hosts: [shop.example.com]
  http:
  - name: demo
    forwardTo: {destinations: [{ref: {name: stable}}]}
";

const ROLLOUT: &str = "
kind: Rollout
metadata: {name: demo, namespace: shop, generation: 2}
spec:
  strategy:
    canary:
      stableService: stable
      canaryService: canary
      trafficRouting: {plugins: {solo-io/glooplatform: {routeTableSelector: {name: web}}}}
status: {phase: Paused, stableRS: 5f, currentPodHash: 7c, observedGeneration: '2'}
";

const WORKSPACE: &str = "
kind: Workspace
metadata: {name: web, namespace: gloo-mesh}
spec:
  workloadClusters:
  - {name: '*', namespaces: [{name: shop}]}
---
kind: KubernetesCluster
metadata: {name: c1, namespace: gloo-mesh, labels: {region: eu}}
---
kind: KubernetesCluster
metadata: {name: c1, namespace: elsewhere}
";

const CONFIG: &str = "
glooRoutes: {namespaces: [shop]}
rollouts: {namespaces: [shop]}
glooWorkspaces: {clusterMap: {c1: in-cluster}}
";

/// A generator that reads objects from files.
struct Files {
    dir: TempDir,
    generator: Generator,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("web", TABLE), ("demo", ROLLOUT), ("gloo", WORKSPACE)] {
            fs::write(dir.path().join(format!("{name}.yaml")), text).unwrap();
        }
        let flag = format!("--objects-dir={}", dir.path().display());
        let generator = Generator::start_with(CONFIG, &[("argocd", "t")], &[&flag]);
        Self { dir, generator }
    }

    fn ask(&self, source: &str, mut parameters: Value) -> Reply {
        parameters["source"] = json!(source);
        let body = json!({"input": {"parameters": parameters}});
        self.generator.post("", Some("t"), &body.to_string())
    }
}

#[test]
fn a_call_fails_if_a_file_cannot_be_read() {
    let files = Files::new();
    let ask = |selector: Value| files.ask("gloo-routes", json!({"routeTableSelector": selector}));
    let found = ask(json!({"labels": {"app": "demo"}}));
    assert!(
        found.body.contains(r#""slug":"in-cluster"#),
        "{}",
        found.body
    );
    let typo = ask(json!({"labels": {"app": "dmeo"}}));
    assert_eq!(typo.status, 409, "{}", typo.body);
    let one_missing = ask(json!({"names": ["web", "other"]}));
    assert_eq!(one_missing.status, 409, "{}", one_missing.body);

    // An unreadable file may contain a table.
    let bad = TABLE.replace("[shop.example.com]", "{");
    fs::write(files.dir.path().join("bad.yaml"), bad).unwrap();
    let unread = ask(json!({"names": ["web"]}));
    assert_eq!(unread.status, 502, "{}", unread.body);
}

#[test]
fn rollouts_are_read_with_their_tables() {
    let files = Files::new();
    let found = files.ask("rollouts", json!({"namespaces": ["shop"]}));
    insta::assert_snapshot!(found.body, @r#"{"output":{"parameters":[{"gloo":{"host":"shop.example.com","hosts":["shop.example.com"],"hostsCsv":"shop.example.com","routeTables":[{"name":"web","namespace":"shop"}]},"rollout":{"aborted":false,"canaryService":"canary","cluster":"in-cluster","configError":"","currentHash":"7c","fresh":true,"inProgress":true,"key":"in-cluster/shop/demo","labels":{},"name":"demo","namespace":"shop","phase":"Paused","slug":"in-cluster-shop-demo-fd72150e1529ba38","stableHash":"5f","stableService":"stable"}}]}}"#);
    let elsewhere = files.ask("rollouts", json!({"cluster": "c2"}));
    assert_eq!(elsewhere.status, 409, "{}", elsewhere.body);
    fs::write(files.dir.path().join("web.yaml"), "").unwrap();
    let alone = files.ask("rollouts", json!({"outputKey": "canary"}));
    assert!(
        alone
            .body
            .contains(r#""configError":"RouteTable shop/web not found"#),
        "{}",
        alone.body
    );
}

#[test]
fn workspaces_are_read_with_their_clusters() {
    let files = Files::new();
    let found = files.ask("gloo-workspaces", json!({"cluster": "in-cluster"}));
    insta::assert_snapshot!(found.body, @r#"{"output":{"parameters":[{"gloo":{"cluster":"in-cluster","clusterLabels":{"region":"eu"},"configEnabled":true,"glooCluster":"c1","key":"web/c1","namespaces":["shop"],"namespacesCsv":"shop","registered":true,"slug":"web-c1","wildcard":false,"workspace":"web"}}]}}"#);
    let typo = files.ask("gloo-workspaces", json!({"workspaces": ["wbe"]}));
    assert_eq!(typo.status, 409, "{}", typo.body);
    assert!(typo.body.contains("missing_workspace"), "{}", typo.body);
}

/// Each cluster has its own directory with the same table. The namespace shop has the label only in west.
#[test]
fn namespaces_are_selected_by_label_in_each_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let namespace = |labels: &str| {
        format!("{TABLE}---\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n")
    };
    let write = |cluster: &str, labels: &str| {
        let dir = dir.path().join(cluster);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("objects.yaml"), namespace(labels)).unwrap();
    };
    write("east", "");
    write("west", "team: shop");
    let config = "
clusters: {east: {}, west: {}}
glooRoutes: {namespaceSelector: {labels: {team: shop}}}
profiles:
  default: {}
  east: {clusters: [east]}
";
    let flag = format!("--objects-dir={}", dir.path().display());
    let generator = Generator::start_with(config, &[("argocd", "t")], &[&flag]);
    let ask = |profile: &str, more: &str| {
        let body = format!(
            r#"{{"input":{{"parameters":{{"routeTableSelector":{{"name":"web"{more}}}}}}}}}"#
        );
        generator.post(profile, Some("t"), &body)
    };
    let keys = |reply: Reply| {
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        let sets = body["output"]["parameters"].as_array().cloned();
        let sets = sets.unwrap_or_else(|| panic!("{reply:?}"));
        let keys = sets
            .iter()
            .map(|set| set["gloo"]["key"].as_str().unwrap().to_owned());
        keys.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(ask("", "")), "west/shop/web/demo");
    write("east", "team: shop");
    assert_eq!(keys(ask("", "")), "east/shop/web/demo west/shop/web/demo");
    assert_eq!(keys(ask("/profiles/east", "")), "east/shop/web/demo");
    write("east", "team: cart");
    let nothing = ask("/profiles/east", "");
    assert!(nothing.body.contains("guard_empty"), "{}", nothing.body);
    let asked = ask("/profiles/east", r#","namespace":"shop""#);
    assert!(
        asked.body.contains(
            "namespace shop is not allowed: give it the labels of glooRoutes.namespaceSelector"
        ),
        "{}",
        asked.body
    );
    // A cluster that cannot be read fails the call, and the message names it.
    fs::remove_dir_all(dir.path().join("east")).unwrap();
    let unread = ask("", "");
    assert_eq!(unread.status, 503, "{}", unread.body);
    assert!(
        unread.body.contains("cluster east: Namespaces: "),
        "{}",
        unread.body
    );
}

const ROUTES_CONFIG: &str = "
static: {hello: {sets: [{key1: val1}]}}
glooRoutes: {namespaces: [shop]}
";

const ROUTES: &str =
    r#"{"input":{"parameters":{"source":"gloo-routes","routeTableSelector":{"name":"web"}}}}"#;

/// Returns the flag for an API server whose port is closed.
fn unanswered(dir: &TempDir) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = kubeconfig(dir.path(), &address.to_string());
    format!("--kubeconfig={}", file.display())
}

/// Neither the namespaces nor the objects of the clusters are known.
#[test]
fn the_failure_for_an_unreadable_cluster_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = "
clusters: {east: {context: any}, west: {context: none}}
glooRoutes: {namespaceSelector: {labels: {team: shop}}}
rollouts: {namespaces: '*', clusters: [west]}
";
    let generator = Generator::start_with(config, &[("argocd", "t")], &[&unanswered(&dir)]);
    generator.wait_until("/readyz", "cluster east: Namespaces are not known: ");
    generator
        .wait_for(r#"gloo_appset_watch_synced{cluster="west",kind="Namespace",namespace="*"} 0"#);
    let ask = |parameters: &str| {
        let body = format!(r#"{{"input":{{"parameters":{parameters}}}}}"#);
        let reply = generator.post("", Some("t"), &body);
        assert_eq!(reply.status, 503, "{}", reply.body);
        reply.body
    };
    let routes = r#"{"source":"gloo-routes","routeTableSelector":{"name":"web"}}"#;
    let said = r#"{"message":"cluster east: Namespaces are not known: "#;
    assert!(ask(routes).starts_with(said), "{}", ask(routes));
    let rollouts = r#"{"source":"rollouts"}"#;
    let said = r#"{"message":"cluster west: Rollouts in namespace * are not known: "#;
    assert!(ask(rollouts).starts_with(said), "{}", ask(rollouts));
}

/// An empty list for unknown objects would delete every Application.
#[test]
fn a_source_with_unknown_objects_is_not_ready_and_others_answer() {
    let dir = tempfile::tempdir().unwrap();
    let generator = Generator::start_with(ROUTES_CONFIG, &[("argocd", "t")], &[&unanswered(&dir)]);
    generator.wait_until("/readyz", "cannot list routetables");
    generator.wait_for(
        r#"gloo_appset_watch_synced{cluster="in-cluster",kind="RouteTable",namespace="shop"} 0"#,
    );

    let unseen = generator.post("", Some("t"), ROUTES);
    assert_eq!(unseen.status, 503, "{}", unseen.body);
    let said = r#"{"message":"RouteTables in namespace shop are not known: "#;
    assert!(unseen.body.starts_with(said), "{}", unseen.body);
    assert!(unseen.body.contains(r#""code":"not_ready""#));
    let hello = generator.post(
        "",
        Some("t"),
        r#"{"input":{"parameters":{"source":"hello"}}}"#,
    );
    assert_eq!(hello.status, 200, "{}", hello.body);

    let probe = generator.ops("/readyz");
    assert_eq!(probe.status, 503);
    assert!(
        probe
            .body
            .starts_with("RouteTables in namespace shop are not known: ")
    );

    // A source that is removed from the configuration does not affect readiness.
    let config = ROUTES_CONFIG
        .lines()
        .filter(|line| !line.starts_with("gloo"));
    let config: Vec<_> = config.collect();
    fs::write(generator.dir().join("config.yaml"), config.join("\n")).unwrap();
    generator.reload();
    assert_eq!(generator.ops("/readyz").status, 200);
    assert!(!generator.ops("/metrics").body.contains("watch_synced{"));

    // A source that is added later does not either, since the other sources still answer.
    fs::write(generator.dir().join("config.yaml"), ROUTES_CONFIG).unwrap();
    generator.reload();
    assert_eq!(generator.ops("/readyz").status, 200);
    assert_eq!(generator.post("", Some("t"), ROUTES).status, 503);

    let log = generator.stop();
    let failed = log.iter().any(|record| {
        let problem = record["problem"].as_str().unwrap_or_default();
        record["message"] == "a watch failed" && problem.contains("cannot list routetables")
    });
    assert!(failed, "{log:#?}");
}
