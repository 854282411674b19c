//! Matchers of managed routes: the matchers of the source route, each combined with the match of a step.
//!
//! ```text
//! source: matchers             step: match                     managed route: matchers
//! - uri: {prefix: /api}        - header x-user exact a         - uri: {prefix: /api}, headers: [x-user a]
//! - uri: {exact: /health}                                      - uri: {exact: /health}, headers: [x-user a]
//! ```

use serde_json::{Map, Value, json};

use crate::config::HeaderMatchMode;
use crate::error::Refusal;
use crate::intent::{HeaderMatch, HeaderRoute, ManagedRoute, MirrorRoute, RequestMatch, TextMatch};
use crate::re2;

/// A condition on requests. All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Condition {
    method: Option<String>,
    path: Option<Text>,
    /// Header matchers of the RouteTable API.
    headers: Vec<Value>,
}

/// A checked [`TextMatch`].
#[derive(Clone, Debug, PartialEq)]
enum Text {
    Exact(String),
    Prefix(String),
    Regex(String),
}

/// Why two matches of a path cannot be combined into one.
const PATHS: &str = "the path of the step cannot be combined with the one of the route: match both by exact or prefix, without ignoreCase";
const REWRITTEN: &str = "a path matched by regex cannot be rewritten with pathRewrite: match the path by exact or prefix";
const DELEGATED: &str = "other tables delegate to this one, and a managed route with another path than the route's could take precedence over other routes or contradict the paths of those tables: match by headers, or by paths and methods that each matcher of the route has";

/// Checks each entry of a managed route's match. Returns what is wrong, with the position of the entry.
#[must_use]
pub fn match_problems(route: &ManagedRoute) -> Vec<(usize, Refusal)> {
    let problems: Vec<Option<Refusal>> = match route {
        ManagedRoute::Header(HeaderRoute { name, matches }) => {
            let entries = matches.iter();
            let problem = |it: &HeaderMatch| header_matcher(name, &it.name, &it.value).err();
            entries.map(problem).collect()
        }
        ManagedRoute::Mirror(MirrorRoute { name, matches, .. }) => {
            let entries = matches.iter();
            entries.map(|it| mirror_condition(name, it).err()).collect()
        }
    };
    let problems = problems.into_iter().enumerate();
    problems
        .filter_map(|(index, problem)| Some((index, problem?)))
        .collect()
}

/// The conditions of a header route. A request must meet one of them.
///
/// # Errors
/// Returns `Err` if a header has no name, or if the match of its value is invalid.
pub(crate) fn header_conditions(
    route: &HeaderRoute,
    mode: HeaderMatchMode,
) -> Result<Vec<Condition>, Refusal> {
    let headers = route.matches.iter();
    let headers = headers.map(|header| header_matcher(&route.name, &header.name, &header.value));
    let headers: Vec<Value> = headers.collect::<Result<_, _>>()?;
    let with = |headers| Condition {
        headers,
        ..Condition::default()
    };
    Ok(match mode {
        HeaderMatchMode::Any => headers
            .into_iter()
            .map(|header| with(vec![header]))
            .collect(),
        HeaderMatchMode::All => vec![with(headers)],
    })
}

/// The conditions of a mirror route. A request must meet one of them.
///
/// # Errors
/// Returns `Err` if a match is empty or invalid, or if the method is not matched by `exact`.
pub(crate) fn mirror_conditions(route: &MirrorRoute) -> Result<Vec<Condition>, Refusal> {
    let conditions = route.matches.iter();
    conditions
        .map(|entry| mirror_condition(&route.name, entry))
        .collect()
}

/// The condition of one entry of a mirror route's match.
fn mirror_condition(managed: &str, entry: &RequestMatch) -> Result<Condition, Refusal> {
    let text = |part: &str, value: &Option<TextMatch>| {
        let value = value.as_ref();
        value.map(|value| checked(managed, part, value)).transpose()
    };
    let method = match text("method", &entry.method)? {
        None => None,
        Some(Text::Exact(method)) => Some(method),
        Some(_) => {
            let problem = "a RouteTable matches it by exact only";
            return Err(refused(managed, "method", problem));
        }
    };
    let headers = entry.headers.iter();
    let headers = headers.map(|(name, value)| header_matcher(managed, name, value));
    let condition = Condition {
        method,
        path: text("path", &entry.path)?,
        headers: headers.collect::<Result<_, _>>()?,
    };
    if condition == Condition::default() {
        let problem = "an entry is empty; to match any request, set path prefix /";
        return Err(refused(managed, "match", problem));
    }
    Ok(condition)
}

/// The matchers of a managed route, and the `pathRewrite` that it needs if that differs from its source's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Narrowed {
    pub(crate) matchers: Vec<Value>,
    pub(crate) path_rewrite: Option<String>,
}

/// Combines each matcher of a source route with each of the `conditions`. Pairs that no request can meet are dropped. The
/// result is one managed route, or several if they need different values of `pathRewrite`; their order matters.
///
/// A request matches a route if it meets one matcher with all its conditions. So the requests that match the route and meet
/// one of the `conditions` are those that meet one element of the product of both lists. A source without matchers matches
/// any request.
///
/// `pathRewrite` replaces the path of the matcher. If a condition extends that path, the replacement is extended likewise:
///
/// ```text
/// source: prefix /reviews, pathRewrite /v1          GET /reviews/v2/items is forwarded as /v1/v2/items
/// narrowed to prefix /reviews/v2: pathRewrite /v1/v2
/// ```
///
/// In a table to which others delegate (`is_delegated`), the paths of the source must stay: the matchers of the other tables
/// are not known here. A path outside of theirs would invalidate the whole delegation, a longer one is sorted before routes
/// of other owners under `ROUTE_SPECIFICITY`, and `pathRewrite` replaces the longer one of both paths.
///
/// # Errors
/// Returns `Err` if the paths of a matcher and of a condition cannot be combined.
pub(crate) fn narrowed(
    source: &Map<String, Value>,
    conditions: &[Condition],
    is_delegated: bool,
) -> Result<Vec<Narrowed>, &'static str> {
    let any = [json!({})];
    let matchers = match source.get("matchers").and_then(Value::as_array) {
        Some(matchers) if !matchers.is_empty() => matchers.as_slice(),
        _ => &any,
    };
    let rewrite = source.get("forwardTo").and_then(|to| to.get("pathRewrite"));
    // An empty one rewrites nothing.
    let rewrite = rewrite.and_then(Value::as_str).filter(|to| !to.is_empty());
    let mut narrowed: Vec<Narrowed> = Vec::new();
    let mut is_every_path_kept = true;
    for matcher in matchers {
        let matcher = matcher.as_object().cloned().unwrap_or_default();
        let mut is_kept = false;
        for condition in conditions {
            let Some(both) = condition.and(matcher.clone())? else {
                continue;
            };
            is_kept = both.get("uri") == matcher.get("uri");
            is_every_path_kept &= is_kept;
            let path_rewrite = match rewrite {
                Some(to) if !is_kept => Some(format!("{to}{}", extension(&matcher, &both)?)),
                _ => None,
            };
            match narrowed.last_mut() {
                Some(last) if last.path_rewrite == path_rewrite => {
                    last.matchers.push(Value::Object(both));
                }
                _ => narrowed.push(Narrowed {
                    matchers: vec![Value::Object(both)],
                    path_rewrite,
                }),
            }
        }
        is_every_path_kept &= is_kept;
    }
    if is_delegated && !is_every_path_kept && !narrowed.is_empty() {
        return Err(DELEGATED);
    }
    Ok(narrowed)
}

/// Whether every request of a copy is one of `source` too: each matcher of the copy is one of the source with more conditions.
pub(crate) fn includes(source: &Value, copy: &Value) -> bool {
    let matchers = |route: &'_ Value| {
        let matchers = route.get("matchers").and_then(Value::as_array);
        matchers.filter(|it| !it.is_empty()).cloned()
    };
    let any = || vec![json!({})];
    let (wide, narrow) = (matchers(source), matchers(copy).unwrap_or_else(any));
    let is_within = |narrow: &Value, wide: &Value| {
        let conditions = wide.as_object().into_iter().flatten();
        let mut conditions = conditions.map(|(key, wide)| (key.as_str(), wide, narrow.get(key)));
        conditions.all(|(key, wide, narrow)| match (key, wide, narrow) {
            ("name", _, _) => true,
            ("headers", Value::Array(wide), Some(Value::Array(narrow))) => {
                wide.iter().all(|header| narrow.contains(header))
            }
            ("uri", wide, narrow) => narrow == Some(wide) || extends(narrow, wide),
            (_, wide, narrow) => narrow == Some(wide),
        })
    };
    let wide = wide.unwrap_or_else(any);
    let mut narrow = narrow.iter();
    narrow.all(|narrow| wide.iter().any(|wide| is_within(narrow, wide)))
}

/// Whether a `uri` only matches paths that start with the prefix of `wide`.
fn extends(uri: Option<&Value>, wide: &Value) -> bool {
    let text = |uri: &Value, key| uri.get(key).and_then(Value::as_str).map(str::to_owned);
    let path = uri.and_then(|uri| text(uri, "exact").or_else(|| text(uri, "prefix")));
    let prefix = text(wide, "prefix");
    prefix.is_some_and(|prefix| prefix == "/" || path.is_some_and(|it| it.starts_with(&prefix)))
}

/// What the path of `narrowed` has after the prefix that it extends.
fn extension<'m>(
    matcher: &Map<String, Value>,
    narrowed: &'m Map<String, Value>,
) -> Result<&'m str, &'static str> {
    let text = |matcher: &'m Map<String, Value>, key| matcher.get("uri")?.get(key)?.as_str();
    let prefix = matcher
        .get("uri")
        .and_then(|uri| uri.get("prefix")?.as_str());
    let path = text(narrowed, "exact").or_else(|| text(narrowed, "prefix"));
    let rest = path.and_then(|path| path.strip_prefix(prefix.unwrap_or("/")));
    rest.ok_or(REWRITTEN)
}

impl Condition {
    /// The matcher for requests that meet both; `None` if no request can.
    fn and(
        &self,
        mut matcher: Map<String, Value>,
    ) -> Result<Option<Map<String, Value>>, &'static str> {
        // The API lists `name`, but Gloo does not support it.
        matcher.shift_remove("name");
        if let Some(method) = &self.method {
            match matcher.get("method").and_then(Value::as_str) {
                Some(other) if !other.is_empty() && other != method => return Ok(None),
                _ => matcher.insert("method".to_owned(), json!(method)),
            };
        }
        if let Some(path) = self.path.as_ref().filter(|path| !path.is_any()) {
            match path.and(matcher.get("uri"))? {
                Some(uri) => matcher.insert("uri".to_owned(), uri),
                None => return Ok(None),
            };
        }
        if !self.headers.is_empty() {
            let own = matcher.get("headers").and_then(Value::as_array);
            let own = own.into_iter().flatten();
            let all: Vec<Value> = own.chain(&self.headers).cloned().collect();
            matcher.insert("headers".to_owned(), json!(all));
        }
        Ok(Some(matcher))
    }
}

impl Text {
    /// Whether every path meets this, because every path starts with `/`.
    fn is_any(&self) -> bool {
        matches!(self, Self::Prefix(text) if text == "/")
    }

    /// The `uri` for paths that meet both this and `uri`; `None` if no path can.
    fn and(&self, uri: Option<&Value>) -> Result<Option<Value>, &'static str> {
        let wanted = match self {
            Self::Exact(text) => json!({"exact": text}),
            Self::Prefix(text) => json!({"prefix": text}),
            Self::Regex(text) => json!({"regex": text}),
        };
        let Some(uri) = uri.filter(|uri| !uri.is_null()) else {
            return Ok(Some(wanted));
        };
        let text = |key| uri.get(key).and_then(Value::as_str);
        let ignores_case = uri.get("ignoreCase").and_then(Value::as_bool) == Some(true);
        match (text("exact"), text("prefix"), self) {
            (None, Some("/"), _) => Ok(Some(wanted)),
            _ if ignores_case => Err(PATHS),
            (None, Some(prefix), Self::Exact(path)) => {
                Ok(path.starts_with(prefix).then_some(wanted))
            }
            (None, Some(prefix), Self::Prefix(path)) if path.starts_with(prefix) => {
                Ok(Some(wanted))
            }
            (None, Some(prefix), Self::Prefix(path)) => {
                Ok(prefix.starts_with(path).then(|| uri.clone()))
            }
            (Some(exact), None, Self::Exact(path)) => Ok((exact == path).then(|| uri.clone())),
            (Some(exact), None, Self::Prefix(path)) => {
                Ok(exact.starts_with(path).then(|| uri.clone()))
            }
            _ => Err(PATHS),
        }
    }
}

fn header_matcher(managed: &str, name: &str, value: &TextMatch) -> Result<Value, Refusal> {
    if name.is_empty() {
        return Err(refused(managed, "headerName", "it is empty"));
    }
    let part = format!("header {name}");
    if !gloo_types::is_header_name(name) {
        let problem = "its name has a character that no header name has";
        return Err(refused(managed, &part, problem));
    }
    Ok(match checked(managed, &part, value)? {
        Text::Exact(value) => json!({"name": name, "value": value}),
        // Envoy's regular expressions match the whole value.
        Text::Prefix(value) => {
            json!({"name": name, "value": format!("{}.*", re2::quote(&value)), "regex": true})
        }
        Text::Regex(value) => json!({"name": name, "value": value, "regex": true}),
    })
}

fn checked(managed: &str, part: &str, value: &TextMatch) -> Result<Text, Refusal> {
    let TextMatch {
        exact,
        prefix,
        regex,
    } = value;
    match (exact.as_str(), prefix.as_str(), regex.as_str()) {
        (exact, "", "") if !exact.is_empty() => Ok(Text::Exact(exact.to_owned())),
        ("", prefix, "") if !prefix.is_empty() => Ok(Text::Prefix(prefix.to_owned())),
        ("", "", regex) if !regex.is_empty() => {
            let problem = |problem| format!("RE2 does not accept its regex: {problem}");
            re2::check(regex).map_err(|error| refused(managed, part, &problem(error)))?;
            Ok(Text::Regex(regex.to_owned()))
        }
        _ => Err(refused(
            managed,
            part,
            "set exactly one of exact, prefix and regex in its value",
        )),
    }
}

fn refused(managed: &str, part: &str, problem: &str) -> Refusal {
    Refusal::Match {
        managed: managed.to_owned(),
        part: part.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uri: Value, path: &Text, expect: Result<Option<Value>, &'static str>) {
        assert_eq!(path.and(Some(&uri)), expect, "{uri} and {path:?}");
    }

    #[test]
    fn a_path_must_meet_the_source_and_the_step() {
        let exact = |path: &str| Text::Exact(path.to_owned());
        let prefix = |path: &str| Text::Prefix(path.to_owned());
        let regex = |path: &str| Text::Regex(path.to_owned());
        check(Value::Null, &exact("/a"), Ok(Some(json!({"exact": "/a"}))));
        check(
            json!({"prefix": "/"}),
            &regex("/a.*"),
            Ok(Some(json!({"regex": "/a.*"}))),
        );
        check(
            json!({"prefix": "/a"}),
            &exact("/a/b"),
            Ok(Some(json!({"exact": "/a/b"}))),
        );
        check(json!({"prefix": "/a"}), &exact("/b"), Ok(None));
        check(
            json!({"prefix": "/a"}),
            &prefix("/a/b"),
            Ok(Some(json!({"prefix": "/a/b"}))),
        );
        check(
            json!({"prefix": "/a/b"}),
            &prefix("/a"),
            Ok(Some(json!({"prefix": "/a/b"}))),
        );
        check(json!({"prefix": "/a"}), &prefix("/b"), Ok(None));
        check(
            json!({"exact": "/a"}),
            &exact("/a"),
            Ok(Some(json!({"exact": "/a"}))),
        );
        check(json!({"exact": "/a"}), &exact("/b"), Ok(None));
        check(
            json!({"exact": "/a/b"}),
            &prefix("/a"),
            Ok(Some(json!({"exact": "/a/b"}))),
        );
        check(json!({"exact": "/b"}), &prefix("/a"), Ok(None));
    }

    #[test]
    fn paths_that_cannot_be_combined_are_refused() {
        for uri in [
            json!({"regex": "/a.*"}),
            json!({"suffix": "/a"}),
            json!({"prefix": "/a", "ignoreCase": true}),
        ] {
            check(uri, &Text::Exact("/a".to_owned()), Err(PATHS));
        }
        check(
            json!({"prefix": "/a"}),
            &Text::Regex("/a".to_owned()),
            Err(PATHS),
        );
    }

    /// Checks the copies of a route with these matchers and this `pathRewrite` for a step with these paths: for each copy its
    /// `pathRewrite` and its paths.
    #[track_caller]
    fn copies(
        matchers: Value,
        rewrite: Option<&str>,
        paths: &[Text],
        is_delegated: bool,
        expect: Result<Value, &'static str>,
    ) {
        let source = json!({"matchers": matchers, "forwardTo": {"pathRewrite": rewrite}});
        let conditions = paths.iter().map(|path| Condition {
            path: Some(path.clone()),
            ..Condition::default()
        });
        let conditions: Vec<Condition> = conditions.collect();
        let copies = narrowed(source.as_object().unwrap(), &conditions, is_delegated);
        let copies = copies.map(|copies| {
            let shown = copies.iter().map(|copy| {
                let uri = |matcher: &Value| matcher.get("uri").cloned().unwrap_or_default();
                let paths: Vec<Value> = copy.matchers.iter().map(uri).collect();
                json!([copy.path_rewrite, paths])
            });
            shown.collect()
        });
        assert_eq!(copies, expect, "{source} {paths:?}");
    }

    #[test]
    fn a_longer_path_extends_the_path_rewrite() {
        let exact = |path: &str| Text::Exact(path.to_owned());
        let prefix = |path: &str| Text::Prefix(path.to_owned());
        let regex = |path: &str| Text::Regex(path.to_owned());
        let reviews = || json!([{"uri": {"prefix": "/reviews"}}]);
        let check = |matchers, rewrite, paths: &[Text], expect: Value| {
            copies(matchers, Some(rewrite), paths, false, Ok(expect));
        };
        // `//v2`, as the owner's table forwards `/reviews/v2`.
        check(
            reviews(),
            "/",
            &[prefix("/reviews/v2")],
            json!([["//v2", [{"prefix": "/reviews/v2"}]]]),
        );
        check(
            reviews(),
            "/v1",
            &[exact("/reviews/v2")],
            json!([["/v1/v2", [{"exact": "/reviews/v2"}]]]),
        );
        check(
            json!([]),
            "/v1/",
            &[prefix("/a")],
            json!([["/v1/a", [{"prefix": "/a"}]]]),
        );
        check(
            json!([{"uri": {"exact": "/a"}}]),
            "/b",
            &[prefix("/")],
            json!([[null, [{"exact": "/a"}]]]),
        );
        check(
            reviews(),
            "/v1",
            &[prefix("/")],
            json!([[null, [{"prefix": "/reviews"}]]]),
        );
        // An empty one rewrites nothing.
        check(
            reviews(),
            "",
            &[prefix("/reviews/v2")],
            json!([[null, [{"prefix": "/reviews/v2"}]]]),
        );
        copies(
            reviews(),
            None,
            &[prefix("/reviews/v2")],
            false,
            Ok(json!([[null, [{"prefix": "/reviews/v2"}]]])),
        );
        copies(
            json!([]),
            Some("/v1"),
            &[regex("/a.*")],
            false,
            Err(REWRITTEN),
        );
        // The first matcher that a request meets decides what is rewritten, so the order of the copies is that of the pairs.
        let both = json!([{"uri": {"prefix": "/a"}}, {"uri": {"prefix": "/a/b"}}]);
        check(
            both,
            "/r",
            &[prefix("/a/b/c"), exact("/a/b/c/d")],
            json!([
                ["/r/b/c", [{"prefix": "/a/b/c"}]],
                ["/r/b/c/d", [{"exact": "/a/b/c/d"}]],
                ["/r/c", [{"prefix": "/a/b/c"}]],
                ["/r/c/d", [{"exact": "/a/b/c/d"}]],
            ]),
        );
    }

    #[test]
    fn a_delegated_table_keeps_the_paths_of_its_routes() {
        let prefix = |path: &str| Text::Prefix(path.to_owned());
        let reviews = || json!([{"uri": {"prefix": "/shop/reviews"}}]);
        let check = |matchers, path: &str, expect| {
            copies(matchers, None, &[prefix(path)], true, expect);
        };
        check(
            reviews(),
            "/shop",
            Ok(json!([[null, [{"prefix": "/shop/reviews"}]]])),
        );
        check(reviews(), "/cart", Ok(json!([])));
        check(reviews(), "/shop/reviews/v2", Err(DELEGATED));
        check(json!([]), "/", Ok(json!([[null, [null]]])));
        check(json!([]), "/shop", Err(DELEGATED));
        // Without its most specific path, the copy would be sorted differently.
        check(
            json!([{"uri": {"exact": "/a"}}, {"uri": {"prefix": "/shop"}}]),
            "/shop",
            Err(DELEGATED),
        );
    }

    #[test]
    fn a_source_includes_the_requests_of_its_copies() {
        let check = |wide: Value, narrow: Value, expect: bool| {
            let route = |matcher: &Value| json!({ "matchers": [matcher] });
            let found = includes(&route(&wide), &route(&narrow));
            assert_eq!(found, expect, "{wide} includes {narrow}");
        };
        let (a, b) = (json!({"name": "a"}), json!({"name": "b"}));
        check(json!({}), json!({"method": "GET"}), true);
        check(json!({"method": "GET"}), json!({}), false);
        check(
            json!({"name": "x", "method": "GET"}),
            json!({"method": "GET"}),
            true,
        );
        check(json!({"headers": [a]}), json!({"headers": [b, a]}), true);
        check(json!({"headers": [a, b]}), json!({"headers": [a]}), false);
        let uri = |kind: &str, path: &str| json!({"uri": {kind: path}});
        check(uri("prefix", "/a"), uri("exact", "/a/b"), true);
        check(uri("prefix", "/a"), uri("prefix", "/b"), false);
        check(uri("prefix", "/"), uri("regex", "/b.*"), true);
        check(uri("regex", "/a.*"), uri("regex", "/a.*"), true);
        check(uri("regex", "/a.*"), uri("regex", "/b.*"), false);
        check(uri("exact", "/a"), uri("exact", "/a"), true);
        check(uri("exact", "/a"), uri("exact", "/b"), false);
        // Without matchers, a route serves every request.
        assert!(includes(
            &json!({}),
            &json!({"matchers": [uri("exact", "/a")]})
        ));
        assert!(!includes(
            &json!({"matchers": [uri("exact", "/a")]}),
            &json!({"matchers": []})
        ));
    }
}
