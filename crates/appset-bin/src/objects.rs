//! The objects that sources look at, of every kind: followed in a cluster, or read from the files of a directory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use appset_generator::{Failure, Rollout, Watched};
use gloo_types::{Document, KubernetesCluster, Resource, RouteTable, Workspace};
use route_store::{
    DirRouteStore, Informer, KubeAccess, KubeRouteStore, RequestLimits, StoreError, Unknown,
    WholeDocuments,
};

use crate::Flags;

/// Stands for all namespaces in a configuration.
const ALL: &str = "*";
/// How old objects may be that an answer is made of. Their watch gives a sign of life each minute.
const STALE: Duration = Duration::from_secs(120);
/// How long one request to the API server may take. Nobody waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The objects of all kinds.
pub(crate) struct Objects {
    pub(crate) route_tables: Kind<RouteTable>,
    pub(crate) rollouts: Kind<Rollout>,
    pub(crate) workspaces: Kind<Workspace>,
    pub(crate) clusters: Kind<KubernetesCluster>,
}

/// The objects of one kind.
pub(crate) enum Kind<K: Resource> {
    /// Read anew on every call.
    Dir(DirRouteStore),
    Cluster(Informer<WholeDocuments<K>>),
}

/// What the figures say of one kind in one namespace.
pub(crate) struct Report {
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    /// How many objects there are; `None` while that is not known.
    pub(crate) objects: Option<usize>,
}

impl Objects {
    /// Connects to nothing yet.
    pub(crate) fn new(flags: &Flags) -> Self {
        let store = Arc::new(KubeRouteStore::new(KubeAccess {
            kubeconfig: flags.kubeconfig.clone(),
            context: flags.context.clone(),
            request_timeout: REQUEST_TIMEOUT,
            limits: RequestLimits::default(),
        }));
        let dir = flags.objects_dir.as_ref().map(DirRouteStore::new);
        let dir = dir.as_ref();
        Self {
            route_tables: Kind::new(dir, &store),
            rollouts: Kind::new(dir, &store),
            workspaces: Kind::new(dir, &store),
            clusters: Kind::new(dir, &store),
        }
    }

    /// Begins to follow what is to be followed and is not yet, and ends what is not any more.
    pub(crate) fn follow(&self, watched: &Watched) {
        self.route_tables.follow(&watched.route_tables);
        self.rollouts.follow(&watched.rollouts);
        self.workspaces.follow(&watched.workspaces);
        self.clusters.follow(&watched.clusters);
    }

    /// What is followed.
    pub(crate) fn report(&self) -> Vec<Report> {
        let mut reports = self.route_tables.report();
        reports.extend(self.rollouts.report());
        reports.extend(self.workspaces.report());
        reports.extend(self.clusters.report());
        reports
    }

    /// What has not been seen once since it is followed, and why.
    pub(crate) fn unseen(&self) -> Option<String> {
        let unseen = self.route_tables.unseen();
        unseen
            .or_else(|| self.rollouts.unseen())
            .or_else(|| self.workspaces.unseen())
            .or_else(|| self.clusters.unseen())
    }
}

impl<K: Resource> Kind<K> {
    fn new(dir: Option<&DirRouteStore>, store: &Arc<KubeRouteStore>) -> Self {
        match dir {
            Some(dir) => Self::Dir(dir.clone()),
            None => Self::Cluster(Informer::new(Arc::clone(store), WholeDocuments::default())),
        }
    }

    /// All objects of `namespaces`. No answer is made of some of them: what is missing counts as deleted.
    pub(crate) async fn all(
        &self,
        namespaces: &[String],
    ) -> Result<Vec<Arc<Document<K>>>, Failure> {
        match self {
            Self::Dir(dir) => {
                let mut objects = dir.objects::<K>().await.map_err(|error| {
                    let error = anyhow::Error::from(error);
                    Failure::Upstream(format!("{}s: {error:#}", K::KIND))
                })?;
                let is_all = namespaces.iter().any(|namespace| namespace == ALL);
                objects.retain(|object| is_all || namespaces.contains(&object.key().namespace));
                Ok(objects.into_iter().map(Arc::new).collect())
            }
            Self::Cluster(informer) => {
                let mut all = Vec::new();
                for namespace in namespaces {
                    if namespace == ALL {
                        let known = informer.check(None, STALE);
                        known.map_err(|why| Failure::NotReady(unknown::<K>(namespace, &why)))?;
                        return Ok(informer.all());
                    }
                    let objects = informer.objects(namespace, STALE);
                    all.extend(
                        objects.map_err(|why| Failure::NotReady(unknown::<K>(namespace, &why)))?,
                    );
                }
                Ok(all)
            }
        }
    }

    fn follow(&self, namespaces: &BTreeSet<String>) {
        match self {
            // One watch of all namespaces has those that others name, too.
            Self::Cluster(informer) if namespaces.contains(ALL) => informer.follow_all(),
            Self::Cluster(informer) => informer.follow_only(namespaces),
            Self::Dir(_) => {}
        }
    }

    fn report(&self) -> Vec<Report> {
        let Self::Cluster(informer) = self else {
            return Vec::new();
        };
        let namespaces = informer.status().scopes.into_iter();
        let reports = namespaces.map(|scope| {
            let objects = match &scope.namespace {
                Some(namespace) => informer.objects(namespace, STALE).ok(),
                None => informer.check(None, STALE).ok().map(|()| informer.all()),
            };
            Report {
                kind: K::KIND,
                namespace: scope.namespace.unwrap_or_else(|| ALL.to_owned()),
                objects: objects.map(|objects| objects.len()),
            }
        });
        reports.collect()
    }

    fn unseen(&self) -> Option<String> {
        let Self::Cluster(informer) = self else {
            return None;
        };
        informer.status().scopes.into_iter().find_map(|scope| {
            let why = match scope.problem {
                _ if scope.is_synced => return None,
                Some(error) => Unknown::Failed(error),
                None => Unknown::NoAnswer,
            };
            let namespace = scope.namespace.as_deref().unwrap_or(ALL);
            Some(unknown::<K>(namespace, &why))
        })
    }
}

fn unknown<K: Resource>(namespace: &str, why: &Unknown) -> String {
    let why = match why {
        Unknown::NotFollowed => "it has just been added to the configuration".to_owned(),
        Unknown::Failed(error) => words::<K>(error),
        Unknown::NoAnswer | Unknown::Silent(_) => why.to_string(),
    };
    format!("{}s in namespace {namespace} are not known: {why}", K::KIND)
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
