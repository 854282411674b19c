//! Builds the plugin the way it ships: release profile, static.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::toolchain;

/// The package and binary name.
pub(crate) const PLUGIN: &str = "rollouts-plugin-trafficrouter-glooplatform";

/// The linker that comes with Rust: the same everywhere.
pub(crate) const LINKER: &str = "rust-lld";

/// Functions with the same code become one, and the relocations of a binary that may be loaded anywhere take a bit each.
pub(crate) const LINK_FLAGS: [&str; 2] =
    ["-Clink-arg=--icf=all", "-Clink-arg=-zpack-relative-relocs"];

/// Builds the static release binary and returns its absolute path.
///
/// # Errors
/// When the target cannot be installed, or cargo fails.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    toolchain::add_target(sh, &target)?;
    cmd!(
        sh,
        "cargo rustc --locked --release --package {PLUGIN} --bin {PLUGIN} --target {target} -- -Clinker={LINKER} {LINK_FLAGS...}"
    )
    .run()?;
    Ok(target_dir(sh).join(target).join("release").join(PLUGIN))
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(sh: &Shell) -> PathBuf {
    let dir = sh
        .var_os("CARGO_TARGET_DIR")
        .map_or_else(|| "target".into(), PathBuf::from);
    sh.current_dir().join(dir)
}
