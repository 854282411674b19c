//! The problems of a RouteTable that need no Rollout.

use std::fmt;

use gloo_types::{
    HttpRequestMatcher, Resource as _, RouteTable, RouteTableDoc, RouteTableSpec,
    combination_violations, unreachable, violations,
};
use route_planner::check_pattern;
use serde_json::Value;

use super::report::Problem;
use super::shape::{self, Misfit};
use crate::input::{Manifest, path};

/// Returns the problems of a table. `object` is the one of `manifest`, with its namespace.
pub(super) fn problems(manifest: &Manifest, object: Value) -> Vec<Problem> {
    let spot = |at: &str| manifest.spot(&path(at));
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let namespace = text("/metadata/namespace").unwrap_or_default();
    let Some(name) = text("/metadata/name") else {
        return Vec::new();
    };
    let label = format!("RouteTable {namespace}/{name}");
    let error =
        |at: &str, what: &dyn fmt::Display| Problem::error(spot(at), format!("{label}: {what}"));
    let warning =
        |at: &str, what: &dyn fmt::Display| Problem::warning(spot(at), format!("{label}: {what}"));
    let mut problems = Vec::new();
    let expected = format!("{}/{}", RouteTable::GROUP, RouteTable::VERSION);
    if text("/apiVersion") != Some(&expected) {
        let message = format!("apiVersion must be {expected}");
        problems.push(error("apiVersion", &message));
    }
    for misfit in shape::of_route_table(&object) {
        problems.push(match misfit {
            Misfit::Wrong(at, text) => error(&at, &text),
            Misfit::Unknown(at, text) => warning(&at, &format!("Gloo ignores {text}")),
        });
    }
    let combinations = combination_violations(object.get("spec").unwrap_or(&Value::Null));
    problems.extend(combinations.iter().map(|it| error(&it.path, it)));
    let table = RouteTableDoc::from_value(object);
    let Ok(spec) = table.and_then(|table| table.spec()) else {
        return problems;
    };
    let violations = violations(&spec).into_iter();
    problems.extend(violations.map(|violation| error(&violation.path, &violation)));
    let unreachable = unreachable(&spec).into_iter();
    problems.extend(unreachable.map(|violation| warning(&violation.path, &violation)));
    for (at, pattern) in patterns(&spec) {
        if let Err(problem) = check_pattern(pattern) {
            let text = format!("{at}: RE2 does not accept the pattern: {problem}");
            problems.push(error(&at, &text));
        }
    }
    problems
}

/// Returns the regular expressions of the matchers, each with its path.
fn patterns(spec: &RouteTableSpec) -> Vec<(String, &str)> {
    let mut patterns = Vec::new();
    for (index, route) in spec.http.iter().enumerate() {
        for (position, matcher) in route.matchers.iter().enumerate() {
            let at = format!("spec.http[{index}].matchers[{position}]");
            let HttpRequestMatcher {
                uri,
                headers,
                query_parameters,
                ..
            } = matcher;
            let uri = uri.as_ref().and_then(|uri| uri.regex.as_deref());
            patterns.extend(uri.map(|regex| (format!("{at}.uri.regex"), regex)));
            for (index, header) in headers.iter().enumerate() {
                let regex = header
                    .value
                    .as_deref()
                    .filter(|_| header.regex == Some(true));
                patterns.extend(regex.map(|regex| (format!("{at}.headers[{index}].value"), regex)));
            }
            for (index, parameter) in query_parameters.iter().enumerate() {
                let is_regex = parameter.regex == Some(true);
                let regex = parameter.value.as_deref().filter(|_| is_regex);
                let at = format!("{at}.queryParameters[{index}].value");
                patterns.extend(regex.map(|regex| (at, regex)));
            }
        }
    }
    patterns
}
