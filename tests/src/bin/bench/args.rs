//! What the command line asks for, as xtask writes it.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::measure::FEWER;
use crate::world::ROLLOUTS_PER_TABLE;

/// What the command line asks for.
pub(crate) struct Args {
    pub(crate) rollouts: usize,
    pub(crate) relists: usize,
    pub(crate) delay: Duration,
    pub(crate) plugins: Vec<PathBuf>,
}

impl Args {
    /// `ROLLOUTS RELISTS DELAY_MS PLUGIN...`, as xtask writes them.
    pub(crate) fn parse() -> Result<Self> {
        let mut args = env::args().skip(1);
        let mut number = |name: &str| -> Result<u64> {
            let text = args.next().with_context(|| format!("no {name}"))?;
            text.parse().with_context(|| format!("{name}: {text}"))
        };
        let (rollouts, relists, delay) = (
            number("ROLLOUTS")?.try_into()?,
            number("RELISTS")?.try_into()?,
            Duration::from_millis(number("DELAY_MS")?),
        );
        let plugins: Vec<PathBuf> = args.map(PathBuf::from).collect();
        let smallest = FEWER * ROLLOUTS_PER_TABLE;
        ensure!(
            rollouts >= smallest,
            "at least {smallest} Rollouts are needed"
        );
        ensure!(!plugins.is_empty(), "no PLUGIN");
        Ok(Self {
            rollouts,
            relists,
            delay,
            plugins,
        })
    }
}
