//! Real rollouts: the released controller changes a RouteTable through the plugin.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::process::ExitCode;

use anyhow::{Result, ensure};
use e2e_tests::updates::{
    PAUSES, a_promoted_canary_restores_the_table, an_aborted_canary_restores_the_table,
};
use e2e_tests::{Canary, Cluster, Release, Suite, trials};
use kube::api::DynamicObject;
use serde_json::json;

async fn the_edit_of_another_client_survives(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "edited").await?;
    let mut expected = canary.table().await?;
    let edit = |table: &mut DynamicObject| {
        let spec = &mut table.data["spec"];
        spec["weight"] = json!(7);
        spec["http"][1]["matchers"][0]["method"] = json!("GET");
        spec["http"][2]["labels"] = json!({ "route": "shared", "tier": "gold" });
        if let Some(routes) = spec["http"].as_array_mut() {
            routes.insert(
                0,
                json!({
                    "name": "maintenance",
                    "matchers": [{ "uri": { "exact": "/maintenance" } }],
                    "directResponse": { "status": 503 },
                }),
            );
        }
        let labels = table.metadata.labels.get_or_insert_default();
        labels.insert("edited".to_owned(), "yes".to_owned());
    };

    canary.update_to_25().await?;
    canary.edit_table(edit).await?;
    canary.promote().await?;
    canary.promote_at(&PAUSES[1..]).await?;
    canary.healthy().await?;

    edit(&mut expected);
    canary.restores(&expected).await
}

async fn an_idle_reconcile_writes_nothing(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "idle").await?;
    let version = canary.table().await?.metadata.resource_version;
    for limit in [3, 4, 5] {
        // At the end of a reconcile the controller writes the observed generation.
        canary
            .change_spec(json!({ "revisionHistoryLimit": limit }))
            .await?;
        canary.healthy().await?;
    }
    let after = canary.table().await?;
    ensure!(
        after.metadata.resource_version == version,
        "the table was written: {after:#?}"
    );
    Ok(())
}

async fn a_missing_table_is_reported_in_an_event(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "refused").await?;
    let version = canary.table().await?.metadata.resource_version;
    let block = json!({ "routeTableSelector": { "name": "absent" } });
    let routing = json!({ "plugins": { e2e_tests::PLUGIN_NAME: block } });
    canary
        .change_spec(json!({ "strategy": { "canary": { "trafficRouting": routing } } }))
        .await?;

    let message = canary.event("TrafficRoutingError").await?;
    ensure!(
        message.contains("refused/absent") && !message.contains('%'),
        "{message}"
    );
    let after = canary.table().await?;
    ensure!(
        after.metadata.resource_version == version,
        "the table was written: {after:#?}"
    );
    Ok(())
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        Ok(trials![suite:
            a_promoted_canary_restores_the_table,
            an_aborted_canary_restores_the_table,
            the_edit_of_another_client_survives,
            an_idle_reconcile_writes_nothing,
            a_missing_table_is_reported_in_an_event,
        ])
    })
}
