//! The problems of a RouteTable that need no Rollout.

use gloo_types::{
    Resource as _, RouteTable, RouteTableDoc, Rule, combination_violations, unreachable, violations,
};
use route_planner::{check_pattern, managed_by};

use super::report::{Problem, Problems};
use super::shape::{self, Misfit};
use crate::input::{Manifest, path};
use crate::node::Node;

/// Returns the problems of a table.
pub(super) fn problems(manifest: &Manifest) -> Vec<Problem> {
    let Some(key) = manifest.key() else {
        return Vec::new();
    };
    let mut problems = Problems::new(manifest, format!("RouteTable {key}"));
    let table = Node::root(&manifest.value);
    let expected = format!("{}/{}", RouteTable::GROUP, RouteTable::VERSION);
    if table.get("apiVersion").text() != expected {
        let message = format!("apiVersion must be {expected}");
        problems.error(&path("apiVersion"), message);
    }
    for misfit in shape::of_route_table(&manifest.value) {
        match misfit {
            Misfit::Wrong(at, text) => problems.error(&path(&at), text),
            Misfit::Unknown(at, text) => {
                problems.warn(&path(&at), format!("Gloo ignores {text}"));
            }
        }
    }
    for violation in combination_violations(table.get("spec").value) {
        problems.error(&path(&violation.path), &violation);
    }
    let document = RouteTableDoc::from_value(manifest.value.clone());
    let Ok(spec) = document.and_then(|table| table.spec()) else {
        return problems.found;
    };
    for violation in violations(&spec) {
        problems.error(&path(&violation.path), &violation);
    }
    let routes = table.get("spec.http").items().into_iter();
    let managed = routes.filter(|it| managed_by(it.value).is_some());
    let managed: Vec<String> = managed
        .map(|it| format!("route {}", it.get("name").text()))
        .collect();
    // A managed route may take all requests of the route that it copies: that is its purpose.
    let is_purpose = |rule: &Rule| matches!(rule, Rule::Hidden { by, .. } if managed.contains(by));
    let found = unreachable(&spec).into_iter();
    for violation in found.filter(|it| !is_purpose(&it.rule)) {
        problems.warn(&path(&violation.path), &violation);
    }
    for pattern in patterns(&table) {
        if let Err(problem) = check_pattern(pattern.text()) {
            let text = format!("{pattern}: RE2 does not accept the pattern: {problem}");
            problems.error(&pattern.at, text);
        }
    }
    problems.found
}

/// Returns the regular expressions of the matchers.
fn patterns<'v>(table: &Node<'v>) -> Vec<Node<'v>> {
    let mut patterns = Vec::new();
    let routes = table.get("spec.http").items().into_iter();
    for matcher in routes.flat_map(|route| route.get("matchers").items()) {
        patterns.push(matcher.get("uri.regex"));
        for key in ["headers", "queryParameters"] {
            let mut conditions = matcher.get(key).items();
            conditions.retain(|it| it.get("regex").is_true());
            patterns.extend(conditions.iter().map(|it| it.get("value")));
        }
    }
    patterns.retain(Node::is_set);
    patterns
}
