//! What one call may cost, and what becomes of it at the end.

use crate::generator::{Call, Generator};

const CONFIG: &str = "static: {hello: {sets: [{key1: val1}]}}";
const TOKENS: &[(&str, &str)] = &[("argocd", "t")];
const BODY: &str = r#"{"input":{}}"#;

/// A call whose body is still to come.
fn begin(generator: &Generator) -> Call {
    let token = ("authorization", "Bearer t".to_owned());
    generator.begin("POST", "/api/v1/getparams.execute", &[token], BODY.len())
}

#[test]
fn calls_beyond_the_room_are_turned_away() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1"]);
    let mut call = begin(&generator);
    generator.wait_for("gloo_appset_running_calls 1");
    let other = generator.post("", Some("t"), BODY);
    assert_eq!(other.status, 429);
    call.send(BODY);
    assert_eq!(call.reply().status, 200);
}

/// There may be four for each call. One that is at work answers before it goes.
#[test]
fn the_oldest_connection_makes_room() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1"]);
    let mut oldest = begin(&generator);
    generator.wait_for("gloo_appset_running_calls 1");
    let second = generator.connect();
    let _third_and_fourth = [generator.connect(), generator.connect()];
    assert_eq!(generator.post("", Some("t"), BODY).status, 429);
    oldest.send(BODY);
    let reply = oldest.reply();
    assert_eq!(
        (reply.status, reply.header("connection")),
        (200, Some("close"))
    );
    let _two_more = [generator.connect(), generator.connect()];
    second.closed();
    assert_eq!(generator.post("", Some("t"), BODY).status, 200);
}

#[test]
fn a_call_ends_at_the_deadline() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--deadline=0.2"]);
    let reply = begin(&generator).reply();
    assert_eq!(reply.status, 504);
    assert!(
        reply.body.contains(r#""code":"deadline""#),
        "{}",
        reply.body
    );
}

#[test]
fn what_was_asked_before_the_end_is_answered() {
    let mut generator =
        Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1", "--deadline=600"]);
    let mut call = begin(&generator);
    generator.wait_for("gloo_appset_running_calls 1");
    generator.terminate();
    generator.wait_for("gloo_appset_draining 1");
    call.send(BODY);
    let reply = call.reply();
    assert_eq!(
        (reply.status, reply.header("connection")),
        (200, Some("close"))
    );
    let log = generator.end();
    assert!(log.iter().any(|record| record["message"] == "drained"));
}
