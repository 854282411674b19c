//! Starts this program anew, without what `cargo run` tells it of its own package.
//!
//! The build script of ring reads these variables, so ring and all that needs it would be built anew each time that cargo
//! is run from here and by hand in turns.

use std::{env, os::unix::process::CommandExt as _, process::Command};

const PREFIXES: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The cargo that runs this program: of another toolchain, perhaps, than the one that is pinned.
const CARGO: &str = "CARGO";

/// Returns only when there is nothing to leave out.
///
/// # Errors
/// When the program cannot be started.
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
