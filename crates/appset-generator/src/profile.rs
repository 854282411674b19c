//! Profiles: what a caller may request, and the parameters that are added to its requests.
//!
//! The author of an ApplicationSet cannot edit the ConfigMap with `baseUrl` and `token`. So the profile in the path and
//! the token are the boundary between tenants. The name of the ApplicationSet is not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use strict_json::{Block, Problem, resembles};

use crate::clusters::{Allowed, Clusters, Namespaces};
use crate::error::{ConfigError, joined};
use crate::failure::shown;
use crate::image_digests::ImageDigests;
use crate::keys::{has_blanks, written};
use crate::request::{refuse_templates, unfold};
use crate::source::{Query, Source, Sources};
use crate::tag_from::TagFrom;
use crate::{Failure, Request};

/// One entry of `profiles`. Requests choose it by a `baseUrl` that ends in `/profiles/<name>`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    pub(crate) name: String,
    /// The names of the tokens that may use it. Without a list any token may.
    tokens: Option<Vec<String>>,
    /// The names of the sources that it offers. Without a list it offers all.
    sources: Option<Vec<String>>,
    /// Patterns of the images that it may look up, each with its registry. Without a list it may look up all that the source
    /// allows.
    pub(crate) images: Option<Vec<String>>,
    /// The clusters that it may read. Without a list it may read all that the source allows.
    clusters: Option<Vec<String>>,
    /// The namespaces that it may read. Without a list it may read all that the source allows.
    namespaces: Option<Vec<String>>,
    /// Parameters that a request cannot change.
    fixed: Map<String, Value>,
    /// Parameters for requests that do not have them.
    defaults: Map<String, Value>,
    /// How a request for image digests gets its tag, if not from the parameter `tag`.
    tag_from: Option<TagFrom>,
    /// Parameters, each with the profile that answers requests with this parameter.
    pub(crate) requests_with: BTreeMap<String, String>,
}

impl Profile {
    /// Returns the names of the tokens that may use it.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().flatten().map(String::as_str)
    }

    pub(crate) const KEYS: &[&str] = &[
        "tokens",
        "sources",
        "images",
        "clusters",
        "namespaces",
        "fixed",
        "defaults",
        "tagFrom",
        "requestsWith",
    ];

    /// Makes a profile that restricts nothing.
    pub(crate) fn open(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn from_config(
        name: &str,
        profile: &Block<'_>,
        configured: &Sources,
        known: &Clusters,
    ) -> Result<Self, ConfigError> {
        let parameters = |key| Ok::<_, Problem>(profile.object(key)?.cloned().unwrap_or_default());
        let tag_from = profile.optional_block("tagFrom", TagFrom::KEYS)?;
        let read = Self {
            name: name.to_owned(),
            tokens: profile.optional_strings("tokens")?,
            sources: profile.optional_strings("sources")?,
            images: profile.optional_strings("images")?,
            clusters: profile.optional_strings("clusters")?,
            namespaces: profile.optional_strings("namespaces")?,
            fixed: parameters("fixed")?,
            defaults: parameters("defaults")?,
            tag_from: tag_from.as_ref().map(TagFrom::from_config).transpose()?,
            requests_with: profile.texts("requestsWith")?,
        };
        read.check(profile, configured, known)?;
        Ok(read)
    }

    /// Checks that it names what is configured, and that with `tagFrom` it offers images and does not set the tag itself.
    fn check(
        &self,
        profile: &Block<'_>,
        configured: &Sources,
        known: &Clusters,
    ) -> Result<(), ConfigError> {
        let mut sources = self.sources.iter().flatten();
        if let Some(name) = sources.find(|name| !configured.contains_key(*name)) {
            let (path, known) = (profile.path("sources"), joined(configured.keys()));
            return Err(ConfigError::Unknown(path, "source", name.clone(), known));
        }
        for name in self.clusters.iter().flatten() {
            known.check(name, profile.path("clusters"))?;
        }
        if self.tokens.as_ref().is_some_and(Vec::is_empty) {
            return Err(ConfigError::Key(Problem::Empty {
                path: profile.path("tokens"),
                needed: "the name of a token",
            }));
        }
        let is_file =
            |name: &&String| !has_blanks(name) && !name.starts_with('.') && !name.contains('/');
        if let Some(name) = self.tokens.iter().flatten().find(|name| !is_file(name)) {
            let expected = "the name of a file with a token, which does not begin with a dot";
            return Err(profile.wrong("tokens", name, expected).into());
        }
        let images = configured.get(ImageDigests::SCHEMA.name);
        let images = images.filter(|_| self.offers(ImageDigests::SCHEMA.name));
        if self.tag_from.is_some() && images.is_none() {
            return Err(ConfigError::TagsWithoutImages(profile.path("tagFrom")));
        }
        for (kind, parameters) in [("fixed", &self.fixed), ("defaults", &self.defaults)] {
            if self.tag_from.is_some() && parameters.contains_key("tag") {
                return Err(profile.conflict(&format!("{kind}.tag"), "tagFrom").into());
            }
            if let Some(name) = parameters.get("source")
                && !self.candidates(configured).any(|(known, _)| name == known)
            {
                let path = profile.path(&format!("{kind}.source"));
                let offered = joined(configured.keys().filter(|name| self.offers(name)));
                return Err(ConfigError::Unknown(path, "source", written(name), offered));
            }
        }
        if let Some(Source::ImageDigests(source)) = images {
            for (index, pattern) in self.images.iter().flatten().enumerate() {
                let image = source.example(Some(std::slice::from_ref(pattern)));
                if image.is_none() {
                    let expected = "a pattern with its registry, which an image of imageDigests.registries matches, such as ghcr.io/myorg/*";
                    let problem = profile.wrong(&format!("images[{index}]"), pattern, expected);
                    return Err(problem.into());
                }
            }
        }
        Ok(())
    }

    /// Checks that no `requestsWith` leads back to its own profile. Each entry is followed once.
    pub(crate) fn check_circles(profiles: &BTreeMap<String, Self>) -> Result<(), ConfigError> {
        let mut done = BTreeSet::new();
        for start in profiles.values() {
            // The profiles on the way from `start`, each with the parameter by which the way leaves it.
            let mut on_way = BTreeMap::new();
            let mut way = vec![(start, start.requests_with.iter())];
            while let Some((profile, entries)) = way.last_mut() {
                let Some((parameter, other)) = entries.next() else {
                    on_way.remove(&profile.name);
                    done.insert(&profile.name);
                    way.pop();
                    continue;
                };
                on_way.insert(&profile.name, parameter);
                if let Some(first) = on_way.get(other) {
                    let path = format!("profiles.{other}.requestsWith.{first}");
                    return Err(ConfigError::Cycle(path, other.clone()));
                }
                let next = profiles.get(other).filter(|_| !done.contains(other));
                way.extend(next.map(|next| (next, next.requests_with.iter())));
            }
        }
        Ok(())
    }

    /// Checks that every profile in `requestsWith` is one of `profiles`, and knows the parameter for which it gets requests.
    pub(crate) fn check_requests_with(
        &self,
        profiles: &BTreeMap<String, Self>,
        configured: &Sources,
    ) -> Result<(), ConfigError> {
        for (parameter, other) in &self.requests_with {
            let path = format!("profiles.{}.requestsWith.{parameter}", self.name);
            let Some(profile) = profiles.get(other) else {
                let known = joined(profiles.keys());
                return Err(ConfigError::Unknown(path, "profile", other.clone(), known));
            };
            let mut sources = profile.candidates(configured);
            if profile.branch() != Some(parameter) && !sources.any(|(_, it)| it.knows(parameter)) {
                return Err(ConfigError::Unpassable(path, other.clone()));
            }
        }
        Ok(())
    }

    /// Returns the profile that `requestsWith` names for `request`. If several of its parameters are set, the first by name
    /// decides.
    pub(crate) fn delegate(&self, request: &Request) -> Option<&str> {
        let mut targets = self.requests_with.iter();
        let target = targets.find(|(parameter, _)| request.parameters.contains_key(*parameter));
        target.map(|(_, other)| other.as_str())
    }

    /// Checks that the token may use this profile.
    pub(crate) fn admit(&self, token: &str) -> Result<(), Failure> {
        let mut tokens = self.tokens.iter();
        if tokens.all(|tokens| tokens.iter().any(|admitted| admitted == token)) {
            return Ok(());
        }
        Err(Failure::Forbidden(format!(
            "the token is not for profile {}: use the profile's own baseUrl and token",
            self.name
        )))
    }

    /// Returns the parameters `asked` with the defaults and fixed values of this profile.
    fn parameters(&self, asked: Map<String, Value>) -> Result<Map<String, Value>, Failure> {
        let mut parameters = self.defaults.clone();
        for (key, value) in asked {
            match self.fixed.get(&key) {
                Some(fixed) if *fixed != value => {
                    return Err(Failure::Forbidden(format!(
                        "parameter {key} is fixed by profile {}: remove it",
                        self.name
                    )));
                }
                _ => parameters.insert(key, value),
            };
        }
        parameters.extend(self.fixed.clone());
        Ok(parameters)
    }

    /// Resolves `request` to a query of one of the `configured` sources.
    ///
    /// # Errors
    /// Returns `Err` if the request is invalid or not allowed.
    pub(crate) fn query(
        &self,
        configured: &Sources,
        request: Request,
        known: &Namespaces,
    ) -> Result<Query, Failure> {
        let mut asked = request.parameters;
        let branch = self.branch();
        let source = self.source(configured, &asked);
        // The inputs of a static source are echoed as they are.
        let is_static = matches!(source, Ok((_, Source::Static(_))));
        unfold(&mut asked, |key| {
            branch != Some(key) && (!is_static || key == "alias")
        })?;
        refuse_templates(&asked, branch)?;
        let mut given = self.parameters(asked)?;
        let (name, source) = source?;
        if let (Source::ImageDigests(_), Some(tag_from)) = (source, &self.tag_from) {
            tag_from.apply(&mut given)?;
        }
        let allowed = Allowed {
            images: self.images.as_deref(),
            clusters: self.clusters.as_deref(),
            namespaces: self.namespaces.as_deref(),
            known,
        };
        source.query(name, given, &allowed)
    }

    /// Returns the parameter that becomes the tag, if the tag is made from one.
    pub(crate) fn branch(&self) -> Option<&str> {
        self.tag_from.as_ref().map(|it| it.parameter.as_str())
    }

    /// Returns the value that this profile gives to the parameter `key`.
    pub(crate) fn given(&self, key: &str) -> Option<&Value> {
        self.fixed.get(key).or_else(|| self.defaults.get(key))
    }

    pub(crate) fn has_defaults(&self) -> bool {
        !self.defaults.is_empty()
    }

    /// Returns the sources that requests can name.
    pub(crate) fn candidates<'a>(
        &'a self,
        configured: &'a Sources,
    ) -> impl Iterator<Item = (&'a String, &'a Source)> {
        let fixed = self.fixed.get("source");
        configured
            .iter()
            .filter(move |(name, _)| self.offers(name) && fixed.is_none_or(|fixed| fixed == *name))
    }

    /// Whether this profile offers `source`.
    fn offers(&self, source: &str) -> bool {
        let sources = self.sources.as_deref();
        sources.is_none_or(|sources| sources.iter().any(|offered| offered == source))
    }

    /// Returns the source that this profile fixes, or that the parameters `asked` name, or the only source that it offers.
    fn source<'a>(
        &self,
        configured: &'a Sources,
        asked: &Map<String, Value>,
    ) -> Result<(&'a String, &'a Source), Failure> {
        let mut places = [&self.fixed, asked, &self.defaults].into_iter();
        let mut offered = configured.iter().filter(|(name, _)| self.offers(name));
        let known = || joined(configured.keys().filter(|name| self.offers(name)));
        let Some(name) = places.find_map(|parameters| parameters.get("source")) else {
            let first = offered.next();
            let only = first.filter(|_| offered.next().is_none());
            let near = asked.keys().find(|key| resembles(key, &["source"]));
            let hint = near.map(|key| format!(", {} is unknown", shown(key)));
            return only.ok_or_else(|| Failure::NoSource(hint.unwrap_or_default(), known()));
        };
        let wrong = || Problem::wrong_type("source".to_owned(), "a string", name);
        let name = name.as_str().ok_or_else(wrong)?;
        let found = offered.find(|(known, _)| *known == name);
        found.ok_or_else(|| Failure::UnknownSource(shown(name), known()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*, sample};
    use serde_json::json;

    use crate::{Config, Namespaces, Request, SourceQuery};

    const CONFIG: &str = "
static:
  hello: {inputs: [key1, list], sets: [{key1: val1, port: 8080}, {key1: val2}]}
  none: {sets: []}
  open: {sets: [{key1: val1}]}
profiles:
  default: {}
  team-a: {tokens: [team-a], sources: [hello], fixed: {key1: a}, defaults: {list: [x], maxItems: 5}}
  team-b: {tokens: [team-b]}
  any: {sources: [open], requestsWith: {key1: team-a, team: team-b}}
";

    /// Checks the answer of the profile in `path` to the input `parameters`, with the token team-a.
    #[track_caller]
    fn check(path: Option<&str>, parameters: &str, expect: Result<&str, &str>) {
        let config = Config::from_yaml(CONFIG).unwrap();
        let body = format!(r#"{{"input":{{"parameters":{parameters}}}}}"#);
        let answer = Request::from_body(body.as_bytes()).and_then(|request| {
            let query = config.query(path, Some("team-a"), request, &Namespaces::default())?;
            let SourceQuery::Static(source) = query.source else {
                panic!("another source");
            };
            query.output.answer(source.into_sets())
        });
        match (answer, expect) {
            (Ok(answer), Ok(expect)) => {
                let body = String::from_utf8(answer.to_body(0).unwrap()).unwrap();
                assert_eq!(body, format!(r#"{{"output":{{"parameters":[{expect}]}}}}"#));
            }
            (Err(error), Err(expect)) => assert_eq!(error.to_string(), expect),
            (answer, _) => panic!("{answer:?}"),
        }
    }

    #[test]
    fn a_request_names_its_source() {
        check(
            None,
            r#"{"source":"hello"}"#,
            Ok(r#"{"key1":"val1","port":"8080"},{"key1":"val2"}"#),
        );
        let missing = "source is missing: set it to one of hello, none, open";
        check(None, "{}", Err(missing));
        check(
            None,
            r#"{"source":7}"#,
            Err("parameters: source must be a string, found a number"),
        );
        check(
            None,
            r#"{"sorce":"hello"}"#,
            Err("source is missing, sorce is unknown: set it to one of hello, none, open"),
        );
        check(
            None,
            r#"{"source":"helo"}"#,
            Err("unknown source helo: use one of hello, none, open"),
        );
    }

    #[test]
    fn inputs_are_echoed_in_a_form_that_templates_print() {
        check(
            None,
            r#"{"source":"hello","key1":1000000,"list":[true,{"a":null,"b":"<>&"}],"maxItems":"2"}"#,
            Ok(
                r#"{"input":{"key1":"1000000","list":[true,{"b":"<>&"}]},"key1":"val1","port":"8080"},{"input":{"key1":"1000000","list":[true,{"b":"<>&"}]},"key1":"val2"}"#,
            ),
        );
        check(
            None,
            r#"{"source":"hello","key2":"x"}"#,
            Err("parameters: unknown key key2, did you mean key1?"),
        );
    }

    #[test]
    fn without_a_list_any_input_is_echoed_except_a_misspelt_guard() {
        check(
            None,
            r#"{"source":"open","param1":"value1","inputs":[1],"maxItems":1}"#,
            Ok(r#"{"input":{"inputs":["1"],"param1":"value1"},"key1":"val1"}"#),
        );
        for (key, guard) in [
            ("minItem", "minItems"),
            ("onempty", "onEmpty"),
            ("allias", "alias"),
        ] {
            check(
                None,
                &format!(r#"{{"source":"open","{key}":"1"}}"#),
                Err(&format!(
                    "parameters: unknown key {key}, did you mean {guard}?"
                )),
            );
        }
    }

    #[test]
    fn a_profile_delegates_requests_to_another() {
        let any = Some("any");
        check(any, "{}", Ok(r#"{"key1":"val1"}"#));
        let of_team_a = r#"{"input":{"key1":"a","list":["x"]},"key1":"val1","port":"8080"},{"input":{"key1":"a","list":["x"]},"key1":"val2"}"#;
        check(any, r#"{"key1":"a"}"#, Ok(of_team_a));
        check(
            any,
            r#"{"key1":"b"}"#,
            Err("parameter key1 is fixed by profile team-a: remove it"),
        );
        check(
            any,
            r#"{"team":"b"}"#,
            Err("the token is not for profile team-b: use the profile's own baseUrl and token"),
        );
        check(
            any,
            r#"{"team":"b","key1":"a"}"#,
            Err(
                "parameters: unknown key team: use one of key1, list, source, onEmpty, minItems, maxItems, alias",
            ),
        );
    }

    #[test]
    fn an_empty_answer_is_refused_unless_allowed() {
        check(
            None,
            r#"{"source":"none"}"#,
            Err(
                "source none found nothing: an empty list would delete every Application of the set; if that is meant, set onEmpty: allow",
            ),
        );
        check(None, r#"{"source":"none","onEmpty":"allow"}"#, Ok(""));
    }

    #[test]
    fn a_profile_sets_fixed_and_default_parameters() {
        let answer = r#"{"input":{"key1":"a","list":["x"]},"key1":"val1","port":"8080"},{"input":{"key1":"a","list":["x"]},"key1":"val2"}"#;
        check(Some("team-a"), "{}", Ok(answer));
        check(Some("team-a"), r#"{"key1":"a"}"#, Ok(answer));
        check(
            Some("team-a"),
            r#"{"key1":"b"}"#,
            Err("parameter key1 is fixed by profile team-a: remove it"),
        );
        check(
            Some("team-a"),
            r#"{"source":"none"}"#,
            Err("unknown source none: use one of hello"),
        );
        check(
            Some("team-c"),
            "{}",
            Err(
                "unknown profile team-c: baseUrl must end in /profiles/<name>, unless the configuration has no profiles",
            ),
        );
    }

    /// Parameters for a source that has no sets.
    fn parameters() -> impl Strategy<Value = serde_json::Value> {
        let keys = ["onEmpty", "minItems", "maxItems", "alias", "key1", ""];
        let values = [
            json!("allow"),
            json!("error"),
            json!("0"),
            json!(0),
            json!(1),
            json!(null),
            json!({}),
            json!([true]),
        ];
        collection::hash_map(
            sample::select(keys.to_vec()),
            sample::select(values.to_vec()),
            0..4,
        )
        .prop_map(|parameters| {
            let mut parameters = json!(parameters);
            parameters["source"] = json!("none");
            parameters
        })
    }

    proptest! {
        /// The controller deletes every Application after an answer without sets.
        #[test]
        fn an_answer_without_sets_needs_on_empty_in_the_request(parameters in parameters()) {
            let config = Config::from_yaml(CONFIG).unwrap();
            let body = json!({"input": {"parameters": parameters}}).to_string();
            let answer = Request::from_body(body.as_bytes()).and_then(|request| {
                let query = config.query(None, Some("t"), request, &Namespaces::default())?;
                query.output.answer(Vec::new())
            });
            prop_assert!(answer.is_err() || parameters["onEmpty"] == "allow", "{parameters}");
        }
    }

    #[test]
    fn aliases_are_found_by_path() {
        check(
            None,
            r#"{"source":"hello","key1":"k","maxItems":2,"alias":{"name":"input.key1"}}"#,
            Ok(
                r#"{"input":{"key1":"k"},"key1":"val1","name":"k","port":"8080"},{"input":{"key1":"k"},"key1":"val2","name":"k"}"#,
            ),
        );
        // Inputs stay as they are.
        check(
            None,
            r#"{"source":"hello","key1":"{\"a\":[]}","maxItems":2,"alias":"{\"name\":\"input.key1\"}"}"#,
            Ok(
                r#"{"input":{"key1":"{\"a\":[]}"},"key1":"val1","name":"{\"a\":[]}","port":"8080"},{"input":{"key1":"{\"a\":[]}"},"key1":"val2","name":"{\"a\":[]}"}"#,
            ),
        );
        check(
            None,
            r#"{"source":"hello","alias":{"generator":"key1"}}"#,
            Err("the key generator is used by other generators or by the controller: rename it"),
        );
        check(
            None,
            r#"{"source":"hello","alias":{"key1":"input"},"list":[]}"#,
            Err("the key key1 is in the set twice: choose another name"),
        );
        check(
            None,
            r#"{"source":"hello","alias":{"p":"port"}}"#,
            Err(
                r#"parameters: alias.p is "port", it must be the dotted path of a value in the output"#,
            ),
        );
    }
}
