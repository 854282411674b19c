//! The conformance kit with plugins in Go on the real go-plugin server, `go/rollouts/broken`: one that behaves, and many that each
//! do one thing wrong.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap::Parser as _;
use e2e_tests::{plugin_binary, program};
use rollouts_plugin_check::{Args, Finding, Level, Outcome, Report, check};

/// Checks a program, with its own arguments behind `more`.
async fn checked(binary: &OsStr, kind: &str, more: &[&str]) -> Report {
    let args = ["check", "--kind", kind, "--idle", "1", "--patience", "3"];
    let args = args.iter().map(OsStr::new).chain([binary]);
    check(Args::parse_from(args.chain(more.iter().map(OsStr::new)))).await
}

/// Checks the plugin in Go that does one thing wrong.
async fn report(kind: &str, fault: &str, only: &[&str]) -> Report {
    let command = program("go-plugin-broken").unwrap();
    let cookie = match kind {
        "router" => "trafficrouter",
        "metric" => "metricprovider",
        kind => kind,
    };
    let mut more: Vec<_> = only.iter().flat_map(|only| ["--only", only]).collect();
    more.extend(["--", cookie, fault]);
    checked(command.get_program(), kind, &more).await
}

#[tokio::test(flavor = "multi_thread")]
async fn our_plugin_does_all_that_it_must_and_should() {
    let binary = plugin_binary().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let tables = format!("--route-tables-dir={}", directory.path().display());
    let report = checked(binary.as_os_str(), "router", &["--", &tables]).await;
    assert_eq!(report.failed().count(), 0, "{report}");
    assert!(report.findings.len() >= 60, "{report}");
}

/// Where a Go plugin does not do what it should, which a controller survives.
fn warnings(report: &Report) -> BTreeSet<&str> {
    let failed = report.failed();
    failed
        .map(|finding| finding.check.as_str())
        .filter(|check| !check.contains("unregistered"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_plugin_of_each_kind_does_all_that_it_must() {
    for kind in ["router", "metric", "step"] {
        let report = report(kind, "", &[]).await;
        assert!(report.is_conformant(), "{report}");
        assert!(report.findings.len() >= 60, "{report}");
        let known = [
            "announce.private",
            "life.hang-up",
            "life.knock",
            "life.quit-reply",
        ];
        let unknown: Vec<_> = warnings(&report)
            .into_iter()
            .filter(|check| !known.contains(check))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}: {report}");
    }
}

/// The fault is found by this check, of this level.
async fn finds(kind: &str, fault: &str, check: &str, level: Level) {
    let broken = report(kind, fault, &[check]).await;
    let failed = broken
        .failed()
        .any(|finding| finding.check == check && finding.level == level);
    assert!(failed, "{kind} {fault}: {check} is not found: {broken}");
    let good = report(kind, "", &[check]).await;
    let passed = |finding: &Finding| finding.check == check && finding.outcome == Outcome::Passed;
    assert!(
        good.findings.iter().any(passed),
        "{kind}: {check} without a fault: {good}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_a_controller_is_found_at_the_start() {
    finds("router", "banner", "announce.line", Level::Must).await;
    finds("router", "version", "announce.version", Level::Must).await;
    finds("step", "serves-anyone", "by-hand.ends", Level::Must).await;
    finds("step", "says-it-served", "by-hand.exit-code", Level::Must).await;
    finds(
        "metric",
        "says-it-served",
        "other-kind.exit-code",
        Level::Must,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_a_session_is_found() {
    finds("step", "not-dispensed", "session.dispense", Level::Must).await;
    finds("metric", "nameless", "session.type", Level::Must).await;
    finds("router", "fickle", "load.at-once", Level::Must).await;
    finds("router", "heavy", "load.memory", Level::Must).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_a_call_is_found() {
    finds("router", "hangs", "call.1.10.1.SetWeight", Level::Must).await;
    finds("router", "panics", "call.survives", Level::Must).await;
    finds("router", "seven", "call.1.10.1.VerifyWeight", Level::Must).await;
    finds(
        "router",
        "two-lines",
        "call.1.10.1.SetWeight.text",
        Level::Should,
    )
    .await;
    finds("metric", "phase", "call.1.10.1.Run", Level::Must).await;
    finds("step", "phase", "call.1.10.1.Run", Level::Must).await;
    finds("step", "status", "call.1.10.1.Run", Level::Must).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_does_wrong_in_its_life_is_found() {
    finds("router", "stays", "life.quit", Level::Must).await;
    finds("router", "exit-code", "life.exit-code", Level::Must).await;
    finds("router", "ignores-term", "life.terminate", Level::Must).await;
    finds("router", "dies-of-interrupt", "life.interrupt", Level::Must).await;
    finds("router", "stray-output", "life.stdout", Level::Must).await;
    finds("step", "bad-record", "life.log", Level::Must).await;
    finds("step", "bad-record", "call.log", Level::Must).await;
    finds("step", "bad-time", "life.log-times", Level::Should).await;
    finds("step", "long-line", "life.log-lines", Level::Should).await;
}
