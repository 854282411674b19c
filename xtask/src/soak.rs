//! `cargo xtask soak`: the model of the plugin over time, for as long as one likes.

use xshell::{Shell, cmd};

/// Flags of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to play histories.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The histories of an earlier run, which printed this number.
    #[arg(long)]
    seed: Option<u64>,
}

/// Plays random histories in release mode, and prints how many, and the first that shows a violation.
///
/// # Errors
/// When a history shows a violation.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
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
