//! Properties of every table and every sequence of calls.

use gloo_types::{DestinationReference, RouteTableDoc, effective_weights, violations, weight_rule};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use route_planner::{
    ANNOTATION, AdditionalDestination, HeaderMatch, HeaderRoute, IntentKind, ManagedRoute,
    ManagedRouteUpdate, ManagedRoutes, MirrorRoute, PluginConfig, PodHashes, RequestMatch,
    ServicePair, TextMatch, observe, plan,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::table::{self, Table};

/// One call of the controller: a weight out of a maximum, and an experiment.
#[derive(Clone, Debug)]
struct Call {
    rollout: &'static str,
    desired: i32,
    max: i32,
    additional: Vec<AdditionalDestination>,
    /// Whether the stable and the canary Service are exchanged, as with ping-pong.
    swapped: bool,
    /// The managed routes that SetWeight reconciles.
    in_force: Vec<ManagedRoute>,
    update: ManagedRouteUpdate,
    /// A call for managed routes instead of SetWeight.
    managed: Option<IntentKind>,
}

/// A valid managed route, with one of the names in [`ORDER`] or another one.
fn managed_route() -> impl Strategy<Value = ManagedRoute> {
    let matches = vec(select(vec!["1", "2"]), 0..3);
    let name = select(vec!["a", "hdr", "hdr-2", "odd name"]);
    (name, matches, any::<bool>()).prop_map(|(name, values, is_mirror)| {
        if is_mirror {
            let matches = values.into_iter().map(|value| RequestMatch {
                path: Some(TextMatch {
                    prefix: format!("/{value}"),
                    ..TextMatch::default()
                }),
                ..RequestMatch::default()
            });
            return ManagedRoute::Mirror(MirrorRoute {
                name: name.to_owned(),
                matches: matches.collect(),
                percentage: None,
            });
        }
        let matches = values.into_iter().map(|value| HeaderMatch {
            name: "x".to_owned(),
            value: TextMatch {
                exact: value.to_owned(),
                ..TextMatch::default()
            },
        });
        ManagedRoute::Header(HeaderRoute {
            name: name.to_owned(),
            matches: matches.collect(),
        })
    })
}

/// Whether each mirror route has the destinations of the owner's route after it.
fn mirrors_follow(table: &Value) -> bool {
    let http = table["spec"]["http"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let label = |route: &Value, key: &str| {
        route["labels"]
            .get(format!("rollouts-plugin-trafficrouter-glooplatform/{key}"))
            .is_some()
    };
    let mirrors = http
        .iter()
        .enumerate()
        .filter(|(_, route)| label(route, "mirror"));
    mirrors.into_iter().all(|(at, mirror)| {
        let source = http[at..].iter().find(|route| !label(route, "rollout"));
        source.is_some_and(|source| {
            mirror["forwardTo"].get("destinations") == source["forwardTo"].get("destinations")
        })
    })
}

const ORDER: [&str; 3] = ["hdr-2", "a", "hdr"];
const UPDATES: [ManagedRouteUpdate; 3] = [
    ManagedRouteUpdate::AsPlanned,
    ManagedRouteUpdate::KeepExisting,
    ManagedRouteUpdate::RemoveAll,
];

fn call() -> impl Strategy<Value = Call> {
    let rollout = select(vec!["shop/reviews", "shop/reviews", "shop/ratings"]);
    // With these suffixes the Service is one of an experiment, the canary Service or the stable Service.
    let additional = vec(
        (select(vec!["-exp-a", "-exp-b", "-canary", ""]), 0..60_i32),
        0..3,
    );
    (
        rollout,
        select(vec![1, 3, 100, 1000]),
        0..=110_i32,
        additional,
        any::<bool>(),
        (vec(managed_route(), 0..3), select(UPDATES.to_vec())),
        option::of(prop_oneof![
            3 => managed_route().prop_map(IntentKind::SetManagedRoute),
            1 => Just(IntentKind::RemoveManagedRoutes),
        ]),
    )
        .prop_map(
            |(rollout, max, percent, additional, swapped, (mut in_force, update), managed)| {
                Call {
                    swapped,
                    in_force: {
                        // As computed from steps: at most one per name, and no removals.
                        in_force.retain(|route| !route.is_removal());
                        in_force.sort_by(|a, b| a.name().cmp(b.name()));
                        in_force.dedup_by(|a, b| a.name() == b.name());
                        in_force
                    },
                    update,
                    managed,
                    rollout,
                    desired: max * percent / 100,
                    max,
                    additional: additional
                        .into_iter()
                        .map(|(suffix, weight)| {
                            let name = table::key(rollout).name;
                            table::experiment(format!("{name}{suffix}"), weight)
                        })
                        .collect(),
                }
            },
        )
}

/// The configuration of the plugin.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setup {
    Services,
    VirtualDestinations,
    OneCluster,
    Ports,
    /// One Service `reviews`, with subsets by the hash of the Pods.
    Pods,
}

const SETUPS: &[Setup] = &[
    Setup::Services,
    Setup::Services,
    Setup::VirtualDestinations,
    Setup::OneCluster,
    Setup::Ports,
    Setup::Pods,
];

impl Setup {
    fn plugin(self) -> Value {
        let mut plugin = json!({
            "routeTableSelector": {"name": "shop", "namespace": "mesh"},
            "tcpRoutes": [{"port": 443}],
            "tlsRoutes": [{"sniHosts": ["db.example.com"], "port": 443}],
        });
        let stable = match self {
            Self::Services => json!({}),
            Self::VirtualDestinations => json!({"kind": "VIRTUAL_DESTINATION"}),
            Self::OneCluster => json!({"cluster": "east"}),
            Self::Ports => json!({"port": {"number": 80}}),
            Self::Pods => {
                plugin["subset"] = json!({"service": "reviews"});
                json!({})
            }
        };
        plugin["stableDestination"] = stable;
        plugin
    }

    /// Whether no call may change the destination.
    fn is_foreign(self, destination: &Value) -> bool {
        let reference = &destination["ref"];
        let kind = destination["kind"].as_str().unwrap_or("SERVICE");
        let of_this_setup = match self {
            // The destinations of an experiment are always Services.
            Self::VirtualDestinations => kind != "NEWER",
            Self::OneCluster => kind == "SERVICE" && reference["cluster"] == "east",
            Self::Ports => kind == "SERVICE" && destination["port"]["number"] == 80,
            Self::Services | Self::Pods => kind == "SERVICE",
        };
        reference["namespace"] != "shop" || !of_this_setup
    }

    /// Whether after the call the table must be as its owner wrote it.
    fn is_rest(self, call: &Call, stable: &str) -> bool {
        let is_stable = |service: &str| match self {
            Self::VirtualDestinations => false,
            Self::Pods => service == "reviews",
            _ => service == stable,
        };
        let no_experiment = call
            .additional
            .iter()
            .all(|additional| additional.weight == 0 || is_stable(&additional.service));
        no_experiment
            && match self {
                Self::Pods => call.swapped,
                _ => call.desired == 0,
            }
    }
}

/// A destination with its fields in any order. `reviews` occurs with several kinds, namespaces, clusters and ports.
fn destination() -> impl Strategy<Value = Value> {
    let reference = prop_oneof![
        4 => Just(json!({"name": "reviews", "namespace": "shop"})),
        2 => Just(json!({"namespace": "shop", "name": "ratings"})),
        1 => Just(json!({"name": "reviews-canary", "namespace": "shop"})),
        1 => Just(json!({"name": "reviews"})),
        1 => Just(json!({"name": "reviews", "namespace": "shop", "cluster": "east"})),
        2 => Just(json!({"name": "legacy", "namespace": "other"})),
    ];
    let weight = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 3 => (1..=60_u32).prop_map(Some)];
    let kind = option::weighted(0.2, select(vec!["SERVICE", "VIRTUAL_DESTINATION", "NEWER"]));
    let port = option::weighted(0.5, select(vec![80, 81]));
    let subset = prop::bool::weighted(0.1);
    (
        reference,
        weight,
        kind,
        port,
        subset,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(reference, weight, kind, port, subset, weight_first, alien)| {
                let mut destination = serde_json::Map::new();
                let weight = weight.map(|weight| ("weight".to_owned(), json!(weight)));
                if weight_first {
                    destination.extend(weight.clone());
                }
                if alien {
                    destination.insert("alien".to_owned(), json!({"z": 1, "a": [null, true]}));
                }
                destination.insert("ref".to_owned(), reference);
                destination.extend(kind.map(|kind| ("kind".to_owned(), json!(kind))));
                destination.extend(port.map(|port| ("port".to_owned(), json!({"number": port}))));
                if subset {
                    destination.insert("subset".to_owned(), json!({"version": "v1"}));
                }
                if !weight_first {
                    destination.extend(weight);
                }
                Value::Object(destination)
            },
        )
}

/// The destinations of a route. A single destination has no weight: Gloo accepts only 100, and with less the route would
/// look like a copy of a split route without its stable destination.
fn list() -> impl Strategy<Value = Vec<Value>> {
    vec(destination(), 1..4).prop_map(|mut list| {
        if let [only] = &mut list[..] {
            only.as_object_mut().unwrap().remove("weight");
        }
        list
    })
}

fn route() -> impl Strategy<Value = Value> {
    let forward = prop_oneof![
        6 => list().prop_map(|list| json!({"autoHostRewrite": false, "destinations": list})),
        1 => Just(json!({"pathRewrite": "/", "destinations": []})),
        1 => Just(json!({"pathRewrite": "/"})),
    ];
    let action = prop_oneof![
        6 => forward.prop_map(|forward| ("forwardTo", forward)),
        1 => Just(("delegate", json!({"routeTables": [{"labels": {"a": "b"}}]}))),
    ];
    let name = option::of(select(vec!["a", "b", "c"]));
    let matcher = option::of(select(vec!["/", "/x"]));
    (name, matcher, action).prop_map(|(name, matcher, (key, action))| {
        let mut route = serde_json::Map::new();
        route.extend(name.map(|name| ("name".to_owned(), json!(name))));
        route.extend(
            matcher.map(|path| ("matchers".to_owned(), json!([{"uri": {"prefix": path}}]))),
        );
        route.insert(key.to_owned(), action);
        Value::Object(route)
    })
}

/// A TCP or TLS route, on the selected port or on another one.
fn l4_route() -> impl Strategy<Value = Value> {
    (list(), select(vec![443, 444])).prop_map(|(list, port)| {
        json!({"matchers": [{"port": port, "sniHosts": ["db.example.com"]}], "alien": 1, "forwardTo": {"destinations": list}})
    })
}

fn spec() -> impl Strategy<Value = Value> {
    let l4 = || vec(l4_route(), 0..3);
    let flags = (any::<bool>(), any::<bool>());
    (vec(route(), 0..5), l4(), l4(), flags).prop_map(|(http, tcp, tls, (with_default, is_root))| {
        let mut spec = json!({"alien": {"b": 1, "a": 2}, "http": http, "tcp": tcp, "tls": tls});
        if is_root {
            spec["hosts"] = json!(["shop.example.com"]);
        }
        if with_default {
            spec["defaultDestination"] = json!({"ref": {"name": "reviews", "namespace": "shop"}});
        }
        spec
    })
}

fn routes(table: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["http", "tcp", "tls"].into_iter();
    lists.flat_map(|list| table["spec"][list].as_array().unwrap())
}

fn destinations(table: &Value) -> Vec<&Vec<Value>> {
    owners_routes(table)
        .into_iter()
        .filter_map(|route| route.pointer("/forwardTo/destinations")?.as_array())
        .collect()
}

/// Whether Gloo accepts the table: the names of routes are unique, and the weights are valid.
fn is_valid(table: &Table) -> bool {
    violations(&table.doc().spec().unwrap()).is_empty()
}

fn owners_routes(table: &Value) -> Vec<&Value> {
    routes(table)
        .filter(|route| !route.to_string().contains("managed-route"))
        .collect()
}

/// The destinations that no call may change, as JSON, for each route.
fn foreign(setup: Setup, table: &Value) -> Vec<Vec<String>> {
    let text = |list: &Vec<Value>| {
        list.iter()
            .filter(|destination| setup.is_foreign(destination))
            // A destination with weight 0 is removed while the route is split.
            .filter(|destination| destination.get("weight") != Some(&json!(0)))
            .map(Value::to_string)
            .collect()
    };
    destinations(table)
        .into_iter()
        .map(text)
        .filter(|list: &Vec<_>| !list.is_empty())
        .collect()
}

/// The lists of the owner's routes that a call changed.
fn written<'a>(before: &Value, after: &'a Value) -> Vec<&'a Vec<Value>> {
    let pairs = owners_routes(before).into_iter().zip(owners_routes(after));
    pairs
        .filter(|(before, after)| before.to_string() != after.to_string())
        .filter_map(|(_, after)| after.pointer("/forwardTo/destinations")?.as_array())
        .collect()
}

/// Whether the table is restored exactly at the end. There are two exceptions: a share of the canary that the owner wrote,
/// and invalid weights in a route that two Rollouts split, since each takes the split of the other for the owner's list.
fn is_restored_exactly(table: &Value) -> bool {
    destinations(table).iter().all(|list| {
        let routes_to = |name: &str| {
            list.iter()
                .any(|destination| destination["ref"]["name"] == name)
        };
        // Gloo accepts a weight of 0, but with it the two Rollouts compute different shares.
        let is_valid = weight_rule(&views(list)).is_none();
        let is_valid = is_valid && list.iter().all(|it| it["weight"] != 0);
        !routes_to("reviews-canary")
            && (is_valid || !(routes_to("reviews") && routes_to("ratings")))
    })
}

fn views(list: &[Value]) -> Vec<DestinationReference> {
    list.iter()
        .map(|destination| DestinationReference::deserialize(destination).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// `Table::apply` also checks that every patch applies, and that planning again changes nothing.
    #[test]
    fn foreign_destinations_stay_and_the_table_comes_to_rest(setup in select(SETUPS), spec in spec(), calls in vec(call(), 1..6)) {
        let mut table = Table::new("mesh/shop", spec);
        table.plugin = setup.plugin();
        let input = table.document().clone();
        let is_valid = is_valid(&table);
        for mut call in calls {
            let before = table.document().clone();
            if setup == Setup::Pods {
                call.rollout = "shop/reviews";
            }
            let mut intent = table::intent(call.rollout, call.desired, call.max, call.additional.clone());
            let order = ORDER.map(str::to_owned).to_vec();
            intent.managed = ManagedRoutes { order, in_force: call.in_force.clone(), update: call.update };
            let is_about_weight = call.managed.is_none();
            intent.kind = call.managed.clone().unwrap_or(intent.kind);
            if setup == Setup::Pods {
                let canary = if call.swapped { "s1" } else { "c1" };
                intent.hashes = Some(PodHashes { stable: "s1".to_owned(), canary: canary.to_owned(), others: false });
                intent.services.stable.clear();
            } else if call.swapped {
                let ServicePair { stable, canary, .. } = &mut intent.services;
                std::mem::swap(stable, canary);
            }
            let moved = table.apply(&intent);
            prop_assert_eq!(foreign(setup, &before), foreign(setup, table.document()));
            if moved.is_err() {
                prop_assert_eq!(&before, table.document());
                continue;
            }
            prop_assert!(!is_valid || self::is_valid(&table), "{}", table.document()["spec"]);
            if !is_about_weight {
                prop_assert_eq!(owners_routes(&before), owners_routes(table.document()));
                continue;
            }
            prop_assert!(mirrors_follow(table.document()), "{}", table.document()["spec"]);
            let at_rest = setup.is_rest(&call, &intent.services.stable);
            for list in written(&before, table.document()) {
                let views = views(list);
                // At rest the owner's list is restored, which may be invalid.
                prop_assert!(at_rest || (!views.is_empty() && weight_rule(&views).is_none()), "{views:?}");
                let sum: u32 = effective_weights(&views).iter().sum();
                prop_assert!(at_rest || sum == 100, "{views:?}");
            }
        }
        for rollout in ["shop/reviews", "shop/ratings"] {
            let mut remove = table::intent(rollout, 0, 100, vec![]);
            remove.kind = IntentKind::RemoveManagedRoutes;
            table.apply(&remove).unwrap();
            let mut intent = table::intent(rollout, 0, 100, vec![]);
            if setup == Setup::Pods {
                intent.services.stable.clear();
            }
            let _ = table.apply(&intent);
        }
        if is_restored_exactly(&input) {
            prop_assert_eq!(table.document()["spec"].to_string(), input["spec"].to_string());
            prop_assert_eq!(table.document()["metadata"].get("annotations"), None);
        }
    }

    #[test]
    fn arbitrary_documents_do_not_panic(document in json_value(), annotation in option::of(json_value()), desired in any::<i32>(), max in any::<i32>()) {
        let mut document = json!({"metadata": {"name": "shop", "namespace": "shop"}, "spec": document});
        if let Some(annotation) = annotation {
            document["metadata"]["annotations"] = json!({ ANNOTATION: annotation.to_string() });
        }
        let table = RouteTableDoc::from_value(document).unwrap();
        let config = Table::new("shop/shop", json!({})).config("shop/reviews");
        let intent = table::intent("shop/reviews", desired, max, vec![]);
        if let Ok(plan) = plan(&config, &intent, &table) {
            let mut after = table.raw().clone();
            json_patch::patch(&mut after, &plan.to_json_patch()).unwrap();
        }
        let _ = observe(&config, &intent, &table);
    }

    #[test]
    fn arbitrary_blocks_and_metadata_do_not_panic(block in json_value(), text in ".*") {
        let rollout = table::key("shop/reviews");
        let _ = PluginConfig::from_json(block.to_string().as_bytes(), &rollout, &[]);
        let _ = PluginConfig::from_json(text.as_bytes(), &rollout, &[]);
        let _ = RouteTableDoc::from_value(block);
    }
}

/// JSON with parts that are likely to look like a table, an annotation or a plugin block.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        destination(),
        route(),
        select(vec![
            "reviews",
            "shop",
            "SERVICE",
            "",
            "a%\n",
            "shop/reviews"
        ])
        .prop_map(Value::from),
    ];
    let key = select(vec![
        "http",
        "tcp",
        "tls",
        "in",
        "forwardTo",
        "destinations",
        "defaultDestination",
        "ref",
        "name",
        "namespace",
        "weight",
        "subset",
        "version",
        "rollouts",
        "shop/reviews",
        "route",
        "share",
        "routes",
        "originals",
        "added",
        "at",
        "list",
        "routeTableSelector",
        "labels",
        "matchExpressions",
        "metadata",
        "kind",
        "stableDestination",
        "canaryDestination",
        "service",
        "port",
        "number",
        "by",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key.clone(), inner), 0..6).prop_map(|pairs| {
                Value::Object(
                    pairs
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}
