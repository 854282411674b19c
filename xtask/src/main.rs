//! The repository's own commands: `cargo xtask <command>`.

mod bench;
mod book;
mod check;
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
mod workspace;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use xshell::Shell;

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    // One line without backtrace: the program that failed has said why.
    report::complain(&error);
    ExitCode::FAILURE
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
