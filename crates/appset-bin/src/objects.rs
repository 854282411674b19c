//! The objects that sources look at, of every kind: followed in a cluster, or read from the files of a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use appset_generator::{Failure, Rollout, Watched};
use gloo_types::{Document, KubernetesCluster, Resource, RouteTable, Workspace};
use route_store::{DirRouteStore, KubeAccess, KubeRouteStore};

use self::informer::Informer;
use crate::Flags;

mod informer;

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
pub(crate) enum Kind<K> {
    /// Read anew on every call.
    Dir(DirRouteStore),
    Cluster {
        store: Arc<KubeRouteStore>,
        /// By namespace.
        informers: Mutex<BTreeMap<String, Informer<K>>>,
    },
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
            None => Self::Cluster {
                store: Arc::clone(store),
                informers: Mutex::default(),
            },
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
                objects.retain(|object| namespaces.contains(&object.key().namespace));
                Ok(objects.into_iter().map(Arc::new).collect())
            }
            Self::Cluster { informers, .. } => {
                let informers = lock(informers);
                let mut all = Vec::new();
                for namespace in namespaces {
                    let objects = match informers.get(namespace) {
                        Some(informer) => informer.objects(Instant::now()),
                        None => Err("it has just been added to the configuration".to_owned()),
                    };
                    all.extend(
                        objects.map_err(|why| Failure::NotReady(unknown::<K>(namespace, &why)))?,
                    );
                }
                Ok(all)
            }
        }
    }

    fn follow(&self, namespaces: &BTreeSet<String>) {
        let Self::Cluster { store, informers } = self else {
            return;
        };
        let mut informers = lock(informers);
        informers
            .retain(|namespace, informer| namespaces.contains(namespace) && informer.is_running());
        for namespace in namespaces {
            informers
                .entry(namespace.clone())
                .or_insert_with(|| Informer::start(store, namespace));
        }
    }

    fn report(&self) -> Vec<Report> {
        let Self::Cluster { informers, .. } = self else {
            return Vec::new();
        };
        let informers = lock(informers);
        let reports = informers.iter().map(|(namespace, informer)| Report {
            kind: K::KIND,
            namespace: namespace.clone(),
            objects: informer
                .objects(Instant::now())
                .ok()
                .map(|objects| objects.len()),
        });
        reports.collect()
    }

    fn unseen(&self) -> Option<String> {
        let Self::Cluster { informers, .. } = self else {
            return None;
        };
        let informers = lock(informers);
        informers.iter().find_map(|(namespace, informer)| {
            let why = informer.unseen()?;
            Some(unknown::<K>(namespace, &why))
        })
    }
}

fn unknown<K: Resource>(namespace: &str, why: &str) -> String {
    format!("{}s in namespace {namespace} are not known: {why}", K::KIND)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
