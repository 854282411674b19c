//! `cargo xtask demo`: a canary from start to finish, without Go and without a cluster.

use xshell::{Shell, cmd};

use crate::plugin;

/// Builds the plugin and walks a canary with it; the walk itself is `examples/canary_walk.rs`.
///
/// # Errors
/// When a build fails or the walk does not end where it began.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    let plugin = plugin::build(sh)?;
    cmd!(
        sh,
        "cargo run --quiet --locked --package examples --example canary_walk -- {plugin}"
    )
    .run()?;
    Ok(())
}
