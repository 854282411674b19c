//! What the newest controller alone lets a plugin do: ping-pong and mirror steps.

use std::process::ExitCode;

use anyhow::Result;
use e2e_tests::{Canary, Cluster, Release, Suite};

const AT_25: &str = "alien: demo-canary=25 demo-stable=75; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";
const AT_100: &str = "alien: demo-canary=100; shared: demo-canary=80 legacy=20; ratings: ratings";
const BACK_AT_25: &str = "alien: demo-canary=75 demo-stable=25; shared: demo-canary=60 demo-stable=20 legacy=20; ratings: ratings";

async fn ping_pong_swaps_the_services_and_swaps_them_back(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy_ping_pong(cluster, "ping-pong").await?;
    let original = canary.table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.promote_fully().await?;
    canary.healthy().await?;
    canary.splits(AT_100).await?;

    canary.change_image("registry.example.com/demo:3").await?;
    canary.paused_at(1).await?;
    canary.splits(BACK_AT_25).await?;
    canary.promote_fully().await?;
    canary.healthy().await?;

    canary.restores(&original).await
}

async fn an_abort_keeps_the_stable_service(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy_ping_pong(cluster, "ping-pong-aborted").await?;
    let original = canary.table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.abort().await?;

    canary.restores(&original).await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_10), |suite| {
        macro_rules! trials {
            ($($test:ident),+ $(,)?) => { vec![$(suite.trial(stringify!($test), $test)),+] };
        }
        Ok(trials![
            ping_pong_swaps_the_services_and_swaps_them_back,
            an_abort_keeps_the_stable_service,
        ])
    })
}
