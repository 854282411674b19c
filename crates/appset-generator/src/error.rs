//! The errors of a configuration.

use strict_json::Problem;

use crate::{Failure, FieldError};

/// An error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not YAML.
    #[error("the configuration is not YAML: {0}")]
    Yaml(String),
    /// A number that would be printed in another way than it was written: the path of the key, and the number as it was written.
    #[error("{0} is {1}, a number that would become another text: quote it")]
    Spelling(String, String),
    /// A key is unknown or has an invalid value.
    #[error(transparent)]
    Key(#[from] Problem),
    /// A parameter set has a value that templates cannot print as it was written.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A set occurs twice: its two Applications would have the same name.
    #[error("{0} repeats an earlier set: remove it")]
    Twice(String),
    /// A set has the key `input`, which the generator fills in.
    #[error(
        "{0} has the key input, under which the generator echoes the parameters of a request: rename it, or set inputs: []"
    )]
    InputKey(String),
    /// A source or a profile names what is not configured: the path of the key, the kind, the name, and the configured names.
    #[error("{0} names the unknown {1} {2}: use one of {3}")]
    Unknown(String, &'static str, String, String),
    /// `clusters` is empty.
    #[error(
        "clusters is empty: add a cluster, or remove the key to read the cluster that the flags select"
    )]
    NoCluster,
    /// Several clusters are configured, and it is unknown which of them has the Workspaces.
    #[error("glooWorkspaces.cluster is missing: set it to the management cluster, one of {0}")]
    NoManagementCluster(String),
    /// `requestsWith` leads back to its own profile.
    #[error("{0} leads back to profile {1}: let only one of the two profiles name the other")]
    Cycle(String, String),
    /// `requestsWith` passes requests to a profile that does not know their parameter: the path of the key, and the profile.
    #[error(
        "{0} passes requests to profile {1}, but none of its sources has this parameter: correct one of the names"
    )]
    Unpassable(String, String),
    /// No request to a profile can succeed.
    #[error("profiles.{profile} cannot answer: every request for {source_name}{} fails: {failure}", if *has_defaults { " with the defaults" } else { "" })]
    Unanswerable {
        /// The name of the profile.
        profile: String,
        /// Whether it has defaults, without which a request may succeed.
        has_defaults: bool,
        /// The first source that it offers.
        source_name: String,
        /// The failure of a request that has what only a caller knows.
        failure: Box<Failure>,
    },
    /// A profile offers no source.
    #[error("profiles.{0}.sources is empty: name a source, or remove the key to offer all")]
    NothingOffered(String),
    /// A profile has `tagFrom`, but its requests cannot look up images.
    #[error(
        "{0} needs the source image-digests: set imageDigests, and list image-digests in the sources of the profile"
    )]
    TagsWithoutImages(String),
    /// A static source has the name of another kind of source.
    #[error("static.{0} has the name of another source: rename it")]
    ReservedName(String),
    /// The configuration has no source.
    #[error(
        "the configuration has no source: set static, imageDigests, glooRoutes, rollouts or glooWorkspaces in it"
    )]
    NoSource,
}

/// Joins names for messages.
pub(crate) fn joined<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}
