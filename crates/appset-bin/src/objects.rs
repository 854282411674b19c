//! The objects that sources look at, by cluster and kind: followed in a cluster, or read from the files of a directory.
//!
//! No answer is made of some of the objects of a kind, since Argo CD deletes the Application of what is missing: a cluster or a
//! namespace that is not known fails the call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appset_generator::{
    ByCluster, ClusterAccess, Clusters, Config, Failure, NamespaceLabels, Namespaces, Place,
    Rollout, Watched,
};
use gloo_types::{Document, KubernetesCluster, ObjectKey, Resource, RouteTable, Workspace};
use route_store::{
    Change, DirRouteStore, Informer, Keep, Kept, KubeAccess, KubeRouteStore, RequestLimits,
    StoreError, Unknown, WholeDocuments,
};
use serde_json::{Map, Value};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use crate::Flags;

/// Stands for all namespaces in a configuration.
const ALL: &str = "*";
/// How old objects may be that an answer is made of. Their watch gives a sign of life each minute.
const STALE: Duration = Duration::from_secs(120);
/// How long one request to the API server may take. Nobody waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The objects of all clusters.
pub(crate) struct Objects {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    dir: Option<PathBuf>,
    clusters: Mutex<BTreeMap<String, Arc<Cluster>>>,
}

/// The objects of one cluster.
pub(crate) struct Cluster {
    origin: Origin,
    pub(crate) route_tables: Kind<WholeDocuments<RouteTable>>,
    pub(crate) rollouts: Kind<WholeDocuments<Rollout>>,
    pub(crate) workspaces: Kind<WholeDocuments<Workspace>>,
    pub(crate) clusters: Kind<WholeDocuments<KubernetesCluster>>,
    namespaces: Kind<NamespaceKeeper>,
}

/// Where the objects of a cluster come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Dir(PathBuf),
    Cluster {
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
    },
}

/// The objects of one kind in one cluster.
pub(crate) enum Kind<K: Keep> {
    /// Read anew on every call.
    Dir(DirRouteStore),
    Cluster(Informer<K>, Mutex<Receiver<Change>>),
}

/// What the metrics say of one kind in one namespace of a cluster.
pub(crate) struct Report {
    pub(crate) cluster: String,
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    /// Number of objects; `None` while they are not known.
    pub(crate) objects: Option<usize>,
}

impl Objects {
    /// Connects to nothing yet.
    pub(crate) fn new(flags: &Flags) -> Self {
        Self {
            kubeconfig: flags.kubeconfig.clone(),
            context: flags.context.clone(),
            dir: flags.objects_dir.clone(),
            clusters: Mutex::default(),
        }
    }

    /// Follows what the configuration needs, and nothing else any more.
    pub(crate) fn follow(&self, config: &Config) {
        let nothing = Namespaces::default();
        let mut watched = config.watched(&nothing);
        let mut clusters = self.lock();
        clusters.retain(|name, _| watched.contains_key(name));
        for name in watched.keys() {
            let origin = self.origin(config.clusters(), name);
            if clusters.get(name).is_none_or(|it| it.origin != origin) {
                clusters.insert(name.clone(), Arc::new(Cluster::new(origin)));
            }
        }
        let by_label = watched.iter().filter(|(_, it)| it.namespaces);
        let by_label: Vec<_> = by_label.map(|(name, _)| name.clone()).collect();
        if !by_label.is_empty() {
            let mut known = Namespaces::default();
            for name in by_label {
                // However old: a namespace is followed until the API server reports that it is gone.
                let labels = clusters.get(&name).map(|it| it.namespaces.last_known());
                known.insert(&name, Ok(labels_by_name(labels.unwrap_or_default())));
            }
            watched = config.watched(&known);
        }
        for (name, cluster) in clusters.iter() {
            if let Some(watched) = watched.get(name) {
                cluster.follow(watched);
            }
        }
    }

    /// The namespaces of the clusters in which the configuration selects namespaces by their labels.
    pub(crate) async fn namespaces(&self, config: &Config) -> Namespaces {
        let mut known = Namespaces::default();
        for (name, watched) in config.watched(&known) {
            if !watched.namespaces {
                continue;
            }
            let cluster = self.cluster(&name);
            let namespaces = match &cluster {
                Ok(cluster) => cluster.namespaces.all(&[ALL.to_owned()]).await,
                Err(why) => Err(why.clone()),
            };
            let namespaces = namespaces.map(labels_by_name);
            known.insert(
                &name,
                namespaces.map_err(|why| of_cluster(config.clusters(), &name, why).to_string()),
            );
        }
        known
    }

    /// All objects of a kind in `places`, by cluster.
    pub(crate) async fn all<K: Resource>(
        &self,
        config: &Config,
        places: &[Place],
        kind: impl Fn(&Cluster) -> &Kind<WholeDocuments<K>>,
    ) -> Result<ByCluster<K>, Failure> {
        let mut found = ByCluster::new();
        for place in places {
            let cluster = self.cluster(&place.cluster)?;
            let objects = kind(&cluster).all(&place.namespaces).await;
            let objects =
                objects.map_err(|why| of_cluster(config.clusters(), &place.cluster, why))?;
            found.insert(place.cluster.clone(), objects);
        }
        Ok(found)
    }

    /// Whether an object has changed since this was last asked.
    pub(crate) fn have_changed(&self) -> bool {
        let clusters = self.lock();
        let changed = clusters.values().filter(|it| it.has_changed());
        changed.count() > 0
    }

    /// What is followed.
    pub(crate) fn report(&self) -> Vec<Report> {
        let clusters = self.lock();
        let reports = clusters.iter().flat_map(|(name, it)| it.report(name));
        reports.collect()
    }

    /// What has not been seen once, if anything.
    pub(crate) fn unseen(&self, config: &Config) -> Option<String> {
        // What there is in namespaces with labels is followed once they are known.
        let unseen = |part: fn(&Cluster) -> Option<String>| {
            let clusters = self.lock().clone();
            clusters.into_iter().find_map(|(name, cluster)| {
                let why = Failure::NotReady(part(&cluster)?);
                Some(of_cluster(config.clusters(), &name, why).to_string())
            })
        };
        unseen(|it| it.namespaces.unseen()).or_else(|| {
            self.follow(config);
            unseen(Cluster::unseen)
        })
    }

    fn cluster(&self, name: &str) -> Result<Arc<Cluster>, Failure> {
        let cluster = self.lock().get(name).map(Arc::clone);
        cluster.ok_or_else(|| {
            Failure::NotReady(format!(
                "cluster {name} has just been removed from the configuration"
            ))
        })
    }

    /// Where the objects of a cluster come from; what the configuration does not say is as the flags say.
    fn origin(&self, clusters: &Clusters, name: &str) -> Origin {
        let unset = ClusterAccess::default();
        let (access, below) = match clusters {
            Clusters::One(_) => (&unset, None),
            Clusters::Several(several) => (several.get(name).unwrap_or(&unset), Some(name)),
        };
        if let Some(dir) = &self.dir {
            return Origin::Dir(below.map_or_else(|| dir.clone(), |name| dir.join(name)));
        }
        let kubeconfig = access.kubeconfig.as_ref().map(PathBuf::from);
        // A context of the flags is one of their kubeconfig.
        let context = match &access.kubeconfig {
            Some(_) => access.context.clone(),
            None => access.context.clone().or_else(|| self.context.clone()),
        };
        Origin::Cluster {
            kubeconfig: kubeconfig.or_else(|| self.kubeconfig.clone()),
            context,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Cluster>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `why`, and the name of the cluster where there may be several.
fn of_cluster(clusters: &Clusters, name: &str, why: Failure) -> Failure {
    match clusters {
        Clusters::One(_) => why,
        Clusters::Several(_) => why.in_cluster(name),
    }
}

impl Cluster {
    fn new(origin: Origin) -> Self {
        let store = Store::new(&origin);
        Self {
            origin,
            route_tables: Kind::new(&store, WholeDocuments::default()),
            rollouts: Kind::new(&store, WholeDocuments::default()),
            workspaces: Kind::new(&store, WholeDocuments::default()),
            clusters: Kind::new(&store, WholeDocuments::default()),
            namespaces: Kind::new(&store, NamespaceKeeper),
        }
    }

    fn follow(&self, watched: &Watched) {
        self.route_tables.follow(&watched.route_tables);
        self.rollouts.follow(&watched.rollouts);
        self.workspaces.follow(&watched.workspaces);
        self.clusters.follow(&watched.clusters);
        let namespaces = watched.namespaces.then(|| ALL.to_owned());
        self.namespaces.follow(&namespaces.into_iter().collect());
    }

    fn has_changed(&self) -> bool {
        // Each has to be asked.
        let kinds = [
            self.route_tables.has_changed(),
            self.rollouts.has_changed(),
            self.workspaces.has_changed(),
            self.clusters.has_changed(),
            self.namespaces.has_changed(),
        ];
        kinds.contains(&true)
    }

    fn report(&self, cluster: &str) -> Vec<Report> {
        let mut reports = self.route_tables.report(cluster);
        reports.extend(self.rollouts.report(cluster));
        reports.extend(self.workspaces.report(cluster));
        reports.extend(self.clusters.report(cluster));
        reports.extend(self.namespaces.report(cluster));
        reports
    }

    /// What has not been seen once, besides namespaces.
    fn unseen(&self) -> Option<String> {
        let unseen = self.route_tables.unseen();
        unseen
            .or_else(|| self.rollouts.unseen())
            .or_else(|| self.workspaces.unseen())
            .or_else(|| self.clusters.unseen())
    }
}

/// What reads the objects of a cluster.
enum Store {
    Dir(DirRouteStore),
    Cluster(Arc<KubeRouteStore>),
}

impl Store {
    /// Reads nothing yet.
    fn new(origin: &Origin) -> Self {
        match origin {
            Origin::Dir(dir) => Self::Dir(DirRouteStore::new(dir)),
            Origin::Cluster {
                kubeconfig,
                context,
            } => Self::Cluster(Arc::new(KubeRouteStore::new(KubeAccess {
                kubeconfig: kubeconfig.clone(),
                context: context.clone(),
                request_timeout: REQUEST_TIMEOUT,
                limits: RequestLimits::default(),
            }))),
        }
    }
}

impl<K: Keep> Kind<K>
where
    K::Kept: From<Document<K::Kind>>,
{
    fn new(store: &Store, keep: K) -> Self {
        match store {
            Store::Dir(dir) => Self::Dir(dir.clone()),
            Store::Cluster(store) => {
                let informer = Informer::new(Arc::clone(store), keep);
                let changes = Mutex::new(informer.subscribe());
                Self::Cluster(informer, changes)
            }
        }
    }

    /// All objects of `namespaces`.
    async fn all(&self, namespaces: &[String]) -> Result<Vec<Arc<K::Kept>>, Failure> {
        let is_all = namespaces.iter().any(|namespace| namespace == ALL);
        match self {
            Self::Dir(dir) => {
                let objects = dir.objects::<K::Kind>().await.map_err(|error| {
                    let error = anyhow::Error::from(error);
                    Failure::Upstream(format!("{}s: {error:#}", K::Kind::KIND))
                })?;
                let objects = objects.into_iter();
                let objects =
                    objects.filter(|it| is_all || namespaces.contains(&it.key().namespace));
                Ok(objects.map(|it| Arc::new(it.into())).collect())
            }
            Self::Cluster(informer, _) if is_all => {
                let known = informer.check(None, STALE);
                known.map_err(|why| Failure::NotReady(unknown::<K::Kind>(None, &why)))?;
                Ok(informer.all())
            }
            Self::Cluster(informer, _) => {
                let mut all = Vec::new();
                for namespace in namespaces {
                    let objects = informer.objects(namespace, STALE);
                    all.extend(objects.map_err(|why| {
                        Failure::NotReady(unknown::<K::Kind>(Some(namespace), &why))
                    })?);
                }
                Ok(all)
            }
        }
    }

    /// The objects that were heard of last, however long ago.
    fn last_known(&self) -> Vec<Arc<K::Kept>> {
        match self {
            Self::Dir(_) => Vec::new(),
            Self::Cluster(informer, _) => informer.all(),
        }
    }

    /// Whether an object has changed since this was last asked; in files one may always have.
    fn has_changed(&self) -> bool {
        let Self::Cluster(_, changes) = self else {
            return true;
        };
        let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut has_changed = false;
        while !matches!(
            changes.try_recv(),
            Err(TryRecvError::Empty | TryRecvError::Closed)
        ) {
            has_changed = true;
        }
        has_changed
    }

    fn follow(&self, namespaces: &BTreeSet<String>) {
        match self {
            // One watch of all namespaces has those that others name, too.
            Self::Cluster(informer, _) if namespaces.contains(ALL) => informer.follow_all(),
            Self::Cluster(informer, _) => informer.follow_only(namespaces),
            Self::Dir(_) => {}
        }
    }

    fn report(&self, cluster: &str) -> Vec<Report> {
        let Self::Cluster(informer, _) = self else {
            return Vec::new();
        };
        let scopes = informer.status().scopes.into_iter();
        let reports = scopes.map(|scope| {
            let objects = match &scope.namespace {
                Some(namespace) => informer.objects(namespace, STALE).ok(),
                None => informer.check(None, STALE).ok().map(|()| informer.all()),
            };
            Report {
                cluster: cluster.to_owned(),
                kind: K::Kind::KIND,
                namespace: scope.namespace.unwrap_or_else(|| ALL.to_owned()),
                objects: objects.map(|objects| objects.len()),
            }
        });
        reports.collect()
    }

    fn unseen(&self) -> Option<String> {
        let Self::Cluster(informer, _) = self else {
            return None;
        };
        informer.status().scopes.into_iter().find_map(|scope| {
            let why = match scope.problem {
                _ if scope.is_synced => return None,
                Some(error) => Unknown::Failed(error),
                None => Unknown::NoAnswer,
            };
            Some(unknown::<K::Kind>(scope.namespace.as_deref(), &why))
        })
    }
}

/// Why the objects of a namespace, or of all, are not known.
fn unknown<K: Resource>(namespace: Option<&str>, why: &Unknown) -> String {
    let why = match why {
        Unknown::NotFollowed => "it has just been added to the configuration".to_owned(),
        Unknown::Failed(error) => words::<K>(error),
        Unknown::NoAnswer | Unknown::Silent(_) => why.to_string(),
    };
    let place = match namespace {
        _ if K::KIND == Namespace::KIND => String::new(),
        None => format!(" in namespace {ALL}"),
        Some(namespace) => format!(" in namespace {namespace}"),
    };
    format!("{}s{place} are not known: {why}", K::KIND)
}

/// `error` in words that help who runs the generator.
fn words<K: Resource>(error: &StoreError) -> String {
    match error {
        // The list is there, however empty, if the kind is known.
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

/// `v1` Namespace.
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

/// Keeps the labels of namespaces.
struct NamespaceKeeper;

/// A namespace and its labels.
struct LabelledNamespace {
    /// Without a namespace: it is in none.
    key: ObjectKey,
    version: String,
    labels: BTreeMap<String, String>,
}

impl Keep for NamespaceKeeper {
    type Kind = Namespace;
    type Kept = LabelledNamespace;
    const PAGE: u32 = 250;

    fn keep(
        &self,
        object: &str,
    ) -> Result<LabelledNamespace, Box<dyn std::error::Error + Send + Sync>> {
        let object: Value = serde_json::from_str(object)?;
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let labels = object
            .pointer("/metadata/labels")
            .filter(|it| !it.is_null());
        let labels = labels.cloned();
        Ok(LabelledNamespace {
            key: ObjectKey::new("", text("/metadata/name").unwrap_or_default()),
            version: text("/metadata/resourceVersion")
                .unwrap_or_default()
                .to_owned(),
            labels: serde_json::from_value(labels.unwrap_or_else(|| Value::Object(Map::new())))?,
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

/// One of a file, in which it has the namespace that objects without one are given.
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

    /// No measure of anything: a test that waits longer has found a fault.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Waits until the namespaces are these, each as `name team`.
    async fn become_these(namespaces: &Kind<NamespaceKeeper>, expect: &[&str]) {
        let waited = timeout(PATIENCE, until_they_are(namespaces, expect)).await;
        assert!(waited.is_ok(), "they never became {expect:?}");
    }

    async fn until_they_are(namespaces: &Kind<NamespaceKeeper>, expect: &[&str]) {
        let all = [ALL.to_owned()];
        loop {
            if let Ok(known) = namespaces.all(&all).await {
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
    async fn namespaces_come_change_and_go() {
        let api = FakeApi::default();
        let put = |name: &str, labels: Value| {
            // The fake API server takes the collection of namespaces for one without a name.
            api.put("", json!({"metadata": {"name": name, "labels": labels}}));
        };
        put("cart", json!({"team": "cart"}));
        let store = Store::Cluster(Arc::new(api.store()));
        let namespaces = Kind::new(&store, NamespaceKeeper);
        assert!(namespaces.all(&[ALL.to_owned()]).await.is_err());
        namespaces.follow(&[ALL.to_owned()].into());
        become_these(&namespaces, &["cart cart"]).await;
        assert!(namespaces.has_changed());
        assert!(!namespaces.has_changed());
        put("shop", json!(null));
        become_these(&namespaces, &["cart cart", "shop "]).await;
        put("shop", json!({"team": "shop"}));
        become_these(&namespaces, &["cart cart", "shop shop"]).await;
        api.delete("", &ObjectKey::new("", "cart"));
        become_these(&namespaces, &["shop shop"]).await;
        assert!(namespaces.has_changed());
    }

    #[test]
    fn what_the_configuration_does_not_say_is_as_the_flags_say() {
        let objects = |dir: Option<&str>| Objects {
            kubeconfig: Some("/flags".into()),
            context: Some("main".to_owned()),
            dir: dir.map(PathBuf::from),
            clusters: Mutex::default(),
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
            let origin = objects(None).origin(config.clusters(), name);
            let expect = Origin::Cluster {
                kubeconfig: Some(kubeconfig.into()),
                context: context.map(str::to_owned),
            };
            assert_eq!(origin, expect, "{name}");
            let origin = objects(Some("/dir")).origin(config.clusters(), name);
            assert_eq!(origin, Origin::Dir(format!("/dir/{name}").into()));
        };
        check("at-hand", "/flags", Some("main"));
        check("context", "/flags", Some("c"));
        check("file", "/file", None);
        check("both", "/file", Some("c"));
        let one = Clusters::One("in-cluster".to_owned());
        let origin = objects(Some("/dir")).origin(&one, "in-cluster");
        assert_eq!(origin, Origin::Dir("/dir".into()));
    }
}
