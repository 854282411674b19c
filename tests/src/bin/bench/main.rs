//! `cargo xtask bench --cluster`: measures a plugin's requests to the API server, the latency of its calls, and its CPU time
//! and memory.
//!
//! Etcd and kube-apiserver are real, the host half of `rollouts-rpc` makes the calls, and requests go through a
//! [`Proxy`](e2e_tests::Proxy) that counts them. Every round measures all plugins, so that a slow phase of the machine affects
//! all of them. No check depends on the speed.
//!
//! The storm is measured a second time with an API server without priority and fairness that takes few requests at once.

mod drift;
mod measure;
mod plugin;
mod storm;
mod world;

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, Release};

use crate::measure::{Bench, FEWER, title};
use crate::world::ROLLOUTS_PER_TABLE;

/// The API server that refuses requests with 429: without priority and fairness, and with less room than the controller's
/// ten workers need.
const SMALL: &[&str] = &[
    "--enable-priority-and-fairness=false",
    "--max-mutating-requests-inflight=3",
    "--max-requests-inflight=6",
];

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    title(&args.plugins, args.delay);
    for flags in [&[], SMALL] {
        let cluster = Cluster::start_with_flags(Release::V1_9, flags).await?;
        let bench = Bench::new(&cluster, args.clone()).await?;
        let outcome = match flags {
            [] if !args.only_storm => bench.run().await,
            _ => bench.run_storm(flags).await,
        };
        outcome.map_err(|error| cluster.with_logs(error))?;
    }
    Ok(())
}

/// The arguments of the command line.
#[derive(Clone)]
pub(crate) struct Args {
    /// Whether the other parts are left out.
    pub(crate) only_storm: bool,
    pub(crate) rollouts: usize,
    pub(crate) relists: usize,
    pub(crate) delay: Duration,
    pub(crate) plugins: Vec<PathBuf>,
}

impl Args {
    /// Parses `[--only-storm] ROLLOUTS RELISTS DELAY_MS PLUGIN...`, which xtask passes.
    pub(crate) fn parse() -> Result<Self> {
        let mut args = env::args().skip(1).peekable();
        let only_storm = args.next_if_eq("--only-storm").is_some();
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
            only_storm,
            rollouts,
            relists,
            delay,
            plugins,
        })
    }
}
