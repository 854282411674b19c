//! Solo.io Gloo Platform `RouteTable`, `MirrorPolicy`, `RetryTimeoutPolicy`, `Workspace` and `KubernetesCluster`: typed,
//! read-only views over untouched JSON documents.
//!
//! A document is edited by path and never re-serialised: [`RouteTableDoc`] keeps the object exactly as it was read, with
//! unknown fields, explicit defaults and the order of keys. It returns typed copies of the parts that a traffic router
//! reads. These copies cannot be serialised; changes are JSON Patch operations on the raw document.
//!
//! Decoding is tolerant: unknown fields are ignored, and enums accept unknown values. A value of the wrong type is an error
//! that names its path. [`violations`] returns the constraints of Gloo that a table violates.
//!
//! Field names and constraints follow the Gloo Platform API reference.
#![doc = include_str!("../README.md")]

#[cfg(feature = "crd")]
pub mod crd;
mod declare;
mod destination;
mod document;
mod policy;
mod resource;
mod route_table;
mod selector;
mod service;
mod status;
#[cfg(test)]
mod tests;
mod validate;
mod workspace;
mod wrong_type;

pub use destination::{
    AwsLambdaReference, DestinationKind, DestinationReference, DestinationSelector, LambdaOptions,
    ObjectReference, ObjectSelector, PortSelector, WorkloadSelector, effective_weights,
    weight_shares,
};
pub use document::{
    Document, DocumentError, MirrorPolicyDoc, ObjectKey, RetryTimeoutPolicyDoc, RouteTableDoc,
    patched,
};
pub use policy::{
    MirrorConfig, MirrorPolicySpec, MirrorPolicyStatus, PolicyRouteSelector, Retries,
    RetryTimeoutConfig, RetryTimeoutPolicySpec, RouteLabelSelector,
};
pub use resource::{
    KubernetesCluster, MirrorPolicy, Resource, RetryTimeoutPolicy, RouteTable, Workspace,
};
pub use route_table::{
    AwsFilter, CloudProviderFilter, DelegateAction, DirectResponseAction, FailureMode,
    ForwardToAction, GoogleRe2, GraphqlAction, GraphqlOptions, GraphqlSchemaReference,
    HeaderMatcher, HttpRequestMatcher, HttpRoute, PortalMetadata, QueryParameterMatcher,
    RedirectAction, RedirectCode, RegexPattern, RegexRewrite, RouteFilter, RouteTableSpec,
    SortMethod, StringMatch, TcpMatcher, TcpRoute, TlsForwardToAction, TlsMatcher, TlsRoute,
};
pub use selector::{
    InvalidRequirement, LabelOperator, LabelRequirement, NoSuchTable, RouteTableSelector,
    is_label_key, is_label_value, is_object_name,
};
pub use service::ServicePort;
pub use status::{Approval, CommonStatus, RouteTableStatus, State};
pub use validate::{
    Rule, Violation, broken_weight_rule, combination_violations, contradiction, is_header_name,
    unreachable, violations, weight_rule,
};
pub use workspace::{
    ClusterSelector, KubernetesClusterSpec, KubernetesClusterStatus, NamespaceSelector,
    WorkspaceSpec, WorkspaceStatus,
};
pub use wrong_type::WrongType;
