//! Starts the cluster that the tests use and keeps it until Ctrl-C, for trying things by hand.

use anyhow::Result;
use e2e_tests::{Cluster, Release};

#[tokio::main]
#[expect(
    clippy::print_stdout,
    reason = "it tells a person where the cluster is"
)]
async fn main() -> Result<()> {
    let cluster = Cluster::start(Release::V1_9).await?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("Ctrl-C ends the cluster.");
    tokio::signal::ctrl_c().await?;
    Ok(())
}
