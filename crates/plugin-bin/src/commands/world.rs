//! The Rollouts and RouteTables a command is about, read from files or from a cluster, and kept in memory.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use gloo_types::{MirrorPolicy, MirrorPolicyDoc, ObjectKey, Resource as _, RouteTable};
use rollouts_rpc::{Rollout, error_chain};
use route_store::{
    Clusters, Freshness, KubeRouteStore, MemoryRouteStore, PolicyStore as _, RolloutDoc,
    RolloutReader as _, RouteStore as _, StoreError,
};
use serde_json::{Value, json};

use super::input::{self, Manifest, Unreadable};
use super::located::path;
use crate::{
    Policy,
    flags::{ClusterFlags, PolicyFlags},
    from_rpc,
};

/// Where objects come from.
#[derive(Debug, Clone, Args)]
pub(super) struct Source {
    /// File or directory with the Rollout and its RouteTables, or - for stdin; repeatable. Without it: the cluster.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,

    /// With -f: take RouteTables and MirrorPolicies that the files lack from the cluster.
    #[arg(long, requires = "files")]
    live: bool,

    /// Namespace of objects that name none.
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,

    #[command(flatten)]
    live_objects: Live,
}

/// The cluster, and what the plugin is told about it.
#[derive(Debug, Clone, Args)]
pub(super) struct Live {
    #[command(flatten)]
    policy: PolicyFlags,

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

/// A Rollout whose fields have other types than the API says.
#[derive(Debug, thiserror::Error)]
#[error("Rollout {key}: unexpected value at {path}")]
pub(super) struct Mistyped {
    key: ObjectKey,
    /// Dotted path of the field.
    pub(super) path: String,
    source: serde_json::Error,
}

impl Live {
    pub(super) fn policy(&self) -> Policy {
        self.policy.to_policy(&self.cluster)
    }

    pub(super) fn clusters(&self) -> Clusters {
        let (local, tables) = self.cluster.to_access();
        let clusters = Clusters::one(Arc::new(KubeRouteStore::new(local)));
        match tables {
            Some(tables) => Clusters {
                tables: Arc::new(KubeRouteStore::new(tables)),
                ..clusters
            },
            None => clusters,
        }
    }

    /// Whether a Rollout names the plugin.
    pub(super) fn uses_plugin(&self, api: &Value) -> bool {
        let plugins = api.pointer("/spec/strategy/canary/trafficRouting/plugins");
        let plugins = plugins.and_then(Value::as_object).into_iter().flatten();
        let accepted = self.policy().plugin_names;
        plugins
            .map(|(name, _)| name)
            .any(|name| accepted.contains(name))
    }
}

impl Mistyped {
    pub(super) const fn key(&self) -> &ObjectKey {
        &self.key
    }
}

impl Subject {
    /// Reads a Rollout.
    pub(super) fn new(api: Value) -> Result<Self, Mistyped> {
        let text = |pointer| api.pointer(pointer).and_then(Value::as_str);
        let key = ObjectKey::new(
            text("/metadata/namespace").unwrap_or_default(),
            text("/metadata/name").unwrap_or_default(),
        );
        match serde_path_to_error::deserialize(&api) {
            Ok(rollout) => Ok(Self { key, rollout, api }),
            Err(error) => Err(Mistyped {
                key,
                path: error.path().to_string(),
                source: error.into_inner(),
            }),
        }
    }
}

impl Source {
    pub(super) fn policy(&self) -> Policy {
        self.live_objects.policy()
    }

    fn clusters(&self) -> Clusters {
        self.live_objects.clusters()
    }

    /// `name` or `namespace/name` as a key.
    pub(super) fn key(&self, name: &str) -> ObjectKey {
        match name.split_once('/') {
            Some((namespace, name)) => ObjectKey::new(namespace, name),
            None => ObjectKey::new(&self.namespace, name),
        }
    }

    /// Whether the cluster is asked for tables.
    pub(super) const fn is_live(&self) -> bool {
        self.live || self.files.is_empty()
    }

    /// The Rollout that is named, or the only one there is, and a store with its tables.
    pub(super) async fn load(
        &self,
        name: Option<&str>,
    ) -> anyhow::Result<(Subject, Arc<MemoryRouteStore>)> {
        let store = Arc::new(MemoryRouteStore::default());
        let subject = if self.files.is_empty() {
            let name = name.context("which Rollout? name it, or give files with -f")?;
            let key = self.key(name);
            let live = self.clusters().local.rollout(&key).await?;
            let live = live.with_context(|| format!("there is no Rollout {key} in the cluster"))?;
            self.subject(live.raw())?
        } else {
            let (manifests, unreadable) = input::read(&self.files);
            if let Some(error) = unreadable.into_iter().next() {
                return Err(error.into());
            }
            for manifest in &manifests {
                self.put(&store, manifest)
                    .map_err(|error| unreadable_manifest(manifest, &error))?;
            }
            let subjects = manifests.iter().filter(|it| self.is_subject(it));
            let subjects = subjects.map(|manifest| {
                let located = |error: Mistyped| Unreadable {
                    spot: manifest.spot(&path(&error.path)),
                    reason: error_chain(&error),
                };
                self.subject(&manifest.value).map_err(located)
            });
            self.pick(name, subjects.collect::<Result<_, _>>()?)?
        };
        store.put_rollout(subject.api.clone())?;
        if self.is_live() {
            self.copy_tables(&subject, &store).await?;
        }
        Ok((subject, store))
    }

    /// A Rollout with its namespace.
    pub(super) fn subject(&self, api: &Value) -> Result<Subject, Mistyped> {
        Subject::new(self.with_namespace(api))
    }

    /// Whether this is a Rollout that uses the plugin.
    pub(super) fn is_subject(&self, manifest: &Manifest) -> bool {
        manifest.kind() == "Rollout" && self.live_objects.uses_plugin(&manifest.value)
    }

    /// Puts the tables and policies among `manifests` into `store`, as far as they can be read.
    pub(super) fn fill_what_parses(&self, store: &MemoryRouteStore, manifests: &[Manifest]) {
        for manifest in manifests {
            let _ = self.put(store, manifest);
        }
    }

    fn put(&self, store: &MemoryRouteStore, manifest: &Manifest) -> Result<(), StoreError> {
        let object = || self.with_namespace(&manifest.value);
        match manifest.kind() {
            RouteTable::KIND => store.put(object()).map(drop),
            MirrorPolicy::KIND => store.put_policy(object()).map(drop),
            _ => Ok(()),
        }
    }

    fn pick(&self, name: Option<&str>, mut subjects: Vec<Subject>) -> anyhow::Result<Subject> {
        if let Some(name) = name {
            let key = self.key(name);
            let found = subjects.into_iter().find(|subject| subject.key == key);
            return found.with_context(|| {
                format!("no Rollout {key} that uses the plugin is among the files")
            });
        }
        match (subjects.pop(), subjects.is_empty()) {
            (Some(subject), true) => Ok(subject),
            (Some(last), false) => {
                subjects.push(last);
                let names: Vec<String> = subjects.iter().map(|it| it.key.to_string()).collect();
                bail!("which Rollout? name one of {}", names.join(", "))
            }
            (None, _) => {
                let names = self.policy().plugin_names.join(" or ");
                bail!("no Rollout among the files has {names} under trafficRouting.plugins")
            }
        }
    }

    /// Copies what the Rollout selects from the cluster, as far as `store` lacks it.
    pub(super) async fn copy_tables(
        &self,
        subject: &Subject,
        store: &MemoryRouteStore,
    ) -> anyhow::Result<()> {
        let Subject { key, rollout, .. } = subject;
        let Ok(config) = from_rpc::config(&self.policy(), rollout, key) else {
            // The router says what is wrong with it.
            return Ok(());
        };
        let clusters = self.clusters();
        let selection = clusters
            .tables
            .select(config.route_tables(), Freshness::Live)
            .await;
        for error in selection.errors {
            // The router names a table that is not there.
            if !matches!(error, StoreError::NotFound { .. }) {
                return Err(error.into());
            }
        }
        for table in selection
            .tables
            .into_iter()
            .filter(|it| store.table(it.key()).is_none())
        {
            store.put(table.into_raw())?;
        }
        match clusters.tables.policies().await {
            // Only mirror routes need them.
            Err(StoreError::NotFound { .. } | StoreError::Forbidden { .. })
                if !from_rpc::has_mirrors(rollout) => {}
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

    /// The Rollouts of the cluster, of all namespaces.
    pub(super) async fn live_rollouts(&self) -> anyhow::Result<Vec<Manifest>> {
        let rollouts = rollouts(&self.clusters().local, None).await?.into_iter();
        let manifests = rollouts.map(|rollout| Manifest::live("Rollout", rollout.raw().clone()));
        Ok(manifests.collect())
    }

    /// Where objects come from, in words.
    pub(super) fn shown(&self) -> String {
        let files = self.files.iter().map(|file| file.display().to_string());
        match self.files.is_empty() {
            true => "cluster".to_owned(),
            false => files.collect::<Vec<_>>().join(", "),
        }
    }

    /// An object with a namespace.
    pub(super) fn with_namespace(&self, object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata
                .entry("namespace")
                .or_insert_with(|| json!(self.namespace));
        }
        object
    }
}

/// The Rollouts of a cluster.
pub(super) async fn rollouts(
    store: &KubeRouteStore,
    namespace: Option<&str>,
) -> anyhow::Result<Vec<RolloutDoc>> {
    match store.rollouts(namespace).await {
        Err(StoreError::NotFound { .. }) => {
            bail!(
                "the cluster has no rollouts.argoproj.io: install Argo Rollouts, or choose another with --context"
            )
        }
        rollouts => Ok(rollouts?),
    }
}

/// The MirrorPolicies of a cluster; none where there is no such kind, or no right to see them.
pub(super) async fn policies(store: &KubeRouteStore) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
    match store.policies().await {
        Err(StoreError::NotFound { .. } | StoreError::Forbidden { .. }) => Ok(Vec::new()),
        policies => policies,
    }
}

fn unreadable_manifest(manifest: &Manifest, error: &StoreError) -> Unreadable {
    Unreadable {
        spot: manifest.spot(&[]),
        reason: error_chain(error),
    }
}
