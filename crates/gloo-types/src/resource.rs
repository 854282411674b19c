//! The kinds of Gloo objects, with their API groups and typed views.

use std::fmt::Debug;

use serde::de::DeserializeOwned;

use crate::policy::{MirrorPolicySpec, MirrorPolicyStatus, RetryTimeoutPolicySpec};
use crate::route_table::RouteTableSpec;
use crate::status::RouteTableStatus;
use crate::workspace::{
    KubernetesClusterSpec, KubernetesClusterStatus, WorkspaceSpec, WorkspaceStatus,
};

/// A kind of object in the Gloo Platform API. The constants are those of its CustomResourceDefinition.
pub trait Resource: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// API group.
    const GROUP: &'static str;
    /// API version within the group.
    const VERSION: &'static str;
    /// Kind.
    const KIND: &'static str;
    /// Plural resource name, as in a URL.
    const PLURAL: &'static str;

    /// Typed view of `spec`.
    type Spec: DeserializeOwned + Default;
    /// Typed view of `status`.
    type Status: DeserializeOwned + Default;
}

/// Routes of a host, or of a part of its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTable {}

impl Resource for RouteTable {
    const GROUP: &'static str = "networking.gloo.solo.io";
    const VERSION: &'static str = "v2";
    const KIND: &'static str = "RouteTable";
    const PLURAL: &'static str = "routetables";

    type Spec = RouteTableSpec;
    type Status = RouteTableStatus;
}

/// Copies the requests of the routes to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorPolicy {}

impl Resource for MirrorPolicy {
    const GROUP: &'static str = "trafficcontrol.policy.gloo.solo.io";
    const VERSION: &'static str = "v2";
    const KIND: &'static str = "MirrorPolicy";
    const PLURAL: &'static str = "mirrorpolicies";

    type Spec = MirrorPolicySpec;
    type Status = MirrorPolicyStatus;
}

/// Sets timeouts and retries of the routes to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryTimeoutPolicy {}

impl Resource for RetryTimeoutPolicy {
    const GROUP: &'static str = "resilience.policy.gloo.solo.io";
    const VERSION: &'static str = "v2";
    const KIND: &'static str = "RetryTimeoutPolicy";
    const PLURAL: &'static str = "retrytimeoutpolicies";

    type Spec = RetryTimeoutPolicySpec;
    type Status = MirrorPolicyStatus;
}

/// The namespaces of one team, in several clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workspace {}

impl Resource for Workspace {
    const GROUP: &'static str = "admin.gloo.solo.io";
    const VERSION: &'static str = "v2";
    const KIND: &'static str = "Workspace";
    const PLURAL: &'static str = "workspaces";

    type Spec = WorkspaceSpec;
    type Status = WorkspaceStatus;
}

/// A cluster that is registered with Gloo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesCluster {}

impl Resource for KubernetesCluster {
    const GROUP: &'static str = "admin.gloo.solo.io";
    const VERSION: &'static str = "v2";
    const KIND: &'static str = "KubernetesCluster";
    const PLURAL: &'static str = "kubernetesclusters";

    type Spec = KubernetesClusterSpec;
    type Status = KubernetesClusterStatus;
}
