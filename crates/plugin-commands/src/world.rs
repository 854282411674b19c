//! Loads the Rollouts and RouteTables of a command from files or from a cluster into memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use gloo_router::{Policy, ShiftError, from_rpc};
use gloo_types::{
    Document, DocumentError, MirrorPolicy, MirrorPolicyDoc, ObjectKey, Resource, RouteTable,
    RouteTableSelector, WrongType,
};
use rollouts_rpc::{Rollout, error_chain};
use route_planner::PluginConfig;
use route_store::{
    Clusters, Freshness, KubeRouteStore, MemoryRouteStore, RolloutDoc, RolloutReader as _,
    RouteStore as _, StoreError,
};
use serde_json::{Value, json};
use strict_json::is_near;

use super::controller::{self, ControllerRelease};
use super::input::{self, Manifest, Unreadable};
use super::invalid_spec;
use super::node::{Node, Refusal};
use super::{Refused, misuse};
use crate::flags::ClusterFlags;

/// The source of the objects.
#[derive(Debug, Clone, Args)]
pub(super) struct Source {
    /// File or directory with the Rollout and its RouteTables, or - for stdin; repeatable. Default: the cluster.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,

    /// With -f: read directories in directories too.
    #[arg(short = 'R', long, requires = "files")]
    recursive: bool,

    /// With -f: read RouteTables, MirrorPolicies and the stable Service that the files lack from the cluster.
    #[arg(long, requires = "files")]
    live: bool,

    /// Namespace of objects without a namespace.
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,

    #[command(flatten)]
    cluster: ClusterFlags,
}

/// A Rollout.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) key: ObjectKey,
    pub(super) rollout: Rollout,
    /// The whole object.
    pub(super) api: Value,
}

/// A Rollout and its tables.
pub(super) struct Loaded {
    pub(super) subject: Subject,
    pub(super) store: Arc<MemoryRouteStore>,
    /// The release of the controller; `None` if it is not known.
    pub(super) release: Option<ControllerRelease>,
}

impl ClusterFlags {
    pub(super) fn clusters(&self) -> Clusters {
        let (local, tables) = self.access();
        Clusters::new(KubeRouteStore::new(local), tables.map(KubeRouteStore::new))
    }

    /// Whether a Rollout configures the plugin.
    pub(super) fn uses_plugin(&self, api: &Value) -> bool {
        let accepted = self.policy().plugin_names;
        plugin_names(api).any(|name| accepted.contains(name))
    }
}

/// Returns the names of the plugins that a Rollout configures.
pub(super) fn plugin_names(api: &Value) -> impl Iterator<Item = &String> {
    let plugins = api.pointer("/spec/strategy/canary/trafficRouting/plugins");
    let plugins = plugins.and_then(Value::as_object).into_iter().flatten();
    plugins.map(|(name, _)| name)
}

impl Subject {
    /// Reads a Rollout.
    pub(super) fn new(api: Value) -> Result<Self, DocumentError> {
        match serde_path_to_error::deserialize::<_, Rollout>(&api) {
            Ok(rollout) => Ok(Self {
                key: from_rpc::key(&rollout),
                rollout,
                api,
            }),
            Err(error) => {
                let metadata = Node::root(&api).get("metadata");
                let (namespace, name) = (metadata.get("namespace"), metadata.get("name"));
                Err(DocumentError::Type {
                    kind: "Rollout",
                    key: format!("{}/{}", namespace.text(), name.text()),
                    path: error.path().to_string(),
                    source: WrongType::new(error.inner()),
                })
            }
        }
    }

    /// Reads the plugin block.
    pub(super) fn config(&self, policy: &Policy) -> Result<PluginConfig, ShiftError> {
        from_rpc::config(policy, &self.rollout, &self.key)
    }

    /// Returns the value under keys of the whole object.
    pub(super) fn get(&self, keys: &str) -> Node<'_> {
        Node::root(&self.api).get(keys)
    }

    /// Returns the stable Service.
    pub(super) fn stable_service(&self) -> Option<ObjectKey> {
        let stable = self.rollout.services()?.stable;
        Some(ObjectKey::new(&self.key.namespace, stable))
    }

    /// Returns the Service that the controller makes for an experiment: a port for each port of the containers. `None` if the
    /// Rollout has no Pod template, or if that declares no port.
    pub(super) fn service_of_experiment(&self, name: &str) -> Option<Value> {
        let containers = self.get("spec.template.spec.containers").items();
        let ports = containers.iter().flat_map(|it| it.get("ports").items());
        let ports = ports.map(|port| json!({"name": port.get("name").value, "port": port.get("containerPort").value, "protocol": port.get("protocol").value}));
        let ports: Vec<Value> = ports.collect();
        let key = ObjectKey::new(&self.key.namespace, name);
        (!ports.is_empty()).then(|| service(&key, ports))
    }
}

fn service(key: &ObjectKey, ports: Vec<Value>) -> Value {
    json!({"metadata": {"name": key.name, "namespace": key.namespace}, "spec": {"ports": ports}})
}

impl Source {
    pub(super) fn policy(&self) -> Policy {
        self.cluster.policy()
    }

    fn clusters(&self) -> Clusters {
        self.cluster.clusters()
    }

    /// Reads the files. Objects without a namespace get the default one.
    pub(super) fn read(&self) -> (Vec<Manifest>, Vec<Unreadable>) {
        let (mut manifests, unreadable) = input::read(&self.files, self.recursive);
        for manifest in &mut manifests {
            let metadata = manifest.value.get_mut("metadata");
            if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
                let namespace = metadata.entry("namespace").or_insert(Value::Null);
                if namespace.is_null() {
                    *namespace = json!(self.namespace);
                }
            }
        }
        (manifests, unreadable)
    }

    /// Parses `name` or `namespace/name`.
    pub(super) fn key(&self, name: &str) -> ObjectKey {
        match name.split_once('/') {
            Some((namespace, name)) => ObjectKey::new(namespace, name),
            None => ObjectKey::new(&self.namespace, name),
        }
    }

    /// Whether tables are read from the cluster.
    pub(super) const fn is_live(&self) -> bool {
        self.live || self.files.is_empty()
    }

    /// Loads the named Rollout, or the only one, as its controller gets it, and its tables. Returns the release of the controller, too:
    /// `named`, or that of the cluster if the cluster is read.
    pub(super) async fn load(
        &self,
        name: Option<&str>,
        named: Option<ControllerRelease>,
    ) -> anyhow::Result<Loaded> {
        if let Some(file) = name.filter(|name| is_file(name)) {
            misuse!("{file} is a file, not a Rollout: give it with -f");
        }
        let store = Arc::new(MemoryRouteStore::default());
        let mut manifests = Vec::new();
        let mut subject = if self.files.is_empty() {
            let Some(name) = name else {
                misuse!("no Rollout is named: name one, or give files with -f");
            };
            let key = self.key(name);
            let Some(live) = self.clusters().local.rollout(&key).await? else {
                misuse!("the cluster has no Rollout {key}");
            };
            Subject::new(live.into_raw())?
        } else {
            let unreadable;
            (manifests, unreadable) = self.read();
            if let Some(error) = unreadable.into_iter().next() {
                return Err(error.into());
            }
            for manifest in &manifests {
                manifest.put(&store)?;
            }
            let manifest = self.pick(name, &manifests)?;
            let subject = Subject::new(manifest.value.clone());
            subject.map_err(|error| manifest.unreadable(error.path(), &error))?
        };
        let release = self.release(named).await;
        let played = release.unwrap_or(ControllerRelease::NEWEST);
        let objects = manifests.iter().map(|it| &it.value);
        let workload = invalid_spec::workload_of(&subject.api, objects);
        let refusals = invalid_spec::of_strategy(&subject.api, played).into_iter();
        let mut refusals = refusals.chain(invalid_spec::of_pods(&subject.api, workload));
        if let Some(Refusal { text, .. }) = refusals.next() {
            let key = &subject.key;
            let text = format!(
                "the controller refuses the Rollout and calls no plugin: Rollout {key}: {text}"
            );
            return Err(Refused(text).into());
        }
        subject = Subject::new(invalid_spec::known_to(played, subject.api))?;
        store.put_rollout(subject.api.clone())?;
        let config = subject.config(&self.policy());
        if self.is_live() {
            self.copy_tables(&subject, &store).await?;
        } else if let Ok(config) = config
            && let Err(StoreError::NotFound { what }) = store
                .select(config.route_tables(), Freshness::Live)
                .await
                .complete()
        {
            let remedy = misnamed(config.route_tables(), &manifests);
            let remedy = remedy.unwrap_or_else(|| {
                "give its file with -f, or read it from the cluster with --live".to_owned()
            });
            bail!("the files do not have {what}: {remedy}");
        }
        Ok(Loaded {
            subject,
            store,
            release,
        })
    }

    /// Whether this is a Rollout that uses the plugin.
    pub(super) fn is_subject(&self, manifest: &Manifest) -> bool {
        manifest.kind() == "Rollout" && self.cluster.uses_plugin(&manifest.value)
    }

    /// Returns the named Rollout of the files, or the only one that uses the plugin.
    fn pick<'m>(
        &self,
        name: Option<&str>,
        manifests: &'m [Manifest],
    ) -> anyhow::Result<&'m Manifest> {
        let keys = |of: &[&Manifest]| {
            let unnamed = || "one without metadata.name".to_owned();
            let keys = of.iter().map(|it| it.key());
            let keys = keys.map(|key| key.map_or_else(unnamed, |key| key.to_string()));
            let keys: BTreeSet<String> = keys.collect();
            keys.into_iter().collect::<Vec<_>>().join(", ")
        };
        let is_meant = |manifest: &&Manifest| match (name, manifest.key()) {
            (None, _) => self.is_subject(manifest),
            (Some(name), Some(key)) if name.contains('/') => key == self.key(name),
            // The namespace does not matter if the files have one Rollout of this name.
            (Some(name), key) => key.is_some_and(|key| key.name == name),
        };
        let all = manifests.iter().filter(|it| it.kind() == "Rollout");
        let all: Vec<&Manifest> = all.collect();
        let found: Vec<&Manifest> = all.iter().copied().filter(is_meant).collect();
        match (found.as_slice(), name) {
            ([only], Some(_)) if !self.is_subject(only) => {
                bail!(self.without_plugin(std::slice::from_ref(*only)))
            }
            ([only], _) => Ok(only),
            ([], None) => bail!(self.without_plugin(manifests)),
            ([], Some(name)) => {
                let others = match all.as_slice() {
                    [] => ", nor another one".to_owned(),
                    all => format!(": they have {}", keys(all)),
                };
                misuse!("the files have no Rollout {name}{others}")
            }
            ([first, .., last], _) if first.key() == last.key() => {
                let [one, other] = [first, last].map(|it| it.spot(&input::path("metadata")));
                let key = keys(&[first]);
                misuse!("Rollout {key} is in {one} and in {other}: give one of them")
            }
            (several, _) => {
                let several = keys(several);
                misuse!("there are several Rollouts: name one of {several}")
            }
        }
    }

    /// Says why none of the manifests is a Rollout that uses the plugin.
    pub(super) fn without_plugin(&self, manifests: &[Manifest]) -> String {
        let policy = self.policy();
        let rollouts = manifests.iter().filter(|it| it.kind() == "Rollout");
        let reasons = rollouts.map(|manifest| match Subject::new(manifest.value.clone()) {
            _ if manifest.key().is_none() => {
                format!(
                    "the Rollout in {} has no metadata.name: name it",
                    manifest.file
                )
            }
            Ok(subject) => {
                let error = subject.config(&policy).err();
                error.map_or_else(String::new, |error| error_chain(&error))
            }
            Err(error) => error_chain(&error),
        });
        let reasons: Vec<String> = reasons.collect();
        match reasons.as_slice() {
            [] => format!(
                "there is no Rollout in {}: give its file with -f",
                self.shown()
            ),
            reasons => reasons.join("; "),
        }
    }

    /// Copies the tables and policies that the Rollout selects from the cluster, unless `store` has them.
    pub(super) async fn copy_tables(
        &self,
        subject: &Subject,
        store: &MemoryRouteStore,
    ) -> anyhow::Result<()> {
        let Ok(config) = subject.config(&self.policy()) else {
            // The router reports the error.
            return Ok(());
        };
        let clusters = self.clusters();
        let steps = subject.get("spec.strategy.canary.steps").items();
        if steps.iter().any(|step| step.has("experiment"))
            && let Some(stable) = subject.stable_service()
            && store.service_ports(&stable).await?.is_none()
        {
            match clusters.local.service_ports(&stable).await {
                Ok(Some(ports)) => {
                    let ports = ports.iter().map(|port| json!({"name": port.name, "port": port.number, "targetPort": port.target}));
                    store.put_service(service(&stable, ports.collect()))?;
                }
                // The router says what it assumes.
                Ok(None) | Err(StoreError::Forbidden { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let selection = clusters
            .tables
            .select(config.route_tables(), Freshness::Live)
            .await;
        // The router reports a missing table.
        let is_other = |error: &StoreError| !matches!(error, StoreError::NotFound { .. });
        if let Some(error) = selection.errors.into_iter().find(is_other) {
            return Err(error.into());
        }
        for table in selection.tables {
            if store.table(table.key()).is_none() {
                store.put(table.into_raw())?;
            }
        }
        match clusters.tables.policies().await {
            // Only mirror routes need policies.
            Err(StoreError::NotFound { .. } | StoreError::Forbidden { .. })
                if !from_rpc::has_mirrors(&subject.rollout) => {}
            policies => {
                let known = store.policies().await?;
                for policy in policies? {
                    if !known.iter().any(|it| it.key() == policy.key()) {
                        store.put_policy(policy.into_raw())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the Rollouts of the cluster, of all namespaces.
    pub(super) async fn live_rollouts(&self) -> anyhow::Result<Vec<Manifest>> {
        let rollouts = rollouts(&self.clusters().local, None).await?.into_iter();
        Ok(rollouts.map(Manifest::live).collect())
    }

    /// Returns the release of the controller: `named`, or that of the cluster if the cluster is read.
    pub(super) async fn release(
        &self,
        named: Option<ControllerRelease>,
    ) -> Option<ControllerRelease> {
        if named.is_some() || !self.is_live() {
            return named;
        }
        let clusters = self.clusters();
        let client = clusters.local.client().await.ok()?;
        let deployed = controller::deployed(client, controller::NAMESPACE).await;
        ControllerRelease::of_image(&deployed.ok()??.image)
    }

    /// Returns the Service of a Rollout that needs preparation before its first update with ping-pong, if the cluster is read.
    pub(super) async fn unprepared_pong(&self, subject: &Subject) -> Option<String> {
        if !self.is_live() || !subject.rollout.is_ping_pong() {
            return None;
        }
        let clusters = self.clusters();
        let live = clusters.local.rollout(&subject.key).await.ok()??;
        let live = Subject::new(live.into_raw()).ok()?;
        let client = clusters.local.client().await.ok()?;
        controller::unprepared_pong(client, &subject.rollout, &live.rollout.status).await
    }

    /// Describes the source.
    pub(super) fn shown(&self) -> String {
        let files = self.files.iter().map(|file| input::name_of(file));
        match self.files.is_empty() {
            true => "cluster".to_owned(),
            false => files.collect::<Vec<_>>().join(", "),
        }
    }
}

impl Manifest {
    /// Adds a table, a policy or a Service to `store`. Other kinds are ignored.
    ///
    /// # Errors
    /// Returns `Err` if it cannot be read. It is not added then.
    pub(super) fn put(&self, store: &MemoryRouteStore) -> Result<(), Unreadable> {
        let stored = match self.kind() {
            RouteTable::KIND => store.put(self.readable::<RouteTable>()?),
            MirrorPolicy::KIND => store.put_policy(self.readable::<MirrorPolicy>()?),
            // Knative has Services, too.
            "Service" if self.value.get("apiVersion") == Some(&json!("v1")) => {
                store.put_service(self.value.clone())
            }
            _ => return Ok(()),
        };
        let stored = stored.map(drop);
        stored.map_err(|error| self.unreadable("", &error))
    }

    /// Returns the object if its `spec` can be read.
    fn readable<K: Resource>(&self) -> Result<Value, Unreadable> {
        let document = Document::<K>::from_value(self.value.clone());
        let document = document.and_then(|it| it.spec().map(|_| it.into_raw()));
        document.map_err(|error| self.unreadable(error.path(), &error))
    }
}

/// Returns a remedy if the files have a selected table, which they lack under its name, in another namespace or under nearly this name.
pub(super) fn misnamed(selector: &RouteTableSelector, manifests: &[Manifest]) -> Option<String> {
    let tables = manifests.iter().filter(|it| it.kind() == RouteTable::KIND);
    let (here, elsewhere): (Vec<_>, Vec<_>) = tables
        .filter_map(Manifest::key)
        .partition(|key| selector.namespaces.contains(&key.namespace));
    let mut missing = selector.names.clone();
    missing.retain(|name| !here.iter().any(|key| key.name == *name));
    if let Some(key) = elsewhere.iter().find(|key| missing.contains(&key.name)) {
        let namespace = &key.namespace;
        return Some(format!(
            "RouteTable {key} needs routeTableSelector.namespace: {namespace}"
        ));
    }
    let mut others = here.iter().map(|key| &key.name);
    let is_meant = |other: &&String| {
        !selector.names.contains(other) && missing.iter().any(|name| is_near(name, other))
    };
    let other = others.find(is_meant)?;
    Some(format!("did you mean {other}?"))
}

/// Whether a person gave a file where the name of a Rollout is expected.
fn is_file(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|it| it == "yaml" || it == "yml" || it == "json")
}

/// Reads the Rollouts of a cluster.
pub(super) async fn rollouts(
    store: &KubeRouteStore,
    namespace: Option<&str>,
) -> anyhow::Result<Vec<RolloutDoc>> {
    match store.objects(namespace).await {
        Err(StoreError::NotFound { .. }) => {
            bail!(
                "the cluster has no rollouts.argoproj.io: install Argo Rollouts, or choose another with --context"
            )
        }
        rollouts => Ok(rollouts?),
    }
}

/// Reads the MirrorPolicies of a cluster; none if there is no such kind, or no permission to read it.
pub(super) async fn policies(store: &KubeRouteStore) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
    match store.policies().await {
        Err(StoreError::NotFound { .. } | StoreError::Forbidden { .. }) => Ok(Vec::new()),
        policies => policies,
    }
}
