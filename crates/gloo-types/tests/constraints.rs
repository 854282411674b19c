//! Selectors, weights and the constraints of the API.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

use std::collections::BTreeMap;

use gloo_types::{
    LabelOperator, LabelRequirement, ObjectKey, RouteTableDoc, RouteTableSelector,
    effective_weights, is_label_key, is_object_name, unreachable, violations,
};
use serde_json::{Value, json};

/// Checks the constraints that a spec violates.
#[track_caller]
fn check(spec: Value, expect: &[&str]) {
    let document = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec});
    let spec = RouteTableDoc::from_value(document).unwrap().spec().unwrap();
    let found: Vec<String> = violations(&spec).iter().map(ToString::to_string).collect();
    assert_eq!(found, expect);
}

/// A table with one http route whose destinations have these weights.
fn weighted(weights: &[Value]) -> Value {
    let destinations: Vec<Value> = weights
        .iter()
        .map(|weight| json!({"ref": {"name": "x"}, "weight": weight}))
        .collect();
    json!({"http": [{"forwardTo": {"destinations": destinations}}]})
}

#[test]
fn weights_that_gloo_accepts() {
    for weights in [
        vec![json!(null)],
        vec![json!(0)],
        vec![json!(100)],
        vec![json!(75), json!(25)],
        vec![json!(null), json!(0)],
        vec![json!(98), json!(null), json!(null)],
    ] {
        check(weighted(&weights), &[]);
    }
}

#[test]
fn weights_that_gloo_rejects() {
    let at = "spec.http[0].forwardTo.destinations";
    let sum = |found: &str| {
        format!("{at}: weights of a route must sum to 100, found {found}: correct them")
    };
    check(weighted(&[json!(75), json!(20)]), &[&sum("95")]);
    check(weighted(&[json!(75), json!(50)]), &[&sum("125")]);
    check(
        weighted(&[json!(75), json!(50), json!(null)]),
        &[&sum("125")],
    );
    check(
        weighted(&[json!(u32::MAX), json!(u32::MAX)]),
        &[&sum("8589934590")],
    );
    let share = |left: u32, names: &str| {
        format!(
            "{at}: destinations with weight 0 or none share the rest of 100 and need at least 1 each, but only {left} is left for {names}: remove it, or give each destination a weight"
        )
    };
    check(weighted(&[json!(100), json!(0)]), &[&share(0, "Service x")]);
    check(
        weighted(&[json!(99), json!(null), json!(0)]),
        &[&share(1, "Service x, Service x")],
    );
}

#[test]
fn routes_that_gloo_rejects() {
    check(
        json!({}),
        &["spec: a RouteTable needs at least one http, tcp or tls route: add one"],
    );
    check(
        json!({"http": [{"name": "a", "redirect": {}}, {"name": "a", "redirect": {}}, {"redirect": {}}, {"redirect": {}}]}),
        &["spec.http[1].name: route name a is used more than once: rename one of them"],
    );
    check(
        json!({"http": [{}, {"redirect": {}, "directResponse": {"status": 99}}]}),
        &[
            "spec.http[0]: a route needs exactly one action, found 0: set one of forwardTo, redirect, directResponse, graphql and delegate",
            "spec.http[1]: a route needs exactly one action, found 2: set one of forwardTo, redirect, directResponse, graphql and delegate",
            "spec.http[1].directResponse.status: status is 99: use 100 to 599",
        ],
    );
    check(
        json!({"http": [{"forwardTo": {}}]}),
        &[
            "spec.http[0].forwardTo.destinations: a forwardTo without destinations needs a defaultDestination of the table: add one of the two",
        ],
    );
    check(
        json!({"defaultDestination": {"ref": {"name": "x"}}, "http": [{"forwardTo": {}}]}),
        &[],
    );
    check(
        json!({"http": [{"forwardTo": {"destinations": [{}]}}]}),
        &[
            "spec.http[0].forwardTo.destinations[0]: a destination needs exactly one of ref and awsLambda: set one of them",
        ],
    );
    let many: Vec<Value> = (0..101).map(|_| json!({"ref": {"name": "x"}})).collect();
    check(
        json!({"http": [{"forwardTo": {"destinations": many}}]}),
        &[
            "spec.http[0].forwardTo.destinations: at most 100 are allowed, found 101: divide or shorten it",
            "spec.http[0].forwardTo.destinations: destinations with weight 0 or none share the rest of 100 and need at least 1 each, but only 100 is left for Service x, Service x, Service x, Service x, Service x and 96 more: remove it, or give each destination a weight",
        ],
    );
}

#[test]
fn limits_that_gloo_sets() {
    let to = json!({"forwardTo": {"destinations": [{"ref": {"name": "x"}}]}});
    check(
        json!({"tcp": [to], "workloadSelectors": vec![json!({}); 10_001]}),
        &["spec.workloadSelectors: at most 10000 are allowed, found 10001: divide or shorten it"],
    );
    check(
        json!({"http": [{"directResponse": {"status": 200, "body": "é".repeat(1_048_577)}}]}),
        &[
            "spec.http[0].directResponse.body: at most 1048576 are allowed, found 1048577: divide or shorten it",
        ],
    );
    check(
        json!({
            "http": [to],
            "defaultDestination": {"port": {"number": 0}},
            "workloadSelectors": [{"port": {"number": 0}}],
            "applyToDestinations": [{"port": {"number": 65536}}],
        }),
        &[
            "spec.workloadSelectors[0].port.number: a port must be between 1 and 65535, found 0",
            "spec.applyToDestinations[0].port.number: a port must be between 1 and 65535, found 65536",
            "spec.defaultDestination: a destination needs exactly one of ref and awsLambda: set one of them",
            "spec.defaultDestination.port.number: a port must be between 1 and 65535, found 0",
        ],
    );
}

#[test]
fn tcp_and_tls_routes_that_gloo_rejects() {
    check(
        json!({"tcp": [{"forwardTo": {"destinations": [{"ref": {"name": "x"}, "kind": "EXTERNAL_SERVICE"}]}}, {}]}),
        &[
            "spec.tcp[0].forwardTo.destinations[0].kind: a tcp route cannot send traffic to an ExternalService: use an http or tls route",
            "spec.tcp[1].forwardTo.destinations: a forwardTo without destinations needs a defaultDestination of the table: add one of the two",
        ],
    );
    check(
        json!({"tls": [{"matchers": [{"port": 1}], "forwardTo": {"destinations": [{"ref": {"name": "x"}}]}}]}),
        &[
            "spec.tls[0].matchers[0]: a tls matcher needs at least one entry of sniHosts: add the host",
        ],
    );
}

#[test]
fn effective_weights_share_the_remainder() {
    #[track_caller]
    fn check(weights: &[Value], expect: &[u32]) {
        let document =
            json!({"metadata": {"name": "a", "namespace": "b"}, "spec": weighted(weights)});
        let spec = RouteTableDoc::from_value(document).unwrap().spec().unwrap();
        let destinations = spec.http[0]
            .forward_to
            .as_ref()
            .unwrap()
            .destinations
            .as_deref()
            .unwrap();
        assert_eq!(effective_weights(destinations), expect);
    }
    check(&[], &[]);
    check(&[json!(80), json!(20)], &[80, 20]);
    check(&[json!(null), json!(null)], &[50, 50]);
    check(&[json!(80), json!(null)], &[80, 20]);
    check(&[json!(0), json!(null), json!(null)], &[33, 33, 33]);
    check(&[json!(100), json!(0)], &[100, 1]);
    check(
        &[json!(150), json!(null), json!(u32::MAX)],
        &[150, 1, u32::MAX],
    );
}

fn selector() -> RouteTableSelector {
    let requirement = |key: &str, operator| LabelRequirement {
        key: key.to_owned(),
        operator,
    };
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    RouteTableSelector {
        names: vec!["shop".to_owned()],
        labels: BTreeMap::from([("app".to_owned(), "shop".to_owned())]),
        match_expressions: vec![
            requirement("tier", LabelOperator::In(values(&["edge", "mesh"]))),
            requirement("old", LabelOperator::NotIn(values(&["yes"]))),
            requirement("team", LabelOperator::Exists),
            requirement("paused", LabelOperator::DoesNotExist),
        ],
        namespaces: values(&["edge", "mesh"]),
    }
}

#[test]
fn a_selector_has_the_form_of_the_kubernetes_api() {
    assert_eq!(
        selector().label_selector_string().as_deref(),
        Some("app=shop,tier in (edge,mesh),old notin (yes),team,!paused")
    );
    let by_name = RouteTableSelector {
        names: vec!["a".to_owned()],
        ..RouteTableSelector::default()
    };
    assert_eq!(
        (by_name.by_label(), by_name.label_selector_string()),
        (false, None)
    );
}

#[test]
fn a_table_is_selected_by_name_or_by_all_labels() {
    #[track_caller]
    fn check(key: (&str, &str), labels: &[(&str, &str)], expect: bool) {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(
            selector().matches(&ObjectKey::new(key.0, key.1), &labels),
            expect
        );
    }
    let all = [("app", "shop"), ("tier", "edge"), ("team", "")];
    check(("edge", "shop"), &[], true);
    check(("other", "shop"), &all, false);
    check(("mesh", "x"), &all, true);
    check(("mesh", "x"), &all[1..], false);
    check(
        ("mesh", "x"),
        &[("app", "shop"), ("tier", "core"), ("team", "")],
        false,
    );
    check(("mesh", "x"), &[("app", "shop"), ("tier", "edge")], false);
    check(
        ("mesh", "x"),
        &[all.as_slice(), &[("old", "no")]].concat(),
        true,
    );
    check(
        ("mesh", "x"),
        &[all.as_slice(), &[("old", "yes")]].concat(),
        false,
    );
    check(
        ("mesh", "x"),
        &[all.as_slice(), &[("paused", "")]].concat(),
        false,
    );
    let names_only = RouteTableSelector {
        labels: BTreeMap::new(),
        match_expressions: vec![],
        ..selector()
    };
    assert!(!names_only.matches(&ObjectKey::new("mesh", "x"), &BTreeMap::new()));
}

#[test]
fn ports_names_of_headers_and_matches_that_gloo_rejects() {
    let http = |matcher: Value| json!({"http": [{"matchers": [matcher], "directResponse": {"status": 200}}]});
    check(
        http(json!({"port": 65535, "headers": [{"name": ":authority"}, {"name": "X-a_b"}]})),
        &[],
    );
    check(
        http(
            json!({"port": 65536, "headers": [{"name": "a b"}, {}], "uri": {"exact": "/a", "prefix": "/"}}),
        ),
        &[
            "spec.http[0].matchers[0].port: a port must be between 0 and 65535, found 65536",
            "spec.http[0].matchers[0].headers[0].name: \"a b\" is not the name of a header: it may have letters, digits, - and _",
            "spec.http[0].matchers[0].headers[1].name: \"\" is not the name of a header: it may have letters, digits, - and _",
            "spec.http[0].matchers[0].uri: set only one of exact, prefix, regex and suffix",
        ],
    );
    let to =
        |port: u32| json!({"destinations": [{"ref": {"name": "a"}, "port": {"number": port}}]});
    check(
        json!({"tcp": [{"matchers": [{"port": 70000}], "forwardTo": to(0)}], "tls": [{"matchers": [{"sniHosts": ["a"], "port": 70000}], "forwardTo": to(70000)}]}),
        &[
            "spec.tcp[0].matchers[0].port: a port must be between 0 and 65535, found 70000",
            "spec.tcp[0].forwardTo.destinations[0].port.number: a port must be between 1 and 65535, found 0",
            "spec.tls[0].matchers[0].port: a port must be between 0 and 65535, found 70000",
            "spec.tls[0].forwardTo.destinations[0].port.number: a port must be between 1 and 65535, found 70000",
        ],
    );
}

/// Checks whether the second of two routes with these matchers is hidden.
#[track_caller]
fn check_hidden(first: &Value, second: &Value, expect: bool) {
    let route = |matchers: &Value| json!({"matchers": matchers, "forwardTo": {}});
    let spec = json!({"hosts": ["a"], "http": [route(first), route(second)]});
    let document = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec});
    let spec = RouteTableDoc::from_value(document).unwrap().spec().unwrap();
    let found = unreachable(&spec);
    assert_eq!(!found.is_empty(), expect, "{first} {second}: {found:?}");
    if let Some(found) = found.first() {
        assert_eq!(
            found.to_string(),
            "spec.http[1]: no request reaches route 1, because route 0 before it matches all of them: move route 1 up, or restrict route 0"
        );
    }
}

#[test]
fn a_route_is_hidden_if_an_earlier_one_matches_all_of_its_requests() {
    let prefix = |path: &str| json!([{"uri": {"prefix": path}}]);
    let exact = |path: &str| json!([{"uri": {"exact": path}}]);
    let header = |value: &str| json!([{"headers": [{"name": "a", "value": value}]}]);
    check_hidden(&json!([]), &prefix("/a"), true);
    check_hidden(&prefix("/"), &json!([]), true);
    check_hidden(&prefix("/a"), &prefix("/ab"), true);
    check_hidden(&prefix("/a"), &exact("/a"), true);
    check_hidden(&exact("/a"), &exact("/a"), true);
    check_hidden(&prefix("/a"), &prefix("/b"), false);
    check_hidden(&prefix("/a"), &prefix("/"), false);
    check_hidden(&prefix("/a"), &json!([]), false);
    check_hidden(&exact("/a"), &prefix("/a"), false);
    check_hidden(&header("1"), &header("1"), true);
    check_hidden(&header("1"), &header("2"), false);
    check_hidden(&json!([{"headers": [{"name": "A"}]}]), &header("1"), true);
    check_hidden(
        &json!([{"headers": [{"name": "a", "invertMatch": true}]}]),
        &header("1"),
        false,
    );
    check_hidden(
        &json!([{"method": "GET"}]),
        &json!([{"method": "GET", "port": 80}]),
        true,
    );
    check_hidden(
        &json!([{"method": "GET"}]),
        &json!([{"method": "PUT"}]),
        false,
    );
    check_hidden(&json!([{"port": 80}]), &json!([{}]), false);
    check_hidden(
        &json!([{"queryParameters": [{"name": "a"}]}]),
        &json!([{"queryParameters": [{"name": "a"}, {"name": "b"}]}]),
        true,
    );
    check_hidden(
        &json!([{"uri": {"prefix": "/A", "ignoreCase": true}}]),
        &exact("/ab"),
        true,
    );
    check_hidden(
        &prefix("/a"),
        &json!([{"uri": {"prefix": "/ab", "ignoreCase": true}}]),
        false,
    );
    check_hidden(&json!([{"uri": {"regex": "/a.*"}}]), &prefix("/ab"), false);
    // Each matcher of the second one must be covered.
    check_hidden(
        &prefix("/a"),
        &json!([{"uri": {"exact": "/a"}}, {"uri": {"exact": "/b"}}]),
        false,
    );
}

#[test]
fn names_of_objects_have_parts_between_dots() {
    for (name, expect) in [
        ("web", true),
        ("web-1.shop", true),
        ("0", true),
        ("", false),
        ("Web", false),
        ("a_b", false),
        ("-web", false),
        ("web.", false),
        (".web", false),
        ("a..b", false),
        ("a-.b", false),
        ("a.-b", false),
    ] {
        assert_eq!(is_object_name(name), expect, "{name}");
        // The prefix of a label is such a name.
        assert_eq!(is_label_key(&format!("{name}/Tier")), expect, "{name}");
    }
    assert!(is_object_name(&"a".repeat(253)) && !is_object_name(&"a".repeat(254)));
}
