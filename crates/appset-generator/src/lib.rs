//! Decides what an Argo CD ApplicationSet plugin generator answers: pure functions from request and configuration to
//! parameter sets.
//!
//! ```text
//! body of the request --Request::from_body--> Request --Config::query--> Query --(a source)--> sets
//! sets --Output::answer--> Answer or Failure, whose to_body is the body of the response
//! ```
//!
//! The controller deletes every Application of an ApplicationSet after an empty list with status 200, and keeps them all
//! after any error (`applicationset/services/plugin`, `applicationset/generators/plugin.go`). So an [`Answer`] without
//! sets needs an [`EmptyAllowed`], which only `onEmpty: allow` of a request or its profile can create. Everything else is a
//! [`Failure`].
//!
//! Templates use one of two languages, and neither can print every JSON value. So a set holds [`Field`]s: strings, booleans,
//! and lists and maps of them, but no numbers and no nulls.
//!
//! The crate uses no clock, file, network or Kubernetes client.

mod answer;
mod branch;
mod clusters;
mod config;
mod error;
mod failure;
mod gloo_routes;
mod gloo_workspaces;
mod image_digests;
mod keys;
mod matching;
mod profile;
pub mod reference;
mod request;
mod rollouts;
mod set;
mod source;
mod static_sets;
mod tag_from;
#[cfg(test)]
mod testing;
mod trial;
mod warning;
mod yaml;

pub use answer::{Answer, EmptyAllowed, Output};
pub use clusters::{
    ByCluster, ClusterAccess, Clusters, GoOn, NamespaceLabels, Namespaces, Place, Watched,
};
pub use config::{Config, Refresh};
pub use error::ConfigError;
pub use failure::{Code, Failure};
pub use gloo_routes::{GlooRoutes, RouteQuery};
pub use gloo_workspaces::{GlooWorkspaces, WorkspaceQuery};
pub use image_digests::{
    ACCEPT, Bearer, Challenge, Choice, Credentials, Digest, Found, ImageDigests, ImageQuery,
    Keychain, KeychainError, Platform, Proof, Reference, Token, Unknown, check_manifest, choose,
    is_tag_list, platform_of, unknown,
};
pub use request::Request;
pub use rollout_types::Rollout;
pub use rollouts::{RolloutQuery, Rollouts};
pub use set::{Field, FieldError, ParameterSet};
pub use source::{Query, SourceQuery};
pub use static_sets::{StaticQuery, StaticSource};
pub use warning::Warning;
