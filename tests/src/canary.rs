//! One Rollout with its Services and its RouteTable in a separate namespace, and the operations of its user.

#![expect(
    clippy::indexing_slicing,
    reason = "an absent key of a JSON value reads as null"
)]

mod aborts;
mod endpoints;
mod history;
mod passes;
mod pods;
pub mod updates;

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use gloo_types::{MirrorPolicy, Resource as _, RouteTable};
use k8s_openapi::api::core::v1::Event;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams,
    PostParams,
};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

pub use aborts::AbortEnd;
pub use endpoints::Endpoints;
pub use history::{History, split};
pub use passes::{Passes, count};

use self::passes::Reconciles;
use crate::{Cluster, Controller, eventually, manifest};

const MANIFESTS: &str = include_str!("../testdata/canary.yaml");
const SECOND: &str = include_str!("../testdata/ratings.yaml");
/// The Rollout and the RouteTable have the same name.
const NAME: &str = "demo";
/// The label that assigns a Rollout to one of several controllers.
const INSTANCE_ID_LABEL: &str = "argo-rollouts.argoproj.io/controller-instance-id";
/// The line of [`MANIFESTS`] with the name of the RouteTable.
const TABLE_NAME: &str = "\n  name: demo\n";
/// The selector of the RouteTable in the Rollout of [`MANIFESTS`].
const TABLE_SELECTOR: &str = "routeTableSelector: {name: demo}";
/// The Rollout of [`SECOND`].
const SECOND_NAME: &str = "ratings";

/// The Rollout of each example.
const EXAMPLE_NAME: &str = "reviews";
/// The namespace of an example, and another one with tables.
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
    /// Returns `Err` if the API server rejects an object, or the Rollout does not become healthy.
    pub async fn deploy(cluster: &Cluster, namespace: &str) -> Result<Self> {
        Self::apply(cluster, namespace, NAME, MANIFESTS).await
    }

    /// Deploys a canary whose RouteTable is in the cluster `management`. The methods use that table. The Rollout's cluster has
    /// a table of the same name, which no Rollout uses.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
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

    /// Deploys a canary with ping-pong: two Services that swap roles. The RouteTable forwards to the first one.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
    pub async fn deploy_ping_pong(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let manifests = MANIFESTS.replace(
            "stableService: demo-stable\n      canaryService: demo-canary\n",
            "pingPong: {pingService: demo-stable, pongService: demo-canary}\n",
        );
        ensure!(
            manifests != MANIFESTS,
            "canary.yaml has other names of Services"
        );
        Self::apply(cluster, namespace, NAME, &manifests).await
    }

    /// Deploys a canary for the controller with this instance id.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
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

    /// Deploys a canary with several RouteTables that only differ by name. The methods use the first one.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
    pub async fn deploy_with_tables(
        cluster: &Cluster,
        namespace: &str,
        tables: &[&str],
    ) -> Result<Self> {
        let canary = Self::apply(cluster, namespace, NAME, &with_tables(tables)?).await?;
        Ok(canary.with_table(tables.first().context("no tables")?))
    }

    /// Returns the same canary with methods that use another of its RouteTables.
    #[must_use]
    pub fn with_table(&self, table: &str) -> Self {
        Self {
            table: table.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the same canary for another controller, whose log the methods read.
    #[must_use]
    pub fn of_controller(&self, controller: &Controller) -> Self {
        let reconciles = Reconciles::new(controller.log(), &self.namespace, self.name);
        Self {
            reconciles: Arc::new(Mutex::new(reconciles)),
            ..self.clone()
        }
    }

    /// Deploys a folder of `examples/manifests` in a namespace with the folder's name.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
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

    /// Deploys other manifests, whose Rollout and RouteTable have the same names.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
    pub async fn deploy_manifests(
        cluster: &Cluster,
        namespace: &str,
        manifests: &str,
    ) -> Result<Self> {
        Self::apply(cluster, namespace, NAME, manifests).await
    }

    /// Deploys a second Rollout in the same namespace and the same RouteTable.
    ///
    /// # Errors
    /// See [`Canary::deploy`].
    pub async fn deploy_second(&self, cluster: &Cluster) -> Result<Self> {
        Self::apply(cluster, &self.namespace, SECOND_NAME, SECOND).await
    }

    async fn apply(
        cluster: &Cluster,
        namespace: &str,
        name: &'static str,
        manifests: &str,
    ) -> Result<Self> {
        let objects = manifest::parse(&manifests.replace("$NAMESPACE", namespace))?;
        manifest::apply(cluster.client(), &objects).await?;
        let canary = Self::of(cluster, cluster.controller()?, namespace, name);
        canary.healthy().await?;
        Ok(canary)
    }

    /// Creates the objects of a canary that `controller` reconciles. The Rollout and the RouteTable have the name of those in
    /// `testdata/canary.yaml`. Does not wait for the first revision.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects an object.
    pub async fn create(
        cluster: &Cluster,
        controller: &Controller,
        namespace: &str,
        objects: &[DynamicObject],
    ) -> Result<Self> {
        manifest::apply(cluster.client(), objects).await?;
        Ok(Self::of(cluster, controller, namespace, NAME))
    }

    fn of(cluster: &Cluster, controller: &Controller, namespace: &str, name: &'static str) -> Self {
        let client = cluster.client();
        let reconciles = Reconciles::new(controller.log(), namespace, name);
        Self {
            name,
            namespace: namespace.to_owned(),
            table: NAME.to_owned(),
            reconciles: Arc::new(Mutex::new(reconciles)),
            rollouts: api(client, namespace, "argoproj.io", "v1alpha1", "Rollout"),
            tables: tables(client, namespace),
            events: Api::namespaced(client.clone(), namespace),
        }
    }

    /// Waits until the newest revision is stable and the controller has observed the last change.
    ///
    /// # Errors
    /// Returns `Err` if it does not happen before the deadline.
    pub async fn healthy(&self) -> Result<()> {
        self.settled("the Rollout is healthy", is_healthy).await
    }

    /// Waits until the newest revision is stable. Unlike [`Canary::healthy`], it does not wait until the controller has
    /// observed that, which may not happen if its watch has ended.
    ///
    /// # Errors
    /// Returns `Err` if it does not happen before the deadline.
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
    /// Returns `Err` if it does not happen before the deadline.
    pub async fn paused_at(&self, step: usize) -> Result<()> {
        self.settled(&format!("the Rollout pauses at step {step}"), |rollout| {
            let status = &rollout.data["status"];
            status["currentStepIndex"] == step && status["pauseConditions"].is_array()
        })
        .await
    }

    /// Waits until the Rollout pauses at a step without a duration, or its newest revision is stable. Returns the index of the step.
    ///
    /// # Errors
    /// Returns `Err` if neither happens before the deadline.
    pub async fn paused_or_healthy(&self) -> Result<Option<usize>> {
        let paused = |rollout: &DynamicObject| {
            let index =
                usize::try_from(rollout.data["status"]["currentStepIndex"].as_u64()?).ok()?;
            let pause = &rollout.data["spec"]["strategy"]["canary"]["steps"][index]["pause"];
            let is_paused = rollout.data["status"]["pauseConditions"].is_array();
            (is_paused && pause["duration"].is_null()).then_some(index)
        };
        let mut step = None;
        self.settled("the Rollout pauses or is healthy", |rollout| {
            step = paused(rollout).filter(|_| is_observed(rollout));
            step.is_some() || is_healthy(rollout)
        })
        .await?;
        Ok(step)
    }

    /// Waits until the controller has aborted the update and has observed the last change. The controller writes the weights
    /// to the status after a reconcile in which every call of the plugin succeeded.
    ///
    /// # Errors
    /// Returns `Err` if it does not happen before the deadline.
    pub async fn aborted(&self) -> Result<()> {
        self.settled("the Rollout is aborted", |rollout| {
            let status = &rollout.data["status"];
            status["phase"] == "Degraded"
                && status["canary"]["weights"]["canary"]["weight"] == 0
                && is_observed(rollout)
        })
        .await
    }

    /// Waits until the controller has reconciled the current version of the Rollout.
    ///
    /// # Errors
    /// Returns `Err` if it does not happen before the deadline.
    pub async fn idle(&self) -> Result<()> {
        self.settled("the controller is done", |_| true).await
    }

    /// Waits until the Rollout is in the `wanted` state and the controller has reconciled that version.
    ///
    /// The controller writes the result of a reconcile to its cache, over a change that arrived meanwhile, and misses that
    /// change until the next one. Users are never fast enough for this, but tests are.
    async fn settled(
        &self,
        what: &str,
        mut wanted: impl FnMut(&DynamicObject) -> bool,
    ) -> Result<()> {
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
                "the controller has not reconciled{version}, its last record is {last}"
            );
            Ok(())
        })
        .await
    }

    /// Starts a new revision.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn change_image(&self, image: &str) -> Result<()> {
        let containers = json!([{ "name": "app", "image": image }]);
        self.change_spec(json!({ "template": { "spec": { "containers": containers } } }))
            .await
    }

    /// Starts a new revision with other steps.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn change_image_and_steps(&self, image: &str, steps: Value) -> Result<()> {
        let ports = json!([{ "containerPort": 8080 }]);
        let containers = json!([{ "name": "app", "image": image, "ports": ports }]);
        self.change_spec(json!({
            "template": { "spec": { "containers": containers } },
            "strategy": { "canary": { "steps": steps } },
        }))
        .await
    }

    /// Starts an update to [`updates::IMAGE`], and waits until it pauses at weight 25.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request, or the Rollout or the RouteTable is not so before the deadline.
    pub async fn update_to_25(&self) -> Result<()> {
        self.change_image(updates::IMAGE).await?;
        self.paused_at(1).await?;
        self.splits(updates::AT_25).await
    }

    /// For each step and split: waits until the Rollout pauses at the step and the RouteTable has the split, and ends the
    /// pause.
    ///
    /// # Errors
    /// See [`Canary::update_to_25`].
    pub async fn promote_at(&self, pauses: &[(usize, &str)]) -> Result<()> {
        for (step, expected) in pauses {
            self.paused_at(*step).await?;
            self.splits(expected).await?;
            self.promote().await?;
        }
        Ok(())
    }

    /// Merges fields into the Rollout's spec.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn change_spec(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.rollouts
            .patch(self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Changes a label of the Rollout that has no meaning, to trigger a reconcile.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn touch(&self) -> Result<()> {
        let label = fastrand::u32(..).to_string();
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "touched": label } } }));
        self.rollouts
            .patch(self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Ends a pause, like `kubectl argo rollouts promote` (promote.go).
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn promote(&self) -> Result<()> {
        self.change_status(json!({ "pauseConditions": null })).await
    }

    /// Skips the remaining steps, like `kubectl argo rollouts promote --full` (promote.go).
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn promote_fully(&self) -> Result<()> {
        self.change_status(json!({ "promoteFull": true })).await
    }

    /// Aborts the update, like `kubectl argo rollouts abort` (abort.go).
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn abort(&self) -> Result<()> {
        self.change_status(json!({ "abort": true })).await
    }

    /// Starts an aborted update again, like `kubectl argo rollouts retry rollout` (retry.go).
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn retry(&self) -> Result<()> {
        self.change_status(json!({ "abort": false })).await
    }

    /// Returns the name of the Experiment that runs.
    ///
    /// # Errors
    /// Returns `Err` if none runs, or the API server rejects the request.
    pub async fn experiment(&self) -> Result<String> {
        let rollout = self.rollout().await?;
        let name = rollout.data["status"]["canary"]["currentExperiment"].as_str();
        Ok(name.context("no Experiment")?.to_owned())
    }

    /// Removes the names of the Services from the status of an Experiment, as the controller does if it writes the status
    /// from an outdated cache.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects a request.
    pub async fn lose_service_names(&self, cluster: &Cluster, experiment: &str) -> Result<()> {
        let (client, namespace) = (cluster.client(), &self.namespace);
        let experiments = api(client, namespace, "argoproj.io", "v1alpha1", "Experiment");
        let mut templates =
            experiments.get(experiment).await?.data["status"]["templateStatuses"].take();
        for template in templates.as_array_mut().context("no templates")? {
            let fields = template.as_object_mut().context("no object")?;
            fields.remove("serviceName");
            fields.remove("podTemplateHash");
        }
        let patch = Patch::Merge(json!({ "status": { "templateStatuses": templates } }));
        experiments
            .patch(experiment, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Deletes the Rollout.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn delete_rollout(&self) -> Result<()> {
        let params = DeleteParams::default();
        self.rollouts.delete(self.name, &params).await?;
        Ok(())
    }

    /// Merges fields into the Rollout's status.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn change_status(&self, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.rollouts
            .patch_status(self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Reads the Rollout.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
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

    /// Reads the RouteTable.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn table(&self) -> Result<DynamicObject> {
        Ok(self.tables.get(&self.table).await?)
    }

    /// Deletes the RouteTable.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn delete_table(&self) -> Result<()> {
        self.tables
            .delete(&self.table, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Creates the RouteTable with its owner's content.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
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

    /// Returns the field managers of the RouteTable's list of routes.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn managers_of_routes(&self) -> Result<Vec<String>> {
        let entries = self.table().await?.metadata.managed_fields;
        let owners = entries.unwrap_or_default().into_iter().filter(|entry| {
            let fields = entry.fields_v1.as_ref();
            fields.is_some_and(|fields| fields.0["f:spec"]["f:http"].is_object())
        });
        Ok(owners.filter_map(|entry| entry.manager).collect())
    }

    /// Lists the MirrorPolicies of the namespace.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
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

    /// Waits until the RouteTable has the split `expected`, in the format of [`split`].
    ///
    /// # Errors
    /// Returns `Err` if it does not before the deadline.
    pub async fn splits(&self, expected: &str) -> Result<()> {
        eventually(
            "the RouteTable splits traffic by the weight of the Rollout",
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

    /// Waits until the spec, the labels and the annotations of the RouteTable are equal to the owner's.
    ///
    /// # Errors
    /// Returns `Err` if that is not so before the deadline.
    pub async fn restores(&self, owners: &DynamicObject) -> Result<()> {
        eventually("the RouteTable has its owner's content", async || {
            self.is_restored(owners).await
        })
        .await
    }

    /// Checks once that the spec, the labels and the annotations of the RouteTable are equal to the owner's.
    ///
    /// # Errors
    /// Returns `Err` if it differs, or the API server rejects the request.
    pub async fn is_restored(&self, owners: &DynamicObject) -> Result<()> {
        let (actual, expected) = (written(&self.table().await?), written(owners));
        ensure!(
            actual == expected,
            "RouteTable {}\nactual:   {actual:#}\nexpected: {expected:#}",
            self.table
        );
        Ok(())
    }

    /// Edits the RouteTable like another client: read, change, replace.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
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
    /// Returns `Err` if the API server rejects the request.
    pub async fn revert_table(&self, owners: &DynamicObject) -> Result<()> {
        self.edit_table(|table| table.data["spec"] = owners.data["spec"].clone())
            .await
    }

    /// Applies a merge patch to the RouteTable with another field manager.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
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
    /// Returns `Err` if the watch does not start.
    pub async fn watch_table(&self) -> Result<History> {
        let history = History::of(self.tables.clone(), &self.table);
        eventually("the watch has started", async || {
            history.splits().pop().context("nothing yet")
        })
        .await?;
        Ok(history)
    }

    /// Waits for an Event with this reason, and returns its message.
    ///
    /// # Errors
    /// Returns `Err` if there is none before the deadline.
    pub async fn event(&self, reason: &str) -> Result<String> {
        self.event_after(&[], reason).await
    }

    /// Lists the Events of the namespace.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn events(&self) -> Result<Vec<Event>> {
        Ok(self.events.list(&ListParams::default()).await?.items)
    }

    /// Waits for an Event that is not in `earlier`, or that has occurred again since, and returns its message.
    ///
    /// # Errors
    /// Returns `Err` if there is none before the deadline.
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

/// Whether the controller has observed the current spec.
fn is_observed(rollout: &DynamicObject) -> bool {
    let generation = rollout.metadata.generation.unwrap_or_default().to_string();
    rollout.data["status"]["observedGeneration"] == generation
}

fn is_healthy(rollout: &DynamicObject) -> bool {
    let status = &rollout.data["status"];
    status["phase"] == "Healthy"
        && status["stableRS"] == status["currentPodHash"]
        && is_observed(rollout)
}

/// Returns [`MANIFESTS`] with one copy of the RouteTable for each name.
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
        "canary.yaml has another selector of its RouteTable"
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

/// Returns the part of a RouteTable that its owner writes.
fn written(table: &DynamicObject) -> Value {
    json!({
        "labels": table.metadata.labels,
        "annotations": table.metadata.annotations,
        "spec": table.data["spec"],
    })
}
