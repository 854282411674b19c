//! The work of the plugin between the calls of a real controller: it repairs drift, and restores the tables of Rollouts that were
//! deleted or no longer use the plugin.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e_tests::updates::{AT_25, AT_50, IMAGE};
use e2e_tests::{Canary, Cluster, PLUGIN_NAME, Release, Suite, trials};
use serde_json::json;
use tokio::time::sleep;

/// The plugin's annotation.
const ANNOTATION: &str = "rollouts-plugin-trafficrouter-glooplatform/changes";
/// How long a test waits for an unwanted write. Far below the 15 minutes after which the controller reconciles without a change.
const OBSERVED: Duration = Duration::from_secs(5);

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        let mut trials = trials![suite:
            drift_is_repaired_during_a_pause,
            a_table_with_the_opt_out_annotation_is_not_repaired,
            the_table_of_a_deleted_rollout_is_restored,
            the_table_of_a_rollout_without_the_plugin_is_restored_after_the_update,
        ];
        let name = "a_table_that_is_deselected_before_a_restart_is_restored";
        trials.push(suite.trial_alone(name, async move |cluster| {
            a_table_that_is_deselected_before_a_restart_is_restored(cluster).await
        }));
        Ok(trials)
    })
}

async fn drift_is_repaired_during_a_pause(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "drift").await?;
    let owners = canary.table().await?;
    canary.update_to_25().await?;
    for keeps_annotation in [true, false] {
        canary
            .edit_table(|table| {
                table.data["spec"] = owners.data["spec"].clone();
                if !keeps_annotation && let Some(annotations) = &mut table.metadata.annotations {
                    annotations.remove(ANNOTATION);
                }
            })
            .await?;
        canary.splits(AT_25).await?;
    }
    canary
        .edit_table(|table| {
            table.data["spec"]["http"][1]["forwardTo"]["destinations"][0]["weight"] = json!(50);
            table.data["spec"]["http"][1]["forwardTo"]["destinations"][1]["weight"] = json!(50);
        })
        .await?;
    canary.splits(AT_25).await?;
    let event = canary.event("TrafficDriftRepaired").await?;
    ensure!(event.contains("abort the Rollout"), "{event}");

    // The update continues, and its abort restores the owner's table.
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    canary.abort().await?;
    canary.aborted().await?;
    canary.restores(&owners).await
}

async fn a_table_with_the_opt_out_annotation_is_not_repaired(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "opt-out").await?;
    let owners = canary.table().await?;
    canary.update_to_25().await?;
    canary
        .edit_table(|table| {
            table.data["spec"] = owners.data["spec"].clone();
            let annotations = table.metadata.annotations.get_or_insert_default();
            let key = "rollouts-plugin-trafficrouter-glooplatform/repair";
            annotations.insert(key.to_owned(), "off".to_owned());
        })
        .await?;
    let version = canary.table().await?.metadata.resource_version;
    sleep(OBSERVED).await;
    ensure!(canary.table().await?.metadata.resource_version == version);
    // A call of the controller writes the table.
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await
}

async fn the_table_of_a_deleted_rollout_is_restored(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "deleted").await?;
    let owners = canary.table().await?;
    canary.change_image(IMAGE).await?;
    canary.paused_at(1).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    canary.delete_rollout().await?;
    sleep(OBSERVED).await;
    canary.splits(AT_50).await?;
    canary.restores(&owners).await?;
    canary.event("OrphanedTraffic").await?;
    canary.event("TrafficRestored").await?;
    Ok(())
}

async fn the_table_of_a_rollout_without_the_plugin_is_restored_after_the_update(
    cluster: &Cluster,
) -> Result<()> {
    let canary = Canary::deploy(cluster, "without").await?;
    let owners = canary.table().await?;
    canary.update_to_25().await?;
    let without = json!({ "strategy": { "canary": { "trafficRouting": null } } });
    canary.change_spec(without).await?;
    sleep(OBSERVED).await;
    canary.splits(AT_25).await?;
    canary.promote_fully().await?;
    canary.healthy().await?;
    canary.restores(&owners).await
}

async fn a_table_that_is_deselected_before_a_restart_is_restored(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy_with_tables(cluster, "deselected", &["demo", "kept"]).await?;
    let owners = canary.table().await?;
    canary.update_to_25().await?;
    // The process that wrote the table is killed before it can restore the table.
    let controller = cluster.controller()?;
    controller.freeze()?;
    let block = json!({ "routeTableSelector": { "names": ["kept"] } });
    let routing = json!({ "plugins": { PLUGIN_NAME: block } });
    canary
        .change_spec(json!({ "strategy": { "canary": { "trafficRouting": routing } } }))
        .await?;
    controller.thaw()?;
    controller.kill_plugin().await?;
    canary.restores(&owners).await?;
    let kept = canary.with_table("kept");
    kept.splits(AT_25).await?;
    canary.abort().await?;
    canary.aborted().await?;
    kept.restores(&owners).await
}
