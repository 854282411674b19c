//! `cargo xtask soak`: the model of the plugin over time, real rollouts under disturbances, or promotions under load, for as
//! long as one likes.

use xshell::{Shell, cmd};

use crate::{go, traffic};

/// Flags of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to play histories, or disturbances.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The histories of an earlier run, which printed this number.
    #[arg(long)]
    seed: Option<u64>,
    /// Instead of histories in memory, real rollouts under the disturbances of `tests/tests/cluster_chaos.rs`, and after that
    /// time once under all others that the cluster tests know. Needs Go.
    #[arg(long, conflicts_with = "seed")]
    chaos: bool,
    /// Instead of histories in memory, this many promotions and as many aborts under load, by the oldest and the newest
    /// controller. Needs Go and an Envoy.
    #[arg(
        long,
        value_name = "WALKS",
        num_args = 0..=1,
        default_missing_value = "100",
        conflicts_with_all = ["seed", "chaos", "minutes"]
    )]
    traffic: Option<u64>,
    /// With --traffic: how many Rollouts of each kind walk side by side. They share a load of 200 requests each second.
    #[arg(long, default_value_t = 8, requires = "traffic", value_parser = clap::value_parser!(u32).range(1..=12))]
    lanes: u32,
}

/// Plays random histories in release mode, and prints how many, and the first that shows a violation.
///
/// # Errors
/// When a history shows a violation, a disturbance leaves something behind, or a build fails.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    if let Some(walks) = args.traffic {
        return traffic::soak(sh, walks, args.lanes);
    }
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
