//! The repository's own commands: `cargo xtask <command>`.

mod bench;
mod book;
mod commands;
mod demo;
mod deny;
mod dist;
mod envoy;
mod fuzz;
mod go;
mod matrix;
mod plugin;
mod record;
mod report;
mod restart;
mod soak;
mod test;
mod tidy;
mod toolchain;
mod tools;
mod traffic;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use xshell::Shell;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // One line, and no backtrace: what went wrong is in the programs that were run, not in here.
        Err(error) => {
            report::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    restart::without_own_variables()?;
    let command = commands::Command::parse();
    let sh = Shell::new()?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lives one level below the repository root")?;
    sh.change_dir(root);
    command.run(&sh)
}
