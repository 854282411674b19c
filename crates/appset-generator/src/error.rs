//! What is wrong with a configuration.

use strict_json::Problem;

use crate::FieldError;

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is not YAML.
    #[error("the configuration is not YAML: {0}")]
    Yaml(String),
    /// A key is unknown, or holds what it must not.
    #[error(transparent)]
    Key(#[from] Problem),
    /// A parameter set holds what templates would not see as it was written.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The same set again: its Applications would have the same name.
    #[error("{0} repeats a set that stands above it: remove it")]
    Twice(String),
    /// The inputs of a request stand under `input`.
    #[error(
        "{0} has a key input, which is where the parameters of a request are echoed: rename it, or set inputs: []"
    )]
    InputKey(String),
    /// A profile names a source that is not configured.
    #[error("{path} has {source_name}, which is no source here: it is one of {known}")]
    UnknownSource {
        /// Path of the list.
        path: String,
        /// The name.
        source_name: String,
        /// The sources that there are.
        known: String,
    },
    /// A source or a profile names a cluster that is not configured.
    #[error("{path} has {name}, which is no cluster here: it is one of {known}")]
    UnknownCluster {
        /// Path of the key.
        path: String,
        /// The name.
        name: String,
        /// The clusters that there are.
        known: String,
    },
    /// `clusters` names none.
    #[error("clusters is empty: name one, or remove it to read the cluster that the flags lead to")]
    NoCluster,
    /// There are several clusters, and the Workspaces are in one of them.
    #[error("glooWorkspaces.cluster is missing: set it to the management cluster, one of {0}")]
    NoManagementCluster(String),
    /// A profile hands requests to one that is not configured.
    #[error("{path} is {name}, which is no profile: it must be one of {known}")]
    UnknownProfile {
        /// Path of the key.
        path: String,
        /// The name.
        name: String,
        /// The profiles that there are.
        known: String,
    },
    /// A profile makes tags, but its requests cannot look up images.
    #[error(
        "{0} is set without the source image-digests: set imageDigests, and offer it in the profile's sources"
    )]
    TagsWithoutImages(String),
    /// A static source has the name of another kind.
    #[error("static.{0} has the name of another source: take another")]
    ReservedName(String),
    /// Nothing to answer from.
    #[error(
        "the configuration has no source: set static, imageDigests, glooRoutes, rollouts or glooWorkspaces in it"
    )]
    NoSource,
}
