//! Builds the plugin as in a release: release profile, static.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::{toolchain, workspace::target_dir};

/// The package and binary name.
pub(crate) const PLUGIN: &str = "rollouts-plugin-trafficrouter-glooplatform";

/// The linker of the Rust toolchain, so that all machines use the same.
pub(crate) const LINKER: &str = "rust-lld";

/// Merge functions with the same code, and pack the relocations of the position-independent binary.
pub(crate) const LINK_FLAGS: [&str; 2] =
    ["-Clink-arg=--icf=all", "-Clink-arg=-zpack-relative-relocs"];

/// Builds the static release binary and returns its absolute path.
///
/// # Errors
/// Returns `Err` if the target cannot be installed, or cargo fails.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<PathBuf> {
    Ok(built(sh, "--bin", PLUGIN)?.join(PLUGIN))
}

/// Builds an example of the plugin's package with the settings of the plugin, and returns its absolute path.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_example(sh: &Shell, name: &str) -> anyhow::Result<PathBuf> {
    Ok(built(sh, "--example", name)?.join("examples").join(name))
}

/// The target of the static binary.
pub(crate) fn target() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// Builds a target, and returns the directory of the output.
fn built(sh: &Shell, kind: &str, name: &str) -> anyhow::Result<PathBuf> {
    let target = target();
    toolchain::add_target(sh, &target)?;
    cmd!(
        sh,
        "cargo rustc --locked --release --package {PLUGIN} {kind} {name} --target {target} -- -Clinker={LINKER} {LINK_FLAGS...}"
    )
    .run()?;
    Ok(target_dir(sh).join(target).join("release"))
}
