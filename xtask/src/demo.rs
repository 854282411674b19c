//! `cargo xtask demo`: a canary from start to finish, by default without Go and without a cluster.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::{go, plugin::PLUGIN, report::say, traffic, workspace::target_dir};

/// The program with the page of a cluster.
const CLUSTER: &str = "traffic_cluster";

/// Flags of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show the canary on a page, with a real Envoy and with buttons to control it and to break things. Needs Python 3 with pip, or
    /// ENVOY_BINARY.
    #[arg(long)]
    web: bool,
    /// Use the released controller with etcd and kube-apiserver, so that every switch of the page works. Needs Go.
    #[arg(long, requires = "web", conflicts_with = "pictures")]
    cluster: bool,
    /// Port of the page on 127.0.0.1; 0 chooses a free one.
    #[arg(long, default_value_t = 8484, requires = "web")]
    port: u16,
    /// End after this many seconds. Default: on Ctrl-C.
    #[arg(long = "for", value_name = "SECONDS", requires = "web")]
    seconds: Option<u64>,
    /// Write pictures of the page, and the recording for the documents, into this directory. Needs Chromium.
    #[arg(long, value_name = "DIR", requires = "web", conflicts_with_all = ["port", "seconds"])]
    pictures: Option<PathBuf>,
}

/// Runs a canary in the terminal, or shows one on a page.
///
/// # Errors
/// Returns `Err` if the build or the demo fails, or a program is missing.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    match args {
        Args {
            pictures: Some(directory),
            ..
        } => take_pictures(sh, directory),
        Args { cluster: true, .. } => show_cluster(sh, args),
        Args { web: true, .. } => show(sh, args),
        Args { .. } => walk(sh),
    }
}

/// Builds the plugin and runs a canary with it. The program is `examples/canary_walk.rs`.
///
/// # Errors
/// Returns `Err` if the build fails, or if the table is not restored at the end.
pub(crate) fn walk(sh: &Shell) -> anyhow::Result<()> {
    let (walk, plugin) = build(sh, "canary_walk")?;
    Ok(cmd!(sh, "{walk} {plugin}").quiet().run()?)
}

/// Runs the same canary with the programs of the tests, which are built with all features already.
///
/// # Errors
/// As [`walk`].
pub(crate) fn walk_built(sh: &Shell) -> anyhow::Result<()> {
    let programs = go::Programs::build(sh)?;
    let (walk, plugin) = (programs.examples().join("canary_walk"), programs.plugin());
    Ok(cmd!(sh, "{walk} {plugin}").quiet().run()?)
}

/// Serves the page; the program is `examples/traffic`.
fn show(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    // Before the long build, so that a missing program is reported at once.
    let envoy = traffic::envoy(sh)?;
    let (traffic, plugin) = build(sh, "traffic")?;
    let flags = flags(args);
    let demo = cmd!(sh, "{traffic} {plugin} {flags...}");
    Ok(demo.env("ENVOY_BINARY", envoy).quiet().run()?)
}

/// Serves the page of a cluster; the program is `tests/src/bin/traffic_cluster.rs`.
fn show_cluster(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let envoy = traffic::envoy(sh)?;
    say(
        "Building etcd, kube-apiserver and the controller with Go: a quarter of an hour the first time, seconds after that.",
    );
    go::build(sh)?;
    say("Building the plugin and the program around it: some minutes the first time.");
    cmd!(
        sh,
        "cargo build --locked --package {PLUGIN} --bin {PLUGIN} --package e2e-tests --bin {CLUSTER}"
    )
    .env("CARGO_INCREMENTAL", "0")
    .run()?;
    let built = target_dir(sh).join("debug");
    let (cluster, plugin) = (built.join(CLUSTER), built.join(PLUGIN));
    say("Starting the cluster, which takes some seconds.");
    let flags = flags(args);
    let demo = cmd!(sh, "{cluster} {flags...}").quiet();
    go::with_programs(
        sh,
        demo.env("ENVOY_BINARY", envoy).env("PLUGIN_BINARY", plugin),
    )
}

/// The flags of both programs.
fn flags(args: &Args) -> Vec<String> {
    let mut flags = vec!["--port".to_owned(), args.port.to_string()];
    if let Some(seconds) = args.seconds {
        flags.extend(["--for".to_owned(), seconds.to_string()]);
    }
    flags
}

/// Takes pictures of the same page with a browser.
fn take_pictures(sh: &Shell, directory: &Path) -> anyhow::Result<()> {
    let envoy = traffic::envoy(sh)?;
    let (traffic, plugin) = build(sh, "traffic")?;
    traffic::pictures(sh, &envoy, &plugin, &traffic, directory)
}

/// Builds an example and the plugin, and returns their paths. The build is for this machine and not optimised, because a release
/// build takes several times as long.
fn build(sh: &Shell, example: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
    say(
        "Building the plugin, and a program that calls it as the controller does: a minute or two the first time.",
    );
    // In one build, so that cargo compiles shared dependencies only once, with the same features.
    cmd!(
        sh,
        "cargo build --locked --package {PLUGIN} --bin {PLUGIN} --package examples --example {example}"
    )
    // A single build does not profit from incremental compilation.
    .env("CARGO_INCREMENTAL", "0")
    .run()?;
    let built = target_dir(sh).join("debug");
    Ok((built.join("examples").join(example), built.join(PLUGIN)))
}
