//! Runs the kit on the examples: each passes all checks.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use rollouts_plugin_check::{Args, Finding, Level, Outcome, Report, check};

/// Returns the path of an example. Cargo builds examples with the tests of the whole workspace.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let examples = this.ancestors().nth(2).unwrap().join("examples");
    let example = examples.join(name);
    assert!(
        example.exists(),
        "build it: cargo build --all-features --examples"
    );
    example
}

async fn report(name: &str, kind: &str, more: &[&str]) -> Report {
    let binary = example(name);
    let args = [
        "check",
        binary.to_str().unwrap(),
        "--kind",
        kind,
        "--idle",
        "1",
    ];
    check(Args::parse_from(args.iter().chain(more))).await
}

async fn check_all(name: &str, kind: &str, more: &[&str]) {
    let report = report(name, kind, more).await;
    assert!(report.is_conformant(), "{report}");
    assert_eq!(report.failed().count(), 0, "{report}");
    assert!(
        report.findings.len() >= 60,
        "{} checks",
        report.findings.len()
    );
}

/// Users compare reports of different releases by the names.
#[tokio::test(flavor = "multi_thread")]
async fn each_kind_has_these_checks() {
    for kind in ["router", "metric", "step"] {
        let config = r#"--config=example/x={"value": 1, "atLeast": 0.9, "fail": false}"#;
        let more = [config, "--probe=echo"];
        let report = report(&format!("minimal_{kind}"), kind, &more).await;
        let mut lines = Vec::new();
        for Finding {
            check, rule, level, ..
        } in &report.findings
        {
            // A recording has most methods several times.
            if !check.contains('#') {
                lines.push(format!("{level:?} {check}: {rule}"));
            }
        }
        insta::assert_snapshot!(format!("checks_of_a_{kind}"), lines.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_router_is_conformant() {
    check_all("minimal_router", "router", &["--config=example/minimal={}"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nginx_router_is_conformant() {
    check_all("nginx_router", "router", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metric_providers_are_conformant() {
    let config = r#"--config=example/constant={"value": 1, "atLeast": 0.9}"#;
    check_all("minimal_metric", "metric", &[config]).await;
    let slow = r#"--config=example/constant={"value": 1, "atLeast": 0.9, "slow": true}"#;
    check_all("metric_provider", "metric", &[slow]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_are_conformant() {
    check_all(
        "minimal_step",
        "step",
        &[r#"--config=example/gate={"fail": false}"#],
    )
    .await;
    check_all(
        "step_plugin",
        "step",
        &[r#"--config=example/patience={"times": 3}"#],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_of_another_kind_is_not_conformant() {
    let report = report("minimal_step", "router", &[]).await;
    assert!(!report.is_conformant(), "{report}");
    let first = report.failed().find(|finding| finding.level == Level::Must);
    assert_eq!(first.unwrap().check, "announce.line");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_refused_is_found() {
    let wrong = [
        r#"--config=example/patience={"time": 3}"#,
        "--only=configured",
    ];
    let report = report("step_plugin", "step", &wrong).await;
    insta::assert_snapshot!(report.to_string().replace(&report.plugin, "step_plugin"), @"
    FAIL  configured.Run  the call succeeds: step example/patience: config.time is invalid: unknown field `time`, expected `times`
    step_plugin: 0 of 4 checks passed, 3 not run, not conformant
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_hangs_is_found() {
    let patient = &["--patience", "1", "--only", "call.1.5.1"];
    let report = report("hanging_router", "router", patient).await;
    assert!(!report.is_conformant(), "{report}");
    let failed: Vec<_> = report.failed().collect();
    assert!(
        matches!(&failed[..], [finding] if finding.outcome == Outcome::Failed("no answer within 1 s".to_owned())),
        "{report}"
    );
}

/// Checks the exit code of the program.
#[track_caller]
fn check_exit(binary: &Path, more: &[&str], expect: i32) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rollouts-plugin-check"));
    let status = program
        .arg(binary)
        .args(["--kind", "router"])
        .args(more)
        .status();
    assert_eq!(status.unwrap().code(), Some(expect));
}

#[test]
fn what_cannot_be_checked_gets_no_verdict() {
    check_exit(Path::new("/no/such"), &[], 2);
    check_exit(Path::new("/etc/passwd"), &[], 2);
    let minimal = example("minimal_router");
    check_exit(&minimal, &["--only", "no-such-check"], 2);
    check_exit(&minimal, &["--config", "without-json"], 2);
    check_exit(&minimal, &["--config", "example/x={"], 2);
    check_exit(&minimal, &["--only", "by-hand"], 0);
    check_exit(&example("minimal_step"), &["--only", "announce"], 1);
}
