//! Events of the plugin in a real API server, with exactly the permissions of the released role.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::AT_25;
use e2e_tests::{Canary, Cluster, Release, Suite, eventually, run, trials};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::json;

const COMPONENT: &str = "rollouts-plugin-trafficrouter-glooplatform";
const NAMESPACE: &str = "events";

/// Lists the Events of an object with this reason, like `kubectl describe`: by the uid of the object.
async fn described(cluster: &Cluster, object: &DynamicObject, reason: &str) -> Result<Vec<Event>> {
    let uid = object.metadata.uid.as_deref().context("no uid")?;
    let name = object.metadata.name.as_deref().context("no name")?;
    let selector = format!(
        "involvedObject.name={name},involvedObject.namespace={NAMESPACE},involvedObject.uid={uid}"
    );
    let events: Api<Event> = Api::namespaced(cluster.client().clone(), NAMESPACE);
    let found = events
        .list(&ListParams::default().fields(&selector))
        .await?;
    let found = found.items.into_iter();
    let has_reason = |event: &Event| event.reason.as_deref() == Some(reason);
    Ok(found.filter(has_reason).collect())
}

fn objects(cluster: &Cluster, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(cluster.client().clone(), NAMESPACE, &resource)
}

/// D-36: the controller does not show that Gloo rejects a table, so the plugin writes Events about the Rollout and the table. The
/// controller calls every 10 s, and each call increases the count.
async fn a_rejection_by_gloo_is_an_event_of_the_rollout_and_of_the_table(
    cluster: &Cluster,
) -> Result<()> {
    let canary = Canary::deploy(cluster, NAMESPACE).await?;
    let tables = objects(cluster, "networking.gloo.solo.io", "v2", "RouteTable");
    let set_approval = async |approval: &str| -> Result<()> {
        let generation = canary.table().await?.metadata.generation;
        let state = json!({
            "approval": approval, "observedGeneration": generation, "message": "no Service reviews",
        });
        let patch = Patch::Merge(json!({ "status": { "common": { "State": state } } }));
        let parameters = PatchParams::default();
        tables
            .patch_status(canary.table_name(), &parameters, &patch)
            .await?;
        Ok(())
    };
    // With a status in the table, the plugin waits for Gloo's approval of each change.
    set_approval("ACCEPTED").await?;
    canary.change_image("registry.example.com/demo:2").await?;
    canary.splits(AT_25).await?;
    set_approval("INVALID").await?;

    let rollout = objects(cluster, "argoproj.io", "v1alpha1", "Rollout")
        .get("demo")
        .await?;
    for object in [rollout, canary.table().await?] {
        let kind = object.types.as_ref().map(|types| types.kind.clone());
        let kind = kind.unwrap_or_default();
        eventually(
            &format!("the Event about the {kind} has a count of 2"),
            async || {
                let events = described(cluster, &object, "GlooRejected").await?;
                let [event] = events.as_slice() else {
                    anyhow::bail!("{} Events", events.len());
                };
                ensure!(event.count.unwrap_or_default() >= 2, "{event:?}");
                ensure!(event.type_.as_deref() == Some("Warning"), "{event:?}");
                let source = event.source.as_ref().and_then(|it| it.component.as_deref());
                ensure!(source == Some(COMPONENT), "{event:?}");
                let message = event.message.as_deref().unwrap_or_default();
                ensure!(
                    message.contains("Gloo says INVALID: no Service reviews"),
                    "{event:?}"
                );
                Ok(())
            },
        )
        .await?;
    }
    let status = run(cluster.kubeconfig(), "status").await?;
    status.check(1, &["INVALID: no Service reviews"])?;

    set_approval("ACCEPTED").await?;
    canary.paused_at(1).await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        Ok(trials![suite:
            a_rejection_by_gloo_is_an_event_of_the_rollout_and_of_the_table,
        ])
    })
}
