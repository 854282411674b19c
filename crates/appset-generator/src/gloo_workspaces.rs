//! The source `gloo-workspaces`: one set for each cluster of each Workspace, or for each namespace in these clusters.

use std::collections::{BTreeMap, BTreeSet};

use gloo_types::{
    ClusterSelector, Document, KubernetesCluster, NamespaceSelector, ObjectKey, Workspace,
};
use serde_json::{Value, json};
use strict_json::{Block, object_name};

use crate::clusters::{
    Allowed, ByCluster, Clusters, GoOn, Place, Reach, Sets, example, objects_of,
};
use crate::error::{ConfigError, joined};
use crate::keys::{Schema, flag, has_blanks, text};
use crate::matching::{LabelSelector, has_all, is_pattern, matches};
use crate::set::Fields;
use crate::{Failure, Field, ParameterSet};

/// The default namespace of Workspaces and KubernetesClusters in Gloo's management cluster.
const NAMESPACE: &str = "gloo-mesh";

/// The settings of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlooWorkspaces {
    pub(crate) reach: Reach,
    /// Argo CD's names of clusters by Gloo's names, if they differ.
    cluster_map: BTreeMap<String, String>,
}

/// One request to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceQuery {
    /// The namespace with the Workspaces and KubernetesClusters.
    place: Place,
    /// Names or patterns. An empty list selects all Workspaces.
    workspaces: Vec<String>,
    selector: LabelSelector,
    /// Argo CD's name of the only requested cluster.
    cluster: Option<String>,
    cluster_map: BTreeMap<String, String>,
    by_namespace: bool,
}

/// The part of one cluster that belongs to a Workspace.
#[derive(Default)]
struct Share<'a> {
    /// The labels of the cluster, if it is registered.
    labels: Option<&'a BTreeMap<String, String>>,
    is_config_read: bool,
    /// Names or patterns of namespaces. The value says whether Gloo reads configuration from the namespace.
    namespaces: BTreeMap<&'a str, bool>,
}

impl GlooWorkspaces {
    pub(crate) const SCHEMA: Schema = Schema {
        name: "gloo-workspaces",
        key: "glooWorkspaces",
        keys: &["namespace", "cluster", "clusterMap"],
        parameters: &[
            "workspaces",
            "selector",
            "cluster",
            "expandNamespaces",
            "outputKey",
        ],
        output_key: "gloo",
    };

    pub(crate) fn from_config(source: &Block<'_>, known: &Clusters) -> Result<Self, ConfigError> {
        let mut names = known.names();
        let cluster = match (text(source, "cluster")?, names.next(), names.next()) {
            (Some(cluster), _, _) => cluster,
            (None, Some(only), None) => only,
            _ => return Err(ConfigError::NoManagementCluster(joined(known.names()))),
        };
        known.check(cluster, source.path("cluster"))?;
        let namespace = text(source, "namespace")?.unwrap_or(NAMESPACE);
        let namespace = object_name(namespace, source.path("namespace"))?;
        let cluster_map = source.texts("clusterMap")?;
        let mut taken = BTreeSet::new();
        for (key, name) in &cluster_map {
            if has_blanks(name) || !taken.insert(name) {
                let expected = "Argo CD's name of the cluster, which no other has";
                return Err(source
                    .wrong(&format!("clusterMap.{key}"), name, expected)
                    .into());
            }
        }
        Ok(Self {
            reach: Reach::one(cluster.to_owned(), namespace, source.path("namespace")),
            cluster_map,
        })
    }

    /// Reads the parameters of a request.
    pub(crate) fn query(
        &self,
        parameters: &Block<'_>,
        allowed: &Allowed<'_>,
    ) -> Result<WorkspaceQuery, Failure> {
        let places = self.reach.admit(None, &[], allowed)?;
        let workspaces = parameters.strings("workspaces")?;
        // A pattern that matches a name also matches one with a letter for each star.
        let is_wrong = |one: &&String| object_name(&one.replace('*', "a"), String::new()).is_err();
        if let Some(one) = workspaces.iter().find(is_wrong) {
            let expected = "names of Kubernetes objects, or patterns of them";
            return Err(parameters.wrong("workspaces", one, expected).into());
        }
        Ok(WorkspaceQuery {
            // There is exactly one place: if the profile does not allow it, `admit` returns an error.
            place: places.into_iter().next().ok_or(Failure::Internal)?,
            workspaces,
            selector: LabelSelector::read(&parameters.block("selector", &LabelSelector::KEYS)?)?,
            cluster: parameters.string("cluster")?.map(str::to_owned),
            cluster_map: self.cluster_map.clone(),
            by_namespace: flag(parameters, "expandNamespaces")?.unwrap_or_default(),
        })
    }
}

impl WorkspaceQuery {
    /// Returns the namespace whose Workspaces and KubernetesClusters [`sets`](Self::sets) needs.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Computes the sets from all `workspaces` and `clusters` in [`place`](Self::place).
    ///
    /// # Errors
    /// Returns `Err` if a Workspace that is selected by name does not exist, since an answer without it would delete its
    /// Applications, or if a selected Workspace has a value of the wrong type.
    pub fn sets(
        &self,
        workspaces: &ByCluster<Workspace>,
        clusters: &ByCluster<KubernetesCluster>,
        go_on: GoOn<'_>,
    ) -> Result<Vec<ParameterSet>, Failure> {
        let at = &self.place.cluster;
        let workspaces = objects_of(workspaces, at);
        let clusters = objects_of(clusters, at).iter();
        let clusters = clusters.map(|one| (one.key().name.as_str(), one.as_ref()));
        let clusters: BTreeMap<_, _> = clusters.collect();
        let existing: BTreeSet<_> = workspaces.iter().map(|one| &one.key().name).collect();
        let mut names = self.workspaces.iter();
        if let Some(name) = names.find(|name| !is_pattern(name) && !existing.contains(name)) {
            let key = ObjectKey::new(self.place.namespaces.join(","), name);
            return Err(Failure::MissingWorkspace(key));
        }
        let asked = self.workspaces.iter();
        let (patterns, names): (BTreeSet<_>, BTreeSet<_>) = asked.partition(|one| is_pattern(one));
        let is_selected = |workspace: &Document<Workspace>| {
            let name = &workspace.key().name;
            let is_asked = self.workspaces.is_empty() || names.contains(name);
            (is_asked || patterns.iter().any(|pattern| matches(pattern, name)))
                && self.selector.matches(workspace.labels())
        };
        let mut sets = Sets::new();
        for workspace in workspaces {
            go_on()?;
            if !is_selected(workspace) {
                continue;
            }
            let spec = workspace.spec().map_err(Failure::unreadable)?;
            let name = workspace.key().name.as_str();
            for (cluster, share) in shares(&spec.workload_clusters, &clusters) {
                let known_as = self.cluster_map.get(cluster);
                let known_as = known_as.map_or(cluster, String::as_str);
                if self.cluster.as_ref().is_some_and(|asked| asked != known_as) {
                    continue;
                }
                for (namespace, mut fields) in share.rows(self.by_namespace) {
                    fields.extend([
                        ("workspace", name.into()),
                        ("cluster", known_as.into()),
                        ("glooCluster", cluster.into()),
                    ]);
                    let mut parts = vec![name, cluster];
                    parts.extend(namespace);
                    let own = GlooWorkspaces::SCHEMA.output_key;
                    sets.extend([ParameterSet::of(own, &parts, fields)?]);
                }
            }
        }
        Ok(sets.into_values().collect())
    }

    /// Computes the set of a Workspace with a cluster with these labels, which the request selects.
    pub(crate) fn example(&self, labels: &Value) -> Result<Vec<ParameterSet>, Failure> {
        let selectors = json!([{"name": "a", "namespaces": [{"name": "a"}]}]);
        let at = &self.place.cluster;
        let workspaces = example(at, labels, json!({"workloadClusters": selectors}))?;
        let query = Self {
            workspaces: Vec::new(),
            selector: LabelSelector::default(),
            cluster: None,
            ..self.clone()
        };
        query.sets(&workspaces, &example(at, labels, json!({}))?, &|| Ok(()))
    }
}

impl Share<'_> {
    /// Returns the fields of the sets: one for the whole share, or one for each of its namespaces, with the namespace.
    fn rows(&self, by_namespace: bool) -> Vec<(Option<&str>, Fields)> {
        let fields = |has_pattern: bool, is_config_read: bool| {
            let labels = self.labels.map_or_else(|| Field::from([]), Field::texts);
            vec![
                ("clusterLabels", labels),
                ("registered", self.labels.is_some().into()),
                ("wildcard", has_pattern.into()),
                ("configEnabled", is_config_read.into()),
            ]
        };
        if by_namespace {
            let rows = self.namespaces.iter().map(|(namespace, is_config_read)| {
                let mut fields = fields(is_pattern(namespace), *is_config_read);
                fields.push(("namespace", (*namespace).into()));
                (Some(*namespace), fields)
            });
            return rows.collect();
        }
        let names: Vec<&str> = self.namespaces.keys().copied().collect();
        let has_pattern = names.iter().any(|name| is_pattern(name));
        let mut fields = fields(has_pattern, self.is_config_read);
        fields.push(("namespacesCsv", names.join(",").into()));
        let names = names.into_iter().map(Into::into).collect();
        fields.push(("namespaces", Field::List(names)));
        vec![(None, fields)]
    }
}

/// Returns the share of each cluster in a Workspace, by Gloo's name of the cluster.
///
/// A cluster that a selector names has a share even if it is not registered, so that its sets do not depend on the registration.
fn shares<'a>(
    selectors: &'a [ClusterSelector],
    clusters: &BTreeMap<&'a str, &'a Document<KubernetesCluster>>,
) -> BTreeMap<&'a str, Share<'a>> {
    let mut shares = BTreeMap::<&str, Share<'_>>::new();
    for selector in selectors {
        let wanted = selector.name.as_str();
        let is_name = !wanted.is_empty() && !is_pattern(wanted);
        // There may be as many selectors of one cluster as clusters.
        let registered = match is_name {
            true => clusters.range(wanted..=wanted),
            false => clusters.range(""..),
        };
        let registered = registered.map(|(name, cluster)| (*name, cluster.labels()));
        let found = registered.filter(|(name, labels)| {
            (wanted.is_empty() || matches(wanted, name)) && has_all(labels, &selector.selector)
        });
        let mut found: Vec<_> = found.map(|(name, labels)| (name, Some(labels))).collect();
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

/// Returns the name or pattern that selects namespaces.
///
/// A selector with labels only is the pattern `*`, since the labels of namespaces are known only in their cluster.
fn name_or_pattern(namespace: &NamespaceSelector) -> Option<&str> {
    match namespace.name.as_str() {
        "" if namespace.labels.is_empty() => None,
        "" => Some("*"),
        name => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use gloo_types::Resource;
    use proptest::{collection, option, prelude::*, sample};
    use serde_json::{Value, json};

    use super::*;
    use crate::SourceQuery;
    use crate::testing::{query, refused};

    const CONFIG: &str = "
static: {hello: {}}
glooWorkspaces: {clusterMap: {c2: prod-eu}}
profiles:
  default: {sources: [gloo-workspaces]}
  team-a: {namespaces: [shop]}
";

    fn document<K: Resource>(name: &str, labels: &Value, spec: &Value) -> Arc<Document<K>> {
        let metadata = json!({"name": name, "namespace": "gloo-mesh", "labels": labels});
        let object = json!({"kind": K::KIND, "metadata": metadata, "spec": spec});
        Arc::new(Document::from_value(object).unwrap())
    }

    fn workspace(name: &str, clusters: &Value) -> Arc<Document<Workspace>> {
        document(
            name,
            &json!({"team": name}),
            &json!({"workloadClusters": clusters}),
        )
    }

    fn cluster(name: &str, labels: &Value) -> Arc<Document<KubernetesCluster>> {
        document(name, labels, &json!({}))
    }

    /// Returns the sets for `parameters` as JSON. The clusters c1 and c2 are registered.
    fn sets(
        parameters: &Value,
        workspaces: &[Arc<Document<Workspace>>],
    ) -> Result<Vec<Value>, Failure> {
        let SourceQuery::GlooWorkspaces(query) = query(CONFIG, "default", parameters)?.source
        else {
            panic!("another source");
        };
        let clusters = [
            cluster("c1", &json!({"region": "us"})),
            cluster("c2", &json!({"region": "eu"})),
        ];
        let sets = query.sets(
            &[("in-cluster".to_owned(), workspaces.to_vec())].into(),
            &[("in-cluster".to_owned(), clusters.to_vec())].into(),
            &|| Ok(()),
        )?;
        Ok(sets.iter().map(|set| json!(set)).collect())
    }

    fn two() -> [Arc<Document<Workspace>>; 2] {
        let web = json!([
            {"name": "c*", "namespaces": [{"name": "web"}, {"name": "web-*"}]},
            {"name": "c1", "namespaces": [{"name": "web-config"}]}
        ]);
        let ops = json!([{"selector": {"region": "eu"}, "configEnabled": false, "namespaces": [{"name": "ops"}]}]);
        [workspace("web", &web), workspace("ops", &ops)]
    }

    #[test]
    fn a_set_for_each_cluster() {
        insta::assert_snapshot!(json!(sets(&json!({}), &two()).unwrap()), @r#"[{"gloo":{"cluster":"prod-eu","clusterLabels":{"region":"eu"},"configEnabled":false,"glooCluster":"c2","key":"ops/c2","namespaces":["ops"],"namespacesCsv":"ops","registered":true,"slug":"ops-c2","wildcard":false,"workspace":"ops"}},{"gloo":{"cluster":"c1","clusterLabels":{"region":"us"},"configEnabled":true,"glooCluster":"c1","key":"web/c1","namespaces":["web","web-*","web-config"],"namespacesCsv":"web,web-*,web-config","registered":true,"slug":"web-c1","wildcard":true,"workspace":"web"}},{"gloo":{"cluster":"prod-eu","clusterLabels":{"region":"eu"},"configEnabled":true,"glooCluster":"c2","key":"web/c2","namespaces":["web","web-*"],"namespacesCsv":"web,web-*","registered":true,"slug":"web-c2","wildcard":true,"workspace":"web"}}]"#);
    }

    #[test]
    fn a_set_for_each_namespace() {
        let parameters = json!({"expandNamespaces": "true", "workspaces": ["ops"]});
        insta::assert_snapshot!(json!(sets(&parameters, &two()).unwrap()), @r#"[{"gloo":{"cluster":"prod-eu","clusterLabels":{"region":"eu"},"configEnabled":false,"glooCluster":"c2","key":"ops/c2/ops","namespace":"ops","registered":true,"slug":"ops-c2-ops","wildcard":false,"workspace":"ops"}}]"#);
    }

    /// Checks the keys of the sets.
    #[track_caller]
    fn selected(parameters: Value, expect: &str) {
        let sets = sets(&parameters, &two()).unwrap();
        let keys = sets.iter().map(|set| set["gloo"]["key"].as_str().unwrap());
        assert_eq!(keys.collect::<Vec<_>>().join(" "), expect, "{parameters}");
    }

    #[test]
    fn workspaces_are_selected_by_name_label_and_cluster() {
        selected(json!({}), "ops/c2 web/c1 web/c2");
        selected(json!({"workspaces": ["web"]}), "web/c1 web/c2");
        selected(json!({"workspaces": ["o*", "x*"]}), "ops/c2");
        selected(
            json!({"selector": {"labels": {"team": "web"}}}),
            "web/c1 web/c2",
        );
        selected(
            json!({"workspaces": ["web"], "selector": {"labels": {"team": "ops"}}}),
            "",
        );
        selected(json!({"cluster": "c1"}), "web/c1");
        // The parameter is Argo CD's name.
        selected(json!({"cluster": "prod-eu"}), "ops/c2 web/c2");
        selected(json!({"cluster": "c2"}), "");
        selected(
            json!({"expandNamespaces": true, "cluster": "c1"}),
            "web/c1/web web/c1/web-* web/c1/web-config",
        );
    }

    /// Checks the sets of a workspace with these `clusters`, each as cluster, registered, configuration, wildcard and namespaces.
    #[track_caller]
    fn shared(clusters: Value, expect: &[&str]) {
        let sets = sets(&json!({}), &[workspace("web", &clusters)]).unwrap();
        let shown: Vec<String> = sets
            .iter()
            .map(|set| {
                let fields = [
                    "glooCluster",
                    "registered",
                    "configEnabled",
                    "wildcard",
                    "namespacesCsv",
                ];
                let texts = fields.map(|field| match &set["gloo"][field] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                });
                texts.join(" ")
            })
            .collect();
        assert_eq!(shown, expect, "{clusters}");
    }

    #[test]
    fn a_computation_that_may_not_go_on_has_no_answer() {
        let source = query(CONFIG, "default", &json!({"workspaces": ["w*"]}))
            .unwrap()
            .source;
        let SourceQuery::GlooWorkspaces(query) = source else {
            panic!("another source");
        };
        let workspaces = [("in-cluster".to_owned(), two().to_vec())].into();
        let left = std::cell::Cell::new(1);
        let go_on = || match left.replace(left.get() - 1) {
            0 => Err(Failure::Internal),
            _ => Ok(()),
        };
        let stopped = query.sets(&workspaces, &ByCluster::new(), &go_on);
        assert_eq!(stopped, Err(Failure::Internal));
    }

    #[test]
    fn entries_for_the_same_cluster_are_merged() {
        shared(json!([]), &[]);
        shared(
            json!([{"namespaces": [{"name": "a"}]}]),
            &["c1 true true false a", "c2 true true false a"],
        );
        shared(
            json!([{"name": "*"}]),
            &["c1 true true false ", "c2 true true false "],
        );
        shared(
            json!([{"selector": {"region": "us"}, "namespaces": [{"name": "b*"}]}]),
            &["c1 true true true b*"],
        );
        shared(json!([{"name": "c1", "selector": {"region": "eu"}}]), &[]);
        // The labels of namespaces are known only in their cluster.
        shared(
            json!([{"name": "c1", "namespaces": [{"labels": {"a": "b"}}, {}]}]),
            &["c1 true true true *"],
        );
        shared(
            json!([
                {"name": "c1", "configEnabled": false, "namespaces": [{"name": "b"}, {"name": "a"}]},
                {"name": "*", "configEnabled": false, "namespaces": [{"name": "b"}]}
            ]),
            &["c1 true false false a,b", "c2 true false false b"],
        );
        shared(
            json!([{"name": "c1"}, {"name": "c*", "configEnabled": false}]),
            &["c1 true true false ", "c2 true false false "],
        );
    }

    /// A registration that is absent for a moment must not delete Applications.
    #[test]
    fn a_cluster_selected_by_name_need_not_be_registered() {
        shared(
            json!([{"name": "c3", "namespaces": [{"name": "a"}]}]),
            &["c3 false true false a"],
        );
        shared(json!([{"name": "c3*"}]), &[]);
        shared(json!([{"name": "c3", "selector": {"region": "us"}}]), &[]);
    }

    #[test]
    fn configuration_may_be_enabled_for_single_namespaces() {
        let clusters = json!([{"name": "c1", "namespaces": [
            {"name": "a", "configEnabled": true}, {"name": "b", "configEnabled": false}
        ]}]);
        let sets = sets(
            &json!({"expandNamespaces": true}),
            &[workspace("web", &clusters)],
        )
        .unwrap();
        let read: Vec<_> = sets
            .iter()
            .map(|set| &set["gloo"]["configEnabled"])
            .collect();
        assert_eq!(read, [&json!(true), &json!(false)]);
    }

    #[test]
    fn invalid_requests_are_refused() {
        let missing = json!({"workspaces": ["w*", "wbe"]});
        refused(
            sets(&missing, &two()),
            "missing_workspace Workspace gloo-mesh/wbe not found: create it",
        );
        refused(
            query(CONFIG, "team-a", &json!({"source": "gloo-workspaces"})),
            "no namespace is allowed by both glooWorkspaces.namespace and the profile",
        );
        refused(
            query(CONFIG, "default", &json!({"workspace": "web"})),
            "did you mean workspaces?",
        );
        let many = |count: usize| json!({"workspaces": vec!["w*"; count]});
        assert!(sets(&many(1000), &two()).is_ok());
        refused(
            sets(&many(1001), &two()),
            "invalid_input parameters: workspaces is \"1001 items\", it must be at most 1000 items",
        );
        let values = json!([{"key": "a", "operator": "NotIn", "values": vec!["b"; 1000]}]);
        refused(
            sets(&json!({"selector": {"matchExpressions": values}}), &two()),
            "selector is \"1001 items\"",
        );
        let broken = workspace("web", &json!([{"name": 7}]));
        refused(
            sets(&json!({}), &[broken]),
            "upstream Workspace gloo-mesh/web: unexpected value at spec.workloadClusters[0].name",
        );
    }

    prop_compose! {
        fn selectors()(
            name in option::of(sample::select(vec!["", "*", "c1", "c2", "c3", "c*"])),
            region in option::of(sample::select(vec!["us", "eu", "moon"])),
            namespaces in collection::vec(sample::select(vec!["", "a", "b", "a*", "*"]), 0..4),
        ) -> Value {
            let namespaces: Vec<_> = namespaces.iter().map(|name| json!({"name": name})).collect();
            let selector = region.map(|region| json!({"region": region}));
            let mut entry = json!({"namespaces": namespaces});
            entry["name"] = json!(name.unwrap_or_default());
            entry["selector"] = selector.unwrap_or_else(|| json!({}));
            entry
        }
    }

    proptest! {
        #[test]
        fn every_set_has_a_unique_key_and_slug(
            clusters in collection::vec(collection::vec(selectors(), 0..4), 0..4),
            expand in any::<bool>(),
        ) {
            let workspaces: Vec<_> = clusters
                .iter()
                .enumerate()
                .map(|(index, clusters)| workspace(&format!("w-{index}"), &json!(clusters)))
                .collect();
            let sets = sets(&json!({"expandNamespaces": expand}), &workspaces).unwrap();
            for field in ["key", "slug"] {
                let texts: BTreeSet<_> = sets.iter().map(|set| set["gloo"][field].as_str()).collect();
                prop_assert_eq!(texts.len(), sets.len());
            }
        }
    }
}
