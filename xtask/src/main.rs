//! The repository's own commands: `cargo xtask <command>`.

mod bench;
mod book;
mod commands;
mod demo;
mod deny;
mod dist;
mod fuzz;
mod go;
mod matrix;
mod plugin;
mod record;
mod report;
mod test;
mod tidy;
mod tools;

use std::{env, os::unix::process::CommandExt as _, path::Path, process};

use anyhow::Context as _;
use clap::Parser as _;
use xshell::Shell;

/// Set by `cargo run`.
const PACKAGE: &str = "CARGO_PKG_NAME";

fn main() -> anyhow::Result<()> {
    if env::var_os(PACKAGE).is_some() {
        return restart();
    }
    let command = commands::Command::parse();
    let sh = Shell::new()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lives one level below the repository root")?;
    sh.change_dir(root);
    command.run(&sh)
}

/// Starts this program without what `cargo run` says of it: the build script of ring reads that, so ring and all that needs
/// it would be built anew each time that cargo is run from here and by hand in turns.
fn restart() -> anyhow::Result<()> {
    let about_this =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut command = process::Command::new(env::current_exe()?);
    for name in names.filter(|name| about_this(name)) {
        command.env_remove(name);
    }
    Err(command.args(env::args_os().skip(1)).exec().into())
}
