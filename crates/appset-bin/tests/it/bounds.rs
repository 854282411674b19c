//! What one call may cost, and what becomes of it at the end.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::generator::{Call, Generator};

const CONFIG: &str = "static: {hello: {sets: [{key1: val1}]}}";
const TOKENS: &[(&str, &str)] = &[("argocd", "t")];
const BODY: &str = r#"{"input":{}}"#;

/// No measure of anything: a test that waits longer has found a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// A call whose body is still to come.
fn begin(generator: &Generator) -> Call {
    let token = ("authorization", "Bearer t".to_owned());
    generator.begin("POST", "/api/v1/getparams.execute", &[token], BODY.len())
}

/// Waits for a line of the figures.
#[track_caller]
fn wait_for(generator: &Generator, line: &str) {
    let started = Instant::now();
    while !generator.ops("/metrics").body.contains(line) {
        assert!(started.elapsed() < PATIENCE, "{line} never came");
    }
}

#[test]
fn calls_beyond_the_room_are_turned_away() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1"]);
    let mut call = begin(&generator);
    wait_for(&generator, "gloo_appset_running_calls 1");
    let other = generator.post("", Some("t"), BODY);
    assert_eq!(other.status, 429);
    call.0.write_all(BODY.as_bytes()).unwrap();
    assert_eq!(call.reply().status, 200);
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
    wait_for(&generator, "gloo_appset_running_calls 1");
    generator.terminate();
    wait_for(&generator, "gloo_appset_draining 1");
    call.0.write_all(BODY.as_bytes()).unwrap();
    let reply = call.reply();
    assert_eq!(
        (reply.status, reply.header("connection")),
        (200, Some("close"))
    );
    let log = generator.end();
    assert!(log.iter().any(|record| record["message"] == "drained"));
}
