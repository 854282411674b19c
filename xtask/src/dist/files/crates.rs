//! The published crates.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::{report::say, toolchain, workspace::target_dir};

const CARGO_SEMVER_CHECKS: &str = "0.51.0";

/// Crates that depend only on each other and on crates.io.
pub(super) const NAMES: [&str; 9] = [
    "gloo-router",
    "gloo-types",
    "go-gob",
    "rollout-types",
    "rollouts-plugin-check",
    "rollouts-rpc",
    "route-planner",
    "route-store",
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
    embed(sh, &packed)?;
    Ok(packed.into())
}

/// Builds `examples/embed.rs` in a project that has nothing of this workspace but the `packed` crates and the versions of
/// Cargo.lock, and runs it on a table.
fn embed(sh: &Shell, packed: &[PathBuf]) -> anyhow::Result<()> {
    let project = target_dir(sh).join("outside");
    sh.remove_path(&project)?;
    let tables = sh.create_dir(project.join("tables"))?;
    for file in packed {
        cmd!(sh, "tar --extract --file {file} --directory {project}").run()?;
    }
    let sources = sh.create_dir(project.join("src"))?;
    sh.copy_file("examples/embed.rs", sources.join("main.rs"))?;
    sh.copy_file("Cargo.lock", &project)?;
    let version = env!("CARGO_PKG_VERSION");
    let patches = NAMES.map(|name| format!("{name} = {{ path = \"{name}-{version}\" }}\n"));
    let manifest = format!(
        "[package]\nname = \"outside\"\nedition = \"2024\"\n[workspace]\n[dependencies]\nanyhow = \"1\"\n\
        gloo-router = {{ version = \"{version}\", features = [\"kube\"] }}\ntokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }}\n\
        [lints.clippy]\nprint_stdout = \"warn\"\n[patch.crates-io]\n{}",
        patches.concat()
    );
    sh.write_file(project.join("Cargo.toml"), manifest)?;
    let table = sh.read_file("examples/embed.yaml")?;
    let copy = tables.join("reviews.yaml");
    sh.write_file(&copy, &table)?;
    cmd!(
        sh,
        "cargo run --quiet --manifest-path {project}/Cargo.toml -- {tables}"
    )
    .run()?;
    anyhow::ensure!(
        sh.read_file(&copy)? == table,
        "{} is not as it was: see examples/embed.rs",
        copy.display()
    );
    Ok(())
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
