//! A stand-in for the ReplicaSet controller, the scheduler and the kubelet: every ReplicaSet is available at once, without
//! Pods.

use std::pin::pin;

use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

/// Sets the status of all ReplicaSets to available, until a status cannot be written.
pub(crate) async fn run(client: Client) -> Result<()> {
    let everywhere: Api<ReplicaSet> = Api::all(client.clone());
    let watch = watcher(everywhere, watcher::Config::default()).default_backoff();
    let mut applied = pin!(watch.applied_objects());
    while let Some(event) = applied.next().await {
        // The watcher restarts after an error, for example while the API server is not ready.
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

/// Returns the status of a ReplicaSet with all replicas available; `None` if it already has that status.
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
