//! Real rollouts by the newest controller, with the features that only it offers to plugins: ping-pong and mirror steps.

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::walks::{AT_25, AT_100, a_promoted_canary_returns_the_table};
use e2e_tests::{Canary, Cluster, Release, Suite, eventually, run};
use futures::future::try_join_all;
use serde_json::json;

const IMAGE: &str = "registry.example.com/demo:2";

const BACK_AT_25: &str = "alien: demo-canary=75 demo-stable=25; shared: demo-canary=60 demo-stable=20 legacy=20; ratings: ratings";

const MIRRORED: &str = "header-canary: demo-canary=25 demo-stable=75; alien: demo-canary=25 demo-stable=75; header-canary-2: demo-canary=20 demo-stable=60 legacy=20; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";

/// Mirror steps with a weight that changes in between.
fn mirror_steps() -> serde_json::Value {
    let matches = json!([{ "method": { "exact": "GET" }, "path": { "prefix": "/" } }]);
    let mirror = json!({ "name": "header-canary", "percentage": 35, "match": matches });
    json!([{ "setWeight": 25 }, { "pause": {} }, { "setMirrorRoute": mirror }, { "pause": {} }])
}

async fn mirror_routes_come_and_go_with_their_policies(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "mirror").await?;
    let original = canary.table().await?;

    canary.change_image_and_steps(IMAGE, mirror_steps()).await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(MIRRORED).await?;
    let policies = canary.mirror_policies(cluster).await?;
    ensure!(!policies.is_empty(), "nothing mirrors");
    canary.promote().await?;
    canary.healthy().await?;

    canary.restores(&original).await?;
    let left = canary.mirror_policies(cluster).await?;
    ensure!(left.is_empty(), "{left:#?}");
    Ok(())
}

async fn an_abort_takes_the_mirror_away(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "mirror-aborted").await?;
    let original = canary.table().await?;

    canary.change_image_and_steps(IMAGE, mirror_steps()).await?;
    canary.paused_at(1).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(MIRRORED).await?;
    canary.abort().await?;

    canary.restores(&original).await?;
    let left = canary.mirror_policies(cluster).await?;
    ensure!(left.is_empty(), "{left:#?}");
    Ok(())
}

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

/// A folder of `examples/manifests`, and the output of `status` during its update.
const EXAMPLES: &[(&str, &str)] = &[
    ("experiment", "-baseline 5, reviews-"),
    ("header-route", "testers *"),
    ("mirror", "copies to reviews-canary 20"),
    ("ping-pong", "reviews-ping 75, reviews-pong 25"),
    ("several-tables", "reviews 75, reviews-canary 25"),
    ("subsets", "] 75, reviews["),
    ("tls-and-tcp", "reviews 75, reviews-canary 25"),
    ("weights", "reviews 76, reviews-canary 4, reviews-legacy 20"),
];

async fn each_example_becomes_a_canary_and_is_promoted(cluster: &Cluster) -> Result<()> {
    let folders = fs::read_dir("../examples/manifests")?;
    let names = folders.map(|it| Ok(it?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<BTreeSet<_>>>()?;
    let tested = EXAMPLES.iter().map(|(folder, _)| (*folder).to_owned());
    ensure!(names == tested.collect(), "{names:?}");
    let walks = EXAMPLES.iter().map(async |(folder, middle)| {
        let walk = walk_example(cluster, folder, middle).await;
        walk.with_context(|| (*folder).to_owned())
    });
    try_join_all(walks).await?;
    Ok(())
}

async fn walk_example(cluster: &Cluster, folder: &str, middle: &str) -> Result<()> {
    let canary = Canary::deploy_example(cluster, folder).await?;
    let status = async || run(cluster.kubeconfig(), &format!("status -n {folder}")).await;
    let containers = json!([
        { "name": "reviews", "image": IMAGE, "ports": [{ "containerPort": 8080 }] }
    ]);
    canary
        .change_spec(json!({ "template": { "spec": { "containers": containers } } }))
        .await?;
    eventually("the tables are in the middle of the update", async || {
        status().await?.check(0, &[middle])
    })
    .await?;
    canary.idle().await?;
    canary.promote_fully().await?;
    canary.healthy().await?;
    eventually("nothing of the canary is left", async || {
        let left = status().await?.stdout;
        ensure!(!left.contains(middle), "{left}");
        Ok(())
    })
    .await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_10), |suite| {
        macro_rules! trials {
            ($($test:ident),+ $(,)?) => { vec![$(suite.trial(stringify!($test), $test)),+] };
        }
        Ok(trials![
            a_promoted_canary_returns_the_table,
            ping_pong_swaps_the_services_and_swaps_them_back,
            an_abort_keeps_the_stable_service,
            mirror_routes_come_and_go_with_their_policies,
            an_abort_takes_the_mirror_away,
            each_example_becomes_a_canary_and_is_promoted,
        ])
    })
}
