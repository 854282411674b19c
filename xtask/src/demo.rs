//! `cargo xtask demo`: a canary from start to finish, without Go and without a cluster.

use xshell::{Shell, cmd};

use crate::{
    plugin::{PLUGIN, target_dir},
    report::say,
};

/// Builds the plugin and walks a canary with it; the walk itself is `examples/canary_walk.rs`.
///
/// For the machine it runs on and without optimisation: what ships takes several times as long to build.
///
/// # Errors
/// When the build fails or the walk does not end where it began.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    say(
        "Building the plugin, and a program that calls it as the controller does: a minute or two the first time.",
    );
    // Built together, or the dependencies that they share would be compiled twice, with different features.
    cmd!(
        sh,
        "cargo build --locked --package {PLUGIN} --bin {PLUGIN} --package examples --example canary_walk"
    )
    // It is built once, for one run.
    .env("CARGO_INCREMENTAL", "0")
    .run()?;
    let built = target_dir(sh).join("debug");
    let (walk, plugin) = (built.join("examples/canary_walk"), built.join(PLUGIN));
    Ok(cmd!(sh, "{walk} {plugin}").quiet().run()?)
}
