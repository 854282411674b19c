//! Real rollouts by the oldest controller that has plugins, which passes them no arguments and knows no checksum of a file.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use e2e_tests::{Canary, Cluster, Release, Suite, eventually};

const IDLE: &str = "alien: demo-stable; shared: demo-stable=80 legacy=20; ratings: ratings";
const AT_25: &str = "alien: demo-canary=25 demo-stable=75; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";
const AT_50: &str = "alien: demo-canary=50 demo-stable=50; shared: demo-canary=40 demo-stable=40 legacy=20; ratings: ratings";
const AT_100: &str = "alien: demo-canary=100; shared: demo-canary=80 legacy=20; ratings: ratings";

async fn the_oldest_controller_moves_the_table_and_returns_it(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "promoted").await?;
    let original = canary.table().await?;
    let history = canary.watch_table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    for (step, expected) in [(1, AT_25), (3, AT_50), (5, AT_100)] {
        canary.paused_at(step).await?;
        canary.splits(expected).await?;
        canary.promote().await?;
    }
    canary.healthy().await?;

    canary.restores(&original).await?;
    eventually("the watch has seen the last revision", async || {
        let (seen, expected) = (history.splits(), [IDLE, AT_25, AT_50, AT_100, IDLE]);
        ensure!(seen == expected, "{seen:#?}");
        Ok(())
    })
    .await
}

async fn an_abort_by_the_oldest_controller_returns_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "aborted").await?;
    let original = canary.table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    canary.abort().await?;

    canary.restores(&original).await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_5), |suite| {
        macro_rules! trials {
            ($($test:ident),+ $(,)?) => { vec![$(suite.trial(stringify!($test), $test)),+] };
        }
        Ok(trials![
            the_oldest_controller_moves_the_table_and_returns_it,
            an_abort_by_the_oldest_controller_returns_the_table,
        ])
    })
}
