//! What needs Go: the controller's own client packages, the controller itself, etcd and kube-apiserver.

use std::path::Path;

use anyhow::{Context as _, bail};
use xshell::{Cmd, Shell, cmd};

use crate::plugin::{self, target_dir};

/// The module whose `go.mod` names every Go program and package the tests use.
const MODULE: &str = "tests/go/rollouts";

/// Programs of the cluster, as import paths; the binary of each is named by [`build`].
const CONTROLLER: &str = "github.com/argoproj/argo-rollouts/cmd/rollouts-controller";
const API_SERVER: &str = "k8s.io/kubernetes/cmd/kube-apiserver";
const ETCD: &str = "go.etcd.io/etcd/server/v3";

/// Builds etcd, kube-apiserver and the released Rollouts controller into `target/go/bin`.
///
/// # Errors
/// When Go is not installed or a build fails.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<()> {
    if cmd!(sh, "go version").quiet().run().is_err() {
        bail!("Go is not installed: get it from go.dev/dl, or use --no-go");
    }
    let version = api_server_version(sh)?;
    let bin = target_dir(sh).join("go/bin");
    let etcd = bin.join("etcd");
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion={version}");
    go(
        sh,
        cmd!(
            sh,
            "go -C {MODULE} build -ldflags {flags} -o {bin}/ {CONTROLLER} {API_SERVER}"
        ),
    )
    .run()?;
    go(
        sh,
        cmd!(sh, "go -C {MODULE} build -ldflags {flags} -o {etcd} {ETCD}"),
    )
    .run()?;
    Ok(())
}

/// Runs the Go host tests against the plugin at `plugin`.
///
/// # Errors
/// When a test fails.
pub(crate) fn host_tests(sh: &Shell, plugin: &Path) -> anyhow::Result<()> {
    go(sh, cmd!(sh, "go -C {MODULE} vet")).run()?;
    Ok(go(sh, cmd!(sh, "go -C {MODULE} test -count=1"))
        .env("PLUGIN_BINARY", plugin)
        .run()?)
}

/// Runs the cluster tests against the plugin at `plugin`.
///
/// # Errors
/// When a test fails.
pub(crate) fn cluster_tests(sh: &Shell, plugin: &Path) -> anyhow::Result<()> {
    in_cluster(
        sh,
        cmd!(sh, "cargo test --locked --package e2e-tests"),
        plugin,
    )
}

/// `cargo xtask cluster`: the cluster of the tests, for a person to look at.
///
/// # Errors
/// When a build fails or the cluster does not come up.
pub(crate) fn cluster(sh: &Shell) -> anyhow::Result<()> {
    let plugin = plugin::build(sh)?;
    build(sh)?;
    in_cluster(
        sh,
        cmd!(
            sh,
            "cargo run --quiet --locked --package e2e-tests --bin cluster"
        ),
        &plugin,
    )
}

fn in_cluster(sh: &Shell, command: Cmd<'_>, plugin: &Path) -> anyhow::Result<()> {
    let bin = target_dir(sh).join("go/bin");
    Ok(command
        .env("PLUGIN_BINARY", plugin)
        .env("GO_BIN_DIR", bin)
        .run()?)
}

/// Go's compiler output lives with cargo's, so that one cache holds both.
fn go<'a>(sh: &Shell, command: Cmd<'a>) -> Cmd<'a> {
    command
        .env("GOCACHE", target_dir(sh).join("go/cache"))
        .env("CGO_ENABLED", "0")
}

/// What kube-apiserver reports as its version: that of the module it is built from.
fn api_server_version(sh: &Shell) -> anyhow::Result<String> {
    let go_mod = sh.read_file(Path::new(MODULE).join("go.mod"))?;
    let required = go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "));
    let version = required.context("go.mod does not require k8s.io/kubernetes")?;
    Ok(version.split(' ').next().unwrap_or_default().to_owned())
}
