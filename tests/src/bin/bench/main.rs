//! `cargo xtask bench --cluster`: what a plugin asks of an API server, how long calls take, and what the process needs.
//!
//! Etcd and kube-apiserver are real, calls come from the host half of `rollouts-rpc`, and requests go through a
//! [`Proxy`](e2e_tests::Proxy) that counts them. Each plugin takes its turn in every round, so that a slow spell of the machine meets all of
//! them. Nothing here passes or fails by its speed.

mod args;
mod drift;
mod measure;
mod plugin;
mod report;
mod world;

use anyhow::Result;
use e2e_tests::{Cluster, Release};

use crate::args::Args;
use crate::measure::Bench;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let cluster = Cluster::start_without_controller(Release::V1_9).await?;
    let outcome = Bench::new(&cluster, args).await?.run().await;
    outcome.map_err(|error| cluster.with_logs(error))
}
