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
    let gone = [
        "ask",
        "--config=DIR/config.yaml",
        "--objects-dir=DIR/gone",
        body,
    ];
    check(config, &gone, 3, "", "gone cannot be read");
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
        "warning: static.hello.sets[1] has other keys than the first set (a, b, m.c): templates with missingkey=error fail, so add them\n",
    );
    check(CONFIG, &["validate"], 2, "", "--config");
    check(CONFIG, &["serve"], 2, "", "serve");
    check(CONFIG, &["--config=DIR/config.yaml"], 2, "", "--tokens-dir");
}

/// Returns the variables of the server's flags, from its help.
fn variables() -> Vec<String> {
    let (_, help, _) = run(CONFIG, &["--help"]);
    let parts = help.split("[env:").skip(1);
    let names = parts.map(|part| part.split('=').next().unwrap().trim().to_owned());
    names.collect()
}

#[test]
fn no_variable_disturbs_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(file("good.yaml"), CONFIG).unwrap();
    let config = format!("--config={}", file("good.yaml"));
    let all = variables();
    assert!(all.len() > 15, "{all:?}");
    let objects = tempfile::tempdir().unwrap();
    let value = |variable: &str| match variable.trim_start_matches("GLOO_APPSET_") {
        "CONFIG" => file("good.yaml"),
        "OBJECTS_DIR" => objects.path().display().to_string(),
        "LISTEN" | "OPS_LISTEN" => "127.0.0.1:0".to_owned(),
        "LOG_LEVEL" => "info".to_owned(),
        _ => "7".to_owned(),
    };
    // Each alone, and all that may be together.
    let mut cases: Vec<Vec<&String>> = all.iter().map(|it| vec![it]).collect();
    let is_other = |it: &&String| !it.ends_with("_OBJECTS_DIR");
    cases.push(all.iter().filter(is_other).collect());
    for case in cases {
        for args in [&["validate"][..], &["ask", r#"{"input":{}}"#]] {
            let output = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"))
                .args(args)
                .args((case[0] != "GLOO_APPSET_CONFIG").then_some(&config))
                .envs(case.iter().map(|it| (it, value(it))))
                .output()
                .unwrap();
            let code = output.status.code();
            assert_eq!(code, Some(0), "{case:?} {args:?}: {output:?}");
        }
    }
}

#[test]
fn a_conflict_names_the_variables() {
    let output = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"))
        .args(["--config=c", "--tokens-dir=d"])
        .env("GLOO_APPSET_TOKEN_FILE", "t")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text.contains("the environment sets GLOO_APPSET_TOKEN_FILE"),
        "{text}"
    );
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("good.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    for args in [&["validate"][..], &["ask", r#"{"input":{}}"#]] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"));
        let output = command.args(args).arg("--config").arg(&config).stdout(full);
        let output = output
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains("stdout cannot be written"), "{text}");
    }
}

#[test]
fn a_configuration_may_be_a_pipe() {
    let line = r#"exec "$0" ask --config <(printf '%s' "$1") '{"input":{}}'"#;
    let program = env!("CARGO_BIN_EXE_gloo-appset-generator");
    let output = Command::new("bash")
        .args(["-c", line, program, CONFIG])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
