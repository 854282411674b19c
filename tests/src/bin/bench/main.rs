//! `cargo xtask bench --cluster`: what a plugin asks of an API server, how long calls take, and what the process needs.
//!
//! Etcd and kube-apiserver are real, calls come from the host half of `rollouts-rpc`, and requests go through a
//! [`Proxy`](e2e_tests::Proxy) that counts them. Each plugin takes its turn in every round, so that a slow spell of the machine meets all of
//! them. Nothing here passes or fails by its speed.

mod drift;
mod measure;
mod plugin;
mod world;

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, Release};

use crate::measure::{Bench, FEWER};
use crate::world::ROLLOUTS_PER_TABLE;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let cluster = Cluster::start_without_controller(Release::V1_9).await?;
    let outcome = Bench::new(&cluster, args).await?.run().await;
    outcome.map_err(|error| cluster.with_logs(error))
}

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
