//! The plugin block: accepted and refused values, and the table of keys that the reference is generated from.

use std::collections::BTreeMap;

use gloo_types::{ObjectKey, RouteTableDoc};
use insta::{assert_debug_snapshot, assert_snapshot};
use route_planner::keys::{BLOCK, Key, Shape};
use route_planner::{ConfigError, HeaderMatchMode, HeaderRoutePlacement, PluginConfig, VerifyMode};
use serde_json::{Value, json};

fn parse(block: Value) -> Result<PluginConfig, ConfigError> {
    PluginConfig::from_json(
        block.to_string().as_bytes(),
        &ObjectKey::new("shop", "reviews"),
        &["global".to_owned()],
    )
}

/// Parses a block with a selector by name and the keys of `more`.
fn with(more: Value) -> Result<PluginConfig, ConfigError> {
    let mut block = json!({"routeTableSelector": {"name": "shop"}});
    block
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    parse(block)
}

#[track_caller]
fn refused(result: Result<PluginConfig, ConfigError>, expect: &str) {
    let text = result.unwrap_err().to_string();
    let text = text
        .strip_prefix("Rollout shop/reviews: plugin configuration: ")
        .unwrap();
    assert_eq!(text, expect);
    assert!(!text.contains(['\n', '%']));
}

#[test]
fn the_smallest_block_has_defaults() {
    let config = parse(json!({"routeTableSelector": {"name": "shop"}})).unwrap();
    assert_eq!(
        config.route_tables().to_string(),
        "names shop; namespaces shop"
    );
    assert!(config.routes().matches("", &BTreeMap::new()));
    assert_eq!(config.verify(), VerifyMode::Auto);
}

/// B29, B30
#[test]
fn every_way_to_select_tables_can_be_combined() {
    let config = parse(json!({"routeTableSelector": {
        "name": "b", "names": ["c", "a", "b"],
        "labels": {"app.kubernetes.io/name": "shop"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["edge", "mesh"]},
            {"key": "old", "operator": "NotIn", "values": ["yes"]},
            {"key": "team", "operator": "Exists"},
            {"key": "paused", "operator": "DoesNotExist", "values": null},
        ],
        "namespace": "mesh", "namespaces": ["edge"],
    }}));
    assert_snapshot!(config.unwrap().route_tables(), @"names a, b, c; labels app.kubernetes.io/name=shop,tier in (edge,mesh),old notin (yes),team,!paused; namespaces edge, mesh");
}

#[test]
fn route_selector_verify_and_spelled_out_defaults() {
    let config = with(json!({
        "routeSelector": {"name": "a", "names": ["b"], "labels": {"route": "demo"}},
        "verify": "accepted", "headerMatch": "any", "headerRoutePlacement": "beforeSource",
        "zeroWeight": "remove", "tcpRoutes": [], "tlsRoutes": null, "subset": {}, "stableDestination": {},
    }))
    .unwrap();
    assert_debug_snapshot!(config.routes(), @r#"
RouteSelector {
    names: [
        "b",
        "a",
    ],
    labels: {
        "route": "demo",
    },
    tcp_ports: [],
    tls: [],
}
"#);
    assert_eq!(config.verify(), VerifyMode::Accepted);
    assert_eq!(
        with(json!({"verify": "weights", "zeroWeight": "keep"}))
            .unwrap()
            .verify(),
        VerifyMode::Weights
    );
}

#[test]
fn header_routes_are_matched_and_placed_as_configured() {
    let modes = |block: Value| {
        let config = with(block).unwrap();
        (config.header_match(), config.header_route_placement())
    };
    let defaults = (HeaderMatchMode::Any, HeaderRoutePlacement::BeforeSource);
    assert_eq!(modes(json!({})), defaults);
    assert_eq!(
        modes(json!({"headerMatch": "any", "headerRoutePlacement": "beforeSource"})),
        defaults
    );
    assert_eq!(
        modes(json!({"headerMatch": "all", "headerRoutePlacement": "top"})),
        (HeaderMatchMode::All, HeaderRoutePlacement::Top)
    );
}

#[test]
fn keys_of_the_first_plugin_are_read() {
    let config = parse(json!({
        "routeTableName": "default", "routeTableNamespace": "gloo-mesh",
        "destinationKind": "SERVICE", "destinationNamespace": "shop",
    }));
    assert_eq!(
        config.unwrap().route_tables().to_string(),
        "names default; namespaces gloo-mesh"
    );
    with(json!({"destinationKind": "VIRTUAL_DESTINATION"})).unwrap();
    refused(
        with(json!({"destinationKind": "Service"})),
        r#"destinationKind is "Service", it must be SERVICE, VIRTUAL_DESTINATION or EXTERNAL_SERVICE"#,
    );
}

#[test]
fn an_alias_and_its_key_have_one_value() {
    for (alias, keys) in [
        ("routeTableName", ["routeTableSelector", "name"]),
        ("routeTableNamespace", ["routeTableSelector", "namespace"]),
        ("destinationKind", ["stableDestination", "kind"]),
        ("destinationNamespace", ["stableDestination", "namespace"]),
    ] {
        let both = |value: &str, other: &str| {
            let [object, key] = keys;
            let mut block = json!({"routeTableSelector": {"labels": {"app": "web"}}, alias: value});
            block[object][key] = json!(other);
            parse(block)
        };
        let [one, other] = match keys[1] {
            "kind" => ["SERVICE", "VIRTUAL_DESTINATION"],
            _ => ["shop", "global"],
        };
        both(one, one).unwrap();
        let [object, key] = keys;
        refused(
            both(one, other),
            &format!("{alias} contradicts {object}.{key}: remove one of them"),
        );
    }
}

#[test]
fn destinations_in_another_namespace_need_the_administrators_consent() {
    for namespace in ["shop", "global"] {
        with(json!({"destinationNamespace": namespace})).unwrap();
        with(json!({"stableDestination": {"namespace": namespace}})).unwrap();
        with(json!({"canaryDestination": {"namespace": namespace}})).unwrap();
    }
    for (block, path) in [
        (
            json!({"destinationNamespace": "other"}),
            "destinationNamespace",
        ),
        (
            json!({"stableDestination": {"namespace": "other"}}),
            "stableDestination.namespace",
        ),
        (
            json!({"stableDestination": {"namespace": "global"}, "canaryDestination": {"namespace": "other"}}),
            "canaryDestination.namespace",
        ),
    ] {
        refused(
            with(block),
            &format!(
                "{path} is other, which is not the Rollout's namespace: use the Rollout's namespace, or ask your administrator to allow destinations in other"
            ),
        );
    }
}

#[test]
fn destinations_can_be_identified_by_any_of_their_fields() {
    for block in [
        json!({"stableDestination": {"kind": "EXTERNAL_SERVICE", "name": "a.b"}, "canaryDestination": {"name": "c"}}),
        json!({"stableDestination": {"port": {"number": 80}}, "canaryDestination": {"port": {"name": "http"}}}),
        json!({"stableDestination": {"cluster": "east", "subset": {"version": "v1"}}, "canaryDestination": {"subset": {"version": "v2"}}}),
        json!({"subset": {"service": "reviews"}}),
        json!({"subset": {"service": "reviews", "label": "hash"}, "stableDestination": {"cluster": "east", "port": {"number": 80}}}),
        json!({"subset": {}, "stableDestination": {"port": {}, "subset": {}, "name": ""}, "canaryDestination": null}),
    ] {
        with(block).unwrap();
    }
    for (block, expect) in [
        (
            json!({"stableDestination": {"kind": "service"}}),
            r#"stableDestination.kind is "service", it must be SERVICE, VIRTUAL_DESTINATION or EXTERNAL_SERVICE"#,
        ),
        (
            json!({"stableDestination": {"name": "Reviews"}}),
            r#"stableDestination.name is "Reviews", it must be the name of a Kubernetes object"#,
        ),
        (
            json!({"canaryDestination": {"cluster": "a/b"}}),
            r#"canaryDestination.cluster is "a/b", it must be the name of a Kubernetes object"#,
        ),
        (
            json!({"canaryDestination": {"port": 80}}),
            "canaryDestination.port must be an object, found a number",
        ),
        (
            json!({"canaryDestination": {"port": {"number": 80, "name": "http"}}}),
            "canaryDestination.port.number contradicts name: remove one of them",
        ),
        (
            json!({"canaryDestination": {"port": {"number": 80.5}}}),
            r#"canaryDestination.port.number is "80.5", it must be a port, 1 to 65535"#,
        ),
        (
            json!({"canaryDestination": {"subset": {"version": 2}}}),
            "canaryDestination.subset.version must be a string, found a number",
        ),
        (
            json!({"canaryDestination": {"weight": 2}}),
            "unknown key canaryDestination.weight: use one of kind, name, namespace, cluster, port, subset",
        ),
        (
            json!({"destinationKind": "VIRTUAL_DESTINATION", "canaryDestination": {"subset": {"version": "v2"}}}),
            r#"canaryDestination.kind is "VIRTUAL_DESTINATION", it must be SERVICE beside a subset"#,
        ),
        (
            json!({"subset": {"label": "hash"}}),
            "subset is empty: set service in it",
        ),
        (
            json!({"subset": {"service": "a", "labels": {}}}),
            "unknown key subset.labels, did you mean label?",
        ),
        (
            json!({"subset": {"service": "a"}, "stableDestination": {"name": "b"}}),
            "stableDestination.name contradicts subset: remove one of them",
        ),
        (
            json!({"subset": {"service": "a"}, "stableDestination": {"subset": {"version": "v1"}}}),
            "stableDestination.subset contradicts subset: remove one of them",
        ),
        (
            json!({"subset": {"service": "a"}, "stableDestination": {"kind": "VIRTUAL_DESTINATION"}}),
            "stableDestination.kind contradicts subset: remove one of them",
        ),
        (
            json!({"subset": {"service": "a"}, "destinationKind": "EXTERNAL_SERVICE"}),
            "destinationKind contradicts subset: remove one of them",
        ),
        (
            json!({"subset": {"service": "a"}, "canaryDestination": {"cluster": "b"}}),
            "canaryDestination contradicts subset: remove one of them",
        ),
    ] {
        refused(with(block), expect);
    }
}

/// B59
#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    refused(
        with(json!({"routeTableSelectors": {}})),
        "unknown key routeTableSelectors, did you mean routeTableSelector?",
    );
    refused(
        with(json!({"routeselector": {}})),
        "unknown key routeselector, did you mean routeSelector?",
    );
    refused(
        parse(json!({"routeTableSelector": {"matchLabels": {}}})),
        "unknown key routeTableSelector.matchLabels, did you mean labels?",
    );
    refused(
        parse(json!({"routeTableSelector": {"matchExpressions": [{}, {"operater": "In"}]}})),
        "unknown key routeTableSelector.matchExpressions[1].operater, did you mean operator?",
    );
    refused(
        with(json!({"routeSelector": {"label": {}}})),
        "unknown key routeSelector.label, did you mean labels?",
    );
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    refused(
        parse(json!([])),
        "the plugin block must be an object, found a list",
    );
    refused(
        parse(json!("x")),
        "the plugin block must be an object, found a string",
    );
    refused(
        parse(json!({"routeTableSelector": "shop"})),
        "routeTableSelector must be an object, found a string",
    );
    refused(
        parse(json!({"routeTableSelector": {"name": 1}})),
        "routeTableSelector.name must be a string, found a number",
    );
    refused(
        parse(json!({"routeTableSelector": {"names": "a"}})),
        "routeTableSelector.names must be a list, found a string",
    );
    refused(
        parse(json!({"routeTableSelector": {"names": ["a", {}]}})),
        "routeTableSelector.names[1] must be a string, found an object",
    );
    refused(
        parse(json!({"routeTableSelector": {"labels": {"a": true}}})),
        "routeTableSelector.labels.a must be a string, found a boolean",
    );
    refused(
        with(json!({"tcpRoutes": {}})),
        "tcpRoutes must be a list, found an object",
    );
    refused(
        with(json!({"subset": []})),
        "subset must be an object, found a list",
    );
    refused(
        with(json!({"verify": 1})),
        "verify must be a string, found a number",
    );
}

/// B28
#[test]
fn a_block_without_a_table_selector_is_refused() {
    for block in [
        json!(null),
        json!({}),
        json!({"routeTableSelector": {}}),
        json!({"routeTableSelector": {"name": ""}}),
        json!({"routeTableSelector": {"namespace": "mesh", "labels": {}, "names": [], "matchExpressions": []}}),
    ] {
        refused(
            parse(block),
            "routeTableSelector is missing or empty: set name, names, labels or matchExpressions in it",
        );
    }
}

#[test]
fn the_error_for_an_invalid_value_names_the_valid_ones() {
    refused(
        with(json!({"verify": "always"})),
        r#"verify is "always", it must be auto, weights or accepted"#,
    );
    refused(
        with(json!({"headerMatch": "none"})),
        r#"headerMatch is "none", it must be any or all"#,
    );
    refused(
        parse(json!({"routeTableSelector": {"name": "../secrets"}})),
        r#"routeTableSelector.name is "../secrets", it must be the name of a Kubernetes object"#,
    );
    refused(
        parse(json!({"routeTableSelector": {"names": ["a", ""]}})),
        r#"routeTableSelector.names[1] is "", it must be the name of a Kubernetes object"#,
    );
    refused(
        parse(json!({"routeTableSelector": {"labels": {"a": "b,c=d"}}})),
        r#"routeTableSelector.labels.a is "b,c=d", it must be made of letters, digits, '-', '_', '.' and '/'"#,
    );
    let expression =
        |expression| parse(json!({"routeTableSelector": {"matchExpressions": [expression]}}));
    let at = "routeTableSelector.matchExpressions[0]";
    refused(
        expression(json!({"key": "a"})),
        &format!(r#"{at}.operator is "", it must be In, NotIn, Exists or DoesNotExist"#),
    );
    refused(
        expression(json!({"key": "a", "operator": "Is"})),
        &format!(r#"{at}.operator is "Is", it must be In, NotIn, Exists or DoesNotExist"#),
    );
    refused(
        expression(json!({"key": "a", "operator": "In"})),
        &format!(r#"{at}.values is "", it must be a list of at least one label value"#),
    );
    refused(
        expression(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
        &format!(r#"{at}.values is "b", it must be absent with Exists and DoesNotExist"#),
    );
    refused(
        expression(json!({"operator": "Exists"})),
        &format!(r#"{at}.key is "", it must be the key of a label"#),
    );
}

#[test]
fn a_rollout_with_an_invalid_name_is_refused() {
    let block = json!({"routeTableSelector": {"name": "shop"}}).to_string();
    for (namespace, name, expect) in [
        ("shop/../other", "demo", "metadata.namespace"),
        ("shop", "demo?watch=1", "metadata.name"),
        ("", "demo", "metadata.namespace"),
    ] {
        let rollout = ObjectKey::new(namespace, name);
        let error = PluginConfig::from_json(block.as_bytes(), &rollout, &[]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("{expect} is ")), "{text}");
    }
}

#[test]
fn tcp_routes_are_selected_by_port_and_tls_routes_by_hosts_and_port() {
    let config = with(json!({
        "tcpRoutes": [{"port": 3306}, {"port": 65535}],
        "tlsRoutes": [{"sniHosts": ["b.example.com", "a.example.com"], "port": 443}, {"port": 8443, "sniHosts": null}],
    }));
    let config = config.unwrap();
    assert_eq!(config.routes().tcp_ports, [3306, 65535]);
    let tls: Vec<String> = config
        .routes()
        .tls
        .iter()
        .map(|selector| format!("{:?} {:?}", selector.sni_hosts, selector.port))
        .collect();
    assert_eq!(
        tls,
        [
            r#"{"a.example.com", "b.example.com"} Some(443)"#,
            "{} Some(8443)"
        ]
    );

    for (block, expect) in [
        (
            json!({"tcpRoutes": [{}]}),
            "tcpRoutes[0] is empty: set port in it",
        ),
        (
            json!({"tcpRoutes": [{"port": 1}, {"port": 0}]}),
            r#"tcpRoutes[1].port is "0", it must be a port, 1 to 65535"#,
        ),
        (
            json!({"tcpRoutes": [{"port": 65536}]}),
            r#"tcpRoutes[0].port is "65536", it must be a port, 1 to 65535"#,
        ),
        (
            json!({"tcpRoutes": [{"port": "mysql"}]}),
            "tcpRoutes[0].port must be a number, found a string",
        ),
        (
            json!({"tcpRoutes": [{"sniHosts": []}]}),
            "unknown key tcpRoutes[0].sniHosts: use one of port",
        ),
        (
            json!({"tlsRoutes": [{"sniHosts": []}]}),
            "tlsRoutes[0] is empty: set sniHosts or port in it",
        ),
        (
            json!({"tlsRoutes": [{"sniHost": "a"}]}),
            "unknown key tlsRoutes[0].sniHost, did you mean sniHosts?",
        ),
        (
            json!({"tlsRoutes": "a"}),
            "tlsRoutes must be a list, found a string",
        ),
    ] {
        refused(with(block), expect);
    }
}

#[test]
fn a_block_that_is_not_json_is_refused() {
    let rollout = ObjectKey::new("shop", "reviews");
    assert_snapshot!(PluginConfig::from_json(b"{a", &rollout, &[]).unwrap_err(), @"Rollout shop/reviews: plugin configuration: the plugin block is not JSON: key must be a string at line 1 column 2");
    assert_snapshot!(PluginConfig::from_json(b"", &rollout, &[]).unwrap_err(), @"Rollout shop/reviews: plugin configuration: the plugin block is not JSON: EOF while parsing a value at line 1 column 0");
}

/// B58
#[test]
fn the_block_is_found_under_any_accepted_name() {
    let rollout = ObjectKey::new("shop", "reviews");
    let block = json!({"routeTableSelector": {"name": "shop"}})
        .to_string()
        .into_bytes();
    let accepted = ["solo-io/glooplatform", "solo-io/glooplatformAPI"];
    let plugins = |names: &[&str]| -> BTreeMap<String, Vec<u8>> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), block.clone()))
            .collect()
    };
    let found = plugins(&["other/plugin", "solo-io/glooplatformAPI"]);
    PluginConfig::for_rollout(&found, &accepted, &rollout, &[]).unwrap();
    let others = plugins(&["other/plugin", "solo-io/glooedge"]);
    assert_snapshot!(PluginConfig::for_rollout(&others, &accepted, &rollout, &[]).unwrap_err(), @"Rollout shop/reviews: plugin configuration: trafficRouting.plugins has no solo-io/glooplatform or solo-io/glooplatformAPI; it has other/plugin, solo-io/glooedge");
    assert_snapshot!(PluginConfig::for_rollout(&plugins(&[]), &accepted, &rollout, &[]).unwrap_err(), @"Rollout shop/reviews: plugin configuration: trafficRouting.plugins has no solo-io/glooplatform or solo-io/glooplatformAPI; it has none");
    // An administrator may name a default again.
    let twice = ["solo-io/glooplatform", "solo-io/glooplatform"];
    PluginConfig::for_rollout(&plugins(&twice), &twice, &rollout, &[]).unwrap();
    let several = plugins(&accepted);
    assert_snapshot!(PluginConfig::for_rollout(&several, &accepted, &rollout, &[]).unwrap_err(), @"Rollout shop/reviews: plugin configuration: trafficRouting.plugins has solo-io/glooplatform and solo-io/glooplatformAPI, which are both names of this plugin: keep one of them");
}

/// No key accepts a boolean, so each key that is read returns an error with its path for `true`.
#[test]
fn every_key_of_the_reference_is_read() {
    fn visit(keys: &[Key], place: &dyn Fn(Value) -> Value, above: &str) {
        for key in keys {
            let path = format!("{above}{}", key.name);
            let at = |value: Value| place(json!({ (key.name): value }));
            let Err(error) = with(at(json!(true))) else {
                panic!("{path} is not read, or accepts a boolean: use a OneOf of two words");
            };
            let error = error.to_string();
            assert!(error.contains(&format!(" {path} must be ")), "{error}");
            match key.value {
                Shape::Object(keys) => visit(keys, &at, &format!("{path}.")),
                Shape::Objects(keys) => {
                    visit(keys, &|value| at(json!([value])), &format!("{path}[0]."));
                }
                _ => {}
            }
        }
    }
    visit(BLOCK, &|block| block, "");
}

#[test]
fn every_choice_of_the_reference_is_accepted_and_the_first_is_the_default() {
    let unset = format!("{:?}", with(json!({})).unwrap());
    for key in BLOCK {
        let Shape::OneOf(choices) = key.value else {
            continue;
        };
        for (index, choice) in choices.iter().enumerate() {
            let config = with(json!({ (key.name): choice })).unwrap();
            if key.default == format!("`{choice}`") {
                assert_eq!(format!("{config:?}"), unset, "{}", key.name);
                assert_eq!(index, 0, "{}", key.name);
            }
        }
    }
}

#[track_caller]
fn check_unmatched(routes: Value, expect: &[&str]) {
    let mut block = json!({"routeTableSelector": {"name": "shop"}});
    json_patch::merge(&mut block, &routes);
    let rollout = ObjectKey::new("shop", "reviews");
    let config = PluginConfig::from_json(block.to_string().as_bytes(), &rollout, &[]).unwrap();
    let table = |name: &str, spec: Value| {
        let metadata = json!({"name": name, "namespace": "shop"});
        RouteTableDoc::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let tables = [
        table(
            "shop",
            json!({"http": [{"name": "main", "labels": {"app": "web", "tier": "1"}}]}),
        ),
        table(
            "more",
            json!({
                // One that cannot be decoded does not hide the others.
                "http": [{"name": "other"}, {"name": "broken", "forwardTo": 7}],
                "tcp": [{"matchers": [{"port": 6379}]}],
                "tls": [{"matchers": [{"sniHosts": ["db.example.com"], "port": 6443}]}],
            }),
        ),
    ];
    assert_eq!(config.unmatched(&tables), expect);
}

#[test]
fn each_entry_that_selects_no_route_is_named() {
    check_unmatched(json!({}), &[]);
    check_unmatched(json!({"routeSelector": {"names": ["main", "other"]}}), &[]);
    let typo =
        json!({"routeSelector": {"name": "mian", "names": ["other"], "labels": {"app": "web"}}});
    check_unmatched(typo, &["routeSelector name: mian"]);
    let tables = |labels: Value| json!({"routeTableSelector": labels});
    check_unmatched(
        tables(
            json!({"labels": {"app": "none"}, "matchExpressions": [{"key": "team", "operator": "Exists"}]}),
        ),
        &["routeTableSelector labels: app=none,team"],
    );
    let not_in = json!([{"key": "app", "operator": "NotIn", "values": ["none"]}]);
    check_unmatched(tables(json!({ "matchExpressions": not_in })), &[]);
    let labels = json!({"routeSelector": {"name": "main", "labels": {"app": "web", "tier": "2"}}});
    check_unmatched(labels, &["routeSelector labels: app=web,tier=2"]);
    let ports = json!({"tcpRoutes": [{"port": 6379}, {"port": 6380}]});
    check_unmatched(ports, &["tcpRoutes port: 6380"]);
    let hosts = json!({"tlsRoutes": [
        {"sniHosts": ["DB.example.com"]}, {"sniHosts": ["no.example.com"], "port": 6443}, {"port": 6444},
    ]});
    check_unmatched(
        hosts,
        &[
            "tlsRoutes sniHosts: no.example.com port: 6443",
            "tlsRoutes port: 6444",
        ],
    );
}

#[test]
fn an_entry_whose_routes_do_not_forward_to_the_rollout_is_idle() {
    let route = |name: &str, service: &str| {
        let destination = json!({"ref": {"name": service, "namespace": "shop"}});
        json!({"name": name, "forwardTo": {"destinations": [destination]}})
    };
    let table = json!({
        "metadata": {"name": "shop", "namespace": "shop"},
        "spec": {"http": [route("main", "reviews"), route("other", "ratings")]},
    });
    let tables = [RouteTableDoc::from_value(table).unwrap()];
    let intent = crate::table::intent("shop/reviews", 25, 100, vec![]);
    for (names, expect) in [
        (vec!["main", "other"], vec!["routeSelector name: other"]),
        (vec!["main"], vec![]),
        // Then every plan says that no route forwards to the Rollout.
        (vec!["other"], vec![]),
    ] {
        let config = with(json!({"routeSelector": {"names": names}})).unwrap();
        assert_eq!(config.routes().idle(&config, &intent, &tables), expect);
    }
}
