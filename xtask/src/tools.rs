//! Programs from crates.io that a command needs. Each is installed on first use, at a pinned version.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::plugin::target_dir;

/// The path of the program of package `name`. `cargo install` builds it with `flags` if it is missing.
///
/// It does not influence what is shipped. It is in `target/tools`, and is built without optimisation because it runs for seconds.
///
/// # Errors
/// Returns `Err` if it cannot be built.
pub(crate) fn installed(
    sh: &Shell,
    name: &str,
    version: &str,
    flags: &[&str],
) -> anyhow::Result<PathBuf> {
    let root = target_dir(sh).join(format!("tools/{name}-{version}"));
    let program = root.join("bin").join(name);
    if !sh.path_exists(&program) {
        cmd!(
            sh,
            "cargo install {name} --quiet --locked --debug --version ={version} --root {root} {flags...}"
        )
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .run()?;
    }
    Ok(program)
}
