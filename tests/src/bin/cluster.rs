//! Starts the cluster of the tests and runs it until Ctrl-C, for manual experiments.

use anyhow::Result;
use e2e_tests::{Cluster, Release};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "prints the path of the kubeconfig")]
async fn main() -> Result<()> {
    let cluster = Cluster::start(Release::V1_9).await?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("Ctrl-C ends the cluster.");
    tokio::signal::ctrl_c().await?;
    Ok(())
}
