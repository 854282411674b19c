//! Programs from crates.io that a command needs: installed when it first does, each at a pinned version.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::plugin::target_dir;

/// The program of the package `name`, which `cargo install` builds with `flags` if it is not there.
///
/// It has no influence on what is shipped, and lives in `target/tools`. It is built without optimisation, which takes a
/// fraction of the time, and runs for seconds.
///
/// # Errors
/// When it cannot be built.
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
