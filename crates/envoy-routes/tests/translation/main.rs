//! The translation of each field of a RouteTable and of a policy, and the errors for parts that cannot be translated.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

mod delegation;
mod policies;

use envoy_routes::{DefaultRetries, Objects, Translation, translate};
use gloo_types::{MirrorPolicyDoc, RetryTimeoutPolicyDoc, RouteTableDoc};
use serde_json::{Value, json};

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn object(name: &str, labels: &Value, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "labels": labels}, "spec": spec})
}

/// Reads tables from YAML, as `name: spec`. A spec may have `tableLabels`.
fn tables(text: &str) -> Vec<RouteTableDoc> {
    let Value::Object(tables) = yaml(text) else {
        panic!("no tables")
    };
    let document = |(name, mut spec): (String, Value)| {
        let labels = spec.as_object_mut().unwrap().remove("tableLabels");
        let labels = labels.unwrap_or_else(|| json!({}));
        RouteTableDoc::from_value(object(&name, &labels, spec)).unwrap()
    };
    tables.into_iter().map(document).collect()
}

fn translated(tables: &[RouteTableDoc], mirrors: &str, timeouts: &str) -> Translation {
    let specs = |text: &str| match yaml(text) {
        Value::Object(specs) => specs,
        _ => Default::default(),
    };
    let labels = json!({});
    let mirrors = specs(mirrors)
        .into_iter()
        .map(|(name, spec)| MirrorPolicyDoc::from_value(object(&name, &labels, spec)).unwrap());
    let timeouts = specs(timeouts).into_iter().map(|(name, spec)| {
        RetryTimeoutPolicyDoc::from_value(object(&name, &labels, spec)).unwrap()
    });
    translate(&Objects {
        tables,
        mirror_policies: &mirrors.collect::<Vec<_>>(),
        retry_timeout_policies: &timeouts.collect::<Vec<_>>(),
        retries: DefaultRetries::Off,
    })
}

fn reported(translation: &Translation) -> Vec<String> {
    let untranslated = translation.untranslated.iter();
    untranslated.map(ToString::to_string).collect()
}

/// Checks the Envoy routes, without their names, of a route of the table `shop/web`.
#[track_caller]
fn check(route: &str, expect: &str) {
    check_with(route, "", "", expect);
}

#[track_caller]
fn check_with(route: &str, mirrors: &str, timeouts: &str, expect: &str) {
    let translation = translated(&one_route(route), mirrors, timeouts);
    assert_eq!(reported(&translation), [""; 0], "{route}");
    let found = &translation.route_configuration["virtual_hosts"][0]["routes"];
    let without_name = |route: &Value| {
        let mut route = route.clone();
        assert_eq!(route["name"].take(), "shop/web/r");
        route.as_object_mut().unwrap().remove("name");
        route
    };
    let found: Vec<Value> = found.as_array().unwrap().iter().map(without_name).collect();
    assert_eq!(json!(found), yaml(expect), "{route}");
}

/// Checks a route that cannot be translated: it is reported and responds with status 500.
#[track_caller]
fn check_refused(route: &str, expect: &str) {
    let translation = translated(&one_route(route), "", "");
    let expect = format!("RouteTable shop/web: {expect}");
    assert_eq!(reported(&translation), [expect], "{route}");
    let routes = &translation.route_configuration["virtual_hosts"][0]["routes"];
    for route in routes.as_array().unwrap() {
        assert_eq!(route["direct_response"]["status"], 500);
    }
}

fn one_route(route: &str) -> Vec<RouteTableDoc> {
    let mut route = yaml(route);
    route["name"] = json!("r");
    let spec = json!({"hosts": ["shop.example.com"], "http": [route]});
    vec![RouteTableDoc::from_value(object("web", &json!({"team": "a"}), spec)).unwrap()]
}

/// As `check`, for the matchers of a route with a fixed action.
#[track_caller]
fn check_matchers(matchers: &str, expect: &[&str]) {
    let route = format!("{{matchers: {matchers}, directResponse: {{status: 200}}}}");
    let expect: Vec<Value> = expect
        .iter()
        .map(|text| json!({"match": yaml(text), "direct_response": {"status": 200}}))
        .collect();
    check(&route, &json!(expect).to_string());
}

/// As `check`, for the `forwardTo` of a route without matchers.
#[track_caller]
fn check_forward(forward: &str, expect: &str) {
    let expect = format!("[{{match: {{prefix: /}}, route: {expect}}}]");
    check(&format!("{{forwardTo: {forward}}}"), &expect);
}

#[test]
fn matchers_are_alternatives_and_no_matcher_matches_any_request() {
    check_matchers("[]", &["{prefix: /}"]);
    check_matchers(
        "[{uri: {exact: /a}}, {uri: {prefix: /b}}]",
        &["{path: /a}", "{prefix: /b}"],
    );
    check_matchers(
        "[{uri: {regex: '/a/[0-9]+'}}]",
        &["{safe_regex: {regex: '/a/[0-9]+'}}"],
    );
    check_matchers(
        "[{method: GET}]",
        &["{prefix: /, headers: [{name: ':method', string_match: {exact: GET}}]}"],
    );
}

#[test]
fn case_is_ignored_if_the_matcher_sets_ignore_case() {
    check_matchers(
        "[{uri: {prefix: /a, ignoreCase: true}}]",
        &["{prefix: /a, case_sensitive: false}"],
    );
    check_matchers(
        "[{uri: {exact: /a, ignoreCase: true}}]",
        &["{path: /a, case_sensitive: false}"],
    );
    check_matchers(
        "[{uri: {regex: /a, ignoreCase: true}}]",
        &["{safe_regex: {regex: /a}}"],
    );
    check_matchers(
        "[{uri: {prefix: /a, ignoreCase: false}}]",
        &["{prefix: /a}"],
    );
}

#[test]
fn headers_and_query_parameters_must_all_match() {
    let header = |header: &str, expect: &str| {
        let expect = format!("{{prefix: /, headers: [{expect}]}}");
        check_matchers(&format!("[{{headers: [{header}]}}]"), &[&expect]);
    };
    header("{name: x}", "{name: x, present_match: true}");
    header("{name: x, value: ''}", "{name: x, present_match: true}");
    header(
        "{name: x, value: '', invertMatch: true}",
        "{name: x, present_match: true, invert_match: true}",
    );
    header("{name: x, value: a}", "{name: x, string_match: {exact: a}}");
    header(
        "{name: x, value: a, regex: false}",
        "{name: x, string_match: {exact: a}}",
    );
    header(
        "{name: x, value: 'a.*', regex: true}",
        "{name: x, string_match: {safe_regex: {regex: 'a.*'}}}",
    );
    header(
        "{name: x, invertMatch: true}",
        "{name: x, present_match: true, invert_match: true}",
    );
    header(
        "{name: x, value: a, invertMatch: true}",
        "{name: x, string_match: {exact: a}, invert_match: true, treat_missing_header_as_empty: true}",
    );
    header(
        "{name: x}, {name: z, value: b}",
        "{name: x, present_match: true}, {name: z, string_match: {exact: b}}",
    );
    check_matchers(
        "[{queryParameters: [{name: q}, {name: p, value: 'a+', regex: true}]}]",
        &[
            "{prefix: /, query_parameters: [{name: q, present_match: true}, {name: p, string_match: {safe_regex: {regex: a+}}}]}",
        ],
    );
}

#[test]
fn destinations_become_clusters_by_their_effective_weights() {
    check_forward(
        "{destinations: [{ref: {name: a}}]}",
        "{cluster: shop/a, timeout: 0s}",
    );
    check_forward(
        "{destinations: [{ref: {name: a, namespace: other}, port: {number: 80}, weight: 7}]}",
        "{cluster: 'other/a:80', timeout: 0s}",
    );
    let weights = |written: [&str; 3], expect: [u32; 3]| {
        let [a, b, c] = written;
        let [one, two, three] = expect;
        check_forward(
            &format!(
                "{{destinations: [{{ref: {{name: a}}{a}}}, {{ref: {{name: b}}{b}}}, {{ref: {{name: c}}{c}}}]}}"
            ),
            &format!(
                "{{weighted_clusters: {{clusters: [{{name: shop/a, weight: {one}}}, {{name: shop/b, weight: {two}}}, {{name: shop/c, weight: {three}}}]}}, timeout: 0s}}"
            ),
        );
    };
    weights(
        [", weight: 20", ", weight: 60", ", weight: 20"],
        [20, 60, 20],
    );
    weights([", weight: 20", "", ""], [20, 40, 40]);
    // Gloo cannot distinguish 0 from absent, and gives each destination at least 1.
    weights([", weight: 100", ", weight: 0", ""], [100, 1, 1]);
    weights(
        [", weight: 60", ", weight: 60", ", weight: 10"],
        [60, 60, 10],
    );
}

#[test]
fn backends_differ_by_subset_port_kind_and_cluster() {
    check_forward(
        "{destinations: [{ref: {name: a}, subset: {hash: v1}, weight: 30}, {ref: {name: a}, subset: {hash: v2, b: c}, weight: 70}]}",
        "{weighted_clusters: {clusters: [{name: 'shop/a?hash=v1', weight: 30}, {name: 'shop/a?b=c&hash=v2', weight: 70}]}, timeout: 0s}",
    );
    check_forward(
        "{destinations: [{kind: VIRTUAL_DESTINATION, ref: {name: a, cluster: east}, port: {name: http}}]}",
        "{cluster: 'VIRTUAL_DESTINATION east/shop/a:http', timeout: 0s}",
    );
    let two = one_route(
        "{forwardTo: {destinations: [{ref: {name: a}}, {ref: {name: a}, subset: {hash: v1}}]}}",
    );
    let clusters = translated(&two, "", "").clusters;
    assert_eq!(
        clusters.keys().collect::<Vec<_>>(),
        ["shop/a", "shop/a?hash=v1"]
    );
    assert_eq!(clusters["shop/a?hash=v1"].subset["hash"], "v1");
}

#[test]
fn rewrites_follow_the_kind_of_the_matcher() {
    let rewrite = |uri: &str, forward: &str, expect: &str| {
        let (name, value) = uri.split_once(' ').unwrap();
        let envoy = match name {
            "regex" => format!("{{safe_regex: {{regex: '{value}'}}}}"),
            "exact" => format!("{{path: {value}}}"),
            name => format!("{{{name}: {value}}}"),
        };
        check(
            &format!(
                "{{matchers: [{{uri: {{{name}: '{value}'}}}}], forwardTo: {{destinations: [{{ref: {{name: a}}}}], {forward}}}}}"
            ),
            &format!("[{{match: {envoy}, route: {{cluster: shop/a, timeout: 0s, {expect}}}}}]"),
        );
    };
    rewrite("prefix /a", "pathRewrite: /", "prefix_rewrite: /");
    rewrite("exact /a", "pathRewrite: /b", "prefix_rewrite: /b");
    rewrite(
        "prefix /a",
        r"regexRewrite: {pattern: {googleRe2: {}, regex: '^/a/(.*)'}, substitution: '/b/\1'}",
        r"regex_rewrite: {pattern: {regex: '^/a/(.*)'}, substitution: '/b/\1'}",
    );
    rewrite(
        "prefix /a",
        "hostRewrite: b.example.com",
        "host_rewrite_literal: b.example.com",
    );
    rewrite(
        "prefix /a",
        "autoHostRewrite: true",
        "auto_host_rewrite: true",
    );
}

#[test]
fn an_empty_path_rewrite_is_none() {
    for uri in ["{prefix: /a}", "{exact: /a}", "{regex: /a}"] {
        let forward = "destinations: [{ref: {name: a}}], pathRewrite: ''";
        let route = format!("{{matchers: [{{uri: {uri}}}], forwardTo: {{{forward}}}}}");
        let translation = translated(&one_route(&route), "", "");
        assert_eq!(reported(&translation), [""; 0], "{route}");
        let action = &translation.route_configuration["virtual_hosts"][0]["routes"][0]["route"];
        assert_eq!(*action, json!({"cluster": "shop/a", "timeout": "0s"}));
    }
}

#[test]
fn redirects_and_direct_responses() {
    let redirect = |redirect: &str, expect: &str| {
        check(
            &format!("{{redirect: {redirect}}}"),
            &format!("[{{match: {{prefix: /}}, redirect: {expect}}}]"),
        );
    };
    redirect(
        "{hostRedirect: b}",
        "{response_code: MOVED_PERMANENTLY, host_redirect: b}",
    );
    redirect(
        "{pathRedirect: /b, responseCode: FOUND}",
        "{response_code: FOUND, path_redirect: /b}",
    );
    redirect(
        "{responseCode: 307, httpsRedirect: true, stripQuery: true}",
        "{response_code: TEMPORARY_REDIRECT, https_redirect: true, strip_query: true}",
    );
    check(
        "{directResponse: {status: 404, body: gone}}",
        "[{match: {prefix: /}, direct_response: {status: 404, body: {inline_string: gone}}}]",
    );
}

#[test]
fn parts_that_cannot_be_translated_are_reported() {
    let to = "forwardTo: {destinations: [{ref: {name: a}}]}";
    check_refused(
        "{graphql: {schema: {name: a}}}",
        "spec.http[0].graphql: is not modelled",
    );
    check_refused(
        "{forwardTo: {destinations: [{awsLambda: {function: f}}]}}",
        "spec.http[0].forwardTo.destinations[0].awsLambda: is not modelled",
    );
    check_refused(
        &format!("{{matchers: [{{uri: {{prefix: /a}}}}, {{port: 80}}], {to}}}"),
        "spec.http[0].matchers[1].port: is not modelled",
    );
    check_refused(
        &format!("{{matchers: [{{uri: {{suffix: a}}}}], {to}}}"),
        "spec.http[0].matchers[0].uri.suffix: is not supported by Gloo",
    );
    check_refused(
        &format!("{{matchers: [{{name: m}}], {to}}}"),
        "spec.http[0].matchers[0].name: is not supported by Gloo",
    );
    check_refused(
        "{matchers: [{uri: {regex: /a.*}}], forwardTo: {pathRewrite: /b, destinations: [{ref: {name: a}}]}}",
        "spec.http[0].forwardTo.pathRewrite: is not supported by Gloo",
    );
    check_refused(
        &format!("{{matchers: [{{uri: {{exact: /a, prefix: /b}}}}], {to}}}"),
        "spec.http[0].matchers[0].uri: needs exactly one of exact, prefix, regex",
    );
    check_refused(
        "{forwardTo: {}}",
        "spec.http[0].forwardTo.destinations: has no destination",
    );
    check_refused(
        "{forwardTo: {destinations: [{weight: 1}]}}",
        "spec.http[0].forwardTo.destinations[0]: needs exactly one of ref, awsLambda",
    );
    check_refused(
        "{directResponse: {status: 99}}",
        "spec.http[0].directResponse.status: 99 is not a valid value",
    );
    check_refused(
        "{redirect: {responseCode: 300}}",
        "spec.http[0].redirect.responseCode: 300 is not a valid value",
    );
    check_refused(
        "{}",
        "spec.http[0]: needs exactly one of forwardTo, delegate, redirect, directResponse, graphql",
    );
    check_refused(
        "{delegate: {routeTables: [{name: none}]}}",
        "spec.http[0].delegate.routeTables: selects no table",
    );
}

/// Fields without an effect, and unknown ones.
#[test]
fn unsupported_fields_are_reported_and_the_rest_is_translated() {
    let check_fields = |spec: &str, expect: &[&str]| {
        let spec = format!(
            "web: {{hosts: [a], http: [{{forwardTo: {{destinations: [{{ref: {{name: a}}, hint: 1}}]}}}}], {spec}}}"
        );
        let translation = translated(&tables(&spec), "", "");
        let mut expect: Vec<String> = expect
            .iter()
            .map(|it| format!("RouteTable shop/web: {it}"))
            .collect();
        expect.insert(
            0,
            "RouteTable shop/web: spec.http[0].forwardTo.destinations[0].hint: is an unknown field"
                .to_owned(),
        );
        assert_eq!(reported(&translation), expect);
        assert!(translation.clusters.contains_key("shop/a"));
    };
    check_fields(
        "virtualGateways: [{name: g}], workloadSelectors: [], failureMode: ROUTE_REPLACEMENT",
        &[],
    );
    check_fields("tcp: [{}]", &["spec.tcp: is not modelled"]);
    check_fields("tls: [{}]", &["spec.tls: is not modelled"]);
    check_fields(
        "workloadSelectors: [{}]",
        &["spec.workloadSelectors: is not modelled"],
    );
    check_fields(
        "failureMode: FREEZE_CONFIG",
        &["spec.failureMode: is not modelled"],
    );
    check_fields("future: 1", &["spec.future: is an unknown field"]);

    let unreadable = tables("web: {hosts: [a], http: [{name: 7}]}");
    let [problem] = &reported(&translated(&unreadable, "", ""))[..] else {
        panic!("one problem")
    };
    assert!(problem.starts_with(
        "RouteTable shop/web: spec: RouteTable shop/web: unexpected value at spec.http[0].name"
    ));
}
