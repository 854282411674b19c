//! `cargo xtask demo`: a canary from start to finish, without Go and without a cluster.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::{
    go,
    plugin::{PLUGIN, target_dir},
    report::say,
    traffic,
};

/// The program with the page of a cluster.
const CLUSTER: &str = "traffic_cluster";

/// Flags of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A page to watch a canary on a real Envoy, to steer it and to break things. Needs Python 3 with pip, or ENVOY_BINARY.
    #[arg(long)]
    web: bool,
    /// With the released controller on etcd and kube-apiserver, so that every switch of the page works. Needs Go.
    #[arg(long, requires = "web", conflicts_with = "pictures")]
    cluster: bool,
    /// Port of the page on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 8484, requires = "web")]
    port: u16,
    /// End after this many seconds. Default: with Ctrl-C.
    #[arg(long = "for", value_name = "SECONDS", requires = "web")]
    seconds: Option<u64>,
    /// Write pictures of the page, and the recording for the documents, into this directory. Needs Chromium.
    #[arg(long, value_name = "DIR", requires = "web", conflicts_with_all = ["port", "seconds"])]
    pictures: Option<PathBuf>,
}

/// Walks a canary in the terminal, or shows one on a page.
///
/// # Errors
/// When the build fails, a program is missing, or the demo does not end well.
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

/// Builds the plugin and walks a canary with it; the walk itself is `examples/canary_walk.rs`.
///
/// # Errors
/// When the build fails or the walk does not end where it began.
pub(crate) fn walk(sh: &Shell) -> anyhow::Result<()> {
    let (walk, plugin) = build(sh, "canary_walk")?;
    Ok(cmd!(sh, "{walk} {plugin}").quiet().run()?)
}

/// Serves the page; the program is `examples/traffic`.
fn show(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    // What is missing is said before the long build.
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

/// What both programs are told.
fn flags(args: &Args) -> Vec<String> {
    let mut flags = vec!["--port".to_owned(), args.port.to_string()];
    if let Some(seconds) = args.seconds {
        flags.extend(["--for".to_owned(), seconds.to_string()]);
    }
    flags
}

/// Lets a browser take pictures of the same page.
fn take_pictures(sh: &Shell, directory: &Path) -> anyhow::Result<()> {
    let envoy = traffic::envoy(sh)?;
    let (traffic, plugin) = build(sh, "traffic")?;
    traffic::pictures(sh, &envoy, &plugin, &traffic, directory)
}

/// The paths of an example and of the plugin, for the machine it runs on and without optimisation: what ships takes several
/// times as long to build.
fn build(sh: &Shell, example: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
    say(
        "Building the plugin, and a program that calls it as the controller does: a minute or two the first time.",
    );
    // Built together, or the dependencies that they share would be compiled twice, with different features.
    cmd!(
        sh,
        "cargo build --locked --package {PLUGIN} --bin {PLUGIN} --package examples --example {example}"
    )
    // It is built once, for one run.
    .env("CARGO_INCREMENTAL", "0")
    .run()?;
    let built = target_dir(sh).join("debug");
    Ok((built.join("examples").join(example), built.join(PLUGIN)))
}
