//! The clusters and namespaces whose objects a source reads: all that the configuration names, and those of one request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gloo_types::{Document, Resource};
use serde_json::{Value, json};
use strict_json::{Block, Problem};

use crate::error::{ConfigError, joined};
use crate::keys::{blank, has_blanks, text};
use crate::matching::{LabelSelector, Labels};
use crate::{Failure, ParameterSet};

/// Argo CD's name of the cluster in which it runs.
const IN_CLUSTER: &str = "in-cluster";
/// Stands for all namespaces.
pub(crate) const ALL: &str = "*";

/// The clusters whose objects are read, by Argo CD's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// One cluster, which the flags of the program select.
    One(String),
    /// The clusters under `clusters` of the configuration.
    Several(BTreeMap<String, ClusterAccess>),
}

/// A context of a kubeconfig, with which a cluster is reached. Unset fields inherit from the flags of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAccess {
    /// The path of the kubeconfig.
    pub kubeconfig: Option<String>,
    /// The context in the kubeconfig.
    pub context: Option<String>,
}

/// Namespaces of one cluster that a request reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Argo CD's name of the cluster.
    pub cluster: String,
    /// The names of the namespaces. A single `*` stands for all namespaces.
    pub namespaces: Vec<String>,
}

/// Says before each object whether the computation may go on. An `Err` ends it, for example since nobody waits for its outcome.
pub type GoOn<'a> = &'a dyn Fn() -> Result<(), Failure>;

/// The objects of a kind, by cluster.
pub type ByCluster<K> = BTreeMap<String, Vec<Arc<Document<K>>>>;

/// The namespaces of each cluster with their labels, or the reason why they are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(BTreeMap<String, Result<NamespaceLabels, String>>);

/// The labels of each namespace of a cluster, by name.
pub type NamespaceLabels = BTreeMap<String, Labels>;

/// The namespaces in which sources read objects, by kind. An answer is computed from all objects of a kind in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Namespaces with RouteTables.
    pub route_tables: BTreeSet<String>,
    /// Namespaces with Rollouts.
    pub rollouts: BTreeSet<String>,
    /// Namespaces with Workspaces.
    pub workspaces: BTreeSet<String>,
    /// Namespaces with KubernetesClusters.
    pub clusters: BTreeSet<String>,
    /// Whether a source selects namespaces by their labels, so that the namespaces of the cluster are read.
    pub namespaces: bool,
}

impl Clusters {
    pub(crate) fn from_config(root: &Block<'_>) -> Result<Self, ConfigError> {
        let cluster = text(root, "cluster")?;
        if root.value("clusters").is_none() {
            return Ok(Self::One(cluster.unwrap_or(IN_CLUSTER).to_owned()));
        }
        if cluster.is_some() {
            return Err(root.conflict("cluster", "clusters").into());
        }
        let mut several = BTreeMap::new();
        for (name, block) in root.named_blocks("clusters", ClusterAccess::KEYS)? {
            if has_blanks(name) {
                return Err(blank(root.path("clusters"), name).into());
            }
            several.insert(name.to_owned(), ClusterAccess::from_config(&block)?);
        }
        if several.is_empty() {
            return Err(ConfigError::NoCluster);
        }
        Ok(Self::Several(several))
    }

    /// Returns the names of the clusters.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let (one, several) = match self {
            Self::One(name) => (Some(name), None),
            Self::Several(several) => (None, Some(several.keys())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Checks that `name`, at `path` of the configuration, is one of the clusters.
    pub(crate) fn check(&self, name: &str, path: String) -> Result<(), ConfigError> {
        if self.names().any(|known| known == name) {
            return Ok(());
        }
        let (name, known) = (name.to_owned(), joined(self.names()));
        Err(ConfigError::Unknown(path, "cluster", name, known))
    }
}

impl ClusterAccess {
    pub(crate) const KEYS: &[&str] = &["kubeconfig", "context"];

    pub(crate) fn from_config(block: &Block<'_>) -> Result<Self, Problem> {
        Ok(Self {
            kubeconfig: text(block, "kubeconfig")?.map(str::to_owned),
            context: text(block, "context")?.map(str::to_owned),
        })
    }
}

/// Returns the objects of `cluster`.
pub(crate) fn objects_of<'o, K>(all: &'o ByCluster<K>, cluster: &str) -> &'o [Arc<Document<K>>] {
    all.get(cluster).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the only object of `cluster`, called `a`, with these labels.
pub(crate) fn example<K: Resource>(
    cluster: &str,
    labels: &Value,
    spec: Value,
) -> Result<ByCluster<K>, Failure> {
    let metadata = json!({"name": "a", "namespace": "a", "labels": labels});
    let object = json!({"kind": K::KIND, "metadata": metadata, "spec": spec});
    let object = Document::from_value(object).map_err(Failure::unreadable)?;
    Ok([(cluster.to_owned(), vec![Arc::new(object)])].into())
}

/// The sets of a source, by their keys.
pub(crate) type Sets = BTreeMap<String, ParameterSet>;

/// Returns the sets that `sets_of` finds in each of `clusters`, in the order of their keys.
///
/// If there are several clusters, a failure names its cluster.
pub(crate) fn in_each<'c>(
    clusters: impl ExactSizeIterator<Item = &'c String>,
    sets_of: impl Fn(&str) -> Result<Sets, Failure>,
) -> Result<Vec<ParameterSet>, Failure> {
    let are_several = clusters.len() > 1;
    let mut sets = Sets::new();
    for cluster in clusters {
        sets.extend(sets_of(cluster).map_err(|failure| match are_several {
            true => failure.in_cluster(cluster),
            false => failure,
        })?);
    }
    Ok(sets.into_values().collect())
}

impl Place {
    /// Whether the place includes `namespace`.
    #[must_use]
    pub fn has(&self, namespace: &str) -> bool {
        let mut namespaces = self.namespaces.iter();
        namespaces.any(|one| one == ALL || one == namespace)
    }

    /// Whether the place is all namespaces of the cluster.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace == ALL)
    }
}

impl Namespaces {
    /// The value in which no namespace is known.
    pub(crate) const NONE: Self = Self(BTreeMap::new());

    /// Sets the namespaces of a cluster, or the reason why they are unknown.
    pub fn insert(&mut self, cluster: &str, known: Result<NamespaceLabels, String>) {
        self.0.insert(cluster.to_owned(), known);
    }

    /// Returns the names of the namespaces that `selector` matches.
    ///
    /// # Errors
    /// Returns [`Failure::NotReady`] if the namespaces of the cluster are unknown, since an answer without some of them would
    /// delete Applications.
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

/// What a profile allows to a request, and the known namespaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed<'a> {
    /// Patterns of images. Without a list all are allowed, as for the other fields.
    pub(crate) images: Option<&'a [String]>,
    pub(crate) clusters: Option<&'a [String]>,
    pub(crate) namespaces: Option<&'a [String]>,
    pub(crate) known: &'a Namespaces,
}

/// The clusters and the namespaces that a source may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    clusters: Vec<String>,
    scope: Scope,
    /// The key of the configuration that has the namespaces, for messages.
    key: String,
}

/// Which namespaces of a cluster a source may read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// Namespaces, or only [`ALL`].
    Named(Vec<String>),
    /// The namespaces whose labels match at the time of a request.
    Labelled(LabelSelector),
}

impl Reach {
    pub(crate) const KEYS: [&str; 3] = ["namespaces", "namespaceSelector", "clusters"];

    /// Makes a reach of one namespace of one cluster, which `key` of the configuration names.
    pub(crate) fn one(cluster: String, namespace: String, key: String) -> Self {
        Self {
            clusters: vec![cluster],
            scope: Scope::Named(vec![namespace]),
            key,
        }
    }

    pub(crate) fn from_config(source: &Block<'_>, known: &Clusters) -> Result<Self, ConfigError> {
        let asked = source.optional_strings("clusters")?;
        let asked = asked.unwrap_or_else(|| known.names().cloned().collect());
        if asked.is_empty() {
            let (path, needed) = (source.path("clusters"), "the name of a cluster");
            return Err(Problem::Empty { path, needed }.into());
        }
        for name in &asked {
            known.check(name, source.path("clusters"))?;
        }
        let selector = source.optional_block("namespaceSelector", &LabelSelector::KEYS)?;
        let (scope, key) = match (selector, source.value("namespaces")) {
            (None, _) => (Scope::named(source)?, "namespaces"),
            (Some(_), Some(_)) => {
                return Err(source.conflict("namespaceSelector", "namespaces").into());
            }
            (Some(block), None) => {
                let selector = LabelSelector::read(&block)?;
                if selector.is_empty() {
                    return Err(block.empty("labels or matchExpressions").into());
                }
                (Scope::Labelled(selector), "namespaceSelector")
            }
        };
        Ok(Self {
            clusters: asked,
            scope,
            key: source.path(key),
        })
    }

    /// Returns the namespaces to watch. A cluster has none while its namespaces are selected by label and unknown.
    pub(crate) fn places(&self, known: &Namespaces) -> Vec<Place> {
        let places = self.clusters.iter().map(|cluster| Place {
            cluster: cluster.clone(),
            namespaces: match &self.scope {
                Scope::Named(names) => names.clone(),
                Scope::Labelled(selector) => known.selected(cluster, selector).unwrap_or_default(),
            },
        });
        places.collect()
    }

    /// Whether namespaces are selected by label.
    pub(crate) fn is_by_label(&self) -> bool {
        matches!(self.scope, Scope::Labelled(_))
    }

    /// Returns the namespaces that a request reads.
    ///
    /// These are the namespaces in `asked`, or all if it is empty, of the given `cluster`, or of all clusters. The source and
    /// the profile restrict both. The result is empty if `cluster` is not a cluster of this source.
    ///
    /// # Errors
    /// Returns [`Failure::Forbidden`] if the request names a cluster or namespace that is not allowed, and
    /// [`Failure::NotReady`] if the namespaces of a cluster are unknown.
    pub(crate) fn admit(
        &self,
        cluster: Option<&str>,
        asked: &[String],
        allowed: &Allowed<'_>,
    ) -> Result<Vec<Place>, Failure> {
        let clusters = self.clusters(cluster, allowed)?;
        let mut places = self.each(clusters.into_iter(), asked, allowed)?;
        places.retain(|place| !place.namespaces.is_empty());
        // The list of a request may be long, as may be that of a profile.
        let admitted: BTreeSet<_> = places.iter().flat_map(|place| &place.namespaces).collect();
        if cluster.is_some_and(|cluster| !self.clusters.iter().any(|one| one == cluster)) {
            return Ok(places);
        }
        if let Some(namespace) = asked.iter().find(|one| !admitted.contains(one)) {
            let remedy = match self.is_by_label() {
                true => "give it the labels of",
                false => "have it added to",
            };
            return Err(Failure::Forbidden(format!(
                "namespace {namespace} is not allowed: {remedy} {}, and have it added to the namespaces of the profile",
                self.key
            )));
        }
        // Labels change, so a selector that matches no namespace finds nothing. It is not an error of the configuration.
        if places.is_empty() && !self.is_by_label() {
            return Err(Failure::Forbidden(format!(
                "no namespace is allowed by both {} and the profile",
                self.key
            )));
        }
        Ok(places)
    }

    /// Returns all allowed namespaces of the clusters in `places`, because objects in `places` may refer to objects in them.
    ///
    /// # Errors
    /// Returns `Err` in the same cases as [`Self::admit`].
    pub(crate) fn around(
        &self,
        places: &[Place],
        allowed: &Allowed<'_>,
    ) -> Result<Vec<Place>, Failure> {
        self.each(places.iter().map(|place| &place.cluster), &[], allowed)
    }

    fn each<'c>(
        &self,
        clusters: impl Iterator<Item = &'c String>,
        asked: &[String],
        allowed: &Allowed<'_>,
    ) -> Result<Vec<Place>, Failure> {
        let places = clusters.map(|cluster| {
            Ok(Place {
                cluster: cluster.clone(),
                namespaces: self.namespaces(cluster, asked, allowed)?,
            })
        });
        places.collect()
    }

    fn clusters(
        &self,
        asked: Option<&str>,
        allowed: &Allowed<'_>,
    ) -> Result<Vec<&String>, Failure> {
        let is_asked = |cluster: &&String| asked.is_none_or(|asked| *cluster == asked);
        let asked: Vec<_> = self.clusters.iter().filter(is_asked).collect();
        let mut admitted = asked.clone();
        admitted.retain(|one| allowed.clusters.is_none_or(|all| all.contains(one)));
        match asked.first() {
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
        let there = match &self.scope {
            Scope::Named(names) => names,
            Scope::Labelled(selector) => &allowed.known.selected(cluster, selector)?,
        };
        let there = Some(there.as_slice()).filter(|it| *it != [ALL]);
        let asked = Some(asked).filter(|it| !it.is_empty());
        let lists = [asked, there, allowed.namespaces].into_iter().flatten();
        // Each list may be long.
        let sets = lists.map(|names| names.iter().cloned().collect::<BTreeSet<_>>());
        let admitted = sets.reduce(|one, other| &one & &other);
        Ok(admitted.map_or_else(|| vec![ALL.to_owned()], Vec::from_iter))
    }
}

impl Scope {
    /// Reads `namespaces` of a source: a list of names, or `"*"`, which may also be in the list.
    fn named(source: &Block<'_>) -> Result<Self, ConfigError> {
        let is_star = source.value("namespaces").is_some_and(|value| value == ALL);
        if is_star || source.strings("namespaces")?.iter().any(|one| one == ALL) {
            return Ok(Self::Named(vec![ALL.to_owned()]));
        }
        let names = source.object_names("namespaces")?;
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

    /// Allows everything, and knows no namespace.
    const ANY: Allowed<'static> = Allowed {
        images: None,
        clusters: None,
        namespaces: None,
        known: &Namespaces::NONE,
    };

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn reach(source: &Value, clusters: &Clusters) -> Result<Reach, ConfigError> {
        let block = Block::root(source, "the source", &Reach::KEYS).unwrap();
        Reach::from_config(&block, clusters)
    }

    #[track_caller]
    fn check(configured: Value, asked: &[&str], allowed: Option<&[&str]>, expect: Option<&[&str]>) {
        let here = Clusters::One("here".to_owned());
        let reach = reach(&json!({ "namespaces": configured }), &here).unwrap();
        let namespaces = allowed.map(owned);
        let allowed = Allowed {
            namespaces: namespaces.as_deref(),
            ..ANY
        };
        let admitted = reach.admit(None, &owned(asked), &allowed);
        let admitted = admitted.map(|places| places.into_iter().next().unwrap().namespaces);
        assert_eq!(admitted.ok(), expect.map(owned));
    }

    #[test]
    fn a_star_means_every_namespace_that_the_profile_allows() {
        check(json!(["b", "a"]), &[], None, Some(&["a", "b"]));
        check(json!(["a"]), &["b"], None, None);
        for all in [json!("*"), json!(["*"]), json!(["*", "a"])] {
            check(all.clone(), &[], None, Some(&["*"]));
            check(all.clone(), &["b"], None, Some(&["b"]));
            check(all.clone(), &[], Some(&["b", "a"]), Some(&["a", "b"]));
            check(all, &["c"], Some(&["a"]), None);
        }
        check(json!(["a"]), &[], Some(&["b"]), None);
        // A request must send names, not patterns.
        check(json!(["a"]), &["*"], None, None);
    }

    fn two() -> Clusters {
        let access = ClusterAccess::default();
        let names = ["east", "west"];
        Clusters::Several(names.map(|name| (name.to_owned(), access.clone())).into())
    }

    /// In east the namespaces a and b have the label, in west c. The namespaces of west are unknown if `west_is_known` is false.
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

    /// Checks the admitted places, each as `cluster/namespace`, or the error.
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
    fn all_clusters_are_read_unless_the_request_names_one() {
        let all = || json!({"namespaces": ["a", "b"]});
        let any = ANY;
        places(all(), None, &[], &any, "east/a east/b west/a west/b");
        places(all(), Some("west"), &["a"], &any, "west/a");
        places(all(), Some("south"), &["a"], &any, "");
        let east = || json!({"namespaces": "*", "clusters": ["east"]});
        places(east(), None, &[], &any, "east/*");
        places(east(), Some("west"), &[], &any, "");
        let of_west = owned(&["west"]);
        let only_west = Allowed {
            clusters: Some(&of_west),
            ..ANY
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
        let any = Allowed { known: &all, ..ANY };
        places(shop(), None, &[], &any, "east/a east/b west/c");
        places(shop(), None, &["a"], &any, "east/a");
        places(
            shop(),
            Some("west"),
            &["a"],
            &any,
            "namespace a is not allowed: give it the labels of namespaceSelector, and have it added to the namespaces of the profile",
        );
        let none = json!({"namespaceSelector": {"labels": {"team": "none"}}});
        places(none, None, &[], &any, "");
        // An unknown cluster fails the call, unless the request names another cluster.
        let west_is_silent = Allowed {
            known: &only_east,
            ..ANY
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
    fn invalid_configurations_are_refused() {
        for (source, expect) in [
            (
                json!({"namespaces": ["a"], "namespaceSelector": {"labels": {"a": "b"}}}),
                "namespaceSelector contradicts namespaces",
            ),
            (
                json!({"namespaces": "*", "clusters": []}),
                "clusters is empty",
            ),
            (
                json!({"namespaceSelector": {}}),
                "namespaceSelector is empty",
            ),
            (
                json!({"namespaceSelector": {"labels": {"a": ""}}}),
                "namespaceSelector.labels.a is \"\"",
            ),
            (
                json!({"namespaces": "a"}),
                "namespaces must be a list, found a string",
            ),
            (
                json!({"namespaces": "*", "clusters": ["south"]}),
                "clusters names the unknown cluster south: use one of east, west",
            ),
        ] {
            let error = reach(&source, &two()).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
