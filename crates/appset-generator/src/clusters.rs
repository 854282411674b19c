//! The clusters and namespaces that sources read: what the configuration has, and what one request may read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gloo_types::Document;
use strict_json::{Block, Problem};

use crate::config::ConfigError;
use crate::keys::{Key, names};
use crate::matching::LabelSelector;
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

/// Returns the objects of `cluster`.
pub(crate) fn objects_of<'o, K>(
    objects: &'o ByCluster<K>,
    cluster: &str,
) -> &'o [Arc<Document<K>>] {
    objects.get(cluster).map(Vec::as_slice).unwrap_or_default()
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

/// What a profile restricts a request to, and what is known of the namespaces of clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed<'a> {
    /// Patterns of images.
    pub(crate) images: Option<&'a [String]>,
    pub(crate) clusters: Option<&'a [String]>,
    pub(crate) namespaces: Option<&'a [String]>,
    pub(crate) known: &'a Namespaces,
}

/// Everything is allowed, and no namespace is known.
impl Default for Allowed<'_> {
    fn default() -> Self {
        static NONE: Namespaces = Namespaces::NONE;
        Self {
            images: None,
            clusters: None,
            namespaces: None,
            known: &NONE,
        }
    }
}

/// The clusters and the namespaces that a source may look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    clusters: Vec<String>,
    scope: Scope,
    /// The configuration key that has the namespaces.
    key: String,
}

/// Namespaces of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Named(Vec<String>),
    /// Those with such labels, whichever there are at the time.
    Labelled(LabelSelector),
}

impl Reach {
    pub(crate) const KEYS: [Key; 3] = [
        Key::new(
            "namespaces",
            "the namespaces to look into: a list, or `\"*\"` for all",
            "required, or `namespaceSelector`",
        ),
        Key::new(
            "namespaceSelector",
            "[namespaces with labels](appset-sources.md#namespaces) instead: `labels`, `matchExpressions`",
            "",
        ),
        Key::new(
            "clusters",
            "names of the [clusters](appset-sources.md#several-clusters) to look into",
            "all",
        ),
    ];

    /// One namespace of one cluster, as `key` of the configuration says.
    pub(crate) fn one(cluster: String, namespace: String, key: String) -> Self {
        Self {
            clusters: vec![cluster],
            scope: Scope::Named(vec![namespace]),
            key,
        }
    }

    pub(crate) fn from_config(
        source: &Block<'_>,
        clusters: &Clusters,
    ) -> Result<Self, ConfigError> {
        let mut asked = source.strings("clusters")?;
        for name in &asked {
            clusters.check(name, &source.path("clusters"))?;
        }
        if asked.is_empty() {
            asked = clusters.names().cloned().collect();
        }
        let selector = source.block("namespaceSelector", &LabelSelector::KEYS)?;
        let selector = LabelSelector::read(&selector)?;
        let is_named = source.value("namespaces").is_some();
        let (scope, key) = match (is_named, selector.is_empty()) {
            (true, false) => {
                return Err(ConfigError::Key(Problem::Conflict {
                    path: source.path("namespaceSelector"),
                    other: "namespaces",
                }));
            }
            (false, false) => (Scope::Labelled(selector), "namespaceSelector"),
            (_, true) => (Scope::named(source)?, "namespaces"),
        };
        Ok(Self {
            clusters: asked,
            scope,
            key: source.path(key),
        })
    }

    /// What has to be followed. A cluster whose namespaces are selected and not known has none yet.
    pub(crate) fn places(&self, known: &Namespaces) -> Vec<Place> {
        let places = self.clusters.iter().map(|cluster| Place {
            cluster: cluster.clone(),
            namespaces: match &self.scope {
                Scope::All => vec![ALL.to_owned()],
                Scope::Named(names) => names.clone(),
                Scope::Labelled(selector) => known.selected(cluster, selector).unwrap_or_default(),
            },
        });
        places.collect()
    }

    /// Whether namespaces are selected by their labels.
    pub(crate) fn is_by_label(&self) -> bool {
        matches!(self.scope, Scope::Labelled(_))
    }

    /// The namespaces that a request is about: those that it `asked` for, or all, in the `cluster` that it asked for, or in
    /// all, as far as the profile allows. A cluster that is none of the source's has nothing.
    ///
    /// # Errors
    /// [`Failure::Forbidden`] when what is asked for is not allowed, [`Failure::NotReady`] when the namespaces of a cluster
    /// are not known.
    pub(crate) fn admit(
        &self,
        cluster: Option<&str>,
        asked: &[String],
        allowed: &Allowed<'_>,
    ) -> Result<Vec<Place>, Failure> {
        let clusters = self.clusters(cluster, allowed)?;
        let mut places = Vec::new();
        for cluster in clusters {
            let namespaces = self.namespaces(cluster, asked, allowed)?;
            if !namespaces.is_empty() {
                places.push(Place {
                    cluster: cluster.clone(),
                    namespaces,
                });
            }
        }
        let is_absent = |namespace: &&String| {
            let mut namespaces = places.iter().flat_map(|place| &place.namespaces);
            !namespaces.any(|one| one == *namespace)
        };
        if cluster.is_some_and(|cluster| !self.clusters.iter().any(|one| one == cluster)) {
            return Ok(places);
        }
        if let Some(namespace) = asked.iter().find(is_absent) {
            let remedy = if self.is_by_label() {
                format!("label it as {} says", self.key)
            } else {
                format!("have it added to {}", self.key)
            };
            return Err(Failure::Forbidden(format!(
                "namespace {namespace} is not allowed: {remedy}, and have it added to the namespaces of the profile"
            )));
        }
        // Labels come and go, so that no namespace has them is nothing found, not a mistake in the configuration.
        if places.is_empty() && !self.is_by_label() {
            return Err(Failure::Forbidden(format!(
                "no namespace is allowed by both {} and the profile",
                self.key
            )));
        }
        Ok(places)
    }

    /// All namespaces of the clusters of `places` that the profile allows: what is asked for may refer to other namespaces.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub(crate) fn around(
        &self,
        places: &[Place],
        allowed: &Allowed<'_>,
    ) -> Result<Vec<Place>, Failure> {
        let places = places.iter().map(|Place { cluster, .. }| {
            Ok(Place {
                cluster: cluster.clone(),
                namespaces: self.namespaces(cluster, &[], allowed)?,
            })
        });
        places.collect()
    }

    fn clusters(
        &self,
        asked: Option<&str>,
        allowed: &Allowed<'_>,
    ) -> Result<Vec<&String>, Failure> {
        let is_allowed = |cluster: &&String| {
            let mut clusters = allowed.clusters.iter().copied();
            clusters.all(|clusters| clusters.contains(cluster))
        };
        let is_asked = |cluster: &&String| asked.is_none_or(|asked| *cluster == asked);
        let asked = self.clusters.iter().filter(is_asked);
        let admitted: Vec<_> = asked.clone().filter(is_allowed).collect();
        match asked.clone().next() {
            Some(cluster) if admitted.is_empty() => Err(Failure::Forbidden(format!(
                "cluster {cluster} is not allowed: have it added to the clusters of the profile"
            ))),
            _ => Ok(admitted),
        }
    }

    fn namespaces(
        &self,
        cluster: &str,
        asked: &[String],
        allowed: &Allowed<'_>,
    ) -> Result<Vec<String>, Failure> {
        let labelled;
        let there = match &self.scope {
            Scope::All => None,
            Scope::Named(names) => Some(names),
            Scope::Labelled(selector) => {
                labelled = allowed.known.selected(cluster, selector)?;
                Some(&labelled)
            }
        };
        let candidates = match (asked.is_empty(), there, allowed.namespaces) {
            (false, _, _) => asked,
            (true, Some(there), _) => there,
            (true, None, Some(allowed)) => allowed,
            (true, None, None) => return Ok(vec![ALL.to_owned()]),
        };
        let is_allowed = |namespace: &&String| {
            there.is_none_or(|there| there.contains(namespace))
                && allowed
                    .namespaces
                    .is_none_or(|allowed| allowed.contains(namespace))
        };
        let mut admitted: Vec<_> = candidates.iter().filter(is_allowed).cloned().collect();
        admitted.sort();
        admitted.dedup();
        Ok(admitted)
    }
}

impl Scope {
    /// `namespaces` of a source: a list of names, or `"*"`, alone or in the list.
    fn named(source: &Block<'_>) -> Result<Self, ConfigError> {
        const KEY: &str = "namespaces";
        if source.value(KEY).is_some_and(|value| value == ALL) {
            return Ok(Self::All);
        }
        if source
            .strings(KEY)?
            .iter()
            .any(|namespace| namespace == ALL)
        {
            return Ok(Self::All);
        }
        let names = source.object_names(KEY)?;
        if names.is_empty() {
            return Err(source.empty("namespaces or namespaceSelector").into());
        }
        Ok(Self::Named(names))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn reach(source: &Value, clusters: &Clusters) -> Result<Reach, ConfigError> {
        let block = Block::root(source, "the source", &names(&Reach::KEYS)).unwrap();
        Reach::from_config(&block, clusters)
    }

    #[track_caller]
    fn check(configured: Value, asked: &[&str], allowed: Option<&[&str]>, expect: Option<&[&str]>) {
        let here = Clusters::One("here".to_owned());
        let reach = reach(&json!({ "namespaces": configured }), &here).unwrap();
        let namespaces = allowed.map(owned);
        let allowed = Allowed {
            namespaces: namespaces.as_deref(),
            ..Allowed::default()
        };
        let admitted = reach.admit(None, &owned(asked), &allowed);
        let admitted = admitted.map(|places| places.into_iter().next().unwrap().namespaces);
        assert_eq!(admitted.ok(), expect.map(owned));
    }

    #[test]
    fn a_star_is_every_namespace_that_the_profile_allows() {
        check(json!(["b", "a"]), &[], None, Some(&["a", "b"]));
        check(json!(["a"]), &["b"], None, None);
        for all in [json!("*"), json!(["*"]), json!(["*", "a"])] {
            check(all.clone(), &[], None, Some(&["*"]));
            check(all.clone(), &["b"], None, Some(&["b"]));
            check(all.clone(), &[], Some(&["b", "a"]), Some(&["a", "b"]));
            check(all, &["c"], Some(&["a"]), None);
        }
        check(json!(["a"]), &[], Some(&["b"]), None);
        // What a request asks for is a name.
        check(json!(["a"]), &["*"], None, None);
    }

    fn two() -> Clusters {
        let access = ClusterAccess::default();
        let names = ["east", "west"];
        Clusters::Several(names.map(|name| (name.to_owned(), access.clone())).into())
    }

    /// In east the namespaces a and b have the label, in west c; `known` has nothing of west unless told.
    fn namespaces(west_is_known: bool) -> Namespaces {
        let labels = |on: bool| {
            BTreeMap::from([("team".to_owned(), if on { "shop" } else { "x" }.to_owned())])
        };
        let mut known = Namespaces::default();
        let east = [("a", true), ("b", true), ("c", false)];
        known.insert(
            "east",
            Ok(east.map(|(name, on)| (name.to_owned(), labels(on))).into()),
        );
        known.insert(
            "west",
            if west_is_known {
                Ok([("c", true), ("a", false)]
                    .map(|(name, on)| (name.to_owned(), labels(on)))
                    .into())
            } else {
                Err("cluster west: no answer".to_owned())
            },
        );
        known
    }

    /// The places as `cluster/namespace`, or the refusal.
    #[track_caller]
    fn places(
        source: Value,
        cluster: Option<&str>,
        asked: &[&str],
        allowed: &Allowed<'_>,
        expect: &str,
    ) {
        let reach = reach(&source, &two()).unwrap();
        let admitted = reach.admit(cluster, &owned(asked), allowed);
        let shown = match admitted {
            Ok(places) => {
                let places = places.iter().flat_map(|place| {
                    let namespaces = place.namespaces.iter();
                    namespaces.map(|namespace| format!("{}/{namespace}", place.cluster))
                });
                places.collect::<Vec<_>>().join(" ")
            }
            Err(failure) => failure.to_string(),
        };
        assert_eq!(shown, expect);
    }

    #[test]
    fn several_clusters_are_looked_into_unless_one_is_asked_for() {
        let all = || json!({"namespaces": ["a", "b"]});
        let any = Allowed::default();
        places(all(), None, &[], &any, "east/a east/b west/a west/b");
        places(all(), Some("west"), &["a"], &any, "west/a");
        places(all(), Some("south"), &["a"], &any, "");
        let east = || json!({"namespaces": "*", "clusters": ["east"]});
        places(east(), None, &[], &any, "east/*");
        places(east(), Some("west"), &[], &any, "");
        let of_west = owned(&["west"]);
        let only_west = Allowed {
            clusters: Some(&of_west),
            ..Allowed::default()
        };
        places(all(), None, &[], &only_west, "west/a west/b");
        places(
            all(),
            Some("east"),
            &[],
            &only_west,
            "cluster east is not allowed: have it added to the clusters of the profile",
        );
    }

    #[test]
    fn namespaces_are_selected_by_label_in_each_cluster() {
        let shop = || json!({"namespaceSelector": {"labels": {"team": "shop"}}});
        let (all, only_east) = (namespaces(true), namespaces(false));
        let any = Allowed {
            known: &all,
            ..Allowed::default()
        };
        places(shop(), None, &[], &any, "east/a east/b west/c");
        places(shop(), None, &["a"], &any, "east/a");
        places(
            shop(),
            Some("west"),
            &["a"],
            &any,
            "namespace a is not allowed: label it as namespaceSelector says, and have it added to the namespaces of the profile",
        );
        let none = json!({"namespaceSelector": {"labels": {"team": "none"}}});
        places(none, None, &[], &any, "");
        // One cluster that is not known stops the answer, unless another one is asked for.
        let west_is_silent = Allowed {
            known: &only_east,
            ..Allowed::default()
        };
        places(
            shop(),
            None,
            &[],
            &west_is_silent,
            "cluster west: no answer",
        );
        places(shop(), Some("east"), &[], &west_is_silent, "east/a east/b");
    }

    #[test]
    fn what_an_administrator_may_get_wrong() {
        for (source, expect) in [
            (
                json!({"namespaces": ["a"], "namespaceSelector": {"labels": {"a": "b"}}}),
                "namespaceSelector contradicts namespaces",
            ),
            (
                json!({"namespaces": "a"}),
                "namespaces must be a list, found a string",
            ),
            (
                json!({"namespaces": "*", "clusters": ["south"]}),
                "clusters has south, which is no cluster here: it is one of east, west",
            ),
        ] {
            let error = reach(&source, &two()).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
