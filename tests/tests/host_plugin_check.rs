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
use rollouts_plugin_check::{Args, Finding, Outcome, Report, check};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Number of plugins that are checked concurrently. Most checks wait.
const AT_ONCE: usize = 12;

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
    ("router", "no-ack:7", &["session.acknowledges-plugin"]),
    ("step", "no-pong", &["session.keep-alive"]),
    (
        "router",
        "no-ping",
        &["session.ping", "call.1.5.1.ping", "call.1.10.2.ping"],
    ),
    ("step", "type:seq", &["session.ping"]),
    ("router", "type:ping", &["session.ping"]),
    ("metric", "type:dispense", &["session.dispense"]),
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
    ("metric", "not-dispensed", &["call.1.5.1"]),
    ("router", "not-dispensed", &["call.1.10.2"]),
    ("router", "dispenses-once", &["session.dispense-again"]),
    ("metric", "forgets-first", &["session.first-goes-on"]),
    ("metric", "nameless", &["session.type"]),
    ("metric", "silent:InitPlugin", &["load.opens"]),
    ("router", "silent:SetWeight", &["argument.unregistered"]),
    ("router", "seven", &["call.1.10.2.VerifyWeight"]),
    ("metric", "phase", &["call.1.10.2.Run"]),
    ("step", "phase", &["call.1.10.2.Run"]),
    ("step", "status", &["call.1.10.2.Run"]),
    ("router", "type:error-name", &["call.1.10.2.SetWeight"]),
    ("router", "type:error-bytes", &["call.1.10.2.SetWeight"]),
    ("router", "type:verified", &["call.1.10.2.VerifyWeight"]),
    ("metric", "type:value", &["call.1.10.2.Run"]),
    ("metric", "type:started", &["call.1.10.2.Run"]),
    ("step", "type:status", &["call.1.10.2.Run"]),
    ("step", "type:requeue", &["call.1.10.2.Run"]),
    ("router", "hangs", &["call.1.10.2.SetWeight"]),
    ("router", "panics", &["call.1.5.1.SetWeight"]),
    ("step", "bad-record", &["call.1.10.2.log", "life.log"]),
    ("metric", "bad-record", &["call.1.5.1.log"]),
    ("router", "fickle", &["load.at-once"]),
    ("step", "exclusive", &["load.at-once"]),
    ("router", "tires:55", &["load.given-up"]),
    ("router", "tires:300", &["load.many"]),
    ("metric", "short-messages", &["load.big"]),
    ("router", "heavy", &["load.memory"]),
    ("router", "refuses-config", &["configured.SetWeight"]),
    ("router", "dies-of-config", &["configured.SetWeight"]),
    ("metric", "refuses-config", &["configured.Run"]),
    ("router", "never-verified", &["configured.VerifyWeight"]),
    ("router", "stalls", &["configured.ping"]),
    ("router", "forgets", &["configured.restart"]),
    ("router", "ignores-weight", &["configured.probe"]),
    ("router", "refuses-end", &["configured.RemoveManagedRoutes"]),
    ("metric", "refuses-end", &["configured.GarbageCollect"]),
    ("step", "refuses-end", &["configured.Abort"]),
    ("metric", "falls-asleep", &["life.idle"]),
    ("router", "stays", &["life.quit"]),
    ("router", "quits-silently", &["life.quit-reply"]),
    ("router", "exit-code", &["life.exit-code"]),
    ("step", "leaves-socket", &["life.socket"]),
    // In a directory that the test passes.
    ("metric", "abandons", &["life.socket"]),
    ("router", "stray-output", &["life.stdout"]),
    ("step", "bad-time", &["life.log-times"]),
    ("step", "long-line", &["life.log-lines"]),
    ("metric", "outlives-host", &["life.hang-up"]),
    ("metric", "first-connection", &["life.knock"]),
    ("router", "dies-of-interrupt", &["life.interrupt"]),
    ("router", "ignores-term", &["life.terminate"]),
    ("router", "alone", &["life.two"]),
];

/// A table that forwards to the stable Service of the recorded Rollout.
const TABLE: &str = "\
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: shop, namespace: shop}
spec:
  http:
  - forwardTo: {destinations: [{ref: {name: demo-stable, namespace: shop}, port: {number: 80}}]}
";

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
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weight").display().to_string();
    let config = format!("broken={{\"file\": \"{file}\"}}");
    let probe = format!("cat {file}");
    let mut more = vec!["--config", &config, "--probe", &probe];
    more.extend(only.iter().flat_map(|only| ["--only", only]));
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
    let at = directory.path().display();
    std::fs::write(directory.path().join("table.yaml"), TABLE).unwrap();
    let more = [
        r#"--config=solo-io/glooplatform={"routeTableSelector": {"name": "shop"}}"#,
        &format!("--probe=grep -w weight {at}/*"),
        "--",
        &format!("--route-tables-dir={at}"),
    ];
    let report = checked(binary.as_os_str(), "router", PATIENCE[0], &more).await;
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

/// An API server without any object, for a plugin that waits for its cache. Returns a kubeconfig.
async fn empty_cluster() -> tempfile::NamedTempFile {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(connection));
        }
    });
    let config = tempfile::NamedTempFile::new().unwrap();
    let yaml = format!(
        "{{clusters: [{{name: a, cluster: {{server: '{server}'}}}}], contexts: [{{name: a, context: {{cluster: a}}}}], current-context: a}}"
    );
    std::fs::write(config.path(), yaml).unwrap();
    config
}

async fn answer(mut connection: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(&mut connection).lines();
    let path = lines.next_line().await?.unwrap_or_default();
    while lines
        .next_line()
        .await?
        .is_some_and(|line| !line.is_empty())
    {}
    let body = match path.split(['/', '?', ' ']).collect::<Vec<_>>()[..] {
        // A watch without an event stays open.
        _ if path.contains("watch=") => return std::future::pending().await,
        [.., "version", _, _] => r#"{"major": "1", "minor": "34", "gitVersion": "v1.34.1"}"#,
        _ => {
            r#"{"kind": "IngressList", "apiVersion": "networking.k8s.io/v1", "metadata": {"resourceVersion": "1"}, "items": []}"#
        }
    };
    let reply = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(reply.as_bytes()).await
}

/// Argo's own samples are in the module of the controller. Its router needs a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn the_samples_of_argo_are_conformant() {
    let kubeconfig = empty_cluster().await;
    let kubeconfig = format!("KUBECONFIG={}", kubeconfig.path().display());
    for kind in KINDS {
        let sample = program(&format!("argo-{kind}")).unwrap();
        let sample = sample.get_program().to_str().unwrap();
        let mut more = vec!["--", &kubeconfig, sample];
        if kind == "step" {
            more.splice(0..0, ["--config", "sample={}"]);
        }
        let report = checked("/usr/bin/env".as_ref(), kind, PATIENCE[0], &more).await;
        assert!(report.is_conformant(), "{kind}: {report}");
        assert!(report.findings.len() >= 60, "{report}");
    }
}

/// A plugin with Go's server may exit before it has sent the reply: one silent exit says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_answers_quit_only_sometimes_gets_no_warning() {
    let directory = tempfile::tempdir().unwrap();
    let silent = directory.path().join("silent");
    let fault = format!("quits-silently:{}", silent.display());
    let report = report("router", &fault, &["life.quit-reply"]).await;
    assert_eq!(report.failed().count(), 0, "{report}");
    assert_eq!(std::fs::read_to_string(&silent).unwrap(), "..");
}

/// A check that the rounds did not reach has not passed.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_configured_call_did_not_reach_is_not_run() {
    let report = report("router", "stalls", &["configured"]).await;
    let outcomes: Vec<_> = report
        .findings
        .iter()
        .map(|finding| match finding.outcome {
            Outcome::Passed => (finding.check.as_str(), "passed"),
            Outcome::Failed(_) => (finding.check.as_str(), "failed"),
            _ => (finding.check.as_str(), "not run"),
        })
        .collect();
    let expect = [
        ("configured.SetWeight", "passed"),
        ("configured.VerifyWeight", "not run"),
        ("configured.ping", "failed"),
        ("configured.restart", "not run"),
        ("configured.probe", "not run"),
        ("configured.RemoveManagedRoutes", "not run"),
    ];
    assert_eq!(outcomes, expect, "{report}");
}

/// One crash is one line, with the text of the panic. What follows did not run.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_one_failure() {
    let report = report("router", "panics", &["call", "load", "life"]).await;
    let failures: Vec<_> = report.failed().map(ToOwned::to_owned).collect();
    let [
        Finding {
            check,
            outcome: Outcome::Failed(what),
            ..
        },
    ] = &failures[..]
    else {
        panic!("{report}");
    };
    assert_eq!(check, "call.1.5.1.SetWeight", "{report}");
    let lines = "the plugin closed the stream; it ended with exit status: 2\npanic: no luck\n";
    assert!(what.starts_with(lines), "{report}");
    let rest = report
        .findings
        .iter()
        .skip_while(|it| it.check != *check)
        .skip(1);
    assert!(
        rest.clone().count() > 3 && rest.into_iter().all(|it| it.outcome == Outcome::NotRun),
        "{report}"
    );
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

/// Returns the faults of [`FAULTS`], and further faults of every method of the kind: no answer, a late one, and an error of two lines.
fn faults<'a>(kind: &'a str, checks: &BTreeSet<&'a str>) -> Vec<(String, BTreeSet<&'a str>)> {
    let mut faults = BTreeMap::<String, BTreeSet<&str>>::new();
    for (_, fault, checks) in FAULTS.iter().filter(|(of, ..)| *of == kind) {
        faults.insert((*fault).to_owned(), checks.iter().copied().collect());
    }
    for check in checks {
        if let Some(method) = method(check) {
            let fault = match check.rsplit('.').next() {
                Some("text") => "two-lines".to_owned(),
                Some("time") => "slow-init".to_owned(),
                _ => format!("silent:{method}"),
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
    let fault_with_value = if ["elsewhere", "abandons"].contains(&fault) {
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
