//! Which requests to registries go through the proxy that the environment names.

use crate::generator::Generator;
use crate::registry::Registry;

/// The lines that the proxy gets when an image of `registry` is looked up in an environment, whose `PROXY` is its address.
#[track_caller]
fn check(registry: &str, environment: &[(&str, &str)], expect: &[&str], message: &str) {
    // It lets nobody through, and says in its answer who asked.
    let proxy = Registry::start(|_, _| Some((403, Vec::new(), String::new())));
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, value.replace("PROXY", &proxy.host)))
        .collect();
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let config = format!("imageDigests: {{registries: {registry}}}");
    let generator = Generator::start_in(&environment, &config, &[("argocd", "t")], &[]);
    let body = r#"{"input":{"parameters":{"tag":"v1","images":{"front":"myorg/front"}}}}"#;
    let reply = generator.post("", Some("t"), body);
    assert_eq!(reply.status, 502, "{}", reply.body);
    assert!(reply.body.contains(message), "{}", reply.body);
    // A connection that breaks is tried again.
    let mut requests = proxy.requests();
    requests.dedup();
    assert_eq!(requests, expect);
}

const GHCR: &str = "{ghcr.io: {}}";
const NOWHERE: &str = "{'127.0.0.1:1': {}}";
const PLAIN: &str = "{'127.0.0.1:1': {plainHttp: true}}";

#[test]
fn https_goes_through_the_proxy() {
    let connect: &[&str] = &["CONNECT ghcr.io:443"];
    let refused = "tunnel error: unsuccessful";
    check(GHCR, &[("HTTPS_PROXY", "http://PROXY")], connect, refused);
    check(GHCR, &[("https_proxy", "PROXY")], connect, refused);
    check(GHCR, &[("ALL_PROXY", "http://PROXY")], connect, refused);
    let other_host = [("HTTPS_PROXY", "http://PROXY"), ("NO_PROXY", "quay.io")];
    check(GHCR, &other_host, connect, refused);
}

#[test]
fn others_go_straight() {
    let refused = "Connection refused";
    let proxy = ("HTTPS_PROXY", "http://PROXY");
    check(NOWHERE, &[proxy, ("NO_PROXY", "127.0.0.0/8")], &[], refused);
    let domain = [proxy, ("NO_PROXY", "quay.io, localhost")];
    check("{'localhost:1': {}}", &domain, &[], refused);
    let both = [proxy, ("HTTP_PROXY", "http://PROXY")];
    check(PLAIN, &both, &[], refused);
}

#[test]
fn a_proxy_over_https_is_refused() {
    let proxy = [("HTTPS_PROXY", "https://PROXY")];
    check(GHCR, &proxy, &[], "has to be the address of a proxy");
}

/// As kubectl asks it. The kube crate takes the proxy of the environment, whatever `NO_PROXY` says of the API server.
#[test]
fn an_api_server_is_asked_through_the_proxy_unless_it_is_in_no_proxy() {
    let proxy = Registry::start(|_, _| Some((403, Vec::new(), String::new())));
    let server = Registry::start(|_, _| Some((500, Vec::new(), String::new())));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let text = format!(
        "{{current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
         clusters: [{{name: a, cluster: {{server: 'http://{}'}}}}], users: [{{name: a, user: {{}}}}]}}",
        server.host
    );
    std::fs::write(&file, text).unwrap();
    let flag = format!("--kubeconfig={}", file.display());
    let start = |no_proxy| {
        let proxy = format!("http://{}", proxy.host);
        Generator::start_in(
            &[("HTTPS_PROXY", &proxy), ("NO_PROXY", no_proxy)],
            "glooRoutes: {namespaces: [shop]}",
            &[("argocd", "t")],
            &[&flag],
        )
    };
    start("127.0.0.1").wait_until("/readyz", "500");
    assert_ne!(server.requests().len(), 0);
    assert_eq!(proxy.requests().len(), 0);
    let asked_straight = server.requests().len();
    start("localhost").wait_until("/readyz", "tunnel error: unsuccessful");
    assert_eq!(proxy.requests()[0], format!("CONNECT {}", server.host));
    assert_eq!(server.requests().len(), asked_straight);
}
