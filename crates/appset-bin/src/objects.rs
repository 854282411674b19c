//! The objects that sources read, by cluster and kind: from informers, or from the files of a directory.
//!
//! Argo CD deletes the Application of a missing set. So an answer always uses all objects of a kind in a namespace, and a call
//! fails if the objects of a cluster or namespace are unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appset_generator::{
    ByCluster, Clusters, Config, Failure, NamespaceLabels, Namespaces, Place, Rollout, Watched,
};
use clap::Args;
use gloo_types::{Document, KubernetesCluster, ObjectKey, Resource, RouteTable, Workspace};
use kube::core::PartialObjectMeta;
use route_store::{
    Change, DirRouteStore, Informer, Keep, Kept, KubeRouteStore, StoreError, Unknown,
    WholeDocuments,
};
use serde_json::Value;
use tokio::sync::broadcast::Receiver;

/// Where objects are read.
#[derive(Debug, Clone, Args)]
pub(crate) struct ObjectFlags {
    /// The kubeconfig for the cluster whose objects are read; by default the service account of the Pod, else $KUBECONFIG or
    /// ~/.kube/config.
    #[arg(long, env = "GLOO_APPSET_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig.
    #[arg(long, env = "GLOO_APPSET_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Read objects from the YAML files in this directory instead of a cluster.
    #[arg(long, env = "GLOO_APPSET_OBJECTS_DIR", value_name = "DIR")]
    #[arg(conflicts_with_all = ["kubeconfig", "context"])]
    pub(crate) objects_dir: Option<PathBuf>,
}

/// The name for all namespaces in a configuration.
const ALL: &str = "*";
/// The maximum age of the known objects. A watch is renewed each minute.
const STALE: Duration = Duration::from_secs(120);
/// The timeout of one request to the API server. No call waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The objects of all clusters.
pub(crate) struct Objects {
    flags: ObjectFlags,
    /// The clusters that are watched: none if the objects are in files.
    clusters: Mutex<BTreeMap<String, Arc<Cluster>>>,
}

/// The objects of one cluster.
pub(crate) struct Cluster {
    access: KubeContext,
    pub(crate) route_tables: Kind<WholeDocuments<RouteTable>>,
    pub(crate) rollouts: Kind<WholeDocuments<Rollout>>,
    pub(crate) workspaces: Kind<WholeDocuments<Workspace>>,
    pub(crate) clusters: Kind<WholeDocuments<KubernetesCluster>>,
    namespaces: Kind<NamespaceKeeper>,
}

/// How a cluster is reached: the kubeconfig and the context in it.
type KubeContext = (Option<PathBuf>, Option<String>);

/// The objects of one kind in one cluster.
pub(crate) struct Kind<K: Keep> {
    informer: Informer<K>,
    changes: Mutex<Receiver<Change>>,
}

/// The state of one kind in one namespace of a cluster, for the metrics.
pub(crate) struct Report {
    pub(crate) cluster: String,
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    /// The number of objects, or `None` while they are unknown.
    pub(crate) objects: Option<usize>,
}

impl Objects {
    /// Makes the value without connecting to a cluster.
    pub(crate) fn new(flags: ObjectFlags) -> Self {
        Self {
            flags,
            clusters: Mutex::default(),
        }
    }

    /// Watches the objects that the configuration needs, and stops all other watches.
    pub(crate) fn watch(&self, config: &Config) {
        if self.are_in_files() {
            return;
        }
        let mut known = Namespaces::default();
        let watched = config.watched(&known);
        let mut clusters = self.lock();
        clusters.retain(|name, cluster| {
            let access = self.access(config.clusters(), name);
            // A cluster of the same name with other credentials may be another cluster.
            watched.contains_key(name) && cluster.access == access
        });
        for (name, watched) in watched {
            let new = || Arc::new(Cluster::new(self.access(config.clusters(), &name)));
            let cluster = clusters.entry(name.clone()).or_insert_with(new);
            if watched.namespaces {
                // Stale labels count as well: a namespace is watched until the API server reports that it is deleted.
                let namespaces = cluster.namespaces.informer.all();
                known.insert(&name, Ok(labels_by_name(namespaces)));
            }
        }
        // Once more, because selectors of namespaces match only those that are known.
        for (name, watched) in config.watched(&known) {
            if let Some(cluster) = clusters.get(&name) {
                cluster.watch(&watched);
            }
        }
    }

    /// Returns the namespaces of the clusters in which the configuration selects namespaces by label.
    pub(crate) async fn namespaces(&self, config: &Config) -> Namespaces {
        let mut known = Namespaces::default();
        for (name, watched) in config.watched(&known) {
            if watched.namespaces {
                let place = everywhere(&name);
                let namespaces = self.of(config, &place, |it| &it.namespaces).await;
                let namespaces = namespaces.map(labels_by_name);
                known.insert(&name, namespaces.map_err(|why| why.to_string()));
            }
        }
        known
    }

    /// Returns all objects of a kind in `places`, by cluster.
    ///
    /// # Errors
    /// Returns `Err` if the objects of a cluster or namespace are unknown.
    pub(crate) async fn all<K: Resource>(
        &self,
        config: &Config,
        places: &[Place],
        kind: impl Fn(&Cluster) -> &Kind<WholeDocuments<K>>,
    ) -> Result<ByCluster<K>, Failure> {
        let mut found = ByCluster::new();
        for place in places {
            let objects = self.of(config, place, &kind).await?;
            found.insert(place.cluster.clone(), objects);
        }
        Ok(found)
    }

    /// Returns all objects of a kind in one place.
    async fn of<K: Keep>(
        &self,
        config: &Config,
        place: &Place,
        kind: impl Fn(&Cluster) -> &Kind<K>,
    ) -> Result<Vec<Arc<K::Kept>>, Failure>
    where
        K::Kept: From<Document<K::Kind>>,
    {
        let cluster = &place.cluster;
        let found = self.lock().get(cluster).map(Arc::clone);
        let objects = match (self.dir(config.clusters(), cluster), found) {
            (Some(dir), _) => in_files::<K>(dir, place).await,
            (None, Some(found)) => kind(&found).all(place),
            (None, None) => {
                // An empty list would delete the Applications of the cluster.
                let why = "has just been removed from the configuration";
                return Err(Failure::NotReady(format!("cluster {cluster} {why}")));
            }
        };
        objects.map_err(|why| of_cluster(config, cluster, why))
    }

    /// Whether an object has changed since the last call of this function. For files the answer is always yes.
    pub(crate) fn have_changed(&self) -> bool {
        let clusters = self.lock();
        let kinds = clusters.values().flat_map(|cluster| cluster.kinds());
        // Every kind must be asked, since asking also resets it.
        let changed = kinds.filter(|kind| kind.has_changed()).count();
        changed > 0 || self.are_in_files()
    }

    /// Whether the objects are read from files, for every call.
    pub(crate) fn are_in_files(&self) -> bool {
        self.flags.objects_dir.is_some()
    }

    /// Returns the state of all watches.
    pub(crate) fn report(&self) -> Vec<Report> {
        let clusters = self.lock();
        let reports = clusters.iter().flat_map(|(name, cluster)| {
            let kinds = cluster.kinds().into_iter();
            kinds.flat_map(|kind| kind.report(name))
        });
        reports.collect()
    }

    /// Returns why the first list of a watch is missing, if one is.
    pub(crate) fn unsynced(&self, config: &Config) -> Option<String> {
        // Objects in namespaces that are selected by label are watched once the namespaces are known.
        let unsynced = |part: fn(&Cluster) -> Option<String>| {
            let clusters = self.lock().clone();
            clusters.into_iter().find_map(|(name, cluster)| {
                let why = Failure::NotReady(part(&cluster)?);
                Some(of_cluster(config, &name, why).to_string())
            })
        };
        unsynced(|it| it.namespaces.unsynced()).or_else(|| {
            // The namespaces are known by now, and with them what to watch in them.
            self.watch(config);
            unsynced(|it| it.kinds().into_iter().find_map(Watch::unsynced))
        })
    }

    /// Returns the directory with the objects of a cluster, if they are in files.
    fn dir(&self, clusters: &Clusters, name: &str) -> Option<PathBuf> {
        let dir = self.flags.objects_dir.as_ref()?;
        Some(match clusters {
            Clusters::One(_) => dir.clone(),
            Clusters::Several(_) => dir.join(name),
        })
    }

    /// Returns how a cluster is reached. Unset fields of the configuration inherit from the flags.
    fn access(&self, clusters: &Clusters, name: &str) -> KubeContext {
        let access = match clusters {
            Clusters::One(_) => None,
            Clusters::Several(several) => several.get(name).cloned(),
        };
        let access = access.unwrap_or_default();
        // The context of the flags belongs to the kubeconfig of the flags.
        let inherited = self.flags.context.clone();
        let context = inherited.filter(|_| access.kubeconfig.is_none());
        let kubeconfig = access.kubeconfig.map(PathBuf::from);
        (
            kubeconfig.or_else(|| self.flags.kubeconfig.clone()),
            access.context.or(context),
        )
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Cluster>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the name of the cluster to `why` if the configuration has several clusters.
fn of_cluster(config: &Config, name: &str, why: Failure) -> Failure {
    match config.clusters() {
        Clusters::One(_) => why,
        Clusters::Several(_) => why.in_cluster(name),
    }
}

impl Cluster {
    /// Makes the value without connecting to the cluster.
    fn new(access: KubeContext) -> Self {
        let (kubeconfig, context) = access.clone();
        let store = Arc::new(crate::store(kubeconfig, context, REQUEST_TIMEOUT));
        Self {
            access,
            route_tables: Kind::new(&store, WholeDocuments::default()),
            rollouts: Kind::new(&store, WholeDocuments::default()),
            workspaces: Kind::new(&store, WholeDocuments::default()),
            clusters: Kind::new(&store, WholeDocuments::default()),
            namespaces: Kind::new(&store, NamespaceKeeper),
        }
    }

    fn watch(&self, watched: &Watched) {
        self.route_tables.watch(&watched.route_tables);
        self.rollouts.watch(&watched.rollouts);
        self.workspaces.watch(&watched.workspaces);
        self.clusters.watch(&watched.clusters);
        let namespaces = watched.namespaces.then(|| ALL.to_owned());
        self.namespaces.watch(&namespaces.into_iter().collect());
    }

    fn kinds(&self) -> [&dyn Watch; 5] {
        [
            &self.route_tables,
            &self.rollouts,
            &self.workspaces,
            &self.clusters,
            &self.namespaces,
        ]
    }
}

/// Returns all namespaces of a cluster.
fn everywhere(cluster: &str) -> Place {
    Place {
        cluster: cluster.to_owned(),
        namespaces: vec![ALL.to_owned()],
    }
}

/// Returns all objects of a kind in a place from the files of a directory, which are read for every call.
async fn in_files<K: Keep>(dir: PathBuf, place: &Place) -> Result<Vec<Arc<K::Kept>>, Failure>
where
    K::Kept: From<Document<K::Kind>>,
{
    let objects = DirRouteStore::new(dir).objects::<K::Kind>().await;
    let mut objects = objects.map_err(|error| {
        let error = anyhow::Error::from(error);
        Failure::Upstream(format!("{}s: {error:#}", K::Kind::KIND))
    })?;
    objects.retain(|it| place.has(&it.key().namespace));
    Ok(objects.into_iter().map(|it| Arc::new(it.into())).collect())
}

impl<K: Keep> Kind<K> {
    fn new(store: &Arc<KubeRouteStore>, keep: K) -> Self {
        let informer = Informer::new(Arc::clone(store), keep);
        let changes = Mutex::new(informer.subscribe());
        Self { informer, changes }
    }

    /// Returns all objects in a place.
    fn all(&self, place: &Place) -> Result<Vec<Arc<K::Kept>>, Failure> {
        let named = place.namespaces.iter().map(|it| Some(it.as_str()));
        let scopes = match place.is_all() {
            // One watch has the objects of all namespaces.
            true => vec![None],
            false => named.collect(),
        };
        let mut all = Vec::new();
        for scope in scopes {
            let unknown = |why| Failure::NotReady(unknown::<K::Kind>(scope, &why));
            all.extend(self.known(scope).map_err(unknown)?);
        }
        Ok(all)
    }

    /// Returns the objects in a namespace, or in all.
    fn known(&self, namespace: Option<&str>) -> Result<Vec<Arc<K::Kept>>, Unknown> {
        self.informer.objects(namespace, STALE)
    }

    fn watch(&self, namespaces: &BTreeSet<String>) {
        // A watch of all namespaces includes those that other sources name.
        match namespaces.contains(ALL) {
            true => self.informer.watch_all(),
            false => self.informer.watch_only(namespaces),
        }
    }
}

/// What the watches of any kind have in common.
trait Watch {
    /// Whether an object has changed since the last call of this function.
    fn has_changed(&self) -> bool;

    /// Returns the state of each watch.
    fn report(&self, cluster: &str) -> Vec<Report>;

    /// Returns why the first list of a watch is missing, if one is.
    fn unsynced(&self) -> Option<String>;
}

impl<K: Keep> Watch for Kind<K> {
    fn has_changed(&self) -> bool {
        let changes = self.changes.lock();
        let mut changes = changes.unwrap_or_else(PoisonError::into_inner);
        // Only whether there is a change matters, so the changes are dropped unread.
        let has_changed = !changes.is_empty();
        if has_changed {
            *changes = changes.resubscribe();
        }
        has_changed
    }

    fn report(&self, cluster: &str) -> Vec<Report> {
        let scopes = self.informer.status().scopes.into_iter();
        let reports = scopes.map(|scope| Report {
            cluster: cluster.to_owned(),
            kind: K::Kind::KIND,
            objects: (self.known(scope.namespace.as_deref()).ok()).map(|objects| objects.len()),
            namespace: scope.namespace.unwrap_or_else(|| ALL.to_owned()),
        });
        reports.collect()
    }

    fn unsynced(&self) -> Option<String> {
        let mut scopes = self.informer.status().scopes.into_iter();
        let scope = scopes.find(|scope| scope.age.is_none())?;
        let why = scope.problem.map_or(Unknown::NoAnswer, Unknown::Failed);
        Some(unknown::<K::Kind>(scope.namespace.as_deref(), &why))
    }
}

/// Returns the message for unknown objects of a namespace, or of all namespaces.
fn unknown<K: Resource>(namespace: Option<&str>, why: &Unknown) -> String {
    let why = match why {
        Unknown::NotWatched => "it has just been added to the configuration".to_owned(),
        Unknown::Failed(error) => explain::<K>(error),
        Unknown::NoAnswer | Unknown::Unproven(_) => why.to_string(),
    };
    let place = match namespace {
        _ if K::KIND == Namespace::KIND => String::new(),
        None => format!(" in namespace {ALL}"),
        Some(namespace) => format!(" in namespace {namespace}"),
    };
    format!("{}s{place} are not known: {why}", K::KIND)
}

/// Returns the text of `error` with a remedy for the operator.
fn explain<K: Resource>(error: &StoreError) -> String {
    match error {
        // A list of a known kind exists even without objects.
        StoreError::NotFound { .. } => format!(
            "the API server has no {}.{}/{}: install its CustomResourceDefinition",
            K::PLURAL,
            K::GROUP,
            K::VERSION
        ),
        StoreError::Timeout { verb, what, after } => format!(
            "no answer to {verb} {what} within {} s: check the API server",
            after.as_secs()
        ),
        error => error.chain(),
    }
}

/// The Kubernetes kind `Namespace` of `v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Namespace {}

impl Resource for Namespace {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Namespace";
    const PLURAL: &'static str = "namespaces";

    type Spec = Value;
    type Status = Value;
}

/// Keeps only the labels of namespaces.
struct NamespaceKeeper;

/// A namespace and its labels.
struct LabelledNamespace {
    /// The name. The namespace of the key is empty, since a Namespace is in none.
    key: ObjectKey,
    version: String,
    labels: BTreeMap<String, String>,
}

impl Keep for NamespaceKeeper {
    type Kind = Namespace;
    type Kept = LabelledNamespace;

    fn keep(
        &self,
        object: &str,
    ) -> Result<LabelledNamespace, Box<dyn std::error::Error + Send + Sync>> {
        let object: PartialObjectMeta = serde_json::from_str(object)?;
        let metadata = object.metadata;
        Ok(LabelledNamespace {
            key: ObjectKey::new("", metadata.name.unwrap_or_default()),
            version: metadata.resource_version.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
        })
    }
}

impl Kept for LabelledNamespace {
    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn version(&self) -> &str {
        &self.version
    }
}

/// Converts a Namespace from a file. Its key has the default namespace of files, which is dropped.
impl From<Document<Namespace>> for LabelledNamespace {
    fn from(namespace: Document<Namespace>) -> Self {
        Self {
            key: ObjectKey::new("", &namespace.key().name),
            version: String::new(),
            labels: namespace.labels().clone(),
        }
    }
}

fn labels_by_name(namespaces: Vec<Arc<LabelledNamespace>>) -> NamespaceLabels {
    let namespaces = namespaces.into_iter();
    let labels = namespaces.map(|it| (it.key.name.clone(), it.labels.clone()));
    labels.collect()
}

#[cfg(test)]
mod tests {
    use route_store::fake_api::FakeApi;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    /// The timeout after which a test fails.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Waits until the namespaces are `expect`, each as `name team`.
    async fn wait_for(namespaces: &Kind<NamespaceKeeper>, expect: &[&str]) {
        let waited = timeout(TIMEOUT, poll(namespaces, expect)).await;
        assert!(waited.is_ok(), "the namespaces never were {expect:?}");
    }

    async fn poll(namespaces: &Kind<NamespaceKeeper>, expect: &[&str]) {
        let all = everywhere("in-cluster");
        loop {
            if let Ok(known) = namespaces.all(&all) {
                let known = labels_by_name(known);
                let shown = known.iter().map(|(name, labels)| {
                    let team = labels.get("team").map_or("", String::as_str);
                    format!("{name} {team}")
                });
                if shown.collect::<Vec<_>>() == expect {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn namespaces_are_watched() {
        let api = FakeApi::default();
        let put = |name: &str, labels: Value| {
            // To the fake API server the collection of namespaces is a namespace without a name.
            api.put("", json!({"metadata": {"name": name, "labels": labels}}));
        };
        put("cart", json!({"team": "cart"}));
        let namespaces = Kind::new(&Arc::new(api.store()), NamespaceKeeper);
        assert!(namespaces.all(&everywhere("in-cluster")).is_err());
        namespaces.watch(&[ALL.to_owned()].into());
        wait_for(&namespaces, &["cart cart"]).await;
        assert!(namespaces.has_changed());
        assert!(!namespaces.has_changed());
        put("shop", json!(null));
        wait_for(&namespaces, &["cart cart", "shop "]).await;
        put("shop", json!({"team": "shop"}));
        wait_for(&namespaces, &["cart cart", "shop shop"]).await;
        api.delete("", &ObjectKey::new("", "cart"));
        wait_for(&namespaces, &["shop shop"]).await;
        assert!(namespaces.has_changed());
    }

    #[test]
    fn unset_fields_of_a_cluster_inherit_from_the_flags() {
        let objects = |dir: Option<&str>| {
            Objects::new(ObjectFlags {
                kubeconfig: Some("/flags".into()),
                context: Some("main".to_owned()),
                objects_dir: dir.map(PathBuf::from),
            })
        };
        let config = Config::from_yaml(
            "
clusters:
  at-hand: {}
  context: {context: c}
  file: {kubeconfig: /file}
  both: {kubeconfig: /file, context: c}
static: {hello: {}}",
        );
        let config = config.unwrap();
        let check = |name: &str, kubeconfig: &str, context: Option<&str>| {
            let access = objects(None).access(config.clusters(), name);
            let expect = (Some(kubeconfig.into()), context.map(str::to_owned));
            assert_eq!(access, expect, "{name}");
            assert_eq!(objects(None).dir(config.clusters(), name), None);
            let dir = objects(Some("/dir")).dir(config.clusters(), name);
            assert_eq!(dir, Some(format!("/dir/{name}").into()));
        };
        check("at-hand", "/flags", Some("main"));
        check("context", "/flags", Some("c"));
        check("file", "/file", None);
        check("both", "/file", Some("c"));
        let one = Clusters::One("in-cluster".to_owned());
        let dir = objects(Some("/dir")).dir(&one, "in-cluster");
        assert_eq!(dir, Some("/dir".into()));
    }
}
