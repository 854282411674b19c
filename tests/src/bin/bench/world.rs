//! The objects of the cluster: Rollouts of about 10 KB, and for each ten of them a RouteTable of about 12 KiB.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gloo_types::{Resource as _, RouteTable};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use rollouts_rpc::Rollout;
use serde_json::{Value, json};

/// Number of Rollouts with a route in one RouteTable.
pub(crate) const ROLLOUTS_PER_TABLE: usize = 10;
/// The Pod template hash of the new version.
pub(crate) const NEW_HASH: &str = "6d4f8b7c5";
/// The Pod template hash of the version before an update.
pub(crate) const OLD_HASH: &str = "7c9d6b5f4";

const NAMESPACE: &str = "shop";
const PLUGIN_NAME: &str = e2e_tests::PLUGIN_NAME;
/// The annotation in which `kubectl apply` stores the manifest, filled to give a Rollout a realistic size.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const APPLIED_SIZE: usize = 9_000;
/// Size of a field of each route that the plugin does not know.
const FILLER_SIZE: usize = 960;
/// JSON pointer to the destinations of the first route.
const DESTINATIONS: &str = "/spec/http/0/forwardTo/destinations";
/// Number of concurrent writes.
const WRITES: usize = 32;

/// The state of a Rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The new version is stable.
    Resting,
    /// The step sets weight 50.
    Updating,
}

/// An edit of a RouteTable by another client while its first Rollout has a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Sets other weights of the destinations: stable, canary.
    Weights(i64, i64),
    /// Restores the original routes and keeps annotations.
    Routes,
    /// Restores the whole original table.
    Table,
}

impl Edit {
    pub(crate) const ALL: [Self; 4] = [
        Self::Weights(40, 60),
        Self::Weights(95, 5),
        Self::Routes,
        Self::Table,
    ];
}

/// The objects, and the last version of each Rollout from the API server.
pub(crate) struct World {
    objects: Api<DynamicObject>,
    tables: Api<DynamicObject>,
    rollouts: Vec<Rollout>,
}

impl World {
    pub(crate) async fn new(cluster: &Cluster) -> Result<Self> {
        let client = cluster.client();
        cluster.create_namespace(NAMESPACE).await?;
        let world = Self {
            objects: api(client, "argoproj.io", "v1alpha1", "Rollout"),
            tables: api(
                client,
                RouteTable::GROUP,
                RouteTable::VERSION,
                RouteTable::KIND,
            ),
            rollouts: Vec::new(),
        };
        world.remove_status_subresource(client).await?;
        Ok(world)
    }

    /// Removes the subresource `status` of Rollouts, which would need a second request for each of them.
    async fn remove_status_subresource(&self, client: &Client) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let patch = json!([{ "op": "remove", "path": "/spec/versions/0/subresources" }]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
        definitions
            .patch("rollouts.argoproj.io", &PatchParams::default(), &patch)
            .await?;
        eventually("Rollouts are created with their status", async || {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let created = self
                .objects
                .create(&dry_run, &serde_json::from_value(rollout(0))?)
                .await?;
            ensure!(created.data.get("status").is_some(), "no status");
            Ok(())
        })
        .await
    }

    /// Creates Rollouts and their RouteTables until there are `count` Rollouts.
    #[expect(clippy::print_stdout, reason = "prints progress")]
    pub(crate) async fn create(&mut self, count: usize) -> Result<()> {
        let begin = Instant::now();
        let new = self.rollouts.len()..count;
        let tables = new.start.div_ceil(ROLLOUTS_PER_TABLE)..count.div_ceil(ROLLOUTS_PER_TABLE);
        let created = tables.map(table).map(async |table| {
            let table = serde_json::from_value(table)?;
            anyhow::Ok(self.tables.create(&PostParams::default(), &table).await?)
        });
        let created: Vec<_> = stream::iter(created)
            .buffer_unordered(WRITES)
            .try_collect()
            .await?;
        let created_tables = created.len();
        let created = new.map(rollout).map(async |rollout| {
            let rollout = serde_json::from_value(rollout)?;
            let params = PostParams::default();
            parse(&self.objects.create(&params, &rollout).await?)
        });
        let created: Vec<Rollout> = stream::iter(created).buffered(WRITES).try_collect().await?;
        if begin.elapsed() > Duration::from_secs(1) {
            println!(
                "\ncreated {} Rollouts and {created_tables} RouteTables in {:.0} s",
                created.len(),
                begin.elapsed().as_secs_f64()
            );
        }
        self.rollouts.extend(created);
        Ok(())
    }

    /// Returns the number of Rollouts.
    pub(crate) fn rollouts(&self) -> usize {
        self.rollouts.len()
    }

    /// Returns the number of RouteTables.
    pub(crate) fn tables(&self) -> usize {
        self.rollouts.len().div_ceil(ROLLOUTS_PER_TABLE)
    }

    pub(crate) fn rollout(&self, index: usize) -> Result<&Rollout> {
        self.rollouts.get(index).context("no such Rollout")
    }

    /// Returns the size of a Rollout as JSON, in bytes.
    pub(crate) fn rollout_size(&self, index: usize) -> Result<usize> {
        Ok(serde_json::to_string(&rollout(index))?.len())
    }

    /// Returns the size of a RouteTable as JSON, in bytes.
    pub(crate) async fn table_size(&self, index: usize) -> Result<usize> {
        let table = self.tables.get(&table_name(index)).await?;
        Ok(serde_json::to_string(&table)?.len())
    }

    /// Restores the original content of a RouteTable.
    pub(crate) async fn write_again(&self, index: usize) -> Result<()> {
        let mut new: DynamicObject = serde_json::from_value(table(index))?;
        let name = table_name(index);
        new.metadata.resource_version = self.tables.get(&name).await?.metadata.resource_version;
        self.tables
            .replace(&name, &PostParams::default(), &new)
            .await?;
        Ok(())
    }

    /// Edits a RouteTable like a client that ignores the canary. Returns the written table.
    pub(crate) async fn edit(&self, index: usize, edit: Edit) -> Result<DynamicObject> {
        let name = table_name(index);
        let mut now = self.tables.get(&name).await?;
        let created: DynamicObject = serde_json::from_value(table(index))?;
        match edit {
            Edit::Weights(stable, canary) => {
                for (place, weight) in [stable, canary].into_iter().enumerate() {
                    let path = format!("{DESTINATIONS}/{place}");
                    let destination = now.data.pointer_mut(&path);
                    let destination = destination.and_then(Value::as_object_mut);
                    let destination = destination.context("a route without a split")?;
                    destination.insert("weight".to_owned(), weight.into());
                }
            }
            Edit::Routes => now.data = created.data,
            Edit::Table => {
                now.data = created.data;
                now.metadata.annotations = created.metadata.annotations;
            }
        }
        now.metadata.managed_fields = None;
        Ok(self
            .tables
            .replace(&name, &PostParams::default(), &now)
            .await?)
    }

    /// Returns the API of the RouteTables, for a watch.
    pub(crate) fn watch(&self) -> Api<DynamicObject> {
        self.tables.clone()
    }

    pub(crate) async fn set_state(&mut self, index: usize, state: State) -> Result<()> {
        self.set_states(&[index], state).await
    }

    /// Sets the state of Rollouts here and in the API server.
    pub(crate) async fn set_states(&mut self, indices: &[usize], state: State) -> Result<()> {
        let changes = indices.iter().map(async |index| {
            let patch = Patch::Merge(json!({ "status": status(state) }));
            let (name, params) = (rollout_name(*index), PatchParams::default());
            let changed = self.objects.patch(&name, &params, &patch).await?;
            anyhow::Ok((*index, parse(&changed)?))
        });
        let changed: Vec<(usize, Rollout)> = stream::iter(changes)
            .buffer_unordered(WRITES)
            .try_collect()
            .await?;
        for (index, rollout) in changed {
            *self.rollouts.get_mut(index).context("no such Rollout")? = rollout;
        }
        // Time for watches to receive the change.
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    }
}

/// Returns the canary's weight in the first route; `None` without a canary.
pub(crate) fn canary_share(table: &DynamicObject) -> Option<i64> {
    let canary = table.data.pointer(&format!("{DESTINATIONS}/1/weight"))?;
    canary.as_i64()
}

/// Returns `metadata.resourceVersion` as a number, which Kubernetes documents since 1.35.
pub(crate) fn version(object: &DynamicObject) -> u64 {
    let version = object.metadata.resource_version.as_deref();
    version.and_then(|it| it.parse().ok()).unwrap_or_default()
}

fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, version, kind);
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
}

fn parse(object: &DynamicObject) -> Result<Rollout> {
    Ok(serde_json::from_value(serde_json::to_value(object)?)?)
}

fn rollout_name(index: usize) -> String {
    format!("r-{index:05}")
}

fn table_name(index: usize) -> String {
    format!("t-{index:04}")
}

fn rollout(index: usize) -> Value {
    let name = rollout_name(index);
    let table = table_name(index / ROLLOUTS_PER_TABLE);
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": { APPLIED: "x".repeat(APPLIED_SIZE), "rollout.argoproj.io/revision": "2" },
        },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "app", "image": "registry.example.com/app:2" }] },
            },
            "strategy": { "canary": {
                "stableService": name,
                "canaryService": format!("{name}-canary"),
                "trafficRouting": { "plugins": { PLUGIN_NAME: {
                    "routeTableSelector": { "name": table },
                } } },
                "steps": [{ "setWeight": 25 }, { "setWeight": 50 }, { "pause": {} }],
            } },
        },
        "status": status(State::Resting),
    })
}

fn status(state: State) -> Value {
    let (stable, index, weight, updated) = match state {
        State::Resting => (NEW_HASH, 3, 0, 3),
        State::Updating => (OLD_HASH, 1, 25, 1),
    };
    json!({
        "currentPodHash": NEW_HASH,
        "stableRS": stable,
        "currentStepIndex": index,
        "replicas": 3,
        "updatedReplicas": updated,
        "availableReplicas": 3,
        "canary": { "weights": {
            "canary": { "weight": weight, "podTemplateHash": NEW_HASH },
            "stable": { "weight": 100 - weight, "podTemplateHash": stable },
        } },
    })
}

fn table(index: usize) -> Value {
    let first = index * ROLLOUTS_PER_TABLE;
    let routes = (first..first + ROLLOUTS_PER_TABLE).map(|index| {
        let name = rollout_name(index);
        json!({
            "name": name,
            "matchers": [{ "uri": { "prefix": format!("/{name}") } }],
            "forwardTo": { "destinations": [{
                "kind": "SERVICE",
                "ref": { "name": name, "namespace": NAMESPACE },
                "port": { "number": 8080 },
            }] },
            "filler": "x".repeat(FILLER_SIZE),
        })
    });
    json!({
        "apiVersion": format!("{}/{}", RouteTable::GROUP, RouteTable::VERSION),
        "kind": RouteTable::KIND,
        "metadata": { "name": table_name(index), "namespace": NAMESPACE },
        "spec": { "hosts": ["*"], "http": routes.collect::<Vec<_>>() },
    })
}
