//! The configuration file, and what can be wrong with it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use strict_json::{Block, Problem};

use crate::clusters::{ClusterAccess, Clusters, Namespaces, Watched};
use crate::failure::shown;
use crate::image_digests::ImageDigests;
use crate::keys::{Key, names};
use crate::profile::Profile;
use crate::source::{Kind, Source, Sources};
use crate::{Failure, FieldError, Query, Request, StaticSource};

/// What an administrator wrote.
///
/// ```
/// use appset_generator::{Config, Namespaces, Request};
///
/// let config = Config::from_yaml("
///   static:
///     hello: {sets: [{key1: val1}]}
///   profiles:
///     team-a: {tokens: [team-a], sources: [hello]}
/// ")?;
/// let request = Request::from_body(br#"{"input": {}}"#)?;
/// let known = Namespaces::default();
/// assert!(config.query(Some("team-a"), Some("team-a"), &request, &known).is_ok());
/// assert!(config.query(Some("team-a"), Some("team-b"), &request, &known).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    sources: Sources,
    clusters: Clusters,
    refresh: Option<Refresh>,
    profiles: BTreeMap<String, Profile>,
}

/// The profile behind the path without one.
const ROOT: &str = "default";

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be used as it is.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let document: Value =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        let keys: Vec<_> = ["cluster", "clusters", "profiles", "refresh", "static"]
            .into_iter()
            .chain(Kind::ALL.map(|kind| kind.schema().key))
            .collect();
        let root = Block::root(&document, "the configuration", &keys)?;
        let clusters = Clusters::from_config(&root)?;

        let mut sources = Sources::new();
        for (name, source) in root.named_blocks("static", &names(StaticSource::KEYS))? {
            if Kind::ALL.iter().any(|kind| kind.schema().name == name) {
                return Err(ConfigError::ReservedName(name.to_owned()));
            }
            let source = StaticSource::from_config(&source)?;
            sources.insert(name.to_owned(), Source::Static(source));
        }
        for kind in Kind::ALL {
            let schema = kind.schema();
            if root.value(schema.key).is_some() {
                let block = root.block(schema.key, &names(schema.keys))?;
                sources.insert(schema.name.to_owned(), kind.read(&block, &clusters)?);
            }
        }
        if sources.is_empty() {
            return Err(ConfigError::NoSource);
        }

        let refresh = match root.value("refresh") {
            None => None,
            Some(_) => Some(Refresh::from_config(
                &root.block("refresh", &names(Refresh::KEYS))?,
            )?),
        };

        let mut profiles = BTreeMap::new();
        for (name, profile) in root.named_blocks("profiles", &names(Profile::KEYS))? {
            let profile = Profile::from_config(name, &profile, &sources, &clusters)?;
            profiles.insert(name.to_owned(), profile);
        }
        if profiles.is_empty() {
            profiles.insert(ROOT.to_owned(), Profile::open(ROOT));
        }
        for profile in profiles.values() {
            profile.check_hand_overs(&profiles)?;
        }
        Ok(Self {
            sources,
            clusters,
            refresh,
            profiles,
        })
    }

    /// The source of image digests, if it is configured.
    #[must_use]
    pub fn image_digests(&self) -> Option<&ImageDigests> {
        match self.sources.get(ImageDigests::SCHEMA.name) {
            Some(Source::ImageDigests(source)) => Some(source),
            _ => None,
        }
    }

    /// The clusters whose objects are read.
    #[must_use]
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// Which ApplicationSets are told that an answer has changed, if any.
    #[must_use]
    pub fn refresh(&self) -> Option<&Refresh> {
        self.refresh.as_ref()
    }

    /// The objects that the sources need, by cluster. Where namespaces are selected by labels, these are the namespaces that are
    /// `known`.
    #[must_use]
    pub fn watched(&self, known: &Namespaces) -> BTreeMap<String, Watched> {
        let mut watched = BTreeMap::new();
        for source in self.sources.values() {
            source.watch(known, &mut watched);
        }
        watched
    }

    /// What `request` asks for, sent by the bearer of `token` to the path of a profile or, without one, to the path that names
    /// none. Without a token every profile may be used: that is for the commands. `known` are the namespaces of the
    /// clusters that [`watched`](Self::watched) has with `namespaces`.
    ///
    /// # Errors
    /// When there is no such profile, the token is not for it, the request cannot be understood or may not be asked, or
    /// namespaces that it takes are not known.
    pub fn query(
        &self,
        profile: Option<&str>,
        token: Option<&str>,
        request: &Request,
        known: &Namespaces,
    ) -> Result<Query, Failure> {
        let mut profile = self.profile(profile.unwrap_or(ROOT), token)?;
        if let Some(other) = profile.hands_over(request) {
            profile = self.profile(other, token)?;
        }
        profile.query(&self.sources, request, known)
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

/// Least time between two refreshes of an ApplicationSet, unless the configuration has another one.
const INTERVAL: Duration = Duration::from_secs(10);

/// Which ApplicationSets are annotated when an answer that they got would now be another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// Where they are. A request has the name of its set and no namespace, so each of these is tried.
    pub namespaces: Vec<String>,
    /// Least time between two refreshes of a set. Changes within it count together.
    pub interval: Duration,
    /// The cluster that they are in; without a kubeconfig or a context the one that the generator runs in.
    pub access: ClusterAccess,
}

impl Refresh {
    pub(crate) const KEYS: &[Key] = &[
        Key::new(
            "namespaces",
            "the namespaces of the ApplicationSets; turns [push refresh](#push-refresh) on",
            "required",
        ),
        Key::new(
            "interval",
            "least time between two refreshes of a set",
            "`10s`",
        ),
        Key::new(
            "kubeconfig",
            "path of a kubeconfig for the cluster with the ApplicationSets",
            "the cluster that the generator runs in",
        ),
        Key::new(
            "context",
            "context within the kubeconfig",
            "its current one",
        ),
    ];

    pub(crate) fn from_config(block: &Block<'_>) -> Result<Self, Problem> {
        let namespaces = block.object_names("namespaces")?;
        if namespaces.is_empty() {
            return Err(block.empty("namespaces"));
        }
        let interval = block.duration("interval")?.unwrap_or(INTERVAL);
        if interval < Duration::from_secs(1) {
            return Err(Problem::Value {
                path: block.path("interval"),
                found: format!("{} ms", interval.as_millis()),
                expected: "at least 1s".into(),
            });
        }
        Ok(Self {
            namespaces,
            interval,
            access: ClusterAccess::from_config(block)?,
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let error = Config::from_yaml(text).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }

    /// What is watched, as `cluster: kind namespaces; kind namespaces`.
    #[track_caller]
    fn watched(text: &str, expect: &[&str]) {
        let mut known = Namespaces::default();
        let shop = BTreeMap::from([("team".to_owned(), "shop".to_owned())]);
        let namespaces = [
            ("cart", shop.clone()),
            ("other", BTreeMap::new()),
            ("shop", shop),
        ];
        known.insert(
            "east",
            Ok(namespaces
                .map(|(name, labels)| (name.to_owned(), labels))
                .into()),
        );
        let watched = Config::from_yaml(text).unwrap().watched(&known);
        let shown = watched.into_iter().map(|(cluster, it)| {
            let kinds = [
                ("routetables", &it.route_tables),
                ("rollouts", &it.rollouts),
                ("workspaces", &it.workspaces),
                ("clusters", &it.clusters),
            ];
            let kinds = kinds
                .into_iter()
                .filter(|(_, namespaces)| !namespaces.is_empty());
            let mut kinds: Vec<_> = kinds
                .map(|(kind, namespaces)| {
                    let namespaces: Vec<_> = namespaces.iter().map(String::as_str).collect();
                    format!("{kind} {}", namespaces.join(","))
                })
                .collect();
            kinds.extend(it.namespaces.then(|| "namespaces".to_owned()));
            format!("{cluster}: {}", kinds.join("; "))
        });
        assert_eq!(shown.collect::<Vec<_>>(), expect, "{text}");
    }

    #[test]
    fn what_is_watched_is_what_sources_look_into() {
        watched("static: {hello: {}}", &[]);
        watched(
            "glooRoutes: {namespaces: [shop, edge, shop]}",
            &["in-cluster: routetables edge,shop"],
        );
        watched(
            "rollouts: {namespaces: [shop]}",
            &["in-cluster: routetables shop; rollouts shop"],
        );
        watched(
            "{cluster: c1, glooWorkspaces: {clusterMap: {}}}",
            &["c1: workspaces gloo-mesh; clusters gloo-mesh"],
        );
        watched(
            "
clusters: {east: {context: east}, west: {}, gloo: {kubeconfig: /gloo}}
glooRoutes: {namespaceSelector: {labels: {team: shop}}, clusters: [east, west]}
rollouts: {namespaces: '*', clusters: [west]}
glooWorkspaces: {cluster: gloo}",
            &[
                "east: routetables cart,shop; namespaces",
                "gloo: workspaces gloo-mesh; clusters gloo-mesh",
                // Its namespaces are not known yet.
                "west: routetables *; rollouts *; namespaces",
            ],
        );
    }

    #[test]
    fn what_may_be_wrong_about_clusters() {
        refused(
            "{cluster: a, clusters: {b: {}}, static: {hello: {}}}",
            "cluster contradicts clusters: remove one of them",
        );
        refused("{clusters: {}, static: {hello: {}}}", "clusters is empty");
        refused(
            "{clusters: {a: {contxt: x}}, static: {hello: {}}}",
            "unknown key clusters.a.contxt, did you mean context?",
        );
        refused(
            "{clusters: {a: {}, b: {}}, glooWorkspaces: {}}",
            "glooWorkspaces.cluster is missing: set it to the management cluster, one of a, b",
        );
        refused(
            "{clusters: {a: {}}, glooWorkspaces: {cluster: b}}",
            "glooWorkspaces.cluster has b, which is no cluster here: it is one of a",
        );
        refused(
            "{clusters: {a: {}}, static: {hello: {}}, profiles: {p: {clusters: [b]}}}",
            "profiles.p.clusters has b, which is no cluster here: it is one of a",
        );
        Config::from_yaml("{clusters: {a: {}}, glooWorkspaces: {}}").unwrap();
    }

    #[test]
    fn refreshes_have_to_be_asked_for() {
        let refresh = |text: &str| {
            let config = Config::from_yaml(&format!("{{static: {{hello: {{}}}}{text}}}"));
            config.map(|config| config.refresh().cloned())
        };
        assert_eq!(refresh("").unwrap(), None);
        let given = refresh(", refresh: {namespaces: [argocd], context: hub}").unwrap();
        let given = given.unwrap();
        assert_eq!(given.interval.as_secs(), 10);
        assert_eq!(given.access.context.as_deref(), Some("hub"));
        for (text, expect) in [
            ("{}", "refresh is empty: set namespaces in it"),
            (
                "{namespaces: [argocd], interval: 10ms}",
                "refresh.interval is \"10 ms\", it must be at least 1s",
            ),
            (
                "{namespace: argocd}",
                "unknown key refresh.namespace, did you mean namespaces?",
            ),
        ] {
            let error = refresh(&format!(", refresh: {text}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expect), "{error}");
        }
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
            "glooRoutes is empty: set namespaces or namespaceSelector in it",
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
