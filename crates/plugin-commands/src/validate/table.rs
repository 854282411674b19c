//! The problems of a RouteTable that need no Rollout.

use std::fmt;

use gloo_types::{
    HttpRequestMatcher, Resource as _, RouteTable, RouteTableDoc, RouteTableSpec, unreachable,
    violations,
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
    let rules = rules(object.get("spec").unwrap_or(&Value::Null)).into_iter();
    problems.extend(rules.map(|(at, text)| error(&at, &format!("{at} {text}"))));
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

/// Returns what the rules of Gloo's definition refuse that depends on whether a field is set, each with its path.
fn rules(spec: &Value) -> Vec<(String, &'static str)> {
    let of = |object: &Value, key: &str| object.get(key).filter(|it| !it.is_null()).cloned();
    let list = |key| {
        let items = spec.get(key).and_then(Value::as_array);
        items.into_iter().flatten().enumerate()
    };
    let mut found = Vec::new();
    let mut refuse = |at: &str, text| found.push((format!("spec.{at}"), text));
    for key in ["virtualGateways", "applyToDestinations", "failureMode"] {
        if of(spec, key).is_some() && of(spec, "hosts").is_none() {
            refuse(key, "needs hosts: add hosts, or remove it");
        }
    }
    for key in ["workloadSelectors", "applyToDestinations"] {
        for (index, item) in list(key) {
            if of(item, "kind").is_some_and(|kind| kind != "KUBE") {
                refuse(
                    &format!("{key}[{index}].kind"),
                    "may only be KUBE here: remove it",
                );
            }
        }
    }
    if of(spec, "defaultDestination").is_some()
        && !list("http").any(|(_, route)| of(route, "forwardTo").is_some())
    {
        refuse(
            "defaultDestination",
            "serves no http route: add a forwardTo, or remove it",
        );
    }
    let id = spec.pointer("/portalMetadata/apiProductId");
    if id
        .and_then(Value::as_str)
        .is_some_and(|it| it.contains(' '))
    {
        refuse("portalMetadata.apiProductId", "has a space: remove it");
    }
    found
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
