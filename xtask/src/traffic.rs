//! The traffic tests: what becomes of requests when a real Envoy serves the plugin's tables.

use std::path::Path;

use anyhow::Context as _;
use xshell::{Cmd, Shell, cmd};

use crate::{envoy, go, plugin};

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
    let examples = plugin::target_dir(sh).join("debug/examples");
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
    let (envoy, plugin) = (envoy::installed(sh)?, plugin::build(sh)?);
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
