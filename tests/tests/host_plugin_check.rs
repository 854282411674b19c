//! The conformance kit with our plugin, and with the plugins in Go of `go/rollouts/broken`: without a fault, and with each fault that
//! the kit must find.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use clap::Parser as _;
use e2e_tests::{plugin_binary, program};
use futures::{StreamExt as _, stream};
use rollouts_plugin_check::{Args, Report, check};

/// Number of plugins that are checked concurrently. Most checks wait.
const AT_ONCE: usize = 8;

/// Timeout in seconds of a call to a plugin without a fault, and to one with a fault.
const PATIENCE: [&str; 2] = ["20", "2"];

const KINDS: [&str; 3] = ["router", "metric", "step"];

/// A kind, a fault, and the checks that fail because of it.
///
/// Other checks may fail too: a plugin that does not answer a ping, for example, fails most.
const FAULTS: &[(&str, &str, &[&str])] = &[
    (
        "step",
        "serves-anyone",
        &["by-hand.ends", "other-kind.ends"],
    ),
    (
        "step",
        "says-it-served",
        &["by-hand.exit-code", "other-kind.exit-code"],
    ),
    ("metric", "talks", &["by-hand.stdout", "other-kind.stdout"]),
    ("metric", "mute", &["by-hand.stderr", "other-kind.stderr"]),
    ("router", "banner", &["announce.line"]),
    ("router", "field:0=2", &["announce.core-version"]),
    ("router", "version", &["announce.version"]),
    ("router", "field:2=tcp", &["announce.network"]),
    ("router", "field:4=grpc", &["announce.protocol"]),
    ("router", "field:5=MIIB", &["announce.certificate"]),
    ("router", "field:6=true", &["announce.fields"]),
    ("metric", "no-socket", &["announce.socket"]),
    ("metric", "public", &["announce.private"]),
    ("step", "newest-version", &["announce.many-versions"]),
    ("step", "needs-versions", &["announce.no-version"]),
    ("step", "needs-ports", &["announce.no-ports"]),
    // The test passes a directory.
    ("step", "elsewhere", &["announce.tmpdir", "life.restart"]),
    ("router", "deaf", &["session.opens"]),
    ("router", "no-ack:1", &["session.acknowledges-control"]),
    ("router", "no-ack:3", &["session.acknowledges-stdout"]),
    ("router", "no-ack:5", &["session.acknowledges-stderr"]),
    ("step", "no-pong", &["session.keep-alive"]),
    ("router", "no-ping", &["session.ping", "call.ping"]),
    ("metric", "one-ping", &["session.pings"]),
    ("step", "sulks", &["session.goes-on", "session.in-step"]),
    (
        "router",
        "answers-anything",
        &[
            "session.unknown-plugin",
            "session.no-metric",
            "session.no-step",
            "session.unknown-control",
            "session.unknown-method",
            "session.unknown-service",
            "session.unknown-name",
            "session.future-method",
        ],
    ),
    (
        "step",
        "all-kinds",
        &["session.no-router", "session.no-metric"],
    ),
    ("step", "not-dispensed", &["session.dispense"]),
    (
        "router",
        "dispenses-once",
        &["session.dispense-again", "call.1.5.1", "call.1.10.1"],
    ),
    ("metric", "forgets-first", &["session.first-goes-on"]),
    ("metric", "nameless", &["session.type"]),
    ("metric", "silent:InitPlugin", &["call.init"]),
    ("router", "slow-init", &["call.init-time"]),
    ("router", "silent:SetWeight", &["argument.unregistered"]),
    ("router", "seven", &["call.1.10.1.VerifyWeight"]),
    ("metric", "phase", &["call.1.10.1.Run"]),
    ("step", "phase", &["call.1.10.1.Run"]),
    ("step", "status", &["call.1.10.1.Run"]),
    ("router", "hangs", &["call.1.10.1.SetWeight"]),
    ("router", "panics", &["call.survives"]),
    ("step", "bad-record", &["call.log", "life.log"]),
    ("router", "fickle", &["load.at-once"]),
    ("step", "exclusive", &["load.at-once"]),
    ("router", "tires:55", &["load.given-up"]),
    ("router", "tires:300", &["load.many"]),
    ("metric", "short-messages", &["load.big"]),
    ("router", "heavy", &["load.memory"]),
    ("metric", "falls-asleep", &["life.idle"]),
    ("router", "stays", &["life.quit"]),
    ("router", "quits-silently", &["life.quit-reply"]),
    ("router", "exit-code", &["life.exit-code"]),
    ("step", "leaves-socket", &["life.socket"]),
    ("router", "stray-output", &["life.stdout"]),
    ("step", "bad-time", &["life.log-times"]),
    ("step", "long-line", &["life.log-lines"]),
    ("metric", "outlives-host", &["life.hang-up"]),
    ("metric", "first-connection", &["life.knock"]),
    ("router", "dies-of-interrupt", &["life.interrupt"]),
    ("router", "ignores-term", &["life.terminate"]),
    ("router", "alone", &["life.two"]),
];

/// Checks that Go's own server fails. A controller tolerates them.
const TOLERATED: [&str; 3] = ["life.hang-up", "life.knock", "life.quit-reply"];

/// Checks a program. `more` has further options, and the program's arguments after `--`.
async fn checked(binary: &OsStr, kind: &str, patience: &str, more: &[&str]) -> Report {
    let args = [
        "check",
        "--kind",
        kind,
        "--idle",
        "1",
        "--patience",
        patience,
    ];
    let args = args.iter().map(OsStr::new).chain([binary]);
    check(Args::parse_from(args.chain(more.iter().map(OsStr::new)))).await
}

/// Checks the plugin in Go with a fault, or without one if `fault` is empty.
async fn report(kind: &str, fault: &str, only: &[&str]) -> Report {
    let command = program("go-plugin-broken").unwrap();
    let cookie = match kind {
        "router" => "trafficrouter",
        "metric" => "metricprovider",
        kind => kind,
    };
    let mut more: Vec<_> = only.iter().flat_map(|only| ["--only", only]).collect();
    more.extend(["--", cookie, fault]);
    let [good, faulty] = PATIENCE;
    let patience = if fault.is_empty() { good } else { faulty };
    checked(command.get_program(), kind, patience, &more).await
}

/// Returns the names of the checks, without those of a method's later calls: the first failure ends the recording.
fn names(report: &Report) -> BTreeSet<&str> {
    let names = report.findings.iter().map(|finding| finding.check.as_str());
    names.filter(|name| !name.contains('#')).collect()
}

fn failed(report: &Report) -> BTreeSet<&str> {
    report
        .failed()
        .map(|finding| finding.check.as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn our_plugin_passes_every_check() {
    let binary = plugin_binary().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let tables = format!("--route-tables-dir={}", directory.path().display());
    let report = checked(binary.as_os_str(), "router", PATIENCE[0], &["--", &tables]).await;
    assert_eq!(report.failed().count(), 0, "{report}");
    assert!(report.findings.len() >= 60, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn go_plugins_without_a_fault_are_conformant() {
    for kind in KINDS {
        for server in ["", "own-server"] {
            let report = report(kind, server, &[]).await;
            assert!(report.is_conformant(), "{report}");
            assert!(report.findings.len() >= 60, "{report}");
            // Go's server cannot skip a value of an unknown type.
            let mut failed = failed(&report);
            failed.retain(|check| *check != "argument.unregistered");
            if server.is_empty() {
                failed.retain(|check| !TOLERATED.contains(check));
            }
            assert!(failed.is_empty(), "{failed:?}: {report}");
        }
    }
}

/// Returns the method in the name of a check of a call.
fn method(check: &str) -> Option<&str> {
    let calls = ["call.", "argument."].into_iter();
    let mut parts = calls
        .filter_map(|it| check.strip_prefix(it))
        .next()?
        .split('.');
    parts.find(|part| part.starts_with(|first: char| first.is_ascii_uppercase()))
}

/// Returns the faults of [`FAULTS`], and two faults of every method of the kind: no answer, and an error of two lines.
fn faults<'a>(kind: &'a str, checks: &BTreeSet<&'a str>) -> Vec<(String, BTreeSet<&'a str>)> {
    let mut faults = BTreeMap::<String, BTreeSet<&str>>::new();
    for (_, fault, checks) in FAULTS.iter().filter(|(of, ..)| *of == kind) {
        faults.insert((*fault).to_owned(), checks.iter().copied().collect());
    }
    for check in checks {
        if let Some(method) = method(check) {
            let fault = match check.ends_with(".text") {
                true => "two-lines".to_owned(),
                false => format!("silent:{method}"),
            };
            faults.entry(fault).or_default().insert(check);
        }
    }
    faults.into_iter().collect()
}

/// Returns which checks should have failed because of a fault and did not; `None` if there are none.
async fn missed(kind: &str, fault: &str, checks: &BTreeSet<&str>) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let with_directory = format!("{fault}:{}", directory.path().display());
    let fault_with_value = if fault == "elsewhere" {
        &with_directory
    } else {
        fault
    };
    let only: Vec<&str> = checks.iter().copied().collect();
    let report = report(kind, fault_with_value, &only).await;
    let found = failed(&report);
    let missing: Vec<_> = checks.difference(&found).collect();
    (!missing.is_empty()).then(|| format!("{kind} {fault}: {missing:?} did not fail:\n{report}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_check_fails_because_of_a_fault() {
    let mut runs = Vec::new();
    let mut untested = BTreeSet::new();
    let mut tested = BTreeSet::new();
    for kind in KINDS {
        let good = report(kind, "", &[]).await;
        let known = names(&good);
        for (fault, checks) in faults(kind, &known) {
            for check in &checks {
                assert!(
                    known.contains(check),
                    "{kind} {fault}: there is no check {check}"
                );
            }
            let checks: BTreeSet<String> = checks.into_iter().map(str::to_owned).collect();
            tested.extend(checks.iter().cloned());
            runs.push((kind, fault, checks));
        }
        untested.extend(known.into_iter().map(str::to_owned));
    }
    untested.retain(|check| !tested.contains(check));
    assert!(untested.is_empty(), "no fault for {untested:?}");

    let missed = stream::iter(&runs).map(|(kind, fault, checks)| async move {
        let checks = checks.iter().map(String::as_str).collect();
        missed(kind, fault, &checks).await
    });
    let missed: Vec<_> = missed
        .buffer_unordered(AT_ONCE)
        .filter_map(async |it| it)
        .collect()
        .await;
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}
