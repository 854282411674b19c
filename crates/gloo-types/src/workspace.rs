//! `Workspace` and `KubernetesCluster`: the namespaces of registered clusters that belong to a team.
//!
//! Field names and their meaning follow the Gloo Platform API reference for `admin.gloo.solo.io/v2` (`workspace.proto`,
//! `kubernetes_cluster.proto`) and, for the selectors, for `common.gloo.solo.io` (`selectors.proto`).

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::status::CommonStatus;

/// `spec` of a Workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct WorkspaceSpec {
    /// The namespaces, by cluster. If empty, the workspace has no workloads.
    pub workload_clusters: Vec<ClusterSelector>,
}

/// Selects namespaces of registered clusters. All fields that are set must match. Without name and labels it selects every
/// cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct ClusterSelector {
    /// Name of the KubernetesCluster; `*` matches any text.
    pub name: String,
    /// Labels that the KubernetesCluster must have.
    pub selector: BTreeMap<String, String>,
    /// The namespaces in these clusters.
    pub namespaces: Vec<NamespaceSelector>,
    /// Whether Gloo reads configuration from these clusters; `true` if absent.
    pub config_enabled: Option<bool>,
}

/// Selects namespaces of a cluster. All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct NamespaceSelector {
    /// Name of the namespace; `*` matches any text.
    pub name: String,
    /// Labels that the namespace must have.
    pub labels: BTreeMap<String, String>,
    /// Whether Gloo reads configuration from these namespaces; `true` if absent.
    pub config_enabled: Option<bool>,
}

/// `status` of a Workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct WorkspaceStatus {
    /// The status that all Gloo objects have.
    pub common: Option<CommonStatus>,
}

/// `spec` of a KubernetesCluster. Workspaces select it by its name and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct KubernetesClusterSpec {
    /// Domain of the cluster's Services; `cluster.local` if absent.
    pub cluster_domain: Option<String>,
}

/// `status` of a KubernetesCluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct KubernetesClusterStatus {
    /// State of the connection to the cluster's agent, as JSON.
    pub generic: Option<serde_json::Value>,
}
