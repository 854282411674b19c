//! `cargo xtask soak`: runs the model of the plugin, its interleavings, real rollouts under disturbances, promotions under load,
//! the proof by requests, or the comparison of previews with controllers, longer than the tests do.

use xshell::{Shell, cmd};

use crate::{go, traffic};

/// The default time of interleavings, in seconds.
const HOUR: u64 = 3600;

/// Flags of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Minutes of histories, or of disturbances.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Repeat the histories of a run that printed this number, or begin with this interleaving, or with this Rollout.
    #[arg(long)]
    seed: Option<u64>,
    /// Instead of histories in memory, run real rollouts under the disturbances of `tests/tests/cluster_chaos.rs`, and then the
    /// other cluster tests of failures once. Needs Go.
    #[arg(long, conflicts_with = "seed")]
    chaos: bool,
    /// Instead of histories in memory, run this many promotions and as many aborts under load, with the oldest and the newest
    /// controller. Needs Go and an Envoy.
    #[arg(
        long,
        value_name = "WALKS",
        num_args = 0..=1,
        default_missing_value = "100",
        conflicts_with_all = ["seed", "chaos", "minutes"]
    )]
    traffic: Option<u64>,
    /// Instead of histories in memory, send requests to this many generated RouteTables, once with the owner's routes and once
    /// with the plugin's. Needs an Envoy.
    #[arg(
        long,
        value_name = "TABLES",
        num_args = 0..=1,
        default_missing_value = "10000",
        conflicts_with_all = ["seed", "chaos", "minutes", "traffic"]
    )]
    meaning: Option<u64>,
    /// Instead of histories in memory, update this many random Rollouts with the released controllers and with `simulate`, and
    /// compare the calls. Needs Go.
    #[arg(
        long,
        value_name = "ROLLOUTS",
        num_args = 0..=1,
        default_missing_value = "300",
        conflicts_with_all = ["chaos", "minutes", "traffic", "meaning", "races"]
    )]
    previews: Option<u64>,
    /// Instead of histories in memory, play interleavings of calls and the work between them, on all cores.
    #[arg(long, conflicts_with_all = ["chaos", "minutes", "traffic", "meaning"])]
    races: bool,
    /// With --races: the number of interleavings. By default their time is limited instead.
    #[arg(long, requires = "races")]
    seeds: Option<u64>,
    /// With --races: how long interleavings are played, an hour by default.
    #[arg(long, requires = "races")]
    seconds: Option<u64>,
    /// With --traffic: how many Rollouts of each kind run in parallel. They share a load of 200 requests per second.
    #[arg(long, default_value_t = 8, requires = "traffic", value_parser = clap::value_parser!(u32).range(1..=12))]
    lanes: u32,
}

/// Plays random histories in release mode, and prints their number, and the first one with a violation.
///
/// # Errors
/// Returns `Err` if a history has a violation, a table is not restored after a disturbance, a managed route changes more than its
/// step says, or a build fails.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    if let Some(updates) = args.traffic {
        return traffic::soak(sh, updates, args.lanes);
    }
    if let Some(tables) = args.meaning {
        return traffic::meaning(sh, tables);
    }
    if let Some(rollouts) = args.previews {
        return go::previews(sh, rollouts, args.seed);
    }
    if args.races {
        return races(sh, args);
    }
    if args.chaos {
        return go::chaos(sh, args.minutes);
    }
    let mut soak = cmd!(
        sh,
        "cargo test --locked --quiet --release --package gloo-router --test model -- histories --nocapture"
    );
    soak = soak.env("MODEL_MINUTES", args.minutes.to_string());
    if let Some(seed) = args.seed {
        soak = soak.env("MODEL_SEED", seed.to_string());
    }
    Ok(soak.quiet().run()?)
}

/// Plays interleavings, and prints how many per minute, and those with a violation.
fn races(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let mut races = cmd!(
        sh,
        "cargo test --locked --quiet --release --package gloo-router --lib -- races::explore --nocapture"
    );
    if let Some(seed) = args.seed {
        races = races.env("RACES_SEED", seed.to_string());
    }
    if let Some(seeds) = args.seeds {
        races = races.env("RACES_SEEDS", seeds.to_string());
    }
    let seconds = args.seconds.or(args.seeds.is_none().then_some(HOUR));
    if let Some(seconds) = seconds {
        races = races.env("RACES_SECONDS", seconds.to_string());
    }
    Ok(races.quiet().run()?)
}
