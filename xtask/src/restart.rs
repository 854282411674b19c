//! Starts this program again, without the variables that `cargo run` sets for the package xtask.
//!
//! The build script of ring reads these variables. With them, ring and its dependents would be built again whenever cargo runs
//! from here after it ran by hand, and the other way round.

use std::{env, os::unix::process::CommandExt as _, process::Command};

const PREFIXES: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The cargo that runs this program. It may be of another toolchain than the pinned one.
const CARGO: &str = "CARGO";

/// Returns only if none of the variables is set.
///
/// # Errors
/// Returns `Err` if the program cannot be started.
pub(crate) fn without_own_variables() -> anyhow::Result<()> {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let own =
        |name: &String| name == CARGO || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut own = names.filter(own).peekable();
    if own.peek().is_none() {
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    for name in own {
        command.env_remove(name);
    }
    Err(command.args(env::args_os().skip(1)).exec().into())
}
