//! Real rollouts with header routes, experiments, full promotion, a killed plugin, and a table that two Rollouts share.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::process::ExitCode;

use anyhow::{Result, ensure};
use e2e_tests::updates::{AT_25, AT_50, AT_100, IDLE, IMAGE};
use e2e_tests::{Canary, Cluster, Generator, Release, Suite, eventually, split, trials};
use serde_json::json;

const RATINGS_IMAGE: &str = "registry.example.com/ratings:2";

const IN_EXPERIMENT: &str = "rare: demo-canary=25 demo-stable=55 exp-base=10 exp-new=10; shared: demo-canary=20 demo-stable=44 exp-base=8 exp-new=8 legacy=20; ratings: ratings";

const WITH_HEADERS: &str = "header-canary: demo-canary; rare: demo-canary=25 demo-stable=75; header-canary-2: demo-canary; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";
const WITH_HEADERS_AT_50: &str = "header-canary: demo-canary; rare: demo-canary=50 demo-stable=50; header-canary-2: demo-canary; shared: demo-canary=40 demo-stable=40 legacy=20; ratings: ratings";

/// The pauses of [`header_steps`], and the split at each.
const HEADER_PAUSES: [(usize, &str); 4] = [
    (1, AT_25),
    (3, WITH_HEADERS),
    (5, WITH_HEADERS_AT_50),
    (7, AT_50),
];

/// Steps that set and remove a header route between weights.
fn header_steps() -> serde_json::Value {
    let matches = json!([{ "headerName": "x-canary", "headerValue": { "exact": "1" } }]);
    json!([
        { "setWeight": 25 },
        { "pause": {} },
        { "setHeaderRoute": { "name": "header-canary", "match": matches } },
        { "pause": {} },
        { "setWeight": 50 },
        { "pause": {} },
        { "setHeaderRoute": { "name": "header-canary" } },
        { "pause": {} },
    ])
}

/// An experiment step with two templates, each with weight 10.
fn experiment(duration: &str) -> serde_json::Value {
    json!({ "experiment": { "duration": duration, "templates": [
        { "name": "base", "specRef": "stable", "weight": 10, "service": { "name": "exp-base" } },
        { "name": "new", "specRef": "canary", "weight": 10, "service": { "name": "exp-new" } },
    ] } })
}

async fn a_header_route_is_set_and_removed_between_weights(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "header").await?;
    let original = canary.table().await?;
    let history = canary.watch_table().await?;

    canary.change_image_and_steps(IMAGE, header_steps()).await?;
    canary.promote_at(&HEADER_PAUSES).await?;
    canary.healthy().await?;

    canary.restores(&original).await?;
    let expected = [
        IDLE,
        AT_25,
        WITH_HEADERS,
        WITH_HEADERS_AT_50,
        AT_50,
        AT_100,
        IDLE,
    ];
    history.equals(&expected).await
}

/// Neither weights nor header routes are in the parameter sets, so that an update does not change Applications.
async fn an_update_does_not_change_the_generators_replies(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "generator").await?;
    let config = "{glooRoutes: {namespaces: [generator]}, rollouts: {namespaces: [generator]}}";
    let generator = Generator::start_with(config, "t", cluster.kubeconfig()).await?;
    let parameters = json!({ "source": "gloo-routes", "routeTableSelector": { "name": "demo" } });
    // The reply with the label has all earlier changes of the table too.
    let reply_at = async |step: &str| {
        canary
            .edit_table(|table| {
                let labels = table.metadata.labels.get_or_insert_default();
                labels.insert("step".to_owned(), step.to_owned());
            })
            .await?;
        let label = format!(r#""step":"{step}""#);
        eventually("the generator has seen the table", async || {
            let reply = generator.ask("", "t", &parameters).await?;
            reply.check(200, &label)?;
            Ok(reply.body.replace(&label, ""))
        })
        .await
    };
    // There is always one set for the Rollout; only its state changes.
    let wait_for_state = async |phase: &str, in_progress: bool| {
        eventually("the generator has seen the Rollout", async || {
            let parameters = json!({ "source": "rollouts" });
            let reply = generator.ask("", "t", &parameters).await?;
            let body: serde_json::Value = serde_json::from_str(&reply.body)?;
            let sets = &body["output"]["parameters"];
            let set = &sets[0];
            ensure!(
                sets.as_array().is_some_and(|sets| sets.len() == 1),
                "{body}"
            );
            let rollout = &set["rollout"];
            ensure!(
                rollout["key"] == "in-cluster/generator/demo" && rollout["configError"] == "",
                "{set}"
            );
            ensure!(set["gloo"]["host"] == "demo.example.com", "{set}");
            ensure!(
                rollout["phase"] == phase && rollout["inProgress"] == in_progress,
                "{set}"
            );
            Ok(())
        })
        .await
    };
    let before = reply_at("rest").await?;
    wait_for_state("Healthy", false).await?;
    ensure!(before.contains("generator/demo/shared"), "{before}");

    canary.change_image_and_steps(IMAGE, header_steps()).await?;
    for (step, expected) in HEADER_PAUSES {
        canary.paused_at(step).await?;
        canary.splits(expected).await?;
        let during = reply_at(&step.to_string()).await?;
        ensure!(during == before, "at step {step}: {during}");
        wait_for_state("Paused", true).await?;
        canary.promote().await?;
    }
    canary.healthy().await?;
    ensure!(reply_at("done").await? == before);
    wait_for_state("Healthy", false).await
}

/// Starts an update with [`header_steps`], and waits until the header route is set.
async fn update_to_headers(canary: &Canary) -> Result<()> {
    canary.change_image_and_steps(IMAGE, header_steps()).await?;
    canary.paused_at(1).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(WITH_HEADERS).await
}

async fn an_abort_removes_the_header_route(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "header-aborted").await?;
    let original = canary.table().await?;

    update_to_headers(&canary).await?;
    canary.abort().await?;

    canary.restores(&original).await
}

async fn a_header_route_that_another_client_removed_is_restored(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "header-removed").await?;
    let original = canary.table().await?;

    update_to_headers(&canary).await?;
    let spec = original.data["spec"].clone();
    canary
        .edit_table(|table| table.data["spec"] = spec.clone())
        .await?;
    canary.splits(IDLE).await?;
    // The controller does not watch RouteTables, so a change of the Rollout triggers the reconcile.
    canary
        .change_spec(json!({ "revisionHistoryLimit": 3 }))
        .await?;
    canary.splits(WITH_HEADERS).await?;
    canary.promote_fully().await?;
    canary.healthy().await?;

    canary.restores(&original).await
}

async fn an_experiment_has_its_weights_until_it_ends(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "experiment").await?;
    let original = canary.table().await?;
    let history = canary.watch_table().await?;

    let steps = json!([{ "setWeight": 25 }, { "pause": {} }, experiment("2s"), { "pause": {} }]);
    canary.change_image_and_steps(IMAGE, steps).await?;
    canary.promote_at(&[(1, AT_25), (3, AT_25)]).await?;
    canary.healthy().await?;

    canary.restores(&original).await?;
    let expected = [IDLE, AT_25, IN_EXPERIMENT, AT_25, AT_100, IDLE];
    history.equals(&expected).await
}

async fn an_abort_during_an_experiment_restores_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "experiment-aborted").await?;
    let original = canary.table().await?;

    let steps = json!([{ "setWeight": 25 }, experiment("1h"), { "pause": {} }]);
    canary.change_image_and_steps(IMAGE, steps).await?;
    canary.splits(IN_EXPERIMENT).await?;
    canary.abort().await?;

    canary.restores(&original).await
}

async fn a_retry_recovers_lost_names_of_an_experiments_services(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "experiment-unnamed").await?;
    let original = canary.table().await?;
    let in_experiment = async || {
        eventually("the Experiment's Services have their weights", async || {
            let experiment = canary.experiment().await?;
            let split = split(&canary.table().await?);
            let expected = format!("{experiment}-base=10 {experiment}-new=10");
            ensure!(split.contains(&expected), "{expected} is not in {split}");
            Ok(experiment)
        })
        .await
    };
    let experiment = json!({ "experiment": { "duration": "1h", "templates": [
        { "name": "base", "specRef": "stable", "weight": 10 },
        { "name": "new", "specRef": "canary", "weight": 10 },
    ] } });
    let steps = json!([{ "setWeight": 25 }, experiment, { "pause": {} }]);
    canary.change_image_and_steps(IMAGE, steps).await?;
    let experiment = in_experiment().await?;
    canary.lose_service_names(cluster, &experiment).await?;
    canary.splits(AT_25).await?;

    canary.abort().await?;
    canary.restores(&original).await?;
    canary.retry().await?;
    ensure!(in_experiment().await? != experiment);
    Ok(())
}

async fn a_full_promotion_restores_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "promoted-fully").await?;
    let original = canary.table().await?;

    canary.update_to_25().await?;
    canary.promote_fully().await?;
    canary.healthy().await?;

    canary.restores(&original).await
}

async fn an_update_continues_after_the_plugin_was_killed(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "killed").await?;
    let original = canary.table().await?;

    canary.update_to_25().await?;
    cluster.kill_plugin().await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    cluster.kill_plugin().await?;
    canary.abort().await?;

    canary.restores(&original).await
}

async fn two_rollouts_share_a_table(cluster: &Cluster) -> Result<()> {
    let demo = Canary::deploy(cluster, "shared").await?;
    let ratings = demo.deploy_second(cluster).await?;
    let original = demo.table().await?;

    demo.change_image(IMAGE).await?;
    ratings.change_image(RATINGS_IMAGE).await?;
    demo.paused_at(1).await?;
    ratings.paused_at(1).await?;
    let both = AT_25.replace("ratings: ratings", "ratings: ratings-canary=40 ratings=60");
    demo.splits(&both).await?;

    ratings.promote().await?;
    ratings.healthy().await?;
    demo.splits(AT_25).await?;
    demo.abort().await?;
    demo.restores(&original).await?;
    eventually("both Rollouts have ended their updates", async || {
        ratings.healthy().await?;
        ensure!(demo.table().await?.metadata.annotations == original.metadata.annotations);
        Ok(())
    })
    .await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        Ok(trials![suite:
            an_update_does_not_change_the_generators_replies,
            a_header_route_is_set_and_removed_between_weights,
            an_abort_removes_the_header_route,
            a_header_route_that_another_client_removed_is_restored,
            an_experiment_has_its_weights_until_it_ends,
            an_abort_during_an_experiment_restores_the_table,
            a_retry_recovers_lost_names_of_an_experiments_services,
            a_full_promotion_restores_the_table,
            an_update_continues_after_the_plugin_was_killed,
            two_rollouts_share_a_table,
        ])
    })
}
