//! Whether a profile can answer at all: a request for each of its sources, read as those of callers are.
//!
//! A mistake in the configuration alone would otherwise be found by the first call, after the good configuration is gone.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::answer::MAX_ALIASES;
use crate::error::ConfigError;
use crate::image_digests::{Digest, MAX_IMAGES, check_names};
use crate::keys::as_count;
use crate::profile::Profile;
use crate::source::{Source, Sources};
use crate::{Failure, Namespaces, Place, Request, SourceQuery};

impl Profile {
    /// Checks that a request for one of the `configured` sources can succeed.
    pub(crate) fn check_answers(&self, configured: &Sources) -> Result<(), ConfigError> {
        let mut failed = None;
        for (name, source) in self.candidates(configured) {
            match self.attempt(configured, name, source) {
                Ok(()) => return Ok(()),
                Err(failure) => failed = failed.or(Some((name, failure))),
            }
        }
        match failed {
            Some((source_name, failure)) => Err(ConfigError::Unanswerable {
                profile: self.name.clone(),
                has_defaults: self.has_defaults(),
                source_name: source_name.clone(),
                failure: Box::new(failure),
            }),
            // Without a source of its own it can pass requests on.
            None if !self.requests_with.is_empty() => Ok(()),
            None => Err(ConfigError::NothingOffered(self.name.clone())),
        }
    }

    /// Tries requests for `source`. Returns the failure of the first if none succeeds.
    fn attempt(&self, configured: &Sources, name: &str, source: &Source) -> Result<(), Failure> {
        let mut first = Map::from_iter([("source".to_owned(), name.into())]);
        self.complete(&mut first, source);
        let mut requests = vec![first];
        if let Source::ImageDigests(images) = source
            && self.given("registry").is_none()
        {
            let hosts = images.hosts().map(|host| host.as_str().into());
            requests = hosts
                .flat_map(|host| with(&requests, "registry", &host))
                .collect();
        }
        let answers = |parameters: &Map<_, _>| self.answers(configured, parameters.clone());
        let outcome = requests.first().map_or(Ok(()), answers);
        if outcome.is_err() {
            for (key, values) in self.choices(source) {
                let more = values.iter().flat_map(|value| with(&requests, key, value));
                requests.extend(more.collect::<Vec<_>>());
            }
            if requests.iter().any(|request| answers(request).is_ok()) {
                return Ok(());
            }
        }
        outcome
    }

    /// Returns what a caller may choose in a request for `source`, so far as the profile does not give it.
    fn choices(&self, source: &Source) -> Vec<(&'static str, Vec<Value>)> {
        let names = self.aliases().filter_map(|path| path.split('.').next());
        let output_key = ("outputKey", names.map(Value::from).collect());
        let mut choices = match source {
            Source::Static(_) => Vec::new(),
            Source::ImageDigests(_) => vec![
                ("layout", vec![json!("digests"), json!("rows")]),
                output_key,
            ],
            Source::GlooRoutes(_) => vec![
                ("include", vec![json!(["destinations"])]),
                ("granularity", vec![json!("table")]),
                output_key,
            ],
            Source::Rollouts(_) => vec![("include", vec![json!(["weights", "steps"])]), output_key],
            Source::GlooWorkspaces(_) => vec![("expandNamespaces", vec![json!(true)]), output_key],
        };
        choices.retain(|(key, _)| self.given(key).is_none());
        choices
    }

    /// Returns the paths of the aliases that the profile gives.
    fn aliases(&self) -> impl Iterator<Item = &str> {
        let aliases = self.given("alias").and_then(Value::as_object);
        let paths = aliases.into_iter().flat_map(Map::values);
        paths.filter_map(Value::as_str).take(MAX_ALIASES)
    }

    /// Returns the labels that the aliases need.
    fn labels(&self) -> Value {
        let needed = self.aliases().filter_map(|path| {
            let mut steps = path.split('.');
            steps.find(|step| matches!(*step, "labels" | "clusterLabels"))?;
            Some((steps.next()?.to_owned(), json!("a")))
        });
        Value::Object(needed.collect())
    }

    /// Adds the parameters that only a caller has.
    fn complete(&self, parameters: &mut Map<String, Value>, source: &Source) {
        let mut add = |key: &str, value: Value| {
            if self.given(key).is_none() {
                parameters.insert(key.to_owned(), value);
            }
        };
        let least = self.given("minItems");
        match source {
            Source::Static(_) => {
                if least.is_none() {
                    add("onEmpty", "allow".into());
                }
                let inputs = self
                    .aliases()
                    .filter_map(|path| path.strip_prefix("input."));
                for mut steps in inputs.map(|input| input.split('.')) {
                    let key = steps.next().unwrap_or_default();
                    add(
                        key,
                        steps.rfold("a".into(), |value, step| json!({step: value})),
                    );
                }
            }
            Source::ImageDigests(images) => {
                add(self.branch().unwrap_or("tag"), "a".into());
                // Without an allowed image the failure says what to allow.
                let image = images.example(self.images.as_deref());
                let image = image.unwrap_or_else(|| "a".into());
                let least = least.and_then(as_count).unwrap_or(1).clamp(1, MAX_IMAGES);
                let prefix = self.given("digestPrefix").and_then(Value::as_str);
                let asked = self
                    .aliases()
                    .filter_map(|path| match path.split_once('.') {
                        Some((_, inner)) => inner.split('.').next(),
                        None => path.strip_prefix(prefix.unwrap_or("digest")),
                    });
                let mut names = asked.map(str::to_owned).collect::<BTreeSet<_>>();
                names.retain(|name| check_names([name].into_iter()).is_ok());
                names.extend((names.len()..least).map(|index| format!("a{index}")));
                let named = names.into_iter().map(|name| (name, image.clone()));
                add("images", named.take(MAX_IMAGES).collect());
            }
            Source::GlooRoutes(_) => add("routeTableSelector", json!({"labels": {"a": "a"}})),
            Source::Rollouts(_) | Source::GlooWorkspaces(_) => {}
        }
    }

    /// Checks that a request has an answer if every image exists, and objects of every kind with all labels.
    fn answers(&self, configured: &Sources, parameters: Map<String, Value>) -> Result<(), Failure> {
        let request = Request {
            application_set: String::new(),
            parameters,
        };
        let query = match self.query(configured, request, &Namespaces::NONE) {
            // Which namespaces have the labels is known later.
            Err(Failure::NotReady(_)) => return Ok(()),
            query => query?,
        };
        let is_read = |places: &[Place]| match self.given("cluster") {
            Some(cluster) if places.is_empty() => Err(Failure::Forbidden(format!(
                "cluster {cluster} is not read: use one of the clusters of the source"
            ))),
            _ => Ok(()),
        };
        let found = match query.source {
            SourceQuery::Static(source) => {
                return query.output.answer(source.into_sets()).map(drop);
            }
            SourceQuery::ImageDigests(images) => {
                let digest = Digest::from_sha256(&[0; 32]).ok_or(Failure::Internal)?;
                let names = images.references().map(|(name, _)| name.to_owned());
                let found = names.map(|name| (name, digest.clone().into())).collect();
                return query.output.answer(images.sets(&found)?).map(drop);
            }
            SourceQuery::GlooRoutes(routes) => {
                is_read(routes.places())?;
                routes.example(&self.labels())?
            }
            SourceQuery::Rollouts(rollouts) => {
                is_read(rollouts.places())?;
                rollouts.example(&self.labels())?
            }
            SourceQuery::GlooWorkspaces(workspaces) => workspaces.example(&self.labels())?,
        };
        match query.output.answer(found) {
            // There may be as many objects as needed.
            Err(Failure::TooFew(..)) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// Returns `requests` with the parameter `key`.
fn with(requests: &[Map<String, Value>], key: &str, value: &Value) -> Vec<Map<String, Value>> {
    let mut requests = requests.to_vec();
    for request in &mut requests {
        request.insert(key.to_owned(), value.clone());
    }
    requests
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*, sample::subsequence};

    use super::*;
    use crate::Config;

    #[track_caller]
    fn check(config: &str, expect: Option<&str>) {
        let error = Config::from_yaml(config)
            .err()
            .map(|error| error.to_string());
        let has = |error: &String| error.contains(expect.unwrap_or("nothing"));
        assert!(
            error.is_some() == expect.is_some() && error.iter().all(has),
            "{config}: {error:?}"
        );
    }

    /// Checks a configuration with a static source and one profile.
    #[track_caller]
    fn profile(profile: &str, expect: Option<&str>) {
        let hello = "hello: {inputs: [team], sets: [{a: b}, {a: c}]}";
        check(
            &format!("{{static: {{{hello}}}, profiles: {{p: {{{profile}}}}}}}"),
            expect,
        );
    }

    /// Checks a configuration with two registries and one profile.
    #[track_caller]
    fn images(profile: &str, expect: Option<&str>) {
        let registries =
            "{ghcr.io: {repositories: [myorg/*]}, 'localhost:5000': {repositories: [a/**, '*-b']}}";
        check(
            &format!(
                "{{imageDigests: {{registries: {registries}}}, profiles: {{p: {{{profile}}}}}}}"
            ),
            expect,
        );
    }

    #[test]
    fn what_makes_every_request_fail_is_refused() {
        for (fixed, why) in [
            ("maxItem: 1", "unknown key maxItem, did you mean maxItems?"),
            ("onEmpty: sometimes", "onEmpty is \"sometimes\""),
            ("minItems: 3", "2 sets were found, minItems is 3"),
            ("maxItems: 1", "2 sets were found, maxItems is 1"),
            ("minItems: 3, maxItems: 2", "minItems contradicts maxItems"),
            (
                "onEmpty: allow, minItems: 1",
                "onEmpty contradicts minItems",
            ),
            ("alias: {x: b}", "alias.x is \"b\""),
            (
                "alias: {generator: a}",
                "the key generator is used by other generators",
            ),
            ("alias: {a: input.team}", "the key a is in the set twice"),
        ] {
            for (kind, with) in [("fixed", ""), ("defaults", " with the defaults")] {
                profile(
                    &format!("{kind}: {{{fixed}}}"),
                    Some(&format!(
                        "profiles.p cannot answer: every request for hello{with} fails: {}",
                        if why.starts_with(char::is_numeric) || why.starts_with("the") {
                            why.to_owned()
                        } else {
                            format!("parameters: {why}")
                        }
                    )),
                );
            }
        }
        for valid in [
            "",
            "fixed: {team: a, maxItems: 2}",
            "fixed: {alias: {name: input.team.x.y, b: a}}",
            "defaults: {minItems: '2', source: hello}",
            "fixed: {source: hello}",
        ] {
            profile(valid, None);
        }
        for kind in ["fixed", "defaults"] {
            let unknown =
                format!("profiles.p.{kind}.source names the unknown source helo: use one of hello");
            profile(&format!("{kind}: {{source: helo}}"), Some(&unknown));
        }
        profile(
            "sources: []",
            Some("profiles.p.sources is empty: name a source"),
        );
        profile(
            "tokens: []",
            Some("profiles.p.tokens is empty: set the name of a token in it"),
        );
        for token in ["", "a/b", "..data", " a"] {
            let wrong = format!("profiles.p.tokens is \"{token}\", it must be the name of a file");
            profile(&format!("tokens: ['{token}']"), Some(&wrong));
        }
        check(
            "{static: {h: {}}, profiles: {'': {}}}",
            Some("the name of a profile, with which baseUrl ends"),
        );
        check(
            "{static: {h: {inputs: [minItems]}}}",
            Some(
                "static.h.inputs is \"minItems\", it must be other than the parameters of every source",
            ),
        );
        check(
            "{static: {h: {}}, profiles: {p: {fixed: {onEmpty: error}}}}",
            Some("h found nothing"),
        );
        check(
            "{static: {h: {}, i: {sets: [{a: b}]}}, profiles: {p: {fixed: {onEmpty: error}}}}",
            None,
        );
    }

    #[test]
    fn images_that_no_registry_or_profile_allows_are_refused() {
        images("fixed: {images: {a: myorg/a}, registry: ghcr.io}", None);
        images("fixed: {images: {a: a/b/c}}", None);
        images(
            "images: ['*/myorg/*', 'localhost:5000/**', 'localhost:5000/a*b']",
            None,
        );
        for valid in [
            "minItems: 3, layout: rows, digestPrefix: d",
            // The caller chooses the names, the layout and the key of the images.
            "minItems: 2",
            "alias: {x: image.front.digest, y: digestBack}",
            "alias: {x: image.front.digest}, images: {front: myorg/a}",
            "alias: {x: digest}",
            "alias: {x: out.front.digest}",
            "alias: {x: shaFront}, digestPrefix: sha",
        ] {
            images(&format!("fixed: {{{valid}}}"), None);
        }
        images(
            "tagFrom: {parameter: branch, rule: verbatim, suffix: -x}, fixed: {onInvalidTag: skip}",
            None,
        );
        for (pattern, index) in [
            ("[quay.io/*]", 0),
            ("['*']", 0),
            ("[ghcr.io/**, ghcr.io/myorg/a/b]", 1),
            ("['localhost:5000/x']", 0),
            ("['ghcr.io/myorg/-*']", 0),
            ("['ghcr.io/MyOrg/*']", 0),
        ] {
            images(
                &format!("images: {pattern}"),
                Some(&format!("profiles.p.images[{index}] is \"")),
            );
        }
        for (fixed, why) in [
            (
                "fixed: {images: {a: x/y}, registry: ghcr.io}",
                "image ghcr.io/x/y is not allowed",
            ),
            (
                "fixed: {images: {a: myorg/b}}, images: [ghcr.io/myorg/a]",
                "image",
            ),
            ("fixed: {images: {tag: myorg/b}}", "other than tag"),
            (
                "fixed: {registry: quay.io, images: {a: b}}",
                "registry quay.io is not allowed",
            ),
            ("fixed: {platform: linux}", "such as linux/amd64"),
            ("fixed: {tag: a/b}", "a tag, which cannot contain '/'"),
            (
                "fixed: {layout: rows, digestPrefix: name}",
                "the key name is used by other generators",
            ),
            (
                "fixed: {layout: rows, digestPrefix: app}",
                "the key app is in the set twice",
            ),
            (
                "fixed: {outputKey: values}",
                "the key values is used by other generators",
            ),
            (
                "fixed: {alias: {x: image.front}, images: {a: myorg/b}}",
                "alias.x is \"image.front\"",
            ),
            (
                "fixed: {minItems: 2, layout: columns}",
                "1 sets were found, minItems is 2",
            ),
            ("fixed: {alias: {x: image.a.digset}}", "alias.x is"),
            (
                "fixed: {alias: {x: digest}, layout: columns, outputKey: o}",
                "alias.x is",
            ),
            ("fixed: {registry: ' '}", "registry is \" \""),
            ("fixed: {maxItems: 0}", "1 sets were found, maxItems is 0"),
            ("images: []", "is not allowed"),
            (
                "tagFrom: {parameter: b, rule: verbatim}, fixed: {b: ' '}",
                "a name that Git allows",
            ),
        ] {
            images(fixed, Some(why));
        }
        images(
            "tagFrom: {parameter: b, rule: verbatim, prefix: x/}",
            Some("profiles.p.tagFrom.prefix is \"x/\""),
        );
        for host in [
            "http://localhost:5000",
            "u:p@r.io",
            "r.io/x",
            "r.io:0",
            "r.io:99999",
            "r.io:",
            "r.io:+1",
            ".r.io",
            "",
            "r io",
            "[x]:1",
        ] {
            check(
                &format!("imageDigests: {{registries: {{'{host}': {{}}}}}}"),
                Some("hosts, each with a port if needed"),
            );
        }
        for host in [
            "r.io",
            "R.io",
            "localhost:5000",
            "[::1]:5000",
            "[fd00::1]",
            "10.0.0.1:80",
            "my_registry",
        ] {
            check(
                &format!("imageDigests: {{registries: {{'{host}': {{}}}}}}"),
                None,
            );
        }
        for pattern in [
            "r.io/myorg/*",
            "https://r.io/*",
            "myorg/a:v1",
            "MyOrg/*",
            "/a",
            "a/",
            "-*",
            "",
        ] {
            for key in ["repositories", "pullThrough"] {
                check(
                    &format!("imageDigests: {{registries: {{r.io: {{{key}: ['{pattern}']}}}}}}"),
                    Some("a pattern of the paths of repositories"),
                );
            }
        }
    }

    #[test]
    fn places_that_no_source_reads_are_refused() {
        let config = |profile: &str| {
            format!(
                "{{clusters: {{c: {{}}, d: {{}}}}, glooRoutes: {{namespaces: [shop], clusters: [c]}}, profiles: {{p: {{{profile}}}}}}}"
            )
        };
        for valid in [
            "",
            "clusters: [c]",
            "fixed: {cluster: c}",
            "namespaces: [shop, other]",
            "fixed: {routeTableSelector: {name: web, namespace: shop}}",
        ] {
            check(&config(valid), None);
        }
        for (profile, why) in [
            ("clusters: [d]", "cluster c is not allowed"),
            ("fixed: {cluster: d}", "cluster \"d\" is not read"),
            (
                "namespaces: [other]",
                "no namespace is allowed by both glooRoutes.namespaces and the profile",
            ),
            (
                "fixed: {routeTableSelector: {name: web, namespace: other}}",
                "namespace other is not allowed",
            ),
            ("fixed: {granularity: both}", "route or table"),
        ] {
            check(&config(profile), Some(why));
        }
    }

    #[test]
    fn parameters_that_no_object_satisfies_are_refused() {
        let config = |fixed: &str| {
            format!(
                "{{glooRoutes: {{namespaces: [shop]}}, rollouts: {{namespaces: [shop]}}, glooWorkspaces: {{}}, profiles: {{p: {{fixed: {{{fixed}}}}}}}}}"
            )
        };
        for valid in [
            "source: gloo-routes, alias: {x: gloo.key, y: gloo.routeTable.labels.team, z: gloo.route.path}",
            "source: gloo-routes, alias: {x: gloo.route.destinations}, minItems: 5",
            "source: gloo-routes, alias: {x: g.key}, routeSelector: {names: [web]}, destinationKinds: [SERVICE]",
            "source: gloo-routes, granularity: table, alias: {x: gloo.host}",
            "source: rollouts, alias: {x: rollout.weights.canary, y: rollout.labels.a}",
            "source: rollouts, alias: {x: r.key, y: gloo.host}, selector: {labels: {a: b}}",
            "source: gloo-workspaces, alias: {x: gloo.namespace, y: gloo.clusterLabels.env}",
            "source: gloo-workspaces, workspaces: [web, 'a-*', '*']",
        ] {
            check(&config(valid), None);
        }
        for (fixed, why) in [
            (
                "source: gloo-routes, alias: {x: gloo.kye}",
                "alias.x is \"gloo.kye\"",
            ),
            (
                "source: gloo-routes, outputKey: g, alias: {x: gloo.key}",
                "alias.x is",
            ),
            (
                "source: gloo-routes, alias: {gloo: gloo.key}",
                "the key gloo is in the set twice",
            ),
            (
                "source: gloo-routes, granularity: table, alias: {x: gloo.route.name}",
                "alias.x is",
            ),
            (
                "source: gloo-routes, alias: {x: gloo.route.labels.a.b}",
                "alias.x is",
            ),
            (
                "source: gloo-routes, routeTableSelector: {labels: {a: ''}}",
                "routeTableSelector.labels.a is \"\"",
            ),
            ("source: rollouts, alias: {x: rollout.hosts}", "alias.x is"),
            (
                "source: rollouts, alias: {x: rollout.step.index}, include: [weights]",
                "alias.x is",
            ),
            ("source: rollouts, pluginName: ''", "pluginName is \"\""),
            (
                "source: rollouts, selector: {labels: {}}",
                "selector is empty",
            ),
            (
                "source: rollouts, selector: {labels: {a: 'b/c'}}",
                "selector.labels.a is \"b/c\"",
            ),
            (
                "source: rollouts, selector: {labels: {-a: b}}",
                "selector.labels.-a is \"b\"",
            ),
            (
                "source: gloo-workspaces, alias: {x: gloo.namespaces}, expandNamespaces: true",
                "alias.x is",
            ),
            (
                "source: gloo-workspaces, workspaces: ['']",
                "workspaces[0] is \"\"",
            ),
            (
                "source: gloo-workspaces, workspaces: [A_b]",
                "workspaces is \"A_b\"",
            ),
            (
                "source: gloo-workspaces, workspaces: ['-*']",
                "workspaces is \"-*\"",
            ),
        ] {
            check(&config(fixed), Some(why));
        }
    }

    #[test]
    fn profiles_that_pass_requests_on_to_no_answer_are_refused() {
        let config = |profiles: &str| {
            format!(
                "{{static: {{h: {{inputs: [x]}}}}, rollouts: {{namespaces: [a]}}, profiles: {{{profiles}}}}}"
            )
        };
        check(&config("a: {requestsWith: {x: b}}, b: {}"), None);
        check(
            &config("a: {requestsWith: {y: b}}, b: {}"),
            Some(
                "profiles.a.requestsWith.y passes requests to profile b, but none of its sources has",
            ),
        );
        check(
            &config("a: {requestsWith: {x: b}}, b: {sources: [rollouts]}"),
            Some("none of its sources has"),
        );
        check(
            &config("a: {requestsWith: {selector: b}}, b: {sources: [rollouts]}"),
            None,
        );
    }

    #[test]
    fn profiles_that_pass_requests_on_in_a_circle_are_refused() {
        let config = |profiles: &str| format!("{{static: {{h: {{}}}}, profiles: {{{profiles}}}}}");
        check(
            &config("a: {sources: [], requestsWith: {x: b}}, b: {requestsWith: {y: c}}, c: {}"),
            None,
        );
        for profiles in [
            "a: {requestsWith: {x: a}}",
            "a: {requestsWith: {x: b}}, b: {requestsWith: {y: a}}",
            "a: {requestsWith: {x: b}}, b: {requestsWith: {y: c}}, c: {requestsWith: {z: a}}",
        ] {
            check(
                &config(profiles),
                Some("profiles.a.requestsWith.x leads back to profile a"),
            );
        }
    }

    /// A random configuration. Many of its values are wrong.
    fn config() -> impl Strategy<Value = Value> {
        let parameters = || {
            let all = json!({
                "source": "hello", "tag": "v1", "registry": "r.io", "images": {"a": "myorg/a"}, "layout": "rows", "alias": {"x": "key"},
                "onEmpty": "error", "minItems": 2, "maxItems": 1, "outputKey": "digest", "digestPrefix": "app", "cluster": "c", "team": "a",
                "namespaces": ["shop"], "platform": "linux", "branch": "x/y", "onInvalidTag": "skip", "workspaces": ["*"],
            });
            let all: Vec<_> = all
                .as_object()
                .cloned()
                .unwrap_or_default()
                .into_iter()
                .collect();
            subsequence(all, 0..3).prop_map(Map::from_iter)
        };
        let names =
            |all: &'static [&'static str]| option::of(subsequence(all, 0..=all.len().min(2)));
        let tag_from = json!({"parameter": "branch", "rule": "verbatim", "prefix": "p-"});
        let profile = (
            names(&[
                "hello",
                "image-digests",
                "gloo-routes",
                "rollouts",
                "gloo-workspaces",
            ]),
            names(&["r.io/myorg/*", "r.io/**", "**/a-*", "s.io/a", "r.io/A"]),
            names(&["shop", "gloo-mesh", "other"]),
            names(&["in-cluster"]),
            (parameters(), parameters()),
            option::weighted(0.3, Just(tag_from)),
        );
        let profile = profile.prop_map(|(sources, images, namespaces, clusters, (fixed, defaults), tag_from)| {
            json!({"sources": sources, "images": images, "namespaces": namespaces, "clusters": clusters,
                "fixed": fixed, "defaults": defaults, "tagFrom": tag_from})
        });
        let registry = names(&["myorg/*", "**", "*/a-*", "a", "r.io/x"]);
        let registry = || {
            registry
                .clone()
                .prop_map(|repositories| json!({"repositories": repositories}))
        };
        let registries = (registry(), option::of(registry()))
            .prop_map(|(r, s)| json!({"registries": {"r.io": r, "s.io": s.unwrap_or(json!({}))}}));
        let sets = subsequence(vec![json!({"key": "a"}), json!({"key": "b"})], 0..=2);
        let hello = (sets, names(&["team", "tag"]))
            .prop_map(|(sets, inputs)| json!({"hello": {"sets": sets, "inputs": inputs}}));
        let gloo = subsequence(vec!["glooRoutes", "rollouts"], 0..=2);
        (option::of(hello), option::of(registries), gloo, any::<bool>(), profile).prop_map(|(hello, registries, gloo, workspaces, profile)| {
            let mut config = json!({"static": hello, "imageDigests": registries, "profiles": {"p": profile}});
            for kind in gloo {
                config[kind] = json!({"namespaces": ["shop"]});
            }
            if workspaces {
                config["glooWorkspaces"] = json!({});
            }
            config
        })
    }

    /// Requests of callers who know what to ask for.
    fn requests() -> Vec<Value> {
        let mut requests = Vec::new();
        for source in [
            "hello",
            "image-digests",
            "gloo-routes",
            "rollouts",
            "gloo-workspaces",
        ] {
            requests.push(json!({"source": source}));
            requests.push(json!({"source": source, "onEmpty": "allow"}));
            requests.push(json!({"source": source, "routeTableSelector": {"name": "web"}}));
        }
        for tag in [json!({}), json!({"tag": "v1"}), json!({"branch": "a"})] {
            for registry in [None, Some("r.io"), Some("s.io")] {
                for repository in [
                    None,
                    Some("a"),
                    Some("myorg/b"),
                    Some("myorg/a-b"),
                    Some("a/a-a"),
                    Some("r.io/x"),
                ] {
                    // `registry` beside the images, and in each of them.
                    let own = repository.map(|it| json!({"repository": it, "registry": registry}));
                    for (count, image) in [
                        (1, json!(repository)),
                        (2, json!(repository)),
                        (1, json!(own)),
                        (2, json!(own)),
                    ] {
                        let mut request = tag.clone();
                        request["source"] = "image-digests".into();
                        let images = (0..count).map(|index| (format!("i{index}"), image.clone()));
                        if repository.is_some() {
                            request["images"] = images.collect();
                        }
                        if registry.is_some() && !image.is_object() {
                            request["registry"] = registry.into();
                        }
                        let rows = ("layout", "rows");
                        for more in [
                            &[("tag", "v1")][..],
                            &[("outputKey", "key")],
                            &[rows],
                            &[rows, ("outputKey", "key")],
                        ] {
                            let mut request = request.clone();
                            for (key, value) in more {
                                request[*key] = (*value).into();
                            }
                            requests.push(request);
                        }
                        requests.push(request);
                    }
                }
            }
        }
        requests
    }

    fn succeeds(config: &Config, parameters: &Value) -> bool {
        let body = json!({"input": {"parameters": parameters}}).to_string();
        let request = Request::from_body(body.as_bytes()).unwrap();
        let Ok(query) = config.query(Some("p"), None, request.clone(), &Namespaces::default())
        else {
            return false;
        };
        let sets = match query.source {
            SourceQuery::Static(source) => Ok(source.into_sets()),
            SourceQuery::ImageDigests(images) => {
                let digest = || Digest::from_sha256(&[1; 32]).unwrap().into();
                let names = images
                    .references()
                    .map(|(name, _)| (name.to_owned(), digest()));
                images.sets(&names.collect())
            }
            // What it finds depends on the cluster.
            _ => return true,
        };
        sets.and_then(|sets| query.output.answer(sets)).is_ok()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn a_valid_configuration_answers_a_request(config in config()) {
            if let Ok(config) = Config::from_yaml(&config.to_string()) {
                prop_assert!(requests().iter().any(|request| succeeds(&config, request)));
            }
        }
    }
}
