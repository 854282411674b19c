//! `Workspace` and `KubernetesCluster`: which namespaces of which registered clusters belong to a team.
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
pub struct WorkspaceSpec {
    /// The namespaces, by cluster. Without any the workspace has no workloads.
    pub workload_clusters: Vec<ClusterSelector>,
}

/// Selects namespaces of registered clusters. What is set must hold; a selector with neither name nor labels means every
/// cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSelector {
    /// Name of the KubernetesCluster; `*` stands for anything.
    pub name: String,
    /// Labels that the KubernetesCluster must have.
    pub selector: BTreeMap<String, String>,
    /// The namespaces of those clusters.
    pub namespaces: Vec<NamespaceSelector>,
    /// Whether Gloo reads configuration from those clusters; yes when absent.
    pub config_enabled: Option<bool>,
}

/// Selects namespaces of a cluster. What is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSelector {
    /// Name of the namespace; `*` stands for anything.
    pub name: String,
    /// Labels that the namespace must have.
    pub labels: BTreeMap<String, String>,
    /// Whether Gloo reads configuration from those namespaces; yes when absent.
    pub config_enabled: Option<bool>,
}

/// `status` of a Workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WorkspaceStatus {
    /// What every Gloo object reports.
    pub common: Option<CommonStatus>,
}

/// `spec` of a KubernetesCluster. Workspaces select it by its name and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubernetesClusterSpec {
    /// Domain of the cluster's Services; `cluster.local` when absent.
    pub cluster_domain: Option<String>,
}

/// `status` of a KubernetesCluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KubernetesClusterStatus {
    /// How the cluster's agent is connected, as written.
    pub generic: Option<serde_json::Value>,
}
