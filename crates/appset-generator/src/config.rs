//! The configuration file and its errors.

use std::collections::BTreeMap;
use std::time::Duration;

use strict_json::{Block, Problem};

use crate::clusters::{ClusterAccess, Clusters, Namespaces, Watched};
use crate::error::ConfigError;
use crate::failure::shown;
use crate::image_digests::ImageDigests;
use crate::profile::Profile;
use crate::source::{KINDS, Source, Sources};
use crate::warning::Warning;
use crate::{Failure, Query, Request, StaticSource};

/// Top-level keys of the configuration that do not hold an object.
pub(crate) const TOP: &[&str] = &["cluster"];

/// The configuration of an administrator.
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
/// assert!(config.query(Some("team-a"), Some("team-a"), request.clone(), &known).is_ok());
/// assert!(config.query(Some("team-a"), Some("team-b"), request, &known).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    sources: Sources,
    clusters: Clusters,
    refresh: Option<Refresh>,
    profiles: BTreeMap<String, Profile>,
}

/// The profile of requests whose path names none.
const ROOT: &str = "default";

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// Returns `Err` if the file is not YAML, has an unknown key or an invalid value, or names a source, cluster or profile that
    /// it does not configure.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let document = crate::yaml::read(text)?;
        let keys = ["cluster", "clusters", "profiles", "refresh", "static"];
        let keys: Vec<_> = keys
            .into_iter()
            .chain(KINDS.map(|(schema, _)| schema.key))
            .collect();
        let root = Block::root(&document, "the configuration", &keys)?;
        let clusters = Clusters::from_config(&root)?;

        let mut sources = Sources::new();
        for (name, source) in root.named_blocks("static", StaticSource::KEYS)? {
            if KINDS.iter().any(|(schema, _)| schema.name == name) {
                return Err(ConfigError::ReservedName(name.to_owned()));
            }
            let source = StaticSource::from_config(&source)?;
            sources.insert(name.to_owned(), Source::Static(source));
        }
        for (schema, read) in KINDS {
            if let Some(block) = root.optional_block(schema.key, schema.keys)? {
                sources.insert(schema.name.to_owned(), read(&block, &clusters)?);
            }
        }
        if sources.is_empty() {
            return Err(ConfigError::NoSource);
        }

        let refresh = root.optional_block("refresh", Refresh::KEYS)?;
        let refresh = refresh.as_ref().map(Refresh::from_config).transpose()?;

        let mut profiles = BTreeMap::new();
        for (name, profile) in root.named_blocks("profiles", Profile::KEYS)? {
            if name.is_empty() {
                let expected = "the name of a profile, with which baseUrl ends";
                return Err(root.wrong("profiles", "", expected).into());
            }
            let profile = Profile::from_config(name, &profile, &sources, &clusters)?;
            profiles.insert(name.to_owned(), profile);
        }
        if profiles.is_empty() {
            profiles.insert(ROOT.to_owned(), Profile::open(ROOT));
        }
        Profile::check_circles(&profiles)?;
        for profile in profiles.values() {
            profile.check_requests_with(&profiles, &sources)?;
            profile.check_answers(&sources)?;
        }
        Ok(Self {
            sources,
            clusters,
            refresh,
            profiles,
        })
    }

    /// Returns the source of image digests, if it is configured.
    #[must_use]
    pub fn image_digests(&self) -> Option<&ImageDigests> {
        match self.sources.get(ImageDigests::SCHEMA.name) {
            Some(Source::ImageDigests(source)) => Some(source),
            _ => None,
        }
    }

    /// Returns the clusters whose objects are read.
    #[must_use]
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// Returns the names of the profiles.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.profiles.keys().map(String::as_str)
    }

    /// Returns the names of the tokens that profiles name.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.profiles.values().flat_map(Profile::tokens)
    }

    /// Returns what is allowed, but will probably fail in Argo CD.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let sources = self.static_sources();
        let warnings = sources.filter_map(|(name, source)| Warning::of_keys(name, source));
        warnings.collect()
    }

    /// Returns a warning for each static source of this configuration that has fewer than half of its sets in `next`. One
    /// cause is a file that was read while it was written.
    #[must_use]
    pub fn shrunk_to(&self, next: &Self) -> Vec<Warning> {
        let shrunk = self.static_sources().filter_map(|(name, source)| {
            let before = source.sets.len();
            let after = match next.sources.get(name) {
                Some(Source::Static(other)) => Some(other.sets.len()),
                _ => None,
            };
            (after.unwrap_or_default() * 2 < before).then(|| Warning::Shrunk {
                source_name: name.to_owned(),
                before,
                after,
            })
        });
        shrunk.collect()
    }

    fn static_sources(&self) -> impl Iterator<Item = (&str, &StaticSource)> {
        let sources = self.sources.iter();
        sources.filter_map(|(name, source)| match source {
            Source::Static(source) => Some((name.as_str(), source)),
            _ => None,
        })
    }

    /// Returns the settings of push refresh, if it is configured.
    #[must_use]
    pub fn refresh(&self) -> Option<&Refresh> {
        self.refresh.as_ref()
    }

    /// Returns the objects that the sources need, by cluster. Selectors of namespaces are resolved to the `known` namespaces.
    #[must_use]
    pub fn watched(&self, known: &Namespaces) -> BTreeMap<String, Watched> {
        let mut watched = BTreeMap::new();
        for source in self.sources.values() {
            source.watch(known, &mut watched);
        }
        watched
    }

    /// Resolves `request` to a query.
    ///
    /// `profile` is the profile in the path, if the path names one. `token` is the name of the caller's token. Without a token
    /// every profile is allowed, which the commands use. `known` must have the namespaces of each cluster for which
    /// [`watched`](Self::watched) sets `namespaces`.
    ///
    /// # Errors
    /// Returns `Err` if the profile is unknown or not for this token, if the request is invalid or not allowed, or if namespaces
    /// that it needs are unknown.
    pub fn query(
        &self,
        profile: Option<&str>,
        token: Option<&str>,
        request: Request,
        known: &Namespaces,
    ) -> Result<Query, Failure> {
        let mut profile = self.profile(profile.unwrap_or(ROOT), token)?;
        if let Some(other) = profile.delegate(&request) {
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

/// The default of [`Refresh::interval`], and its limit.
const INTERVAL: Duration = Duration::from_secs(10);
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of push refresh: which ApplicationSets are annotated when their answer has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The namespaces of the ApplicationSets. A request has the name of its set without the namespace, so each is tried.
    pub namespaces: Vec<String>,
    /// The minimum time between two refreshes of a set. Changes within it cause one refresh.
    pub interval: Duration,
    /// The cluster of the ApplicationSets. Without a kubeconfig and a context it is the cluster of the generator.
    pub access: ClusterAccess,
}

impl Refresh {
    pub(crate) const KEYS: &[&str] = &["namespaces", "interval", "kubeconfig", "context"];

    pub(crate) fn from_config(block: &Block<'_>) -> Result<Self, Problem> {
        let namespaces = block.object_names("namespaces")?;
        if namespaces.is_empty() {
            return Err(block.empty("namespaces"));
        }
        let interval = block.duration("interval")?.unwrap_or(INTERVAL);
        if !(Duration::from_secs(1)..=MAX_INTERVAL).contains(&interval) {
            let found = block.string("interval")?.unwrap_or_default();
            return Err(block.wrong("interval", found, "1s to 24h"));
        }
        Ok(Self {
            namespaces,
            interval,
            access: ClusterAccess::from_config(block)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the error of a configuration contains `expect`.
    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let error = Config::from_yaml(text).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }

    /// Checks what is watched in each cluster, as `cluster: kind namespaces; kind namespaces`.
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
    fn the_objects_of_the_sources_are_watched() {
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
                // The namespaces of west are still unknown.
                "west: routetables *; rollouts *; namespaces",
            ],
        );
    }

    #[test]
    fn invalid_clusters_are_refused() {
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
            "glooWorkspaces.cluster names the unknown cluster b: use one of a",
        );
        refused(
            "{clusters: {a: {}}, static: {hello: {}}, profiles: {p: {clusters: [b]}}}",
            "profiles.p.clusters names the unknown cluster b: use one of a",
        );
        Config::from_yaml("{clusters: {a: {}}, glooWorkspaces: {}}").unwrap();
    }

    #[test]
    fn push_refresh_is_off_by_default() {
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
                "refresh.interval is \"10ms\", it must be 1s to 24h",
            ),
            (
                "{namespaces: [argocd], interval: 999999999999h}",
                "it must be 1s to 24h",
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
    fn invalid_configurations_are_refused() {
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
            "static.hello.sets[0].version is 1.10, a number that would become another text: quote it",
        );
        refused(
            "static: {hello: {sets: [{a: }]}}",
            "static.hello.sets[0].a is null",
        );
        refused(
            "static: {hello: {sets: [{name: x}]}}",
            "the key static.hello.sets[0].name is used by other generators",
        );
        refused(
            "static: {hello: {sets: [{a: 1}, {a: '1'}]}}",
            "static.hello.sets[1] repeats",
        );
        for inputs in ["", "inputs: [a], "] {
            refused(
                &format!("static: {{hello: {{{inputs}sets: [{{input: x}}]}}}}"),
                "static.hello.sets[0] has the key input",
            );
        }
        Config::from_yaml("static: {hello: {inputs: [], sets: [{input: x}]}}").unwrap();
        refused(
            "{static: {hello: {}}, profiles: {a: {sources: [helo]}}}",
            "profiles.a.sources names the unknown source helo: use one of hello",
        );
        refused(
            "{static: {hello: {}}, profiles: {a: {requestsWith: {branch: c}}, b: {}}}",
            "profiles.a.requestsWith.branch names the unknown profile c: use one of a, b",
        );
    }

    #[test]
    fn tag_from_needs_images_and_no_other_tag() {
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
            "profiles.a.tagFrom needs the source image-digests",
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
