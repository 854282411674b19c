//! The source that makes a set of every cluster of every Workspace, or of every namespace in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gloo_types::{
    ClusterSelector, Document, KubernetesCluster, NamespaceSelector, ObjectKey, Workspace,
};
use serde_json::Value;
use strict_json::Block;

use crate::clusters::{ByCluster, Clusters, Place};
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::keys::Key;
use crate::labels::{LabelSelector, has_all};
use crate::output::Output;
use crate::parameters::flag;
use crate::pattern::{is_pattern, matches};
use crate::reach::{Allowed, Reach};
use crate::{Failure, Field, ParameterSet};

/// The name by which requests choose this source.
pub(crate) const NAME: &str = "gloo-workspaces";
/// The source's key at the top.
const OWN: &str = "gloo";
/// The default namespace of Workspaces and KubernetesClusters in Gloo's management cluster.
const NAMESPACE: &str = "gloo-mesh";

/// Where Workspaces are, and what Argo CD calls their clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlooWorkspaces {
    reach: Reach,
    /// Gloo's names of clusters, each with Argo CD's name where that is another one.
    cluster_map: BTreeMap<String, String>,
}

/// The Workspaces of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceQuery {
    /// The namespace in which Workspaces and KubernetesClusters are.
    place: Place,
    /// Names or patterns; all without any.
    workspaces: Vec<String>,
    selector: LabelSelector,
    /// Argo CD's name of the only cluster that is asked for.
    cluster: Option<String>,
    cluster_map: BTreeMap<String, String>,
    by_namespace: bool,
}

/// What a Workspace has of one cluster.
#[derive(Default)]
struct Share<'a> {
    /// The labels of the cluster, if it is registered.
    labels: Option<&'a BTreeMap<String, String>>,
    is_config_read: bool,
    /// Names or patterns of namespaces, each with whether configuration is read from there.
    namespaces: BTreeMap<&'a str, bool>,
}

impl GlooWorkspaces {
    pub(crate) const KEYS: &[Key] = &[
        Key::new(
            "namespace",
            "where Workspaces and KubernetesClusters are",
            "`gloo-mesh`",
        ),
        Key::new(
            "cluster",
            "the management cluster, one of `clusters`",
            "the only one there is",
        ),
        Key::new(
            "clusterMap",
            "Argo CD's names of clusters that Gloo calls otherwise: `{gloo-name: argo-cd-name}`",
            "",
        ),
    ];
    pub(crate) const PARAMETERS: &[Key] = &[
        Key::new("workspaces", "names, or patterns such as `team-*`", "all"),
        Key::new(
            "selector",
            "`labels` or `matchExpressions` of Workspaces",
            "all",
        ),
        Key::new("cluster", "only this cluster, under Argo CD's name", "all"),
        Key::new(
            "expandNamespaces",
            "`true`: a set for each namespace of each cluster",
            "`false`",
        ),
        Key::new("outputKey", "another name for the key `gloo`", "`gloo`"),
    ];

    pub(crate) fn from_config(
        source: &Block<'_>,
        clusters: &Clusters,
    ) -> Result<Self, ConfigError> {
        let mut names = clusters.names();
        let cluster = match (source.string("cluster")?, names.next(), names.next()) {
            (Some(cluster), _, _) => cluster,
            (None, Some(only), None) => only,
            (None, _, _) => {
                let names: Vec<_> = clusters.names().map(String::as_str).collect();
                return Err(ConfigError::NoManagementCluster(names.join(", ")));
            }
        };
        clusters.check(cluster, &source.path("cluster"))?;
        let namespace = source.object_name("namespace")?;
        let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        Ok(Self {
            reach: Reach::one(cluster.to_owned(), namespace, source.path("namespace")),
            cluster_map: source.texts("clusterMap")?,
        })
    }

    /// Where Workspaces and KubernetesClusters are.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// What a request to this source asks for.
    pub(crate) fn query(
        &self,
        given: &Value,
        allowed: &Allowed<'_>,
    ) -> Result<(WorkspaceQuery, Output), Failure> {
        let parameters = Output::parameters(given, Self::PARAMETERS)?;
        let places = self.reach.admit(None, &[], allowed)?;
        let query = WorkspaceQuery {
            // There is one, or the profile does not allow it, which is refused.
            place: places.into_iter().next().ok_or(Failure::Internal)?,
            workspaces: parameters.strings("workspaces")?,
            selector: LabelSelector::read(&parameters.block("selector", &LabelSelector::KEYS)?)?,
            cluster: parameters.string("cluster")?.map(str::to_owned),
            cluster_map: self.cluster_map.clone(),
            by_namespace: flag(&parameters, "expandNamespaces")?.unwrap_or_default(),
        };
        Ok((query, Output::read(NAME, &parameters, Some(OWN), false)?))
    }
}

impl WorkspaceQuery {
    /// Where Workspaces and KubernetesClusters have to be known.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The sets, from all `workspaces` and `clusters` of [`place`](Self::place), which are in one cluster.
    ///
    /// # Errors
    /// When a Workspace that is selected by name is not there, as an answer without it would delete its Applications, or
    /// when one contradicts the API.
    pub fn sets(
        &self,
        workspaces: &ByCluster<Workspace>,
        clusters: &ByCluster<KubernetesCluster>,
    ) -> Result<Vec<ParameterSet>, Failure> {
        let at = &self.place.cluster;
        let workspaces = workspaces.get(at).map(Vec::as_slice).unwrap_or_default();
        let clusters = clusters.get(at).map(Vec::as_slice).unwrap_or_default();
        let is_absent = |name: &&String| {
            !is_pattern(name) && !workspaces.iter().any(|one| one.key().name == **name)
        };
        if let Some(name) = self.workspaces.iter().find(is_absent) {
            let key = ObjectKey::new(self.place.namespaces.join(","), name);
            return Err(Failure::MissingWorkspace(key));
        }
        let mut sets = BTreeMap::new();
        for workspace in workspaces.iter().filter(|one| self.selects(one)) {
            let spec = workspace.spec().map_err(Failure::unreadable)?;
            let name = &workspace.key().name;
            for (cluster, share) in shares(&spec.workload_clusters, clusters) {
                let known_as = self
                    .cluster_map
                    .get(cluster)
                    .map_or(cluster, String::as_str);
                if self.cluster.as_ref().is_some_and(|asked| asked != known_as) {
                    continue;
                }
                for (identity, fields) in share.rows([name, cluster], self.by_namespace) {
                    let fields = fields
                        .into_iter()
                        .chain(identity.fields())
                        .chain([
                            ("workspace", name.as_str().into()),
                            ("cluster", known_as.into()),
                            ("glooCluster", cluster.into()),
                        ])
                        .collect();
                    let mut set = ParameterSet::default();
                    set.insert(OWN, fields)?;
                    sets.insert(identity.key, set);
                }
            }
        }
        Ok(sets.into_values().collect())
    }

    fn selects(&self, workspace: &Document<Workspace>) -> bool {
        let name = &workspace.key().name;
        let named = self.workspaces.is_empty()
            || self.workspaces.iter().any(|pattern| matches(pattern, name));
        named && self.selector.matches(workspace.labels())
    }
}

impl Share<'_> {
    /// What sets are made of: the share as a whole, or each of its namespaces.
    fn rows(
        &self,
        [workspace, cluster]: [&str; 2],
        by_namespace: bool,
    ) -> Vec<(Identity, Vec<(&'static str, Field)>)> {
        let common = || {
            let labels = self.labels.map_or_else(|| Field::from([]), Field::texts);
            vec![
                ("clusterLabels", labels),
                ("registered", self.labels.is_some().into()),
            ]
        };
        if by_namespace {
            let rows = self.namespaces.iter().map(|(namespace, is_config_read)| {
                let mut fields = common();
                fields.extend([
                    ("namespace", (*namespace).into()),
                    ("wildcard", is_pattern(namespace).into()),
                    ("configEnabled", (*is_config_read).into()),
                ]);
                (Identity::of(&[workspace, cluster, namespace]), fields)
            });
            return rows.collect();
        }
        let names: Vec<&str> = self.namespaces.keys().copied().collect();
        let mut fields = common();
        fields.extend([
            ("wildcard", names.iter().any(|name| is_pattern(name)).into()),
            ("configEnabled", self.is_config_read.into()),
            ("namespacesCsv", names.join(",").into()),
            (
                "namespaces",
                Field::List(names.into_iter().map(Into::into).collect()),
            ),
        ]);
        vec![(Identity::of(&[workspace, cluster]), fields)]
    }
}

/// What a Workspace has of each cluster, by Gloo's name of the cluster.
///
/// A cluster that is named has a row even if it is not registered: the row must not come and go with the registration.
fn shares<'a>(
    selectors: &'a [ClusterSelector],
    clusters: &'a [Arc<Document<KubernetesCluster>>],
) -> BTreeMap<&'a str, Share<'a>> {
    let mut shares = BTreeMap::<&str, Share<'_>>::new();
    for selector in selectors {
        let registered = clusters.iter().filter(|cluster| {
            let named = selector.name.is_empty() || matches(&selector.name, &cluster.key().name);
            named && has_all(cluster.labels(), &selector.selector)
        });
        let mut found: Vec<_> = registered
            .map(|cluster| (cluster.key().name.as_str(), Some(cluster.labels())))
            .collect();
        let is_name = !selector.name.is_empty() && !is_pattern(&selector.name);
        if found.is_empty() && is_name && selector.selector.is_empty() {
            found.push((&selector.name, None));
        }
        for (name, labels) in found {
            let is_config_read = selector.config_enabled.unwrap_or(true);
            let share = shares.entry(name).or_default();
            share.labels = labels;
            share.is_config_read |= is_config_read;
            for namespace in &selector.namespaces {
                let Some(name) = name_or_pattern(namespace) else {
                    continue;
                };
                let is_config_read = is_config_read && namespace.config_enabled.unwrap_or(true);
                *share.namespaces.entry(name).or_default() |= is_config_read;
            }
        }
    }
    shares
}

/// Which namespaces have the labels is known in their cluster only, so labels alone count as any name.
fn name_or_pattern(namespace: &NamespaceSelector) -> Option<&str> {
    match namespace.name.as_str() {
        "" if namespace.labels.is_empty() => None,
        "" => Some("*"),
        name => Some(name),
    }
}

#[cfg(test)]
mod tests;
