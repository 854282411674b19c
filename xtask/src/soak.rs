//! `cargo xtask soak`: the model of the plugin over time, or real rollouts under disturbances, for as long as one likes.

use xshell::{Shell, cmd};

use crate::go;

/// Flags of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to play histories, or disturbances.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The histories of an earlier run, which printed this number.
    #[arg(long)]
    seed: Option<u64>,
    /// Instead of histories in memory, real rollouts under the disturbances of `tests/tests/cluster_chaos.rs`. Needs Go.
    #[arg(long, conflicts_with = "seed")]
    chaos: bool,
}

/// Plays random histories in release mode, and prints how many, and the first that shows a violation.
///
/// # Errors
/// When a history shows a violation, a disturbance leaves something behind, or a build fails.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    if args.chaos {
        return go::chaos(sh, args.minutes);
    }
    let mut soak = cmd!(
        sh,
        "cargo test --locked --quiet --release --package rollouts-plugin-trafficrouter-glooplatform --test model -- histories --nocapture"
    );
    soak = soak.env("MODEL_MINUTES", args.minutes.to_string());
    if let Some(seed) = args.seed {
        soak = soak.env("MODEL_SEED", seed.to_string());
    }
    Ok(soak.quiet().run()?)
}
