//! The output and the exit codes of `ask` and `validate`.

use std::process::{Command, Stdio};

const CONFIG: &str = "
static: {hello: {inputs: [team], sets: [{key1: val1}]}}
profiles:
  default: {}
  team-a: {tokens: [team-a], fixed: {team: a}}
";

/// Returns exit code, stdout and stderr of the program. `DIR` in an argument is a directory with `config.yaml`.
fn run(config: &str, args: &[&str]) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.yaml"), config).unwrap();
    std::fs::write(dir.path().join("body.json"), r#"{"input":{}}"#).unwrap();
    let dir = dir.path().display().to_string();
    let args = args.iter().map(|arg| arg.replace("DIR", &dir));
    let output = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[track_caller]
fn check(config: &str, args: &[&str], code: i32, stdout: &str, stderr: &str) {
    let (found, out, err) = run(config, args);
    assert_eq!((found, out.as_str()), (code, stdout), "{err}");
    assert!(
        err.contains(stderr) && (stderr.is_empty() == err.is_empty()),
        "{err}"
    );
}

#[test]
fn ask_prints_the_answer() {
    let config = "--config=DIR/config.yaml";
    let sets = "{\"output\":{\"parameters\":[{\"key1\":\"val1\"}]}}\n";
    for body in [r#"{"input":{}}"#, "DIR/body.json"] {
        check(CONFIG, &["ask", config, body], 0, sets, "");
    }
    let fixed = "{\"output\":{\"parameters\":[{\"input\":{\"team\":\"a\"},\"key1\":\"val1\"}]}}\n";
    // No token is needed.
    check(
        CONFIG,
        &["ask", config, "--profile=team-a", r#"{"input":{}}"#],
        0,
        fixed,
        "",
    );
    let refused = r#"{"input":{"parameters":{"team":"b"}}}"#;
    check(
        CONFIG,
        &["ask", config, "--profile=team-a", refused],
        1,
        "",
        "error: parameter team is fixed by profile team-a: remove it (forbidden)\n",
    );
    check(
        CONFIG,
        &["ask", config, "--profile=team-x", r#"{"input":{}}"#],
        1,
        "",
        "error: unknown profile team-x: set --profile to one of default, team-a (unknown_profile)\n",
    );
    check(CONFIG, &["ask", config, "-"], 1, "", "(invalid_input)");
    check("static: {", &["ask", config, "{}"], 1, "", "not YAML");
    check(
        CONFIG,
        &["ask", config, "DIR/none.json"],
        3,
        "",
        "none.json cannot be read",
    );
    check(
        CONFIG,
        &["ask", "--config=DIR/none.yaml", "{}"],
        3,
        "",
        "none.yaml cannot be read",
    );
    check(CONFIG, &["ask", config], 2, "", "BODY");
}

#[test]
fn ask_reads_objects_from_a_directory() {
    let config = "glooRoutes: {namespaces: [shop]}";
    let body = r#"{"input":{"parameters":{"routeTableSelector":{"name":"web"}}}}"#;
    let args = ["ask", "--config=DIR/config.yaml", "--objects-dir=DIR", body];
    check(config, &args, 1, "", "RouteTable shop/web not found");
}

#[test]
fn validate_checks_the_configuration() {
    let args = ["validate", "--config=DIR/config.yaml"];
    check(CONFIG, &args, 0, "the configuration is valid\n", "");
    check(
        "statics: {}",
        &args,
        1,
        "",
        "config.yaml: unknown key statics, did you mean static?\n",
    );
    check(
        CONFIG,
        &["validate", "--config=DIR/none.yaml"],
        3,
        "",
        "none.yaml cannot be read",
    );
    let uneven = "static: {hello: {sets: [{a: x}, {b: y, m: {c: z}}]}}";
    check(
        uneven,
        &args,
        0,
        "the configuration is valid\n",
        "warning: static.hello.sets[1] has not the same keys as the first set (a, b, m.c): templates with missingkey=error fail, so add them\n",
    );
    check(CONFIG, &["validate"], 2, "", "--config");
    check(CONFIG, &["serve"], 2, "", "serve");
    check(CONFIG, &["--config=DIR/config.yaml"], 2, "", "--tokens-dir");
}
