//! Status, headers and body of the responses to each kind of request.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Generator, Reply};

const CONFIG: &str = "
static:
  hello:
    inputs: [key1, key2, list, boolean, map]
    sets: [{key1: val1, key2: val2}, {key1: val2, key2: val2}]
  none: {sets: []}
profiles:
  default: {}
  team-a: {tokens: [team-a], sources: [hello]}
";

fn start() -> Generator {
    Generator::start(CONFIG, &[("argocd", "strong-password\n"), ("team-a", "a")])
}

fn body(parameters: Value) -> String {
    json!({"applicationSetName": "fb", "input": {"parameters": parameters}}).to_string()
}

/// Checks an error response. The controller reads any 2xx as a list, and copies a body that is not JSON to the status.
#[track_caller]
fn refused(reply: &Reply, status: u16, code: &str) {
    let body: Value = serde_json::from_str(&reply.body).expect(&reply.body);
    assert_eq!(
        (reply.status, body["code"].as_str()),
        (status, Some(code)),
        "{body}"
    );
    let message = body["message"].as_str().unwrap();
    assert!(
        !message.is_empty() && !message.contains('\n') && message.len() <= 512,
        "{message}"
    );
    assert_eq!(body.as_object().unwrap().len(), 3, "{body}");
}

#[test]
fn the_answer_is_one_json_body() {
    let generator = start();
    let hello = body(json!({"source": "hello", "key1": "value1", "boolean": true}));
    for path in ["", "/profiles/default"] {
        let reply = generator.post(path, Some("strong-password"), &hello);
        assert_eq!(reply.status, 200);
        let echo = r#""input":{"boolean":true,"key1":"value1"}"#;
        let sets = format!(
            r#"{{{echo},"key1":"val1","key2":"val2"}},{{{echo},"key1":"val2","key2":"val2"}}"#
        );
        let expect = format!(r#"{{"output":{{"parameters":[{sets}]}}}}"#);
        assert_eq!(reply.body, expect);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(
            reply.header("content-length"),
            Some(expect.len().to_string().as_str())
        );
        assert_eq!(reply.header("transfer-encoding"), None);
    }
}

#[test]
fn tokens_and_profiles_are_checked() {
    let generator = start();
    let hello = body(json!({"source": "hello"}));
    let post = |path, token| generator.post(path, token, &hello);
    assert_eq!(post("", Some("a")).status, 200);
    assert_eq!(post("/profiles/team-a", Some(" a ")).status, 200);
    refused(&post("", None), 403, "unauthenticated");
    refused(&post("", Some("")), 403, "unauthenticated");
    refused(&post("", Some("wrong")), 403, "forbidden");
    refused(&post("", Some("$plugin:token")), 403, "forbidden");
    refused(
        &post("/profiles/team-a", Some("strong-password")),
        403,
        "forbidden",
    );
    // Without a known token the response does not reveal which profiles exist.
    refused(&post("/profiles/other", Some("wrong")), 403, "forbidden");
    refused(&post("/profiles/other", Some("a")), 404, "unknown_profile");
}

#[test]
fn invalid_requests_are_refused() {
    let generator = start();
    let token = Some("strong-password");
    let post = |text: &str| generator.post("", token, text);
    refused(&post(""), 400, "invalid_input");
    refused(&post("null"), 400, "invalid_input");
    refused(&post(r#"{"input":{}}"#), 400, "invalid_input");
    refused(
        &post(&body(json!({"source": "hello", "key3": 1}))),
        400,
        "invalid_input",
    );
    refused(
        &post(&body(json!({"source": "hello", "key1": "{{branch}}"}))),
        400,
        "invalid_input",
    );
    refused(&post(&body(json!({"source": "none"}))), 409, "guard_empty");
    refused(
        &post(&body(json!({"source": "hello", "minItems": 3}))),
        409,
        "guard_min_items",
    );
    refused(&post(&"x".repeat((1 << 20) + 1)), 413, "too_large");
    let get = generator.send("GET", "/api/v1/getparams.execute", &[], "");
    refused(&get, 405, "method");
    assert_eq!(get.header("allow"), Some("POST"));
    refused(
        &generator.send("POST", "/api/v1/getparams", &[], ""),
        404,
        "unknown_path",
    );
    refused(
        &generator.send("POST", "/profiles/%FF/api/v1/getparams.execute", &[], ""),
        404,
        "unknown_path",
    );
    // A 2xx without sets needs `onEmpty: allow` in the request.
    let allowed = post(&body(json!({"source": "none", "onEmpty": "allow"})));
    assert_eq!(
        (allowed.status, allowed.body.as_str()),
        (200, r#"{"output":{"parameters":[]}}"#)
    );
}

#[test]
fn tokens_and_configuration_change_without_a_restart() {
    let generator = start();
    let status = |token, source: &str| {
        let asked = body(json!({"source": source}));
        generator.post("", Some(token), &asked).status
    };
    fs::write(generator.dir().join("tokens/next"), "next").unwrap();
    generator.reload();
    assert_eq!(
        (status("strong-password", "hello"), status("next", "hello")),
        (200, 200)
    );
    fs::remove_file(generator.dir().join("tokens/argocd")).unwrap();
    generator.reload();
    assert_eq!(
        (status("strong-password", "hello"), status("next", "hello")),
        (403, 200)
    );

    let config = generator.dir().join("config.yaml");
    fs::write(&config, "static: {other: {sets: [{a: 1}]}}").unwrap();
    generator.reload();
    assert_eq!(
        (status("next", "hello"), status("next", "other")),
        (400, 200)
    );
    fs::write(&config, "static: {").unwrap();
    generator.wait_for("gloo_appset_config_good 0");
    assert_eq!(
        (status("next", "other"), generator.ops("/readyz").status),
        (200, 200)
    );
}

#[test]
fn two_authorization_headers_are_refused() {
    let generator = start();
    let path = "/api/v1/getparams.execute";
    let header = |token: &str| ("authorization", format!("Bearer {token}"));
    let asked = body(json!({"source": "hello"}));
    for tokens in [["strong-password", "wrong"], ["wrong", "strong-password"]] {
        let headers = tokens.map(header);
        refused(
            &generator.send("POST", path, &headers, &asked),
            400,
            "invalid_head",
        );
    }
    refused(
        &generator.post("", Some("strong-password"), r#"{"input":{}, "input":{}}"#),
        400,
        "invalid_input",
    );
}

#[test]
fn an_answer_has_a_largest_size() {
    let config = "static: {many: {sets: [{a: 1}, {a: 2}, {a: 3}]}}";
    let flags = ["--max-answer=1", "--memory=8"];
    let generator = Generator::start_with(config, &[("argocd", "t")], &flags);
    let of_size = |size: usize| {
        let asked = body(json!({"key": "x".repeat(size)}));
        generator.post("", Some("t"), &asked)
    };
    let large = of_size(300 << 10);
    assert_eq!(large.status, 200, "{}", large.body);
    assert!(large.body.len() > 900 << 10);
    refused(&of_size(400 << 10), 413, "answer_too_large");
}

/// Calls with one token send their body slowly, so that they keep what they hold.
#[test]
fn a_token_leaves_half_of_everything_to_others() {
    let tokens = [("a", "a"), ("b", "b")];
    let flags = ["--max-concurrent=4", "--memory=4"];
    let config = "static: {hello: {sets: [{key1: val1}]}}";
    let generator = Generator::start_with(config, &tokens, &flags);
    let path = "/api/v1/getparams.execute";
    let authorization = [("authorization", "Bearer a".to_owned())];
    let slow = || generator.begin("POST", path, &authorization, 1 << 20);
    let hello = body(json!({}));
    let held = [slow(), slow()];
    generator.wait_for("gloo_appset_running_calls 2");
    refused(&generator.post("", Some("a"), &hello), 429, "busy");
    for _ in 0..3 {
        assert_eq!(generator.post("", Some("b"), &hello).status, 200);
    }
    drop(held);
    generator.wait_for("gloo_appset_running_calls 0");
    assert_eq!(generator.post("", Some("a"), &hello).status, 200);

    // The body and the answer need more than half of the memory.
    let config = "static: {two: {sets: [{a: 1}, {a: 2}]}}";
    let small = Generator::start_with(config, &tokens, &flags);
    let long = body(json!({"key": "x".repeat(900 << 10)}));
    refused(&small.post("", Some("a"), &long), 429, "busy");
    assert_eq!(small.post("", Some("b"), &hello).status, 200);
}

#[test]
fn probes_and_metrics_are_served() {
    let generator = start();
    assert_eq!(generator.ops("/livez").status, 200);
    assert_eq!(generator.ops("/readyz").status, 200);
    generator.post(
        "",
        Some("strong-password"),
        &body(json!({"source": "hello"})),
    );
    generator.post("", Some("wrong"), "");
    let metrics = generator.ops("/metrics").body;
    for line in [
        r#"gloo_appset_calls_total{source="hello",code="ok"} 1"#,
        r#"gloo_appset_calls_total{source="",code="forbidden"} 1"#,
        "gloo_appset_config_good 1",
        "gloo_appset_cancelled_calls_total 0",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    fs::remove_dir_all(generator.dir().join("tokens")).unwrap();
    generator.reload();
    generator.reload();
    assert_eq!(generator.ops("/readyz").status, 503);
    refused(
        &generator.post("", Some("strong-password"), ""),
        503,
        "not_ready",
    );
    let log = generator.stop();
    assert_eq!(
        log.iter().filter(|it| is_unreadable(it)).count(),
        1,
        "{log:?}"
    );
}

#[test]
fn the_loss_of_the_last_token_is_in_the_log() {
    let config = "static: {hello: {sets: [{a: 1}]}}";
    let generator = Generator::start_with(config, &[("argocd", "x")], &[]);
    let file = generator.dir().join("tokens/argocd");
    fs::write(&file, "").unwrap();
    generator.reload();
    fs::write(&file, "x").unwrap();
    generator.reload();
    fs::remove_file(&file).unwrap();
    generator.reload();
    let log = generator.stop();
    let messages = log.iter().filter_map(|record| record["message"].as_str());
    let lost = messages.filter(|message| message.starts_with("there is no token"));
    assert_eq!(lost.count(), 2, "{log:?}");
}

#[test]
fn tokens_that_were_never_readable_are_in_the_log() {
    let generator = Generator::start_in_missing_tokens("static: {hello: {sets: [{a: 1}]}}");
    refused(&generator.post("", Some("t"), ""), 503, "not_ready");
    let log = generator.stop();
    assert!(log.iter().any(is_unreadable), "{log:?}");
}

#[test]
fn a_token_file_that_does_not_exist_is_in_the_log() {
    let missing = ["--token-file=/nonexistent"];
    let mut generator = Generator::start_alone("static: {hello: {sets: [{a: 1}]}}", &missing);
    refused(&generator.post("", Some("t"), ""), 503, "not_ready");
    generator.terminate();
    assert!(generator.end().iter().any(is_unreadable));
}

#[test]
fn a_token_that_no_file_has_is_in_the_log_also_after_a_reload() {
    let config = |token: &str| {
        format!(
            "{{static: {{hello: {{sets: [{{a: 1}}]}}}}, profiles: {{default: {{tokens: [{token}]}}}}}}"
        )
    };
    let generator = Generator::start(&config("team-x"), &[("t", "t")]);
    fs::write(generator.dir().join("config.yaml"), config("team-y")).unwrap();
    generator.reload();
    let log = generator.stop();
    for token in ["team-x", "team-y"] {
        let problem = format!("a profile names the token {token}, which no file has");
        let count = log
            .iter()
            .filter(|it| it["problem"] == problem.as_str())
            .count();
        assert_eq!(count, 1, "{log:?}");
    }
}

#[test]
fn a_pipe_in_place_of_a_file_stops_nothing() {
    let generator = start();
    for file in ["config.yaml", "tokens/argocd"] {
        let file = generator.dir().join(file);
        fs::remove_file(&file).ok();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, 0o600.into()).unwrap();
    }
    generator.reload();
    generator.wait_for("gloo_appset_config_good 0");
    generator.stop();
}

/// Whether a log record says that the tokens cannot be read.
fn is_unreadable(record: &Value) -> bool {
    let message = record["message"].as_str().unwrap_or_default();
    message.starts_with("the tokens in ") && message.contains("cannot be read")
}

#[test]
fn the_log_has_calls_but_no_secrets() {
    let generator = start();
    generator.post(
        "",
        Some("strong-password"),
        &body(json!({"source": "hello", "key1": "hush"})),
    );
    generator.post(
        "",
        Some("wrong-password"),
        &body(json!({"source": "hello"})),
    );
    for parameters in [
        json!({"source": "hush"}),
        json!({"source": "hello", "minItems": "hush"}),
        json!({"source": "hello", "key1": "{{hush}}"}),
        json!({"source": "hello", "alias": {"name": "hush"}}),
    ] {
        assert!(
            generator
                .post("", Some("strong-password"), &body(parameters))
                .status
                >= 400
        );
    }
    let long = json!({"applicationSetName": "é".repeat(300), "input": {}});
    generator.post("", Some("strong-password"), &long.to_string());
    let log = generator.stop();
    let lengths = log
        .iter()
        .filter_map(|record| record["span"]["application_set"].as_str());
    assert_eq!(lengths.map(str::len).max(), Some(256));
    let answered = log
        .iter()
        .find(|record| record["message"] == "answered")
        .unwrap();
    assert_eq!(
        (&answered["count"], &answered["span"]["application_set"]),
        (&json!(2), &json!("fb"))
    );
    assert_eq!(answered["span"]["token"], "argocd");
    assert!(answered["ms"].is_number(), "{answered}");
    for record in &log {
        let text = record.to_string();
        assert!(
            !text.contains("-password") && !text.contains("hush"),
            "{text}"
        );
    }
}
