//! The configuration file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use strict_json::{Block, Problem};

use crate::failure::shown;
use crate::gloo_routes::{self, GlooRoutes};
use crate::gloo_workspaces::{self, GlooWorkspaces};
use crate::image_digests::{self, ImageDigests};
use crate::profile::Profile;
use crate::rollouts::{self, Rollouts};
use crate::{Failure, FieldError, Query, Request, StaticSource};

/// What an administrator wrote.
///
/// ```
/// use appset_generator::{Config, Request};
///
/// let config = Config::from_yaml("
///   static:
///     hello: {sets: [{key1: val1}]}
///   profiles:
///     team-a: {tokens: [team-a], sources: [hello]}
/// ")?;
/// let request = Request::from_body(br#"{"input": {}}"#)?;
/// assert!(config.query(Some("team-a"), "team-a", &request).is_ok());
/// assert!(config.query(Some("team-a"), "team-b", &request).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    sources: Sources,
    profiles: BTreeMap<String, Profile>,
}

/// The namespaces whose objects sources look into, by kind. An answer takes all objects of a kind in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Those of RouteTables.
    pub route_tables: BTreeSet<String>,
    /// Those of Rollouts.
    pub rollouts: BTreeSet<String>,
    /// Those of Workspaces.
    pub workspaces: BTreeSet<String>,
    /// Those of KubernetesClusters.
    pub clusters: BTreeSet<String>,
}

/// Every source that is configured, by the name that requests choose it by.
pub(crate) type Sources = BTreeMap<String, Source>;

/// One source and its settings.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Static(StaticSource),
    ImageDigests(ImageDigests),
    GlooRoutes(GlooRoutes),
    Rollouts(Rollouts),
    GlooWorkspaces(GlooWorkspaces),
}

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

/// The names of all sources but static ones.
const KINDS: [&str; 4] = [
    gloo_routes::NAME,
    gloo_workspaces::NAME,
    image_digests::NAME,
    rollouts::NAME,
];
/// The profile behind the path without one.
const ROOT: &str = "default";
/// What Argo CD calls the cluster it runs in.
const IN_CLUSTER: &str = "in-cluster";

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be used as it is.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let document: Value =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        let root = Block::root(
            &document,
            "the configuration",
            &[
                "cluster",
                "glooRoutes",
                "glooWorkspaces",
                "imageDigests",
                "profiles",
                "rollouts",
                "static",
            ],
        )?;
        let cluster = root.string("cluster")?.unwrap_or(IN_CLUSTER);

        let mut sources = Sources::new();
        for (name, source) in root.named_blocks("static", StaticSource::KEYS)? {
            if KINDS.contains(&name) {
                return Err(ConfigError::ReservedName(name.to_owned()));
            }
            let source = StaticSource::from_config(&source)?;
            sources.insert(name.to_owned(), Source::Static(source));
        }
        if root.value("imageDigests").is_some() {
            let source = root.block("imageDigests", ImageDigests::KEYS)?;
            let source = ImageDigests::from_config(&source)?;
            sources.insert(image_digests::NAME.to_owned(), Source::ImageDigests(source));
        }
        if root.value("glooRoutes").is_some() {
            let source = root.block("glooRoutes", GlooRoutes::KEYS)?;
            let source = GlooRoutes::from_config(&source, cluster)?;
            sources.insert(gloo_routes::NAME.to_owned(), Source::GlooRoutes(source));
        }
        if root.value("rollouts").is_some() {
            let source = root.block("rollouts", Rollouts::KEYS)?;
            let source = Rollouts::from_config(&source, cluster)?;
            sources.insert(rollouts::NAME.to_owned(), Source::Rollouts(source));
        }
        if root.value("glooWorkspaces").is_some() {
            let source = root.block("glooWorkspaces", GlooWorkspaces::KEYS)?;
            let source = Source::GlooWorkspaces(GlooWorkspaces::from_config(&source)?);
            sources.insert(gloo_workspaces::NAME.to_owned(), source);
        }
        if sources.is_empty() {
            return Err(ConfigError::NoSource);
        }

        let mut profiles = BTreeMap::new();
        for (name, profile) in root.named_blocks("profiles", Profile::KEYS)? {
            let profile = Profile::from_config(name, &profile, &sources)?;
            profiles.insert(name.to_owned(), profile);
        }
        if profiles.is_empty() {
            profiles.insert(ROOT.to_owned(), Profile::open(ROOT));
        }
        for profile in profiles.values() {
            profile.check_hand_overs(&profiles)?;
        }
        Ok(Self { sources, profiles })
    }

    /// The source of image digests, if it is configured.
    #[must_use]
    pub fn image_digests(&self) -> Option<&ImageDigests> {
        match self.sources.get(image_digests::NAME) {
            Some(Source::ImageDigests(source)) => Some(source),
            _ => None,
        }
    }

    /// Which objects have to be known to answer whatever may be asked.
    #[must_use]
    pub fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        for source in self.sources.values() {
            match source {
                Source::Static(_) | Source::ImageDigests(_) => {}
                Source::GlooRoutes(source) => {
                    let namespaces = source.namespaces().iter().cloned();
                    watched.route_tables.extend(namespaces);
                }
                Source::Rollouts(source) => {
                    let namespaces = source.namespaces().iter();
                    watched.rollouts.extend(namespaces.clone().cloned());
                    watched.route_tables.extend(namespaces.cloned());
                }
                Source::GlooWorkspaces(source) => {
                    let namespaces = source.namespaces().iter();
                    watched.workspaces.extend(namespaces.clone().cloned());
                    watched.clusters.extend(namespaces.cloned());
                }
            }
        }
        watched
    }

    /// What `request` asks for, sent by the bearer of `token` to the path of a profile or, without one, to the path that names
    /// none.
    ///
    /// # Errors
    /// When there is no such profile, the token is not for it, or the request cannot be understood or may not be asked.
    pub fn query(
        &self,
        profile: Option<&str>,
        token: &str,
        request: &Request,
    ) -> Result<Query, Failure> {
        let mut profile = self.profile(profile.unwrap_or(ROOT), token)?;
        if let Some(other) = profile.hands_over(request) {
            profile = self.profile(other, token)?;
        }
        profile.query(&self.sources, request)
    }

    fn profile(&self, name: &str, token: &str) -> Result<&Profile, Failure> {
        let profile = self.profiles.get(name);
        let profile = profile.ok_or_else(|| Failure::UnknownProfile(shown(name)))?;
        profile.admit(token)?;
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let error = Config::from_yaml(text).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn what_is_watched_is_what_sources_look_into() {
        let watched = |text: &str| Config::from_yaml(text).unwrap().watched();
        let none = watched("static: {hello: {}}");
        assert_eq!(none, Watched::default());
        let tables = watched("glooRoutes: {namespaces: [shop, edge, shop]}").route_tables;
        assert_eq!(tables.into_iter().collect::<Vec<_>>(), ["edge", "shop"]);
        let rollouts = watched("rollouts: {namespaces: [shop]}");
        assert_eq!(
            (rollouts.rollouts, rollouts.route_tables.len()),
            (["shop".to_owned()].into(), 1)
        );
        let workspaces = watched("glooWorkspaces: {clusterMap: {}}");
        assert_eq!(workspaces.workspaces, ["gloo-mesh".to_owned()].into());
        assert_eq!(workspaces.clusters, workspaces.workspaces);
    }

    #[test]
    fn what_an_administrator_may_get_wrong() {
        refused("[", "not YAML");
        refused("", "has no source");
        refused("{static: {}}", "has no source");
        refused(
            "{static: {image-digests: {}}}",
            "has the name of another source",
        );
        refused(
            "{glooRoutes: {}}",
            "glooRoutes is empty: set namespaces in it",
        );
        refused(
            "{imageDigests: {}}",
            "imageDigests is empty: set registries in it",
        );
        refused(
            "{imageDigests: {registry: a, registries: {b: {}}}}",
            r#"imageDigests.registry is "a", it must be one of registries"#,
        );
        refused("static: [a]", "static must be an object, found a list");
        refused("statics: {}", "unknown key statics, did you mean static?");
        refused(
            "static: {hello: {set: []}}",
            "unknown key static.hello.set, did you mean sets?",
        );
        refused(
            "static: {hello: {sets: [a]}}",
            "static.hello.sets[0] must be an object",
        );
        refused(
            "static: {hello: {sets: [{version: 1.10}]}}",
            "static.hello.sets[0].version is 1.1, not a whole number: quote it",
        );
        refused(
            "static: {hello: {sets: [{a: }]}}",
            "static.hello.sets[0].a is null",
        );
        refused(
            "static: {hello: {sets: [{name: x}]}}",
            "the key name belongs to other generators",
        );
        refused(
            "static: {hello: {sets: [{a: 1}, {a: '1'}]}}",
            "static.hello.sets[1] repeats",
        );
        for inputs in ["", "inputs: [a], "] {
            refused(
                &format!("static: {{hello: {{{inputs}sets: [{{input: x}}]}}}}"),
                "static.hello.sets[0] has a key input",
            );
        }
        Config::from_yaml("static: {hello: {inputs: [], sets: [{input: x}]}}").unwrap();
        refused(
            "{static: {hello: {}}, profiles: {a: {sources: [helo]}}}",
            "profiles.a.sources has helo, which is no source here: it is one of hello",
        );
        refused(
            "{static: {hello: {}}, profiles: {a: {requestsWith: {branch: c}}, b: {}}}",
            "profiles.a.requestsWith.branch is c, which is no profile: it must be one of a, b",
        );
    }

    #[test]
    fn what_makes_tags_needs_images_that_want_one() {
        let tag_from = |more: &str| {
            format!(
                "
static: {{hello: {{}}}}
imageDigests: {{registries: {{ghcr.io: {{}}}}}}
profiles: {{a: {{tagFrom: {{parameter: branch, rule: verbatim}}, {more}}}}}"
            )
        };
        Config::from_yaml(&tag_from("")).unwrap();
        Config::from_yaml(&tag_from("sources: [image-digests]")).unwrap();
        refused(
            &tag_from("sources: [hello]"),
            "profiles.a.tagFrom is set without the source image-digests",
        );
        refused(
            &tag_from("fixed: {tag: v1}"),
            "profiles.a.fixed.tag contradicts tagFrom: remove one of them",
        );
        refused(
            &tag_from("defaults: {tag: v1}"),
            "profiles.a.defaults.tag contradicts tagFrom: remove one of them",
        );
    }
}
