//! `cargo xtask bench --cluster`: measures a plugin's requests to the API server, the latency of its calls, and its CPU time
//! and memory.
//!
//! Etcd and kube-apiserver are real, the host half of `rollouts-rpc` makes the calls, and requests go through a
//! [`Proxy`](e2e_tests::Proxy) that counts them. Every round measures all plugins, so that a slow phase of the machine affects
//! all of them. No check depends on the speed.

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

use crate::measure::{Bench, FEWER};
use crate::world::ROLLOUTS_PER_TABLE;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let cluster = Cluster::start_without_controller(Release::V1_9).await?;
    let outcome = Bench::new(&cluster, args).await?.run().await;
    outcome.map_err(|error| cluster.with_logs(error))
}

/// The arguments of the command line.
pub(crate) struct Args {
    pub(crate) rollouts: usize,
    pub(crate) relists: usize,
    pub(crate) delay: Duration,
    pub(crate) plugins: Vec<PathBuf>,
}

impl Args {
    /// Parses `ROLLOUTS RELISTS DELAY_MS PLUGIN...`, which xtask passes.
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
