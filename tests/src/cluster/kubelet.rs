//! Stands in for the ReplicaSet controller, the scheduler and the kubelet: every ReplicaSet has the replicas it asks for
//! at once, without a Pod.

use std::pin::pin;

use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

/// Marks ReplicaSets available until the API server goes away.
pub(crate) async fn run(client: Client) -> Result<()> {
    let everywhere: Api<ReplicaSet> = Api::all(client.clone());
    let watch = watcher(everywhere, watcher::Config::default()).default_backoff();
    let mut applied = pin!(watch.applied_objects());
    while let Some(event) = applied.next().await {
        // The watch is taken up again after an error, such as a server that is not there yet.
        let Ok(set) = event else { continue };
        let Some(status) = all_available(&set) else {
            continue;
        };
        let sets: Api<ReplicaSet> =
            Api::namespaced(client.clone(), &set.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({ "status": status }));
        match sets
            .patch_status(&set.name_any(), &PatchParams::default(), &patch)
            .await
        {
            Err(kube::Error::Api(refusal)) if refusal.is_not_found() => {}
            result => drop(result?),
        }
    }
    Ok(())
}

/// The status of a ReplicaSet that has all it asks for; `None` when that is what it says already.
pub(crate) fn all_available(set: &ReplicaSet) -> Option<ReplicaSetStatus> {
    let replicas = set.spec.replicas?;
    let wanted = ReplicaSetStatus {
        replicas,
        fully_labeled_replicas: Some(replicas),
        ready_replicas: Some(replicas),
        available_replicas: Some(replicas),
        observed_generation: set.metadata.generation,
        ..ReplicaSetStatus::default()
    };
    let current = set.status.as_ref()?;
    let settled = current.observed_generation == wanted.observed_generation
        && current.replicas == replicas
        && current.available_replicas.unwrap_or_default() == replicas;
    (!settled).then_some(wanted)
}
