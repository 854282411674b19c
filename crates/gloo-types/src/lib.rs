//! Solo.io Gloo Platform `RouteTable`, `MirrorPolicy`, `RetryTimeoutPolicy`, `Workspace` and `KubernetesCluster`: typed,
//! read-only views over untouched JSON documents.
//!
//! A document is edited, never re-serialised: [`RouteTableDoc`] keeps the object exactly as it was read, with unknown
//! fields, explicit defaults and key order, and hands out typed copies of the parts a traffic router reads. Changes are
//! JSON Patch operations against paths of the raw document, so nothing here can be written back.
//!
//! Reading is tolerant: unknown fields are ignored and enums are open. A value of the wrong type is an error that names
//! its path. What Gloo itself would refuse is told by [`violations`].
//!
//! Field names and constraints follow the Gloo Platform API reference; each module names the API group.

#[cfg(feature = "crd")]
pub mod crd;
mod destination;
mod document;
mod http_route;
mod l4_route;
mod open_enum;
mod patch;
mod policy;
mod resource;
mod route_table;
mod selector;
mod status;
mod strict;
mod validate;
mod workspace;

pub use destination::{
    AwsLambdaReference, DestinationKind, DestinationReference, DestinationSelector, LambdaOptions,
    ObjectReference, ObjectSelector, PortSelector, WorkloadSelector, effective_weights,
    weight_shares,
};
pub use document::{
    Document, DocumentError, MirrorPolicyDoc, ObjectKey, RetryTimeoutPolicyDoc, RouteTableDoc,
};
pub use http_route::{
    DelegateAction, DirectResponseAction, ForwardToAction, GraphqlAction, GraphqlOptions,
    GraphqlSchemaReference, HeaderMatcher, HttpRequestMatcher, HttpRoute, QueryParameterMatcher,
    RedirectAction, RedirectCode, RegexRewrite, RouteFilter, SortMethod, StringMatch,
};
pub use l4_route::{TcpMatcher, TcpRoute, TlsForwardToAction, TlsMatcher, TlsRoute};
pub use patch::patched;
pub use policy::{
    MirrorConfig, MirrorPolicySpec, MirrorPolicyStatus, PolicyRouteSelector, Retries,
    RetryTimeoutConfig, RetryTimeoutPolicySpec, RouteLabelSelector,
};
pub use resource::{
    KubernetesCluster, MirrorPolicy, Resource, RetryTimeoutPolicy, RouteTable, Workspace,
};
pub use route_table::{FailureMode, PortalMetadata, RouteTableSpec};
pub use selector::{
    InvalidRequirement, LabelOperator, LabelRequirement, NoSuchTable, RouteTableSelector,
};
pub use status::{Approval, CommonStatus, RouteTableStatus, State};
pub use validate::{Rule, Violation, broken_weight_rule, violations, weight_rule};
pub use workspace::{
    ClusterSelector, KubernetesClusterSpec, KubernetesClusterStatus, NamespaceSelector,
    WorkspaceSpec, WorkspaceStatus,
};
