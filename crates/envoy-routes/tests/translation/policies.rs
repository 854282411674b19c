//! The policies that select the routes of a table.

use envoy_routes::{Objects, translate};

use super::{check_with, one_route, reported, translated};

const ROUTE: &str = "{labels: {copy: 'yes'}, forwardTo: {destinations: [{ref: {name: a}}]}}";

#[test]
fn the_percentage_of_a_mirror_policy_becomes_millionths() {
    let mirror = |policy: &str, expect: &str| {
        let policy = format!("m: {policy}");
        let expect =
            format!("[{{match: {{prefix: /}}, route: {{cluster: shop/a, timeout: 0s{expect}}}}}]");
        check_with(ROUTE, &policy, "", &expect);
    };
    let config =
        |percentage: &str| format!("config: {{destination: {{ref: {{name: b}}}}{percentage}}}");
    let copies = |numerator: u32| {
        format!(
            ", request_mirror_policies: [{{cluster: shop/b, runtime_fraction: {{default_value: {{numerator: {numerator}, denominator: MILLION}}}}}}]"
        )
    };
    let selected = "applyToRoutes: [{route: {labels: {copy: 'yes'}}}]";
    mirror(
        &format!("{{{selected}, {}}}", config(", percentage: 20")),
        &copies(200_000),
    );
    mirror(
        &format!("{{{selected}, {}}}", config(", percentage: 0.5")),
        &copies(5_000),
    );
    mirror(&format!("{{{}}}", config("")), &copies(1_000_000));
    // A route inherits the labels of its table.
    mirror(
        &format!(
            "{{applyToRoutes: [{{route: {{labels: {{team: a}}}}}}], {}}}",
            config("")
        ),
        &copies(1_000_000),
    );
    mirror(
        &format!(
            "{{applyToRoutes: [{{withDestinations: {{selector: {{name: a}}}}}}], {}}}",
            config("")
        ),
        &copies(1_000_000),
    );
    mirror(
        &format!(
            "{{applyToRoutes: [{{route: {{labels: {{copy: 'no'}}}}}}], {}}}",
            config("")
        ),
        "",
    );
    // A selector without a namespace selects all of them.
    check_with(
        "{forwardTo: {destinations: [{ref: {name: a, namespace: other}}]}}",
        &format!(
            "m: {{applyToRoutes: [{{withDestinations: {{selector: {{name: a}}}}}}], {}}}",
            config("")
        ),
        "",
        &format!(
            "[{{match: {{prefix: /}}, route: {{cluster: other/a, timeout: 0s{}}}}}]",
            copies(1_000_000)
        ),
    );
    mirror(
        &format!(
            "{{applyToRoutes: [{{withDestinations: {{selector: {{name: z}}}}}}], {}}}",
            config("")
        ),
        "",
    );
}

#[test]
fn a_retry_timeout_policy_sets_timeout_and_retries() {
    let policy = |config: &str, expect: &str| {
        let policy = format!(
            "t: {{applyToRoutes: [{{route: {{labels: {{copy: 'yes'}}}}}}], config: {config}}}"
        );
        check_with(
            ROUTE,
            "",
            &policy,
            &format!("[{{match: {{prefix: /}}, route: {{cluster: shop/a, {expect}}}}}]"),
        );
    };
    policy("{requestTimeout: 0.5s}", "timeout: 0.5s");
    policy("{requestTimeout: 500ms}", "timeout: 0.5s");
    policy("{requestTimeout: 2m}", "timeout: 120s");
    policy("{requestTimeout: 1s500ms}", "timeout: 1.5s");
    policy(
        "{retries: {attempts: 5, perTryTimeout: 1s, retryOn: 5xx}}",
        "timeout: 0s, retry_policy: {retry_on: 5xx, num_retries: 5, per_try_timeout: 1s}",
    );
    policy(
        "{retries: {attempts: 1}}",
        "timeout: 0s, retry_policy: {retry_on: 'connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes', num_retries: 1}",
    );
}

#[test]
fn without_a_policy_requests_are_retried_as_by_istio() {
    let tables = one_route(ROUTE);
    let translation = translate(&Objects {
        tables: &tables,
        ..Objects::default()
    });
    let route = &translation.route_configuration["virtual_hosts"][0]["routes"][0]["route"];
    assert_eq!(route["retry_policy"]["num_retries"], 2);
}

#[test]
fn policies_that_cannot_be_translated_are_reported() {
    let problem = |mirrors: &str, timeouts: &str, expect: &[&str]| {
        assert_eq!(
            reported(&translated(&one_route(ROUTE), mirrors, timeouts)),
            expect
        );
    };
    let to = "destination: {ref: {name: b}}";
    problem(
        "m: {config: {}}",
        "",
        &["MirrorPolicy shop/m: spec.config.destination: has no destination"],
    );
    problem(
        &format!("m: {{config: {{{to}, percentage: 101}}}}"),
        "",
        &["MirrorPolicy shop/m: spec.config.percentage: 101 is not a valid value"],
    );
    problem(
        &format!(
            "m: {{config: {{{to}}}, applyToRoutes: [{{withDestinations: {{selector: {{labels: {{a: b}}}}}}}}]}}"
        ),
        "",
        &[
            "MirrorPolicy shop/m: spec.applyToRoutes[0].withDestinations.selector.labels: is not modelled",
        ],
    );
    problem(
        &format!("{{m: {{config: {{{to}}}}}, n: {{config: {{{to}}}, future: 1}}}}"),
        "",
        &[
            "MirrorPolicy shop/n: spec.future: is an unknown field",
            "MirrorPolicy shop/n: spec.applyToRoutes: also applies to route shop/web/r, which has another policy of this kind",
        ],
    );
    problem(
        "",
        "t: {config: {requestTimeout: soon}}",
        &["RetryTimeoutPolicy shop/t: spec.config.requestTimeout: soon is not a valid value"],
    );
    problem(
        "",
        "t: {config: {requestTimeout: 0s}}",
        &["RetryTimeoutPolicy shop/t: spec.config.requestTimeout: 0s is not a valid value"],
    );
}
