//! Matchers: translates those of Gloo to those of Envoy, and combines those of a parent table with those of its child.

use std::cmp::Reverse;

use gloo_types::{HeaderMatcher, HttpRequestMatcher, QueryParameterMatcher, StringMatch};
use serde_json::{Map, Value, json};

use crate::{Reason, Refusal};

/// The path of a matcher. The variants are ordered, the most specific first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    Exact(String),
    Regex(String),
    Prefix(String),
}

/// Translates a matcher to Envoy's `RouteMatch`.
pub(crate) fn route_match(matcher: &HttpRequestMatcher) -> Result<Value, Refusal> {
    if matcher.port.is_some() {
        return Err(Refusal::new("port", Reason::NotModelled));
    }
    if is_set(matcher.name.as_ref()) {
        return Err(Refusal::new("name", Reason::Unsupported));
    }
    let mut result = Map::new();
    let (key, value) = match path(matcher)? {
        Path::Exact(text) => ("path", json!(text)),
        Path::Prefix(text) => ("prefix", json!(text)),
        Path::Regex(text) => ("safe_regex", json!({"regex": text})),
    };
    result.insert(key.to_owned(), value);
    if ignores_case(matcher) {
        result.insert("case_sensitive".to_owned(), json!(false));
    }
    let method = matcher.method.iter().filter(|method| !method.is_empty());
    let method = method.map(|method| json!({"name": ":method", "string_match": {"exact": method}}));
    let headers: Vec<Value> = method.chain(matcher.headers.iter().map(header)).collect();
    if !headers.is_empty() {
        result.insert("headers".to_owned(), Value::Array(headers));
    }
    if !matcher.query_parameters.is_empty() {
        let parameters = matcher.query_parameters.iter().map(query_parameter);
        result.insert("query_parameters".to_owned(), parameters.collect());
    }
    Ok(Value::Object(result))
}

/// The path of a matcher; the prefix `/`, which matches any path, if it has none.
pub(crate) fn path(matcher: &HttpRequestMatcher) -> Result<Path, Refusal> {
    let Some(uri) = &matcher.uri else {
        return Ok(Path::Prefix("/".to_owned()));
    };
    if uri.suffix.is_some() {
        return Err(Refusal::new("uri.suffix", Reason::Unsupported));
    }
    match (&uri.exact, &uri.prefix, &uri.regex) {
        (Some(exact), None, None) => Ok(Path::Exact(exact.clone())),
        (None, Some(prefix), None) => Ok(Path::Prefix(prefix.clone())),
        (None, None, Some(regex)) => Ok(Path::Regex(regex.clone())),
        _ => Err(Refusal::new("uri", Reason::NotOne("exact, prefix, regex"))),
    }
}

/// Returns the matcher for requests that meet both: a matcher of a parent table and one of its child.
pub(crate) fn both(
    parent: &HttpRequestMatcher,
    child: &HttpRequestMatcher,
) -> Result<HttpRequestMatcher, Refusal> {
    let method = |matcher: &HttpRequestMatcher| matcher.method.clone().filter(|it| !it.is_empty());
    let method = match (method(parent), method(child)) {
        (Some(one), Some(other)) if one != other => {
            return Err(Refusal::new("method", Reason::Conflict));
        }
        (one, other) => other.or(one),
    };
    let port = match (parent.port, child.port) {
        (Some(one), Some(other)) if one != other => {
            return Err(Refusal::new("port", Reason::Conflict));
        }
        (one, other) => other.or(one),
    };
    let mut both = child.clone();
    both.uri = both_paths(parent, child)?;
    both.headers.splice(0..0, parent.headers.iter().cloned());
    let parameters = parent.query_parameters.iter().cloned();
    both.query_parameters.splice(0..0, parameters);
    both.method = method;
    both.port = port;
    Ok(both)
}

fn both_paths(
    parent: &HttpRequestMatcher,
    child: &HttpRequestMatcher,
) -> Result<Option<StringMatch>, Refusal> {
    if parent.uri.is_none() || parent.uri == child.uri {
        return Ok(child.uri.clone());
    }
    if child.uri.is_none() {
        return Ok(parent.uri.clone());
    }
    if ignores_case(parent) || ignores_case(child) {
        return Err(Refusal::new("uri.ignoreCase", Reason::CannotJoin));
    }
    let narrower = |narrow: &str, wide: &str, result: &HttpRequestMatcher| {
        let fits = narrow.starts_with(wide);
        fits.then(|| result.uri.clone())
            .ok_or_else(|| Refusal::new("uri", Reason::Conflict))
    };
    match (path(parent)?, path(child)?) {
        (Path::Prefix(outer), Path::Prefix(inner)) if outer.starts_with(&inner) => {
            Ok(parent.uri.clone())
        }
        (Path::Prefix(outer), Path::Prefix(inner) | Path::Exact(inner)) => {
            narrower(&inner, &outer, child)
        }
        (Path::Exact(outer), Path::Prefix(inner)) => narrower(&outer, &inner, parent),
        (Path::Exact(_), Path::Exact(_)) => Err(Refusal::new("uri", Reason::Conflict)),
        (Path::Prefix(outer), Path::Regex(_)) if outer == "/" => Ok(child.uri.clone()),
        (Path::Regex(_), Path::Prefix(inner)) if inner == "/" => Ok(parent.uri.clone()),
        (Path::Regex(_), _) | (_, Path::Regex(_)) => Err(Refusal::new("uri", Reason::CannotJoin)),
    }
}

/// The sort key by which more specific matchers come first: exact before pattern before prefix, and longer before shorter.
/// Patterns are all equal, and conditions other than the path do not count.
pub(crate) fn specificity(matcher: &HttpRequestMatcher) -> impl Ord + use<> {
    let (kind, length) = match path(matcher) {
        Ok(Path::Exact(text)) => (0, text.len()),
        Ok(Path::Regex(_)) => (1, 0),
        Ok(Path::Prefix(text)) => (2, text.len()),
        Err(_) => (3, 0),
    };
    (kind, Reverse(length))
}

/// Whether the case of the path is ignored, which has no effect on a pattern.
fn ignores_case(matcher: &HttpRequestMatcher) -> bool {
    let uri = matcher.uri.as_ref();
    uri.is_some_and(|uri| uri.ignore_case == Some(true) && uri.regex.is_none())
}

/// Whether a text is neither absent nor empty, which is the same in proto3.
fn is_set(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

fn header(header: &HeaderMatcher) -> Value {
    let mut result = condition(&header.name, header.value.as_deref(), header.regex);
    if header.invert_match == Some(true) {
        result.insert("invert_match".to_owned(), json!(true));
        if is_set(header.value.as_ref()) {
            // Without this, Envoy would not match a request that lacks the header.
            result.insert("treat_missing_header_as_empty".to_owned(), json!(true));
        }
    }
    Value::Object(result)
}

fn query_parameter(parameter: &QueryParameterMatcher) -> Value {
    Value::Object(condition(
        &parameter.name,
        parameter.value.as_deref(),
        parameter.regex,
    ))
}

/// A condition on a header or a query parameter, which have the same form in Envoy.
fn condition(name: &str, value: Option<&str>, regex: Option<bool>) -> Map<String, Value> {
    let (key, condition) = match value {
        None | Some("") => ("present_match", json!(true)),
        Some(value) if regex == Some(true) => {
            ("string_match", json!({"safe_regex": {"regex": value}}))
        }
        Some(value) => ("string_match", json!({"exact": value})),
    };
    Map::from_iter([
        ("name".to_owned(), json!(name)),
        (key.to_owned(), condition),
    ])
}
