//! The published crates.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::{plugin::target_dir, report::say, toolchain};

const CARGO_SEMVER_CHECKS: &str = "0.51.0";

/// Crates that depend only on each other and on crates.io.
pub(super) const NAMES: [&str; 7] = [
    "gloo-types",
    "go-gob",
    "rollout-types",
    "rollouts-plugin-check",
    "rollouts-rpc",
    "route-planner",
    "strict-json",
];

/// Packs the crates for a registry and builds each from its packed files. Uploads nothing.
///
/// # Errors
/// Returns `Err` if a necessary file is not packed or not committed.
pub(super) fn pack(sh: &Shell) -> anyhow::Result<Vec<PathBuf>> {
    let packages = NAMES.iter().flat_map(|name| ["--package", *name]);
    cmd!(sh, "cargo package --locked {packages...}").run()?;
    // All have the version of the workspace, as xtask does.
    let version = env!("CARGO_PKG_VERSION");
    let directory = target_dir(sh).join("package");
    let packed = NAMES.map(|name| directory.join(format!("{name}-{version}.crate")));
    Ok(packed.into())
}

/// Compares the public API with the previous release.
///
/// # Errors
/// Returns `Err` if a change needs another version.
pub(super) fn check_versions(sh: &Shell) -> anyhow::Result<()> {
    // From the parent, because the commit of a release has a tag too.
    let tag = cmd!(sh, "git describe --tags --abbrev=0 --match v* HEAD^");
    let Ok(tag) = tag.quiet().ignore_stderr().read() else {
        say("    skipped: there is no tag of an earlier release to compare with");
        return Ok(());
    };
    let program = toolchain::tool(sh, "cargo-semver-checks", CARGO_SEMVER_CHECKS, &[])?;
    let packages = NAMES.iter().flat_map(|name| ["--package", *name]);
    cmd!(
        sh,
        "{program} semver-checks --baseline-rev {tag} {packages...}"
    )
    .run()?;
    Ok(())
}
