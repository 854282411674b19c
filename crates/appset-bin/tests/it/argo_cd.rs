//! Recorded requests of Argo CD's client (see `tests/go/argocd`), and the `curl` calls of Argo CD's page on plugin generators.

use serde_json::{Value, json};

use crate::harness::{FakeServer, Generator, Reply};

#[track_caller]
fn check_recording(recording: &[u8], status: u16, body: &str) {
    let hello = "
static:
  hello:
    inputs: [key1, key2, list, boolean, map]
    sets: [{key1: val1}, {key1: val2}]
";
    let generator = Generator::start(hello, &[("argocd", "a-token-of-the-tests\n")]);
    let reply = generator.replay(recording);
    assert_eq!(reply.status, status, "{}", reply.body);
    assert!(reply.body.contains(body), "{}", reply.body);
}

#[test]
fn the_request_of_a_set_without_parameters() {
    let recording = include_bytes!("../data/argo-cd-3.6.1/no-parameters.http");
    check_recording(recording, 200, r#"[{"key1":"val1"},{"key1":"val2"}]"#);
}

#[test]
fn the_request_of_a_set_that_names_its_source() {
    let recording = include_bytes!("../data/argo-cd-3.6.1/static.http");
    check_recording(recording, 200, r#"[{"key1":"val1"},{"key1":"val2"}]"#);
}

#[test]
fn a_request_with_every_kind_of_input() {
    let recording = include_bytes!("../data/argo-cd-3.6.1/every-kind.http");
    check_recording(
        recording,
        200,
        r#"{"input":{"boolean":true,"key1":"grün <b>&amp;</b>  ☸","key2":"8080","list":["a","b"],"map":{"nested":{"deep":"value"},"number":"1000000"}},"key1":"val1"}"#,
    );
}

#[test]
fn a_request_for_a_source_that_is_not_configured() {
    let recording = include_bytes!("../data/argo-cd-3.6.1/image-digests.http");
    check_recording(recording, 400, "unknown source image-digests");
}

const CONFIG: &str = include_str!("../../../../examples/appset/document.yaml");
/// The digests that the page shows, by image and tag.
const DIGESTS: [(&str, &str, &str); 4] = [
    (
        "front",
        "feature-branch-1",
        "sha256:a3f18c17771cc1051b790b453a0217b585723b37f14b413ad7c5b12d4534d411",
    ),
    (
        "back",
        "feature-branch-1",
        "sha256:4411417d614d5b1b479933b7420079671facd434fd42db196dc1f4cc55ba13ce",
    ),
    (
        "front",
        "feature-branch-2",
        "sha256:7c20b927946805124f67a0cb8848a8fb1344d16b4d0425d63aaa3f2427c20497",
    ),
    (
        "back",
        "feature-branch-2",
        "sha256:e55e7e40700bbab9e542aba56c593cb87d680cefdfba3dd2ab9cfcb27ec384c2",
    ),
];

const HELLO: &str = r#"{
  "applicationSetName": "fake-appset",
  "input": {
    "parameters": {
      "param1": "value1"
    }
  }
}"#;
const BRANCH_1: &str = r#"{
  "applicationSetName": "fb-matrix",
  "input": {
    "parameters": {
      "branch": "feature-branch-1"
    }
  }
}"#;
const BRANCH_2: &str = r#"{
  "applicationSetName": "fb-matrix",
  "input": {
    "parameters": {
      "branch": "feature-branch-2"
    }
  }
}"#;

/// Starts a generator with the shipped configuration and one token file. Its registry has the digests of the page.
fn start() -> (Generator, FakeServer) {
    let registry = FakeServer::start(|asked, _| {
        let found = DIGESTS.iter().find(|(image, tag, _)| {
            asked.ends_with(&format!(" /v2/myorg/{image}/manifests/{tag}"))
        });
        let missing = r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#;
        Some(match found {
            // The manifests with these digests are unknown.
            Some(_) if asked.starts_with("GET") => (405, Vec::new(), String::new()),
            Some((_, _, digest)) => {
                let header = ("docker-content-digest", (*digest).to_owned());
                (200, vec![header], String::new())
            }
            None if asked.contains("/tags/list") => (200, Vec::new(), r#"{"tags":[]}"#.to_owned()),
            None => (404, Vec::new(), missing.to_owned()),
        })
    });
    assert_eq!(CONFIG.matches("localhost:5000").count(), 1);
    let config = CONFIG.replace("localhost:5000", &registry.host);
    let generator = Generator::start_with_token_file(&config, "strong-password\n");
    (generator, registry)
}

/// Sends a request as `curl -d` does.
fn curl(generator: &Generator, token: Option<&str>, body: &str) -> Reply {
    let mut headers = vec![
        ("User-Agent", "curl/8.5.0".to_owned()),
        ("Accept", "*/*".to_owned()),
        (
            "Content-Type",
            "application/x-www-form-urlencoded".to_owned(),
        ),
    ];
    headers.extend(token.map(|token| ("Authorization", format!("Bearer {token}"))));
    generator.send("POST", "/api/v1/getparams.execute", &headers, body)
}

#[track_caller]
fn check(generator: &Generator, body: &str, sets: &Value) {
    let reply = curl(generator, Some("strong-password"), body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(answer, json!({"output": {"parameters": sets}}));
}

#[test]
fn the_three_calls_have_the_answers_of_the_page() {
    let (generator, registry) = start();
    // The server of the page does not echo the input, which templates need.
    let input = json!({"param1": "value1"});
    check(
        &generator,
        HELLO,
        &json!([
            {"input": input, "key1": "val1", "key2": "val2"},
            {"input": input, "key1": "val2", "key2": "val2"},
        ]),
    );
    let [front_1, back_1, front_2, back_2] = DIGESTS.map(|(_, _, digest)| digest);
    check(
        &generator,
        BRANCH_1,
        &json!([{"digestFront": front_1, "digestBack": back_1}]),
    );
    check(
        &generator,
        BRANCH_2,
        &json!([{"digestFront": front_2, "digestBack": back_2}]),
    );
    let requests = registry.requests();
    let heads = requests.iter().filter(|asked| asked.starts_with("HEAD"));
    assert_eq!(heads.count(), DIGESTS.len());
}

#[test]
fn without_the_token_the_status_is_403() {
    let (generator, registry) = start();
    for body in [HELLO, BRANCH_1, ""] {
        for token in [None, Some(""), Some("wrong"), Some("strong-password2")] {
            let reply = curl(&generator, token, body);
            assert_eq!(reply.status, 403, "{}", reply.body);
        }
    }
    assert_eq!(registry.requests(), [""; 0]);
    std::fs::write(generator.dir().join("token"), "next").unwrap();
    generator.reload();
    assert_eq!(curl(&generator, Some("strong-password"), HELLO).status, 403);
    assert_eq!(curl(&generator, Some("next"), HELLO).status, 200);
}

#[test]
fn any_legal_branch_has_a_tag() {
    let (generator, registry) = start();
    let branch = |branch: &str| HELLO.replace("param1", "branch").replace("value1", branch);
    // The images are not built, so there is no set.
    for name in ["Feature/X", "fix-{x}", "größe"] {
        check(&generator, &branch(name), &json!([]));
    }
    let mut asked = registry.requests();
    asked.retain(|asked| asked.contains("/v2/myorg/front/manifests/"));
    let mut tags: Vec<_> = asked
        .iter()
        .filter_map(|asked| asked.rsplit('/').next())
        .collect();
    tags.dedup();
    assert_eq!(tags, ["Feature-X", "fix--x-", "gr-e"]);
    for unresolved in ["{{.branch}}", "fix-{{x}}"] {
        let reply = curl(&generator, Some("strong-password"), &branch(unresolved));
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains("unresolved template"), "{}", reply.body);
    }
}
