//! The configuration file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use strict_json::Block;

use crate::error::ConfigError;
use crate::failure::shown;
use crate::image_digests::ImageDigests;
use crate::profile::Profile;
use crate::source::{Kind, Source, Sources};
use crate::{Failure, Query, Request, StaticSource};

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
/// assert!(config.query(Some("team-a"), Some("team-a"), &request).is_ok());
/// assert!(config.query(Some("team-a"), Some("team-b"), &request).is_err());
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
        let keys: Vec<_> = ["cluster", "profiles", "static"]
            .into_iter()
            .chain(Kind::ALL.map(Kind::key))
            .collect();
        let root = Block::root(&document, "the configuration", &keys)?;
        let cluster = root.string("cluster")?.unwrap_or(IN_CLUSTER);

        let mut sources = Sources::new();
        for (name, source) in root.named_blocks("static", StaticSource::KEYS)? {
            if Kind::ALL.iter().any(|kind| kind.name() == name) {
                return Err(ConfigError::ReservedName(name.to_owned()));
            }
            let source = StaticSource::from_config(&source)?;
            sources.insert(name.to_owned(), Source::Static(source));
        }
        for kind in Kind::ALL {
            if root.value(kind.key()).is_some() {
                let block = root.block(kind.key(), kind.keys())?;
                sources.insert(kind.name().to_owned(), kind.read(&block, cluster)?);
            }
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
        match self.sources.get(Kind::ImageDigests.name()) {
            Some(Source::ImageDigests(source)) => Some(source),
            _ => None,
        }
    }

    /// Which objects have to be known to answer whatever may be asked.
    #[must_use]
    pub fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        for source in self.sources.values() {
            source.watch(&mut watched);
        }
        watched
    }

    /// What `request` asks for, sent by the bearer of `token` to the path of a profile or, without one, to the path that names
    /// none. Without a token nobody is turned away: that is for whoever runs the generator.
    ///
    /// # Errors
    /// When there is no such profile, the token is not for it, or the request cannot be understood or may not be asked.
    pub fn query(
        &self,
        profile: Option<&str>,
        token: Option<&str>,
        request: &Request,
    ) -> Result<Query, Failure> {
        let mut profile = self.profile(profile.unwrap_or(ROOT), token)?;
        if let Some(other) = profile.hands_over(request) {
            profile = self.profile(other, token)?;
        }
        profile.query(&self.sources, request)
    }

    fn profile(&self, name: &str, token: Option<&str>) -> Result<&Profile, Failure> {
        let profile = self.profiles.get(name);
        let profile = profile.ok_or_else(|| Failure::UnknownProfile(shown(name)))?;
        if let Some(token) = token {
            profile.admit(token)?;
        }
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
