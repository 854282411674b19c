//! The tables of one host, and tables that delegate to others.

use gloo_types::RouteTableDoc;
use serde_json::json;

use super::{object, reported, tables, translated};

/// Checks the virtual hosts in the form `host: route=match ...`, and the reported problems.
#[track_caller]
fn check_tables(text: &str, expect: &[&str], problems: &[&str]) {
    let translation = translated(&tables(text), "", "");
    let hosts = translation.route_configuration["virtual_hosts"]
        .as_array()
        .unwrap();
    let found: Vec<String> = hosts
        .iter()
        .map(|host| {
            let routes = host["routes"].as_array().unwrap().iter().map(|route| {
                let of = |key: &str| route["match"][key].as_str();
                let path = of("path").or_else(|| of("prefix")).unwrap_or("regex");
                let refused = if route["direct_response"]["status"] == 500 {
                    "!"
                } else {
                    ""
                };
                format!(
                    "{}={path}{refused}",
                    route["name"].as_str().unwrap().trim_start_matches("shop/")
                )
            });
            assert_eq!(host["domains"], json!([host["name"]]));
            format!(
                "{}: {}",
                host["name"].as_str().unwrap(),
                routes.collect::<Vec<_>>().join(" ")
            )
        })
        .collect();
    assert_eq!(found, expect);
    assert_eq!(reported(&translation), problems);
}

#[test]
fn tables_with_the_same_host_share_a_virtual_host() {
    let to = "forwardTo: {destinations: [{ref: {name: a}}]}";
    check_tables(
        &format!(
            "{{b: {{hosts: [x, z], http: [{{matchers: [{{uri: {{prefix: /b}}}}], {to}}}]}}, \
              a: {{hosts: [x], http: [{{name: r, {to}}}, {{{to}}}]}}}}"
        ),
        &["x: a/r=/ a/1=/ b/0=/b", "z: b/0=/b"],
        &[],
    );
    let found = translated(
        &tables(&format!("a: {{hosts: [x], http: [{{{to}}}]}}")),
        "",
        "",
    );
    assert_eq!(
        found.route_configuration["ignore_port_in_host_matching"],
        true
    );
}

#[test]
fn a_table_without_destinations_uses_its_default() {
    let default = "web: {hosts: [x], defaultDestination: {ref: {name: d}}, http: [{forwardTo: {destinations: []}}]}";
    let translation = translated(&tables(default), "", "");
    assert_eq!(reported(&translation), [""; 0]);
    assert_eq!(translation.clusters.keys().collect::<Vec<_>>(), ["shop/d"]);
}

const CHILDREN: &str = "
one: {tableLabels: {team: a}, weight: 1, http: [
  {name: p, matchers: [{uri: {prefix: /shop/p}}], directResponse: {status: 200}},
  {name: e, matchers: [{uri: {exact: /shop/p/e}}], directResponse: {status: 200}}]}
two: {tableLabels: {team: a}, weight: 5, http: [
  {name: long, matchers: [{uri: {prefix: /shop/p/long}}], directResponse: {status: 200}},
  {name: all, directResponse: {status: 200}}]}
";

#[test]
fn a_delegation_combines_matchers_and_sorts_by_weight_or_specificity() {
    let root = |sort: &str| {
        format!(
            "root: {{hosts: [x], http: [{{matchers: [{{uri: {{prefix: /shop}}}}], delegate: {{{sort}routeTables: [{{labels: {{team: a}}}}]}}}}, {{name: rest, directResponse: {{status: 200}}}}]}}{CHILDREN}"
        )
    };
    check_tables(
        &root(""),
        &["x: two/long=/shop/p/long two/all=/shop one/p=/shop/p one/e=/shop/p/e root/rest=/"],
        &[],
    );
    check_tables(
        &root("sortMethod: ROUTE_SPECIFICITY, "),
        &["x: one/e=/shop/p/e two/long=/shop/p/long one/p=/shop/p two/all=/shop root/rest=/"],
        &[],
    );
}

/// The example in the comment of `DelegateAction.SortMethod.ROUTE_SPECIFICITY`.
#[test]
fn routes_are_sorted_as_in_the_example_of_the_api() {
    let table = |weight: u32, paths: &[&str]| {
        let routes = paths.iter().map(|path| {
            let (kind, path) = path.split_once(' ').unwrap();
            json!({"matchers": [{"uri": {kind: path}}], "directResponse": {"status": 200}})
        });
        json!({"weight": weight, "http": routes.collect::<Vec<_>>()})
    };
    let root = json!({"hosts": ["x"], "http": [
        {"delegate": {"sortMethod": "ROUTE_SPECIFICITY", "routeTables": [{"name": "a"}, {"name": "b"}]}},
    ]});
    let a = table(
        1,
        &[
            "prefix /foo",
            "prefix /foo/more/specific",
            "prefix /foo/even/more/specific",
            "exact /foo/exact",
            "exact /foo/another/exact",
            "regex /foo/*",
            "regex /fooo/*",
        ],
    );
    let b = table(
        2,
        &[
            "prefix /bar",
            "prefix /bar/more/specific",
            "prefix /bar/even/more/specific",
            "exact /bar/exact",
            "regex /bar/*",
        ],
    );
    check_tables(
        &json!({"root": root, "a": a, "b": b}).to_string(),
        &[
            "x: a/4=/foo/another/exact b/3=/bar/exact a/3=/foo/exact b/4=regex a/5=regex a/6=regex \
             b/2=/bar/even/more/specific a/2=/foo/even/more/specific b/1=/bar/more/specific \
             a/1=/foo/more/specific b/0=/bar a/0=/foo",
        ],
        &[],
    );
}

/// Conditions other than the path, and the length of a pattern, do not make a route more specific.
#[test]
fn routes_of_one_path_keep_their_order_under_specificity() {
    let child = |first: &str, second: &str| {
        format!(
            "{{root: {{hosts: [x], http: [{{delegate: {{sortMethod: ROUTE_SPECIFICITY, routeTables: [{{name: c}}]}}}}]}}, \
              c: {{http: [{{name: first, matchers: [{first}], directResponse: {{status: 200}}}}, \
              {{name: second, matchers: [{second}], directResponse: {{status: 200}}}}]}}}}"
        )
    };
    check_tables(
        &child(
            "{uri: {prefix: /a}}",
            "{uri: {prefix: /a}, headers: [{name: x}], queryParameters: [{name: q}]}",
        ),
        &["x: c/first=/a c/second=/a"],
        &[],
    );
    check_tables(
        &child("{uri: {regex: '/a.*'}}", "{uri: {regex: '/a/long.*'}}"),
        &["x: c/first=regex c/second=regex"],
        &[],
    );
}

/// Routes of tables further down are sorted too.
#[test]
fn specificity_sorts_the_routes_of_all_tables_below() {
    check_tables(
        "{root: {hosts: [x], http: [{delegate: {sortMethod: ROUTE_SPECIFICITY, routeTables: [{name: c}]}}]}, \
          c: {http: [{name: short, matchers: [{uri: {prefix: /a}}], directResponse: {status: 200}}, {delegate: {routeTables: [{name: d}]}}]}, \
          d: {http: [{name: long, matchers: [{uri: {prefix: /a/b}}], directResponse: {status: 200}}]}}",
        &["x: d/long=/a/b c/short=/a"],
        &[],
    );
}

#[test]
fn children_by_name_are_in_the_order_of_the_list_and_by_label_in_the_order_of_creation() {
    let delegating = |selectors: &str| {
        let root =
            format!("root: {{hosts: [x], http: [{{delegate: {{routeTables: [{selectors}]}}}}]}}\n");
        let mut tables = tables(&root);
        for (name, second) in [("a", 3), ("b", 1), ("c", 2)] {
            let spec = json!({"http": [{"name": "r", "directResponse": {"status": 200}}]});
            let mut child = object(name, &json!({"team": "a"}), spec);
            child["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:0{second}Z"));
            tables.push(RouteTableDoc::from_value(child).unwrap());
        }
        let translation = translated(&tables, "", "");
        assert_eq!(reported(&translation), [""; 0]);
        let routes = translation.route_configuration["virtual_hosts"][0]["routes"].clone();
        let routes = routes.as_array().unwrap().iter();
        routes
            .map(|route| route["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        delegating("{name: c}, {name: a}, {name: b}"),
        ["shop/c/r", "shop/a/r", "shop/b/r"]
    );
    assert_eq!(
        delegating("{labels: {team: a}}"),
        ["shop/b/r", "shop/c/r", "shop/a/r"]
    );
    assert_eq!(
        delegating("{name: a}, {labels: {team: a}}"),
        ["shop/a/r", "shop/b/r", "shop/c/r"]
    );
}

#[test]
fn a_conflict_replaces_the_delegating_route() {
    check_tables(
        "{root: {hosts: [x], http: [{name: all, matchers: [{uri: {prefix: /shop}}], delegate: {routeTables: [{name: c}]}}, {name: rest, directResponse: {status: 200}}]}, \
          c: {http: [{name: good, matchers: [{uri: {prefix: /shop/a}}], directResponse: {status: 200}}, {name: bad, matchers: [{uri: {prefix: /other}}], directResponse: {status: 200}}]}}",
        &["x: root/all=/shop! root/rest=/"],
        &[
            "RouteTable shop/root: spec.http[0].delegate: no request matches these matchers and those of RouteTable shop/c: spec.http[1]",
        ],
    );
    // One of two matchers can be met, so there is no conflict.
    check_tables(
        "{root: {hosts: [x], http: [{name: all, matchers: [{uri: {prefix: /shop}}], delegate: {routeTables: [{name: c}]}}]}, \
          c: {http: [{name: good, matchers: [{uri: {prefix: /other}}, {uri: {prefix: /shop/a}}], directResponse: {status: 200}}]}}",
        &["x: c/good=/shop/a"],
        &[],
    );
    // Only the delegating route next to the conflict is replaced.
    check_tables(
        "{root: {hosts: [x], http: [{name: all, matchers: [{uri: {prefix: /shop}}], delegate: {routeTables: [{name: c}]}}]}, \
          c: {http: [{name: good, matchers: [{uri: {exact: /shop}}], directResponse: {status: 200}}, {name: down, matchers: [{uri: {prefix: /shop/a}}], delegate: {routeTables: [{name: d}]}}]}, \
          d: {http: [{name: bad, matchers: [{uri: {prefix: /shop/b}}], directResponse: {status: 200}}]}}",
        &["x: c/good=/shop c/down=/shop/a!"],
        &[
            "RouteTable shop/c: spec.http[1].delegate: no request matches these matchers and those of RouteTable shop/d: spec.http[0]",
        ],
    );
}

#[test]
fn an_invalid_delegation_is_reported() {
    let child = |path: &str, parent: &str| {
        format!(
            "{{root: {{hosts: [x], http: [{{matchers: [{{uri: {parent}}}], delegate: {{routeTables: [{{name: c}}]}}}}]}}, c: {{http: [{{name: r, matchers: [{{uri: {path}}}], directResponse: {{status: 200}}}}]}}}}"
        )
    };
    check_tables(
        &child("{regex: '/a.*'}", "{prefix: /shop}"),
        &["x: c/r=/shop!"],
        &[
            "RouteTable shop/c: spec.http[0].matchers[0].uri: the paths of both tables cannot be joined",
        ],
    );
    check_tables(
        &child("{regex: '/a.*'}", "{prefix: /}"),
        &["x: c/r=regex"],
        &[],
    );
    check_tables(&child("{prefix: /}", "{exact: /a}"), &["x: c/r=/a"], &[]);
    check_tables(
        "{root: {hosts: [x], http: [{delegate: {routeTables: [{name: c}]}}]}, c: {http: [{name: r, delegate: {routeTables: [{name: c}]}}]}}",
        &["x: c/r=/!"],
        &[
            "RouteTable shop/c: spec.http[0].delegate.routeTables: delegates in a circle through shop/c and shop/c",
        ],
    );
    check_tables(
        "alone: {http: [{directResponse: {status: 200}}]}",
        &[],
        &["RouteTable shop/alone: spec.hosts: has no host, and no table delegates to it"],
    );
}
