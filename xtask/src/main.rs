//! The repository's own commands: `cargo xtask <command>`.

mod bench;
mod demo;
mod go;
mod matrix;
mod plugin;
mod record;
mod report;
mod test;
mod tidy;

use anyhow::Context as _;
use clap::Parser;
use xshell::Shell;

/// Build, test and demo commands of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
enum Command {
    /// Walk a canary on a directory of YAML files, driving the plugin as the controller does.
    Demo,
    /// Run every test tier; fails when one of them cannot run.
    Test(test::Args),
    /// Measure decoding against Go and gobwire, and the plugin's process; needs Go.
    Bench,
    /// Record what every release of the controller writes to plugins, for tests that replay it; needs Go.
    Record,
    /// Check what the documents promise: crate edges, purity, lints, formatting, the code map.
    Tidy,
    /// Start etcd, kube-apiserver and the Rollouts controller on loopback until Ctrl-C.
    Cluster,
}

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    let sh = Shell::new()?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lives one level below the repository root")?;
    sh.change_dir(root);
    match command {
        Command::Demo => demo::run(&sh),
        Command::Test(args) => test::run(&sh, &args),
        Command::Bench => bench::run(&sh),
        Command::Record => record::run(&sh),
        Command::Tidy => tidy::run(&sh),
        Command::Cluster => go::cluster(&sh),
    }
}
