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
use crate::intent::{HeaderRoute, MirrorRoute, TextMatch};
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
const PATHS: &str = "the path of the step cannot be combined with the one of the route: match both by exact or prefix";
const REWRITTEN: &str = "a path matched by regex cannot be rewritten with pathRewrite: match the path by exact or prefix";

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
    let conditions = route.matches.iter().map(|entry| {
        let text = |part: &str, value: &Option<TextMatch>| {
            let value = value.as_ref();
            value
                .map(|value| checked(&route.name, part, value))
                .transpose()
        };
        let method = match text("method", &entry.method)? {
            None => None,
            Some(Text::Exact(method)) => Some(method),
            Some(_) => {
                return Err(refused(
                    &route.name,
                    "method",
                    "a RouteTable matches it by exact only",
                ));
            }
        };
        let headers = entry.headers.iter();
        let headers = headers.map(|(name, value)| header_matcher(&route.name, name, value));
        let condition = Condition {
            method,
            path: text("path", &entry.path)?,
            headers: headers.collect::<Result<_, _>>()?,
        };
        if condition == Condition::default() {
            return Err(refused(
                &route.name,
                "match",
                "an entry is empty; to match any request, set path prefix /",
            ));
        }
        Ok(condition)
    });
    conditions.collect()
}

/// Combines each matcher of a source route with each of the `conditions`. Pairs that no request can meet are dropped.
///
/// A request matches a route if it meets one matcher with all its conditions. So the requests that match the route and meet
/// one of the `conditions` are those that meet one element of the product of both lists. A source without matchers matches
/// any request.
///
/// # Errors
/// Returns `Err` if the paths of a matcher and of a condition cannot be combined.
pub(crate) fn narrowed(
    source: &Map<String, Value>,
    conditions: &[Condition],
) -> Result<Vec<Value>, &'static str> {
    let any = [json!({})];
    let matchers = match source.get("matchers").and_then(Value::as_array) {
        Some(matchers) if !matchers.is_empty() => matchers.as_slice(),
        _ => &any,
    };
    let rewrites = source.get("forwardTo").and_then(|to| to.get("pathRewrite"));
    let by_regex = |condition: &Condition| matches!(condition.path, Some(Text::Regex(_)));
    if rewrites.is_some() && conditions.iter().any(by_regex) {
        return Err(REWRITTEN);
    }
    let mut product = Vec::new();
    for matcher in matchers {
        let matcher = matcher.as_object().cloned().unwrap_or_default();
        for condition in conditions {
            product.extend(condition.and(matcher.clone())?.map(Value::Object));
        }
    }
    Ok(product)
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
        if let Some(path) = &self.path {
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
            // Every path starts with `/`.
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
    let part = format!("header {name}");
    if name.is_empty() {
        return Err(refused(managed, &part, "it has no name"));
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
}
