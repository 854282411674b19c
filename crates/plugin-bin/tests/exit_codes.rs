//! The table of exit codes in `docs/commands.md`, case by case.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

const GOOD: &str = "-f tests/commands/plan.in/rollout.yaml -f tests/commands/plan.in/shop.yaml";
const SEVERAL: &str = "-f tests/commands/several-rollouts.yaml";

const NO_CLUSTER: &str = "/nowhere";

fn run(kubeconfig: &str, line: &str, stdout: Stdio) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_rollouts-plugin-trafficrouter-glooplatform");
    let mut command = Command::new(program);
    command.env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
    let words = line.split(' ').filter(|word| !word.is_empty());
    let output = command
        .args(words)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[track_caller]
fn check(code: i32, line: &str, expect: &str) {
    check_in(NO_CLUSTER, code, line, expect);
}

#[track_caller]
fn check_in(kubeconfig: &str, code: i32, line: &str, expect: &str) {
    let (found, stderr) = run(kubeconfig, line, Stdio::piped());
    assert_eq!(found, Some(code), "{line}: {stderr}");
    assert!(stderr.contains(expect), "{line}: {stderr}");
}

#[test]
fn success_is_0() {
    check(0, "--help", "");
    check(0, "--version", "");
    check(0, &format!("plan {GOOD} --weight 25"), "");
    check(0, &format!("simulate {GOOD}"), "");
    check(0, "validate -f tests/commands/validate.in/good", "");
}

#[test]
fn a_problem_is_1() {
    check(1, "", "Commands for people");
    check(1, "validate -f tests/commands/validate.in/bad", "");
    check(
        1,
        "simulate -f tests/commands/simulate.in/refused.yaml -f tests/commands/simulate.in/shop.yaml",
        "",
    );
}

#[test]
fn a_line_that_is_wrong_or_names_what_does_not_exist_is_2() {
    check(2, "paln", "unrecognized subcommand");
    check(2, "restore reviews", "expected namespace/name");
    check(2, "plan --weight 25", "no Rollout is named");
    check(2, &format!("plan {GOOD}"), "--weight");
    check(2, &format!("plan {GOOD} --weight 101"), "use 0 to 100");
    check(
        2,
        &format!("plan {GOOD} --step 99"),
        "the Rollout has no step 99: use 0 to ",
    );
    check(
        2,
        &format!("simulate {GOOD} --abort-at 99"),
        "has no step 99",
    );
    check(
        2,
        &format!("plan {GOOD} --header-route nobody"),
        "no step sets a route nobody",
    );
    check(
        2,
        &format!("plan other/nobody {GOOD} --weight 25"),
        "the files have no Rollout other/nobody",
    );
    check(
        2,
        &format!("plan {SEVERAL} --weight 25"),
        "there are several Rollouts: name one of shop/a, shop/b",
    );
    check(
        2,
        &format!("simulate {SEVERAL}"),
        "name one of shop/a, shop/b",
    );
}

#[test]
fn what_cannot_be_read_is_3() {
    check(
        3,
        "plan -f gone.yaml --weight 25",
        "gone.yaml: cannot be read: No such file or directory\n",
    );
    check(3, "validate", "no cluster is configured");
    for command in [
        "status",
        "doctor",
        "restore shop/reviews",
        "plan shop/reviews --weight 1",
    ] {
        check(3, command, "/nowhere cannot be read");
    }
}

#[test]
fn a_cluster_that_refuses_connections_is_named() {
    for command in [
        "validate",
        "status",
        "doctor",
        "simulate shop/reviews",
        "restore shop/reviews --yes",
        "plan shop/reviews --weight 1",
    ] {
        check_in(
            "tests/refused.kubeconfig",
            3,
            command,
            "https://127.0.0.1:1/: connection refused",
        );
    }
}

/// A full disk is not success, also for the help.
#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_3() {
    for line in ["--help", "plan --help", "--version", "completions bash"] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let (code, stderr) = run(NO_CLUSTER, line, full.into());
        assert_eq!(code, Some(3), "{line}: {stderr}");
        assert!(
            stderr.contains("cannot write to stdout"),
            "{line}: {stderr}"
        );
    }
}

/// As in `validate | head -1`: the code is that of the result.
#[test]
fn output_that_nobody_needs_is_no_error() {
    for (code, line) in [
        (0, "--help".to_owned()),
        (0, format!("simulate {GOOD}")),
        (1, "validate -f tests/commands/validate.in/bad".to_owned()),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let found = run(NO_CLUSTER, &line, writer.into());
        assert_eq!(found, (Some(code), String::new()), "{line}");
    }
}

#[test]
fn the_page_has_these_codes() {
    let page = include_str!("../../../docs/commands.md");
    for code in [
        "| 0 | success",
        "| 1 | a problem",
        "| 2 | the command line",
        "| 3 | a file or the cluster",
    ] {
        assert!(page.contains(code), "{code}");
    }
}
