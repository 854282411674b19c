//! The source `image-digests` with a fake registry, and the use of proxies.

use std::sync::{Mutex, mpsc::channel};

use serde_json::{Value, json};

use crate::harness::{Call, FakeServer, Generator, Reply, Response};

const MANIFEST: &str = r#"{"schemaVersion":2}"#;
/// SHA-256 of [`MANIFEST`].
const HASH: &str = "sha256:bafebd36189ad3688b7b3915ea55d461e0bfcfbdde11e54b0a123999fb6be50f";

fn digest(c: char) -> String {
    format!("sha256:{}", String::from(c).repeat(64))
}

fn said(status: u16, body: &str) -> Option<Response> {
    Some((status, Vec::new(), body.to_owned()))
}

fn generator(host: &str, flags: &[&str]) -> Generator {
    let config = format!("imageDigests: {{registries: {{'{host}': {{plainHttp: true}}}}}}");
    Generator::start_with(&config, &[("argocd", "t")], flags)
}

fn body(tag: &str, more: &Value) -> String {
    let mut parameters = json!({"tag": tag, "images": {"front": "myorg/front"}});
    let object = parameters.as_object_mut().unwrap();
    object.extend(more.as_object().unwrap().clone());
    json!({"applicationSetName": "fb", "input": {"parameters": parameters}}).to_string()
}

/// Sends a call.
fn begin(generator: &Generator) -> Call {
    let body = body("v1", &json!({}));
    let token = ("authorization", "Bearer t".to_owned());
    let path = "/api/v1/getparams.execute";
    let mut call = generator.begin("POST", path, &[token], body.len());
    call.send(&body);
    call
}

fn ask(generator: &Generator, more: &Value) -> Reply {
    generator.post("", Some("t"), &body("v1", more))
}

/// Checks the generator's response. `answer` is the registry, and gets `METHOD /path` below the repository.
#[track_caller]
fn check(
    answer: impl Fn(&str) -> Option<Response> + Send + Sync + 'static,
    more: Value,
    expect: (u16, &str),
) {
    let registry = FakeServer::start(move |asked, _| answer(&asked.replace("/v2/myorg/front", "")));
    let reply = ask(&generator(&registry.host, &[]), &more);
    assert_eq!(reply.status, expect.0, "{}", reply.body);
    assert!(reply.body.contains(expect.1), "{}", reply.body);
}

const UNKNOWN: &str = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
const EMPTY: &str = r#"{"output":{"parameters":[]}}"#;

#[test]
fn the_digest_is_the_manifests_hash() {
    check(|_| said(200, MANIFEST), json!({}), (200, HASH));
    let bad_header = |_: &str| {
        let header = ("docker-content-digest", "sha256:x".to_owned());
        Some((200, vec![header], MANIFEST.to_owned()))
    };
    let contradiction = "sent the digest sha256:x in a header";
    check(bad_header, json!({}), (502, contradiction));
    let page_of_a_proxy = |_: &str| said(200, "<html>Please log in</html>");
    check(
        page_of_a_proxy,
        json!({}),
        (502, "did not send an image manifest"),
    );
}

#[test]
fn a_platform_is_looked_for_in_the_index() {
    let index = json!({"schemaVersion": 2, "manifests": [
        {"digest": digest('b'), "platform": {"os": "linux", "architecture": "arm64"}},
    ]});
    let index = move |_: &str| said(200, &index.to_string());
    check(
        index.clone(),
        json!({"platform": "linux/arm64"}),
        (200, &digest('b')),
    );
    check(
        index,
        json!({"platform": "linux/s390x"}),
        (409, "exists for linux/arm64, not for linux/s390x"),
    );
}

/// The registry must report it, and prove that the client may read the repository.
#[test]
fn an_image_is_missing_only_if_it_is_proven() {
    let unknown = |tags: u16| {
        move |asked: &str| match asked {
            "GET /tags/list?n=1" if tags == 404 => said(404, UNKNOWN),
            "GET /tags/list?n=1" => said(tags, r#"{"tags":[]}"#),
            _ => said(404, UNKNOWN),
        }
    };
    let waits = json!({"onMissing": "skip", "onEmpty": "allow"});
    check(unknown(200), waits, (200, EMPTY));
    check(unknown(200), json!({}), (409, "missing_image"));
    check(
        unknown(200),
        json!({"onMissing": "skip"}),
        (
            409,
            "myorg/front:v1 not found: correct the image or its tag",
        ),
    );
    check(unknown(401), json!({}), (502, "proves nothing"));
    check(unknown(404), json!({}), (502, "has no such repository"));
    check(
        unknown(404),
        json!({"onMissingRepository": "missing"}),
        (409, "missing_image"),
    );
}

#[test]
fn every_other_response_is_a_failure() {
    for (status, words) in [
        (301, "configure the registry to which it redirects"),
        (400, "status 400"),
        (401, "dockerConfig"),
        (403, "dockerConfig"),
        (404, "status 404"),
        (500, "status 500"),
    ] {
        check(move |_| said(status, "<html>"), json!({}), (502, words));
        check(
            move |_| said(status, EMPTY),
            json!({"platform": "linux/arm64"}),
            (502, words),
        );
    }
    // A page of a proxy has a hash as well.
    for platform in [json!({}), json!({"platform": "linux/arm64"})] {
        let page = |_: &str| said(200, "<html>");
        check(page, platform, (502, "did not send an image manifest"));
    }
    // A closed port.
    let reply = ask(&generator("127.0.0.1:1", &[]), &json!({}));
    assert_eq!(reply.status, 502, "{}", reply.body);
    assert!(reply.body.contains("cannot be reached"), "{}", reply.body);
}

#[test]
fn a_token_is_fetched_with_the_credentials() {
    let tokens = FakeServer::start(|asked, authorization| match (asked, authorization) {
        ("GET /token?scope=repository%3Amyorg%2Ffront%3Apull&service=reg", "Basic dTpw") => {
            said(200, r#"{"token":"tok"}"#)
        }
        _ => said(403, ""),
    });
    let realm = format!(
        "Bearer realm=\"http://{}/token\",service=\"reg\"",
        tokens.host
    );
    let registry = FakeServer::start(move |_, authorization| match authorization {
        "Bearer tok" => said(200, MANIFEST),
        _ => Some((
            401,
            vec![("www-authenticate", realm.clone())],
            String::new(),
        )),
    });
    let generator = generator(&registry.host, &[]);
    let host = &registry.host;
    let docker = generator.dir().join("docker.json");
    let write = |auth: &str| {
        let auths = json!({"auths": {host: {"auth": auth}}});
        std::fs::write(&docker, auths.to_string()).unwrap();
    };
    std::fs::write(
        generator.dir().join("config.yaml"),
        format!(
            "imageDigests: {{dockerConfig: {}, registries: {{'{host}': {{plainHttp: true}}}}}}",
            docker.display()
        ),
    )
    .unwrap();
    write("wrong");
    generator.reload();
    let reply = ask(&generator, &json!({}));
    assert_eq!(reply.status, 502, "{}", reply.body);
    write("dTpw");
    generator.reload();
    let reply = ask(&generator, &json!({}));
    assert!(
        reply.status == 200 && reply.body.contains(HASH),
        "{}",
        reply.body
    );
    for record in generator.stop() {
        let text = record.to_string();
        assert!(!text.contains("dTpw") && !text.contains("tok\""), "{text}");
    }
}

#[test]
fn concurrent_calls_for_one_image_share_a_lookup() {
    let (release, held) = channel();
    let held = Mutex::new(held);
    let registry = FakeServer::start(move |_, _| {
        held.lock().unwrap().recv().ok()?;
        said(200, MANIFEST)
    });
    let generator = generator(&registry.host, &["--max-concurrent=100"]);
    let calls: Vec<_> = (0..50).map(|_| begin(&generator)).collect();
    generator.wait_for("gloo_appset_running_calls 50");
    release.send(()).unwrap();
    let bodies: Vec<String> = calls.into_iter().map(|call| call.reply().body).collect();
    assert!(bodies[0].contains(HASH), "{}", bodies[0]);
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(registry.requests(), ["GET /v2/myorg/front/manifests/v1"]);
    let metrics = generator.ops("/metrics").body;
    let line = r#"gloo_appset_upstream_queries_total{source="image-digests"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn a_registry_without_a_response_ends_at_the_deadline() {
    let registry = FakeServer::start(|_, _| None);
    let hasty = generator(&registry.host, &["--deadline=0.2"]);
    let reply = ask(&hasty, &json!({}));
    assert_eq!(reply.status, 504, "{}", reply.body);
    let named = format!("registry {}, image myorg/front: waiting for", registry.host);
    assert!(reply.body.contains(&named), "{}", reply.body);

    let patient = generator(&registry.host, &["--deadline=600"]);
    let call = begin(&patient);
    patient.wait_for(r#"upstream_queries_total{source="image-digests"} 1"#);
    drop(call);
    patient.wait_for("gloo_appset_cancelled_calls_total 1");
}

/// The body is larger than any manifest or error.
#[test]
fn a_large_body_is_read_up_to_a_limit() {
    for (status, most) in [(200, 4 << 20), (404, 64 << 10)] {
        let endless = "x".repeat(5 << 20);
        let registry = FakeServer::start(move |asked, _| match asked.starts_with("HEAD") {
            true => said(200, ""),
            false => said(status, &endless),
        });
        let reply = ask(&generator(&registry.host, &[]), &json!({}));
        assert_eq!(reply.status, 502, "{}", reply.body);
        let said = format!("sent more than {most} bytes");
        assert!(reply.body.contains(&said), "{}", reply.body);
    }
}

/// Checks the requests that the proxy gets for an image of `registry`. `PROXY` in the environment is its address.
#[track_caller]
fn check_proxy(registry: &str, environment: &[(&str, &str)], expect: &[&str], message: &str) {
    // The proxy refuses every request.
    let proxy = FakeServer::start(|_, _| Some((403, Vec::new(), String::new())));
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
    // A failed connection is retried.
    let mut requests = proxy.requests();
    requests.dedup();
    assert_eq!(requests, expect);
}

const GHCR: &str = "{ghcr.io: {}}";
const NOWHERE: &str = "{'127.0.0.1:1': {}}";
const PLAIN: &str = "{'127.0.0.1:1': {plainHttp: true}}";

#[test]
fn https_uses_the_proxy() {
    let connect: &[&str] = &["CONNECT ghcr.io:443"];
    let refused = "tunnel error: unsuccessful";
    check_proxy(GHCR, &[("HTTPS_PROXY", "http://PROXY")], connect, refused);
    check_proxy(GHCR, &[("https_proxy", "PROXY")], connect, refused);
    check_proxy(GHCR, &[("ALL_PROXY", "http://PROXY")], connect, refused);
    let other_host = [("HTTPS_PROXY", "http://PROXY"), ("NO_PROXY", "quay.io")];
    check_proxy(GHCR, &other_host, connect, refused);
}

#[test]
fn no_proxy_and_plain_http_bypass_the_proxy() {
    let refused = "Connection refused";
    let proxy = ("HTTPS_PROXY", "http://PROXY");
    check_proxy(NOWHERE, &[proxy, ("NO_PROXY", "127.0.0.0/8")], &[], refused);
    let domain = [proxy, ("NO_PROXY", "quay.io, localhost")];
    check_proxy("{'localhost:1': {}}", &domain, &[], refused);
    let both = [proxy, ("HTTP_PROXY", "http://PROXY")];
    check_proxy(PLAIN, &both, &[], refused);
}

#[test]
fn a_proxy_over_https_is_refused() {
    let proxy = [("HTTPS_PROXY", "https://PROXY")];
    check_proxy(
        GHCR,
        &proxy,
        &[],
        "must be an address that begins with http://",
    );
}

/// As in kubectl. The kube crate itself ignores `NO_PROXY` for the API server.
#[test]
fn an_api_server_uses_the_proxy_unless_it_is_in_no_proxy() {
    let proxy = FakeServer::start(|_, _| Some((403, Vec::new(), String::new())));
    let server = FakeServer::start(|_, _| Some((500, Vec::new(), String::new())));
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
    let direct_requests = server.requests().len();
    start("localhost").wait_until("/readyz", "tunnel error: unsuccessful");
    assert_eq!(proxy.requests()[0], format!("CONNECT {}", server.host));
    assert_eq!(server.requests().len(), direct_requests);
}
