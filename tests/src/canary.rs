//! One Rollout with its Services and its RouteTable, in a namespace of its own, and what a person does to it.

#![expect(
    clippy::indexing_slicing,
    reason = "an absent key of a JSON value reads as null"
)]

mod endpoints;
mod passes;
mod reconciles;
pub mod walks;

use std::collections::BTreeSet;
use std::fs;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use gloo_types::{MirrorPolicy, Resource as _, RouteTable};
use k8s_openapi::api::core::v1::Event;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams,
    PostParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub use endpoints::Endpoints;
pub use passes::{Passes, count};

use crate::{Cluster, Controller, eventually, manifest};
use reconciles::Reconciles;

const MANIFESTS: &str = include_str!("../testdata/canary.yaml");
const SECOND: &str = include_str!("../testdata/ratings.yaml");
/// The Rollout and the RouteTable have the same name.
const NAME: &str = "demo";
/// The label of a Rollout that is for one of several controllers.
const INSTANCE_ID_LABEL: &str = "argo-rollouts.argoproj.io/controller-instance-id";
/// The line of [`MANIFESTS`] that names the RouteTable.
const TABLE_NAME: &str = "\n  name: demo\n";
/// How the Rollout of [`MANIFESTS`] selects it.
const TABLE_SELECTOR: &str = "routeTableSelector: {name: demo}";
/// The Rollout of [`SECOND`].
const SECOND_NAME: &str = "ratings";

/// The Rollout of each example.
const EXAMPLE_NAME: &str = "reviews";
/// That of the example, and one that has tables too.
const EXAMPLE_NAMESPACES: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: $NAMESPACE}
---
apiVersion: v1
kind: Namespace
metadata: {name: gloo-mesh}
";

/// A canary in its own namespace.
#[derive(Clone, Debug)]
pub struct Canary {
    name: &'static str,
    namespace: String,
    /// Name of the RouteTable that the methods read and write.
    table: String,
    reconciles: Arc<Mutex<Reconciles>>,
    rollouts: Api<DynamicObject>,
    tables: Api<DynamicObject>,
    events: Api<Event>,
}

impl Canary {
    /// Creates the namespace and its objects, and waits until the first revision is healthy.
    ///
    /// # Errors
    /// The API server refuses an object, or the Rollout does not become healthy.
    pub async fn deploy(cluster: &Cluster, namespace: &str) -> Result<Self> {
        Self::apply(cluster, namespace, NAME, MANIFESTS).await
    }

    /// The same with a RouteTable of this name in another cluster than the Rollout. The methods use that one; there is another
    /// one of the same name in the Rollout's own cluster, which no Rollout uses.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_across(
        cluster: &Cluster,
        management: &Cluster,
        namespace: &str,
        table: &str,
    ) -> Result<Self> {
        let client = management.client();
        let manifests = with_tables(&[table])?;
        let mut objects = manifest::parse(&manifests.replace("$NAMESPACE", namespace))?;
        objects.retain(|object| {
            let kind = object.types.as_ref().map(|types| types.kind.as_str());
            matches!(kind, Some("Namespace" | RouteTable::KIND))
        });
        manifest::apply(client, &objects).await?;
        let canary = Self::apply(cluster, namespace, NAME, &manifests).await?;
        Ok(Self {
            tables: tables(client, namespace),
            ..canary.with_table(table)
        })
    }

    /// The same with ping-pong: two Services that swap roles, of which the RouteTable leads to the first.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_ping_pong(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let manifests = MANIFESTS.replace(
            "stableService: demo-stable\n      canaryService: demo-canary\n",
            "pingPong: {pingService: demo-stable, pongService: demo-canary}\n",
        );
        ensure!(
            manifests != MANIFESTS,
            "canary.yaml names its Services otherwise"
        );
        Self::apply(cluster, namespace, NAME, &manifests).await
    }

    /// The same for the controller with this instance id, and no other.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_of_instance(
        cluster: &Cluster,
        namespace: &str,
        instance: &str,
    ) -> Result<Self> {
        let label = format!("labels: {{{INSTANCE_ID_LABEL}: {instance}}}");
        let named = format!("kind: Rollout\nmetadata:\n  {label}\n");
        let manifests = MANIFESTS.replace("kind: Rollout\nmetadata:\n", &named);
        ensure!(
            manifests != MANIFESTS,
            "canary.yaml has another Rollout in it"
        );
        Self::apply(cluster, namespace, NAME, &manifests).await
    }

    /// The same with several RouteTables that differ in their names only. The methods use the first one.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_with_tables(
        cluster: &Cluster,
        namespace: &str,
        tables: &[&str],
    ) -> Result<Self> {
        let canary = Self::apply(cluster, namespace, NAME, &with_tables(tables)?).await?;
        Ok(canary.with_table(tables.first().context("no tables")?))
    }

    /// The same canary, whose methods use another of its RouteTables.
    #[must_use]
    pub fn with_table(&self, table: &str) -> Self {
        Self {
            table: table.to_owned(),
            ..self.clone()
        }
    }

    /// The same canary after another controller took over.
    #[must_use]
    pub fn of_controller(&self, controller: &Controller) -> Self {
        let reconciles = Reconciles::new(controller.log(), &self.namespace, self.name);
        Self {
            reconciles: Arc::new(Mutex::new(reconciles)),
            ..self.clone()
        }
    }

    /// Creates the objects of a folder of `examples/manifests` in a namespace named after it.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_example(cluster: &Cluster, folder: &str) -> Result<Self> {
        let mut manifests = EXAMPLE_NAMESPACES.to_owned();
        for file in ["services", "route-table", "rollout"] {
            let path = format!("../examples/manifests/{folder}/{file}.yaml");
            manifests += "---\n";
            manifests += &fs::read_to_string(path)?
                .replace("namespace: shop", "namespace: $NAMESPACE")
                .replace("[shop, ", "[$NAMESPACE, ");
        }
        Self::apply(cluster, folder, EXAMPLE_NAME, &manifests).await
    }

    /// The same with other manifests, whose Rollout and RouteTable have the same names.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_manifests(
        cluster: &Cluster,
        namespace: &str,
        manifests: &str,
    ) -> Result<Self> {
        Self::apply(cluster, namespace, NAME, manifests).await
    }

    /// Creates a second Rollout in the same namespace, whose traffic goes through the same RouteTable.
    ///
    /// # Errors
    /// As for [`Canary::deploy`].
    pub async fn deploy_second(&self, cluster: &Cluster) -> Result<Self> {
        Self::apply(cluster, &self.namespace, SECOND_NAME, SECOND).await
    }

    async fn apply(
        cluster: &Cluster,
        namespace: &str,
        name: &'static str,
        manifests: &str,
    ) -> Result<Self> {
        let client = cluster.client();
        let objects = manifest::parse(&manifests.replace("$NAMESPACE", namespace))?;
        manifest::apply(client, &objects).await?;
        let reconciles = Reconciles::new(cluster.controller()?.log(), namespace, name);
        let canary = Self {
            name,
            namespace: namespace.to_owned(),
            table: NAME.to_owned(),
            reconciles: Arc::new(Mutex::new(reconciles)),
            rollouts: api(client, namespace, "argoproj.io", "v1alpha1", "Rollout"),
            tables: tables(client, namespace),
            events: Api::namespaced(client.clone(), namespace),
        };
        canary.healthy().await?;
        Ok(canary)
    }

    /// Waits until the newest revision is the stable one and the controller has seen the last change.
    ///
    /// # Errors
    /// It never happens.
    pub async fn healthy(&self) -> Result<()> {
        self.settled("the Rollout is healthy", |rollout| {
            let status = &rollout.data["status"];
            let generation = rollout.metadata.generation.unwrap_or_default().to_string();
            status["phase"] == "Healthy"
                && status["stableRS"] == status["currentPodHash"]
                && status["observedGeneration"] == generation
        })
        .await
    }

    /// Waits until the newest revision is the stable one. The controller may not have seen that itself, if its watch ended
    /// meanwhile.
    ///
    /// # Errors
    /// It never happens.
    pub async fn promoted(&self) -> Result<()> {
        eventually("the Rollout is promoted", async || {
            let rollout = self.rollouts.get(self.name).await?;
            let status = &rollout.data["status"];
            let is_promoted = status["stableRS"] == status["currentPodHash"];
            ensure!(is_promoted && status["phase"] == "Healthy", "{status:#}");
            Ok(())
        })
        .await
    }

    /// Waits until the Rollout pauses at the step with this index.
    ///
    /// # Errors
    /// It never happens.
    pub async fn paused_at(&self, step: usize) -> Result<()> {
        self.settled(&format!("the Rollout pauses at step {step}"), |rollout| {
            let status = &rollout.data["status"];
            status["currentStepIndex"] == step && status["pauseConditions"].is_array()
        })
        .await
    }

    /// Waits until the controller has aborted the update and has seen the last change. It writes the weights into the
    /// status at the end of a reconcile in which every call of the plugin succeeded.
    ///
    /// # Errors
    /// It never happens.
    pub async fn aborted(&self) -> Result<()> {
        self.settled("the Rollout is aborted", |rollout| {
            let status = &rollout.data["status"];
            let generation = rollout.metadata.generation.unwrap_or_default().to_string();
            status["phase"] == "Degraded"
                && status["canary"]["weights"]["canary"]["weight"] == 0
                && status["observedGeneration"] == generation
        })
        .await
    }

    /// Waits until the controller has nothing left to do with the Rollout as it is.
    ///
    /// # Errors
    /// It never happens.
    pub async fn idle(&self) -> Result<()> {
        self.settled("the controller is done", |_| true).await
    }

    /// Waits until the Rollout is as wanted and the controller has nothing left to do with it.
    ///
    /// The controller puts the outcome of a reconcile into its cache, over a change that came in meanwhile, and then
    /// does not see that change until the next one. A person is never that fast; a test is.
    async fn settled(&self, what: &str, wanted: impl Fn(&DynamicObject) -> bool) -> Result<()> {
        eventually(what, async || {
            let rollout = self.rollouts.get(self.name).await?;
            ensure!(wanted(&rollout), "{rollout:#?}");
            let version = rollout.metadata.resource_version.unwrap_or_default();
            let version = format!(" resourceVersion={version} ");
            let mut reconciles = self
                .reconciles
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let last = reconciles.last()?;
            ensure!(
                last.contains(&version),
                "the controller is not done with{version}but said {last}"
            );
            Ok(())
        })
        .await
    }

    /// Starts a new revision.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn change_image(&self, image: &str) -> Result<()> {
        let containers = json!([{ "name": "app", "image": image }]);
        self.change_spec(json!({ "template": { "spec": { "containers": containers } } }))
            .await
    }

    /// Starts a new revision with other steps.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn change_image_and_steps(&self, image: &str, steps: Value) -> Result<()> {
        let ports = json!([{ "containerPort": 8080 }]);
        let containers = json!([{ "name": "app", "image": image, "ports": ports }]);
        self.change_spec(json!({
            "template": { "spec": { "containers": containers } },
            "strategy": { "canary": { "steps": steps } },
        }))
        .await
    }

    /// Merges fields into the Rollout's spec.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn change_spec(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.rollouts
            .patch(self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Changes a label of the Rollout, which the controller notices and which means nothing to it.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn touch(&self) -> Result<()> {
        let label = fastrand::u32(..).to_string();
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "touched": label } } }));
        self.rollouts
            .patch(self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Ends a pause, as `kubectl argo rollouts promote` does (promote.go).
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn promote(&self) -> Result<()> {
        self.change_status(json!({ "pauseConditions": null })).await
    }

    /// Skips what is left of the steps, as `kubectl argo rollouts promote --full` does (promote.go).
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn promote_fully(&self) -> Result<()> {
        self.change_status(json!({ "promoteFull": true })).await
    }

    /// Aborts the update, as `kubectl argo rollouts abort` does (abort.go).
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn abort(&self) -> Result<()> {
        self.change_status(json!({ "abort": true })).await
    }

    /// Deletes the Rollout.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn delete_rollout(&self) -> Result<()> {
        let params = DeleteParams::default();
        self.rollouts.delete(self.name, &params).await?;
        Ok(())
    }

    /// Merges fields into the Rollout's status.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn change_status(&self, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.rollouts
            .patch_status(self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// The Rollout as it is now.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn rollout(&self) -> Result<DynamicObject> {
        Ok(self.rollouts.get(self.name).await?)
    }

    /// The Rollouts of the namespace, for what has no method of its own.
    pub fn rollouts(&self) -> &Api<DynamicObject> {
        &self.rollouts
    }

    /// Name of the RouteTable that the methods use.
    pub fn table_name(&self) -> &str {
        &self.table
    }

    /// The RouteTable as it is now.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn table(&self) -> Result<DynamicObject> {
        Ok(self.tables.get(&self.table).await?)
    }

    /// Deletes the RouteTable.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn delete_table(&self) -> Result<()> {
        self.tables
            .delete(&self.table, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Creates the RouteTable as its owner wrote it.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn create_table(&self, owners: &DynamicObject) -> Result<()> {
        let written = owners.metadata.clone();
        let table = DynamicObject {
            metadata: ObjectMeta {
                name: written.name,
                labels: written.labels,
                annotations: written.annotations,
                ..ObjectMeta::default()
            },
            ..owners.clone()
        };
        self.tables.create(&PostParams::default(), &table).await?;
        Ok(())
    }

    /// Whose the RouteTable's list of routes is, as the API server tells its writers apart.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn managers_of_routes(&self) -> Result<Vec<String>> {
        let entries = self.table().await?.metadata.managed_fields;
        let owners = entries.unwrap_or_default().into_iter().filter(|entry| {
            let fields = entry.fields_v1.as_ref();
            fields.is_some_and(|fields| fields.0["f:spec"]["f:http"].is_object())
        });
        Ok(owners.filter_map(|entry| entry.manager).collect())
    }

    /// The MirrorPolicies of the namespace.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn mirror_policies(&self, cluster: &Cluster) -> Result<Vec<DynamicObject>> {
        let policies = api(
            cluster.client(),
            &self.namespace,
            MirrorPolicy::GROUP,
            MirrorPolicy::VERSION,
            MirrorPolicy::KIND,
        );
        Ok(policies.list(&ListParams::default()).await?.items)
    }

    /// Waits until the RouteTable splits traffic as [`split`] writes it.
    ///
    /// # Errors
    /// It never does.
    pub async fn splits(&self, expected: &str) -> Result<()> {
        eventually(
            "the RouteTable splits traffic as the Rollout says",
            async || {
                let actual = split(&self.table().await?);
                ensure!(
                    actual == expected,
                    "\nactual:   {actual}\nexpected: {expected}"
                );
                Ok(())
            },
        )
        .await
    }

    /// Waits until the RouteTable is what its owner wrote: the spec, the labels and the annotations.
    ///
    /// # Errors
    /// It never is.
    pub async fn restores(&self, owners: &DynamicObject) -> Result<()> {
        eventually("the RouteTable is its owner's again", async || {
            self.is_restored(owners).await
        })
        .await
    }

    /// Checks, without waiting, that the RouteTable is what its owner wrote.
    ///
    /// # Errors
    /// It is not, or the API server refuses.
    pub async fn is_restored(&self, owners: &DynamicObject) -> Result<()> {
        let (actual, expected) = (written(&self.table().await?), written(owners));
        ensure!(
            actual == expected,
            "RouteTable {}\nactual:   {actual:#}\nexpected: {expected:#}",
            self.table
        );
        Ok(())
    }

    /// Edits the RouteTable as another client does: read, change, replace.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn edit_table(&self, edit: impl Fn(&mut DynamicObject)) -> Result<()> {
        let mut table = self.table().await?;
        edit(&mut table);
        self.tables
            .replace(&self.table, &Default::default(), &table)
            .await?;
        Ok(())
    }

    /// Replaces the spec of the RouteTable by its owner's, as a GitOps tool does.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn revert_table(&self, owners: &DynamicObject) -> Result<()> {
        self.edit_table(|table| table.data["spec"] = owners.data["spec"].clone())
            .await
    }

    /// Merges a patch into the RouteTable under the name of another field manager.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn merge_into_table(&self, manager: &str, patch: Value) -> Result<()> {
        let params = PatchParams {
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        self.tables
            .patch(&self.table, &params, &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Watches the RouteTable from now on.
    ///
    /// # Errors
    /// The watch does not start.
    pub async fn watch_table(&self) -> Result<History> {
        let history = History::of(self.tables.clone(), &self.table);
        eventually("the watch has started", async || {
            history.splits().pop().context("nothing yet")
        })
        .await?;
        Ok(history)
    }

    /// Waits for an event about the Rollout and returns its message.
    ///
    /// # Errors
    /// There never is one.
    pub async fn event(&self, reason: &str) -> Result<String> {
        self.event_after(&[], reason).await
    }

    /// The events of the namespace so far.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn events(&self) -> Result<Vec<Event>> {
        Ok(self.events.list(&ListParams::default()).await?.items)
    }

    /// Waits for an event that is not among the `earlier` ones, or that has occurred again since, and returns its message.
    ///
    /// # Errors
    /// There never is one.
    pub async fn event_after(&self, earlier: &[Event], reason: &str) -> Result<String> {
        eventually(&format!("an event {reason}"), async || {
            let mut events = self.events().await?;
            events.retain(|event| !earlier.contains(event));
            let reasons: BTreeSet<_> = events
                .iter()
                .filter_map(|event| event.reason.clone())
                .collect();
            let event = events
                .into_iter()
                .find(|event| event.reason.as_deref() == Some(reason));
            event
                .and_then(|event| event.message)
                .with_context(|| format!("there are {reasons:?}"))
        })
        .await
    }
}

/// Every revision of a RouteTable, as [`split`] writes it.
#[derive(Debug)]
pub struct History {
    splits: Arc<Mutex<Vec<String>>>,
    watch: JoinHandle<()>,
}

impl History {
    /// What was seen so far.
    pub fn splits(&self) -> Vec<String> {
        self.splits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn of(tables: Api<DynamicObject>, name: &str) -> Self {
        let splits = Arc::default();
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let watch = tokio::spawn(Self::record(tables, only, Arc::clone(&splits)));
        Self { splits, watch }
    }

    async fn record(
        tables: Api<DynamicObject>,
        only: watcher::Config,
        splits: Arc<Mutex<Vec<String>>>,
    ) {
        let mut revisions = pin!(watcher(tables, only).default_backoff().applied_objects());
        while let Some(revision) = revisions.next().await {
            if let Ok(table) = revision {
                splits
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(split(&table));
            }
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Where each route with destinations sends its traffic: `route: service=weight ...; ...`, without `=` where the weight
/// is absent.
pub fn split(table: &DynamicObject) -> String {
    let routes = table.data["spec"]["http"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let described = routes.iter().filter_map(|route| {
        let destinations = route["forwardTo"]["destinations"].as_array()?;
        let weights: BTreeSet<_> = destinations
            .iter()
            .map(|destination| {
                let name = destination["ref"]["name"].as_str().unwrap_or("?");
                match &destination["weight"] {
                    Value::Null => name.to_owned(),
                    weight => format!("{name}={weight}"),
                }
            })
            .collect();
        let weights = Vec::from_iter(weights).join(" ");
        Some(format!(
            "{}: {weights}",
            route["name"].as_str().unwrap_or("?")
        ))
    });
    described.collect::<Vec<_>>().join("; ")
}

/// [`MANIFESTS`] with RouteTables of these names instead, which differ in nothing else.
fn with_tables(tables: &[&str]) -> Result<String> {
    let selector = format!("routeTableSelector: {{names: [{}]}}", tables.join(", "));
    let mut manifests = Vec::new();
    for document in MANIFESTS.split("---\n") {
        if document.contains("kind: RouteTable") {
            let named = tables.iter().map(|table| format!("\n  name: {table}\n"));
            manifests.extend(named.map(|name| document.replace(TABLE_NAME, &name)));
        } else {
            manifests.push(document.replace(TABLE_SELECTOR, &selector));
        }
    }
    let manifests = manifests.join("---\n");
    ensure!(
        !manifests.contains(TABLE_SELECTOR) && manifests.contains(&selector),
        "canary.yaml selects its RouteTable otherwise"
    );
    Ok(manifests)
}

fn tables(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let (group, version) = (RouteTable::GROUP, RouteTable::VERSION);
    api(client, namespace, group, version, RouteTable::KIND)
}

fn api(
    client: &Client,
    namespace: &str,
    group: &str,
    version: &str,
    kind: &str,
) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// The part of a RouteTable that its owner writes.
fn written(table: &DynamicObject) -> Value {
    json!({
        "labels": table.metadata.labels,
        "annotations": table.metadata.annotations,
        "spec": table.data["spec"],
    })
}
