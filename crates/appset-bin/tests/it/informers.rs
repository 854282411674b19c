//! Objects of a cluster that does not answer.

use std::fs;
use std::net::TcpListener;

use crate::generator::{Generator, kubeconfig};

const CONFIG: &str = "
static: {hello: {sets: [{key1: val1}]}}
glooRoutes: {namespaces: [shop]}
";

const ROUTES: &str =
    r#"{"input":{"parameters":{"source":"gloo-routes","routeTableSelector":{"name":"web"}}}}"#;

/// A flag for an API server that listens no more.
fn unanswered(dir: &tempfile::TempDir) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = kubeconfig(dir.path(), &address.to_string());
    format!("--kubeconfig={}", file.display())
}

/// The namespaces with a label are not known yet, nor are the objects of one of two clusters.
#[test]
fn a_cluster_that_cannot_be_read_fails_the_call_by_its_name() {
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

/// An empty list would be an answer, too: the one that deletes every Application.
#[test]
fn what_has_not_been_seen_is_not_ready_and_the_rest_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let generator = Generator::start_with(CONFIG, &[("argocd", "t")], &[&unanswered(&dir)]);
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

    // What is no longer configured is not waited for.
    let config = CONFIG.lines().filter(|line| !line.starts_with("gloo"));
    let config: Vec<_> = config.collect();
    fs::write(generator.dir().join("config.yaml"), config.join("\n")).unwrap();
    assert_eq!(generator.ops("/readyz").status, 200);
    assert!(!generator.ops("/metrics").body.contains("watch_synced{"));

    // Nor is what is configured later, for what else there is can be answered.
    fs::write(generator.dir().join("config.yaml"), CONFIG).unwrap();
    assert_eq!(generator.ops("/readyz").status, 200);
    assert_eq!(generator.post("", Some("t"), ROUTES).status, 503);

    let log = generator.stop();
    let failed = log.iter().any(|record| {
        let problem = record["problem"].as_str().unwrap_or_default();
        record["message"] == "a watch failed" && problem.contains("cannot list routetables")
    });
    assert!(failed, "{log:#?}");
}
