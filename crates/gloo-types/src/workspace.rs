//! `Workspace` and `KubernetesCluster`: the namespaces of registered clusters that belong to a team.
//!
//! Field names and their meaning follow the Gloo Platform API reference for `admin.gloo.solo.io/v2` (`workspace.proto`,
//! `kubernetes_cluster.proto`) and, for the selectors, for `common.gloo.solo.io` (`selectors.proto`).

use std::collections::BTreeMap;

use crate::declare::views;
use crate::status::CommonStatus;

views! {
    /// `spec` of a Workspace.
    pub struct WorkspaceSpec {
        /// The namespaces, by cluster. If empty, the workspace has no workloads.
        pub workload_clusters: Vec<ClusterSelector>,
    }

    /// Selects namespaces of registered clusters. All fields that are set must match. Without name and labels it selects every
    /// cluster.
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
    pub struct NamespaceSelector {
        /// Name of the namespace; `*` matches any text.
        pub name: String,
        /// Labels that the namespace must have.
        pub labels: BTreeMap<String, String>,
        /// Whether Gloo reads configuration from these namespaces; `true` if absent.
        pub config_enabled: Option<bool>,
    }

    /// `status` of a Workspace.
    pub struct WorkspaceStatus {
        /// The status that all Gloo objects have.
        pub common: Option<CommonStatus>,
    }

    /// `spec` of a KubernetesCluster. Workspaces select it by its name and labels.
    pub struct KubernetesClusterSpec {
        /// Domain of the cluster's Services; `cluster.local` if absent.
        pub cluster_domain: Option<String>,
    }

    /// `status` of a KubernetesCluster.
    pub struct KubernetesClusterStatus {
        /// State of the connection to the cluster's agent, as JSON.
        pub generic: Option<serde_json::Value>,
    }
}
