//! A stand-in for the ReplicaSet controller, the scheduler and the kubelet: every ReplicaSet is available at once, without
//! Pods. Only the ReplicaSets of an Experiment wait until the controller has written the names of its Services.

use std::pin::pin;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::DEADLINE;

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
        if status.replicas > 0 {
            services_named(&client, &set).await?;
        }
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

/// Waits until the status of the ReplicaSet's Experiment has the name of each of its Services.
///
/// Pods need longer to start than the controller needs to see its own write of these names. If the ReplicaSet were available
/// earlier, the controller could write a status from a cache without the names, and they would be lost for the whole
/// experiment (`persistExperimentStatus` in `experiments/controller.go` of Argo Rollouts).
pub(crate) async fn services_named(client: &Client, set: &ReplicaSet) -> Result<()> {
    let Some(name) = experiment_of(set) else {
        return Ok(());
    };
    let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Experiment");
    let experiments: Api<DynamicObject> = Api::namespaced_with(
        client.clone(),
        &set.namespace().unwrap_or_default(),
        &ApiResource::from_gvk(&kind),
    );
    let is_named = |experiment: Option<&DynamicObject>| {
        experiment.is_none_or(|it| {
            count(it, "/status/templateStatuses", "serviceName")
                == count(it, "/spec/templates", "service")
        })
    };
    let named = timeout(DEADLINE, await_condition(experiments, name, is_named)).await;
    named.with_context(|| format!("Experiment {name}: no names of its Services"))??;
    Ok(())
}

fn experiment_of(set: &ReplicaSet) -> Option<&str> {
    let mut owners = set.owner_references().iter();
    let experiment = owners.find(|owner| owner.kind == "Experiment")?;
    Some(&experiment.name)
}

/// Returns how many objects of the list at `path` have `key`.
fn count(object: &DynamicObject, path: &str, key: &str) -> usize {
    let list = object.data.pointer(path).and_then(Value::as_array);
    list.map_or(0, |list| {
        list.iter().filter(|it| it.get(key).is_some()).count()
    })
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
