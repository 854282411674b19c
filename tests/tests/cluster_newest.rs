//! Real rollouts by the newest controller, with ping-pong and mirror steps, which older controllers do not pass to plugins.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{
    AT_25, AT_100, IMAGE, a_promoted_canary_restores_the_table, the_advice_about_aborts_is_right,
};
use e2e_tests::{Canary, Cluster, Release, Suite, apply, eventually, run, trials};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use serde_json::json;

/// The split at weight 25 after ping-pong has swapped the Services.
const SWAPPED_AT_25: &str = "rare: demo-canary=75 demo-stable=25; shared: demo-canary=60 demo-stable=20 legacy=20; ratings: ratings";

const MIRRORED: &str = "header-canary: demo-canary=25 demo-stable=75; rare: demo-canary=25 demo-stable=75; header-canary-2: demo-canary=20 demo-stable=60 legacy=20; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";

/// A weight, and then a mirror step at this weight.
fn mirror_steps() -> serde_json::Value {
    let matches = json!([{ "method": { "exact": "GET" }, "path": { "prefix": "/" } }]);
    let mirror = json!({ "name": "header-canary", "percentage": 35, "match": matches });
    json!([{ "setWeight": 25 }, { "pause": {} }, { "setMirrorRoute": mirror }, { "pause": {} }])
}

async fn mirror_routes_and_policies_are_created_and_removed(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "mirror").await?;
    let original = canary.table().await?;

    canary.change_image_and_steps(IMAGE, mirror_steps()).await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(MIRRORED).await?;
    let policies = canary.mirror_policies(cluster).await?;
    ensure!(!policies.is_empty(), "no MirrorPolicy");
    canary.promote().await?;
    canary.healthy().await?;

    canary.restores(&original).await?;
    let left = canary.mirror_policies(cluster).await?;
    ensure!(left.is_empty(), "{left:#?}");
    Ok(())
}

async fn an_abort_removes_the_mirror_routes(cluster: &Cluster) -> Result<()> {
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

    canary.update_to_25().await?;
    canary.promote_fully().await?;
    canary.healthy().await?;
    canary.splits(AT_100).await?;

    canary.change_image("registry.example.com/demo:3").await?;
    canary.paused_at(1).await?;
    canary.splits(SWAPPED_AT_25).await?;
    canary.promote_fully().await?;
    canary.healthy().await?;

    canary.restores(&original).await
}

async fn an_abort_keeps_the_stable_service(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy_ping_pong(cluster, "ping-pong-aborted").await?;
    let original = canary.table().await?;

    canary.update_to_25().await?;
    canary.abort().await?;

    canary.restores(&original).await
}

/// Switches ping-pong on for an existing Rollout, and starts an update to weight 25. Returns whether the commands warned before the
/// update, and whether the Service for stable selects only stable Pods during the update.
async fn switch_to_ping_pong(
    cluster: &Cluster,
    namespace: &str,
    [ping, pong]: [&str; 2],
) -> Result<(bool, bool)> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let service = |name: &&str| {
        let spec = json!({ "selector": { "app": "demo" }, "ports": [{ "port": 8080 }] });
        let metadata = json!({ "name": name, "namespace": namespace });
        let kind =
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec });
        serde_json::from_value(kind)
    };
    let is_new = |name: &&str| !["demo-stable", "demo-canary"].contains(name);
    let new = [ping, pong].into_iter().filter(is_new);
    let new: Vec<_> = new.map(|name| service(&name)).collect::<Result<_, _>>()?;
    apply(cluster.client(), &new).await?;
    canary
        .edit_table(|table| {
            let text = table.data["spec"].to_string().replace("demo-stable", pong);
            table.data["spec"] = serde_json::from_str(&text).unwrap_or_default();
        })
        .await?;
    let pair = json!({ "pingService": ping, "pongService": pong });
    let services = json!({ "stableService": null, "canaryService": null, "pingPong": pair });
    let spec = json!({ "strategy": { "canary": services } });
    canary.change_spec(spec).await?;
    canary.healthy().await?;
    let advice = format!(
        "{namespace}/demo: pingPong is new for this Rollout: its next update takes Service {pong} for stable"
    );
    let doctor = run(cluster.kubeconfig(), "doctor").await?.stdout;
    let validate = run(cluster.kubeconfig(), "validate").await?.stdout;
    let warns = doctor.contains(&advice);
    ensure!(warns == validate.contains(&advice), "{doctor}\n{validate}");

    let stable = canary.rollout().await?.data["status"]["stableRS"].take();
    canary.change_image(IMAGE).await?;
    canary.paused_at(1).await?;
    let services: Api<Service> = Api::namespaced(cluster.client().clone(), namespace);
    let selector = services.get(pong).await?.spec.and_then(|it| it.selector);
    let hash = selector.and_then(|mut it| it.remove("rollouts-pod-template-hash"));
    Ok((warns, hash.as_deref() == stable.as_str()))
}

async fn the_advice_about_new_ping_pong_is_right(cluster: &Cluster) -> Result<()> {
    let fresh = switch_to_ping_pong(cluster, "new-ping-pong", ["demo-ping", "demo-pong"]).await?;
    let mended = "the controller prepares the Service: remove the advice, and change examples/manifests/ping-pong";
    ensure!(fresh == (true, false), "{fresh:?}: {mended}");
    let pair = ["demo-canary", "demo-stable"];
    let reused = switch_to_ping_pong(cluster, "reused-ping-pong", pair).await?;
    ensure!(reused == (false, true), "{reused:?}");
    Ok(())
}

async fn the_advice_about_aborts_is_right_for_the_newest(cluster: &Cluster) -> Result<()> {
    the_advice_about_aborts_is_right(cluster, Release::V1_10).await
}

/// Each folder of `examples/manifests`, and a text that `status` shows during its update.
const EXAMPLES: &[(&str, &str)] = &[
    ("experiment", "-baseline 5, reviews-"),
    ("header-route", "testers *"),
    ("mirror", "20 % copied to reviews-canary"),
    ("ping-pong", "reviews-ping 75, reviews-pong 25"),
    ("several-tables", "reviews 75, reviews-canary 25"),
    ("subsets", "] 75, reviews["),
    ("tls-and-tcp", "reviews:8443 75, reviews-canary:8443 25"),
    ("weights", "reviews 76, reviews-canary 4, reviews-legacy 20"),
];

async fn each_example_is_updated_and_promoted(cluster: &Cluster) -> Result<()> {
    let folders = fs::read_dir("../examples/manifests")?;
    let names = folders.map(|it| Ok(it?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<BTreeSet<_>>>()?;
    let tested = EXAMPLES.iter().map(|(folder, _)| (*folder).to_owned());
    ensure!(names == tested.collect(), "{names:?}");
    let updates = EXAMPLES.iter().map(async |(folder, during)| {
        let outcome = update_example(cluster, folder, during).await;
        outcome.with_context(|| (*folder).to_owned())
    });
    try_join_all(updates).await?;
    Ok(())
}

async fn update_example(cluster: &Cluster, folder: &str, during: &str) -> Result<()> {
    let canary = Canary::deploy_example(cluster, folder).await?;
    let status = async || run(cluster.kubeconfig(), &format!("status -n {folder}")).await;
    let containers = json!([
        { "name": "reviews", "image": IMAGE, "ports": [{ "containerPort": 8080 }] }
    ]);
    canary
        .change_spec(json!({ "template": { "spec": { "containers": containers } } }))
        .await?;
    eventually("the tables have the split of the update", async || {
        status().await?.check(0, &[during])
    })
    .await?;
    canary.idle().await?;
    canary.promote_fully().await?;
    canary.healthy().await?;
    eventually("the tables have no parts of the update", async || {
        let left = status().await?.stdout;
        ensure!(!left.contains(during), "{left}");
        Ok(())
    })
    .await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_10), |suite| {
        Ok(trials![suite:
            a_promoted_canary_restores_the_table,
            ping_pong_swaps_the_services_and_swaps_them_back,
            an_abort_keeps_the_stable_service,
            the_advice_about_new_ping_pong_is_right,
            the_advice_about_aborts_is_right_for_the_newest,
            mirror_routes_and_policies_are_created_and_removed,
            an_abort_removes_the_mirror_routes,
            each_example_is_updated_and_promoted,
        ])
    })
}
