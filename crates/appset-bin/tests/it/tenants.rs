//! What the long computations of some tokens do to the others.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Call, Generator};

/// The names of the tokens with long computations.
const HOSTILE: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// Starts a generator for which a call of [`begin`] computes for more than a minute.
fn start(flags: &[&str]) -> (tempfile::TempDir, Generator) {
    let dir = tempfile::tempdir().unwrap();
    let mut file = String::new();
    for number in 0..300 {
        let name = format!("{}{number:03}", "a".repeat(240));
        let metadata = json!({"name": name, "namespace": "gloo-mesh"});
        let workspace = json!({"apiVersion": "admin.gloo.solo.io/v2", "kind": "Workspace", "metadata": metadata, "spec": {}});
        file += &format!("---\n{workspace}\n");
    }
    std::fs::write(dir.path().join("workspaces.yaml"), file).unwrap();
    let objects = format!("--objects-dir={}", dir.path().display());
    let tokens: Vec<_> = HOSTILE.iter().chain(&["honest"]).collect();
    let tokens: Vec<_> = tokens.into_iter().map(|token| (*token, *token)).collect();
    let config = "{glooWorkspaces: {}, static: {hello: {sets: [{key1: val1}]}}}";
    let generator = Generator::start_with(config, &tokens, &[&[objects.as_str()], flags].concat());
    (dir, generator)
}

/// Begins a call with the costliest patterns: each fails late at each character of each name.
fn begin(generator: &Generator, token: &str) -> Call {
    let pattern = |number| format!("*{}b{number}", "a".repeat(120));
    let patterns: Vec<_> = (0..1000).map(pattern).collect();
    let parameters =
        json!({"source": "gloo-workspaces", "workspaces": patterns, "onEmpty": "allow"});
    let body = json!({"input": {"parameters": parameters}}).to_string();
    let token = [("authorization", format!("Bearer {token}"))];
    let path = "/api/v1/getparams.execute";
    let mut call = generator.begin("POST", path, &token, body.len());
    call.send(&body);
    call
}

/// Waits until the process uses almost no processor.
#[track_caller]
fn idle(generator: &Generator) {
    let started = Instant::now();
    loop {
        let before = generator.cpu_ticks();
        thread::sleep(Duration::from_millis(500));
        if generator.cpu_ticks() < before + 10 {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(15), "still busy");
    }
}

#[test]
fn a_computation_ends_with_its_caller_and_at_the_deadline() {
    let (_objects, generator) = start(&["--deadline=2"]);
    let call = begin(&generator, "a");
    thread::sleep(Duration::from_secs(1));
    drop(call);
    idle(&generator);
    assert_eq!(begin(&generator, "a").reply().status, 504);
    idle(&generator);
}

#[test]
fn a_token_is_answered_while_ten_others_compute() {
    let (_objects, generator) = start(&["--deadline=20"]);
    let calls = HOSTILE.map(|token| begin(&generator, token));
    thread::sleep(Duration::from_secs(5));
    let hello = json!({"input": {"parameters": {"source": "hello"}}}).to_string();
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(generator.post("", Some("honest"), &hello).status, 200);
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(calls);
}

/// To open a pipe takes forever, as to read from a mount that hangs does.
#[test]
fn a_process_ends_although_a_read_hangs() {
    let (objects, generator) = start(&["--deadline=1"]);
    let pipe = objects.path().join("pipe.yaml");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    assert_eq!(begin(&generator, "a").reply().status, 504);
    let started = Instant::now();
    generator.stop();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
