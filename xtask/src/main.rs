//! The commands of this repository: `cargo xtask <command>`.

mod bench;
mod book;
mod check;
mod demo;
mod deny;
mod dist;
mod e2e;
mod fuzz;
mod go;
mod matrix;
mod mutants;
mod needs;
mod plugin;
mod record;
mod releases;
mod report;
mod soak;
mod test;
mod tidy;
mod toolchain;
mod traffic;
mod wheels;
mod workspace;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use xshell::Shell;

/// Build, test and demo commands of this repository.
#[derive(clap::Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
enum Command {
    /// Check a change in about a minute: formatting, clippy, documents, and the tests of the crates that changed.
    Check(check::Args),
    /// Run all tests, or those of some tiers; a tier that cannot run fails.
    Test(test::Args),
    /// Check formatting, lints, the picture of the crates, pure crates, links, and the messages and tests that documents name.
    Tidy,
    /// Run a canary through its steps on a directory of YAML files, calling the plugin as the controller does; --web shows it
    /// on a page, with a real Envoy.
    Demo(demo::Args),
    /// Build the files of a release: static binaries, checksums, bills of materials, manifests.
    Dist(dist::Args),
    /// Measure decoding (compared with Go and gobwire), planning and the plugin's process; with --cluster, the plugin with an API
    /// server. Needs Go.
    Bench(bench::Args),
    /// Record the bytes that the oldest and the newest controller write to plugins, which tests replay. Needs Go.
    Record(record::Args),
    /// Run the fuzz targets.
    Fuzz(fuzz::Args),
    /// Play random histories of calls, edits and failures with the plugin for a given time; or run promotions under load.
    Soak(soak::Args),
    /// Change single places of the crates that matter most, and show what no test notices.
    Mutants(mutants::Args),
    /// Check the licences and sources of all dependencies, and that none is banned.
    Deny(deny::Args),
    /// Write the generated parts of the documents, and build the site into `target/book`.
    Docs,
    /// Start etcd, kube-apiserver and the Rollouts controller on loopback; Ctrl-C stops them.
    Cluster,
}

impl Command {
    /// Runs the command in a shell whose directory is the repository's root.
    ///
    /// # Errors
    /// Returns `Err` if a check, a build or a test fails.
    fn run(self, sh: &Shell) -> anyhow::Result<()> {
        match self {
            Self::Check(args) => check::run(sh, &args),
            Self::Demo(args) => demo::run(sh, &args),
            Self::Dist(args) => dist::run(sh, &args),
            Self::Test(args) => test::run(sh, &args),
            Self::Bench(args) => bench::run(sh, &args),
            Self::Record(args) => record::run(sh, &args),
            Self::Fuzz(args) => fuzz::run(sh, &args),
            Self::Soak(args) => soak::run(sh, &args),
            Self::Mutants(args) => mutants::run(sh, &args),
            Self::Tidy => tidy::run(sh),
            Self::Deny(args) => deny::run(sh, &args),
            Self::Docs => book::run(sh),
            Self::Cluster => go::cluster(sh),
        }
    }
}

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    // One line without a backtrace, because the failed program has printed the cause.
    report::print_error(&error);
    ExitCode::FAILURE
}

fn run() -> anyhow::Result<()> {
    toolchain::without_own_variables()?;
    let command = Command::parse();
    let sh = Shell::new()?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lives one level below the repository root")?;
    sh.change_dir(root);
    command.run(&sh)
}
