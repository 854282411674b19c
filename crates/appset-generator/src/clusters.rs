//! The clusters whose objects sources look at, and what is known of their namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gloo_types::Document;
use strict_json::{Block, Problem};

use crate::error::ConfigError;
use crate::keys::{Key, names};
use crate::labels::LabelSelector;
use crate::{Failure, ParameterSet};

/// What Argo CD calls the cluster it runs in.
const IN_CLUSTER: &str = "in-cluster";
/// Stands for all namespaces.
pub(crate) const ALL: &str = "*";

/// The clusters whose objects are read, under Argo CD's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// One, which the flags of the program lead to.
    One(String),
    /// Those under `clusters` of the configuration.
    Several(BTreeMap<String, ClusterAccess>),
}

/// How to reach a cluster: a context of a kubeconfig. What is unset is as the flags of the program say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAccess {
    /// Path of the kubeconfig.
    pub kubeconfig: Option<String>,
    /// Context within it.
    pub context: Option<String>,
}

/// Namespaces of a cluster that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Argo CD's name of the cluster.
    pub cluster: String,
    /// Names of namespaces; `*` alone stands for all of them.
    pub namespaces: Vec<String>,
}

/// The objects of a kind, by cluster.
pub type ByCluster<K> = BTreeMap<String, Vec<Arc<Document<K>>>>;

/// The namespaces of clusters, with their labels, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(BTreeMap<String, Result<NamespaceLabels, String>>);

/// The labels of each namespace of a cluster, by name.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// The namespaces whose objects sources look into, by kind. An answer takes all objects of a kind in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Those of RouteTables.
    pub route_tables: BTreeSet<String>,
    /// Those of Rollouts.
    pub rollouts: BTreeSet<String>,
    /// Those of Workspaces.
    pub workspaces: BTreeSet<String>,
    /// Those of KubernetesClusters.
    pub clusters: BTreeSet<String>,
    /// Whether namespaces are selected by their labels, so that all of them have to be known.
    pub namespaces: bool,
}

impl Clusters {
    pub(crate) fn from_config(root: &Block<'_>) -> Result<Self, ConfigError> {
        let cluster = root.string("cluster")?;
        if root.value("clusters").is_none() {
            return Ok(Self::One(cluster.unwrap_or(IN_CLUSTER).to_owned()));
        }
        if cluster.is_some() {
            return Err(ConfigError::Key(Problem::Conflict {
                path: "cluster".to_owned(),
                other: "clusters",
            }));
        }
        let mut several = BTreeMap::new();
        for (name, block) in root.named_blocks("clusters", &names(&ClusterAccess::KEYS))? {
            several.insert(name.to_owned(), ClusterAccess::from_config(&block)?);
        }
        if several.is_empty() {
            return Err(ConfigError::NoCluster);
        }
        Ok(Self::Several(several))
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let (one, several) = match self {
            Self::One(name) => (Some(name), None),
            Self::Several(several) => (None, Some(several.keys())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Checks that `name`, found at `path` of the configuration, is one of them.
    pub(crate) fn check(&self, name: &str, path: &str) -> Result<(), ConfigError> {
        if self.names().any(|known| known == name) {
            return Ok(());
        }
        let known: Vec<_> = self.names().map(String::as_str).collect();
        Err(ConfigError::UnknownCluster {
            path: path.to_owned(),
            name: name.to_owned(),
            known: known.join(", "),
        })
    }
}

impl ClusterAccess {
    pub(crate) const KEYS: [Key; 2] = [
        Key::new(
            "kubeconfig",
            "path of a kubeconfig for the cluster called `<name>` by Argo CD",
            "as `--kubeconfig` says",
        ),
        Key::new(
            "context",
            "context within the kubeconfig",
            "its current one, or as `--context` says",
        ),
    ];

    pub(crate) fn from_config(block: &Block<'_>) -> Result<Self, Problem> {
        Ok(Self {
            kubeconfig: block.string("kubeconfig")?.map(str::to_owned),
            context: block.string("context")?.map(str::to_owned),
        })
    }
}

/// The sets of all `clusters`, each as `sets_of` finds them, by key. A failure names its cluster where there are several.
pub(crate) fn in_each<'c>(
    clusters: impl ExactSizeIterator<Item = &'c String>,
    sets_of: impl Fn(&str) -> Result<BTreeMap<String, ParameterSet>, Failure>,
) -> Result<Vec<ParameterSet>, Failure> {
    let are_several = clusters.len() > 1;
    let mut sets = BTreeMap::new();
    for cluster in clusters {
        sets.extend(sets_of(cluster).map_err(|failure| {
            if are_several {
                failure.in_cluster(cluster)
            } else {
                failure
            }
        })?);
    }
    Ok(sets.into_values().collect())
}

impl Place {
    /// Whether the objects of a namespace belong to it.
    #[must_use]
    pub fn has(&self, namespace: &str) -> bool {
        let mut namespaces = self.namespaces.iter();
        namespaces.any(|one| one == ALL || one == namespace)
    }

    /// Whether it is all namespaces of the cluster.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace == ALL)
    }
}

impl Namespaces {
    /// Nothing is known.
    pub(crate) const NONE: Self = Self(BTreeMap::new());

    /// Adds what is known of the namespaces of a cluster: their labels, or why they are not known.
    pub fn insert(&mut self, cluster: &str, known: Result<NamespaceLabels, String>) {
        self.0.insert(cluster.to_owned(), known);
    }

    /// The names of those that `selector` selects.
    ///
    /// # Errors
    /// [`Failure::NotReady`] if they are not known: an answer without some of them would delete Applications.
    pub(crate) fn selected(
        &self,
        cluster: &str,
        selector: &LabelSelector,
    ) -> Result<Vec<String>, Failure> {
        match self.0.get(cluster) {
            Some(Ok(namespaces)) => {
                let selected = namespaces.iter().filter(|(_, it)| selector.matches(it));
                Ok(selected.map(|(name, _)| name.clone()).collect())
            }
            Some(Err(why)) => Err(Failure::NotReady(why.clone())),
            None => Err(Failure::NotReady(format!(
                "the namespaces of cluster {cluster} are not known: it has just been added to the configuration"
            ))),
        }
    }
}
