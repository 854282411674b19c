//! Scenarios as data: a table, calls of the controller, edits of the owner, and the table expected after each.
//!
//! `header`, `remove` and `in_force` are about managed routes; `own: hdr` in an expected route stands for the labels that
//! mark it as the managed route `hdr` of `shop/reviews`, and `own: ratings/hdr` of `shop/ratings`.
//!
//! In the files `reviews 75` stands for `{ref: {name: reviews, namespace: shop}, port: {number: 80}, weight: 75}`, and
//! `reviews` for the same without weight. `routes` lists the destinations of the routes that differ from the input, by
//! position; `expect: input` means that table and annotations are byte-equal to the input.

use crate::table::{self, Table};
use route_planner::{
    AdditionalDestination, HeaderMatch, HeaderRoute, IntentKind, ManagedRoute, ManagedRoutes,
    MirrorRoute, Plan, PodHashes, RequestMatch, TextMatch,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[serde(default = "default_table")]
    table: String,
    #[serde(default)]
    plugin: Option<Value>,
    #[serde(default)]
    managed_routes: Vec<String>,
    spec: Value,
    steps: Vec<Step>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Step {
    /// SetWeight of `rollout`, out of `max`.
    weight: Option<i32>,
    max: Option<i32>,
    additional: Vec<(String, i32)>,
    rollout: Option<String>,
    /// Names of the Services; by default that of the Rollout, and with `-canary`.
    stable: Option<String>,
    canary: Option<String>,
    /// SetHeaderRoute, as in a Rollout's step.
    header: Option<Value>,
    /// SetMirrorRoute, as in a Rollout's step.
    mirror: Option<Value>,
    /// RemoveManagedRoutes.
    remove: bool,
    /// The header routes, and the mirror routes, that SetWeight is to see to, from this step on.
    in_force: Option<Vec<Value>>,
    mirrors_in_force: Option<Vec<Value>>,
    /// Whether managed routes are about to go, in this step.
    ending: bool,
    /// Hashes of the stable and the canary's pods.
    hashes: Option<(String, String)>,
    /// JSON Patch by the owner of the table.
    edit: Option<json_patch::Patch>,
    /// The owner applies the input again, over whatever is there.
    reapply: bool,
    routes: std::collections::BTreeMap<usize, Value>,
    spec: Option<Value>,
    expect: Option<String>,
    error: Option<String>,
    warnings: Vec<String>,
}

fn default_table() -> String {
    "shop/shop".to_owned()
}

fn run(text: &str) {
    let scenario: Scenario = serde_saphyr::from_str(text).unwrap();
    let input = table::expand(scenario.spec);
    let mut table = Table::new(&scenario.table, input.clone());
    let before = table.document().clone();
    if let Some(plugin) = scenario.plugin {
        table.plugin = plugin;
    }
    let mut managed = ManagedRoutes {
        order: scenario.managed_routes,
        ..ManagedRoutes::default()
    };
    for (number, step) in scenario.steps.into_iter().enumerate() {
        let here = format!("step {}", number + 1);
        if let Some(edit) = &step.edit {
            table.edit(edit);
        }
        if step.reapply {
            table.replace_spec(input.clone());
        }
        if let Some(routes) = &step.in_force {
            managed.in_force = routes.iter().map(header_route).collect();
        }
        if let Some(routes) = &step.mirrors_in_force {
            managed.in_force = routes.iter().map(mirror_route).collect();
        }
        managed.is_ending = step.ending;
        let additional = step
            .additional
            .iter()
            .map(|(service, weight)| AdditionalDestination {
                service: service.clone(),
                weight: *weight,
            })
            .collect();
        let header = step.header.as_ref().map(header_route);
        let mirror = step.mirror.as_ref().map(mirror_route);
        let kinds = [
            step.remove.then_some(IntentKind::RemoveManagedRoutes),
            header.or(mirror).map(IntentKind::SetManagedRoute),
            step.weight
                .map(|weight| table::weight(weight, step.max.unwrap_or(100), additional)),
        ];
        for kind in kinds.into_iter().flatten() {
            let rollout = step.rollout.as_deref().unwrap_or("shop/reviews");
            let mut intent = table::intent(rollout, 0, 100, vec![]);
            intent.kind = kind;
            intent.managed = managed.clone();
            let services = &mut intent.services;
            services.stable = step
                .stable
                .clone()
                .unwrap_or_else(|| services.stable.clone());
            services.canary = step
                .canary
                .clone()
                .unwrap_or_else(|| services.canary.clone());
            intent.hashes = step
                .hashes
                .clone()
                .map(|(stable, canary)| PodHashes { stable, canary });
            let result = table.apply(&intent);
            match (result, &step.error) {
                (Ok(plan), None) => assert_eq!(warnings(&plan), step.warnings, "{here}"),
                (Err(error), Some(expected)) => {
                    assert!(error.to_string().contains(expected), "{here}: {error}");
                    assert!(!error.to_string().contains(['\n', '%']), "{here}: {error}");
                }
                (Ok(_), Some(expected)) => panic!("{here}: expected an error with {expected:?}"),
                (Err(error), None) => panic!("{here}: {error}"),
            }
        }
        let mut expected = step.spec.map_or_else(|| input.clone(), table::expand);
        for (route, destinations) in step.routes {
            let path = format!("/http/{route}/forwardTo");
            let forward = expected
                .pointer_mut(&path)
                .and_then(Value::as_object_mut)
                .unwrap();
            forward.insert(
                "destinations".to_owned(),
                table::expand_destinations(destinations),
            );
        }
        assert_eq!(
            serde_json::to_string_pretty(&table.document()["spec"]).unwrap(),
            serde_json::to_string_pretty(&expected).unwrap(),
            "{here}"
        );
        if step.expect.as_deref() == Some("input") {
            assert_eq!(
                table.document()["metadata"]["annotations"],
                before["metadata"]["annotations"],
                "{here}"
            );
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn text_match(value: &Value) -> TextMatch {
    TextMatch {
        exact: text(&value["exact"]),
        prefix: text(&value["prefix"]),
        regex: text(&value["regex"]),
    }
}

/// A `setHeaderRoute` as written in a Rollout.
pub(crate) fn header_route(step: &Value) -> ManagedRoute {
    let matches = step["match"].as_array().into_iter().flatten();
    ManagedRoute::Header(HeaderRoute {
        name: text(&step["name"]),
        matches: matches
            .map(|entry| HeaderMatch {
                name: text(&entry["headerName"]),
                value: text_match(&entry["headerValue"]),
            })
            .collect(),
    })
}

/// A `setMirrorRoute` as written in a Rollout.
pub(crate) fn mirror_route(step: &Value) -> ManagedRoute {
    let matches = step["match"].as_array().into_iter().flatten();
    let percentage = step["percentage"].as_i64();
    ManagedRoute::Mirror(MirrorRoute {
        name: text(&step["name"]),
        percentage: percentage.map(|percentage| percentage.try_into().unwrap()),
        matches: matches
            .map(|entry| RequestMatch {
                method: entry.get("method").map(text_match),
                path: entry.get("path").map(text_match),
                headers: entry["headers"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| (name.clone(), text_match(value)))
                    .collect(),
            })
            .collect(),
    })
}

fn warnings(plan: &Plan) -> Vec<String> {
    plan.warnings.iter().map(ToString::to_string).collect()
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run(include_str!(concat!("scenarios/", stringify!($name), ".yaml")));
            }
        )*

        #[test]
        fn every_file_is_run() {
            let listed = [$(stringify!($name)),*];
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planner/scenarios");
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(listed.contains(&name), "{name} is not listed");
            }
        }
    };
}

scenarios! {
    s01_several_stable_routes
    s02_static_third_destination
    s02_both_unset
    s02_owner_weights_invalid
    s02_nothing_left
    s03_same_name_in_two_namespaces
    s04_virtual_destination
    s04_without_configuration
    s04_other_namespace_and_experiment
    s05_subsets_by_pod_hash
    s05_subsets_by_pod_hash_beside_others
    s05_static_subsets
    s05_static_subset_made
    s07_owner_edits_meanwhile
    s07_owner_rebalances_explicit_weights
    s07_gitops_restores_the_original
    s08_default_destination
    s09_rewrites_and_unknown_fields
    s10_tcp_and_tls
    s10_tls_by_port
    s10_tcp_only
    s12_ports
    s12_canary_port
    s13_several_clusters
    s13_one_cluster_chosen
    s14_two_rollouts_one_table
    s15_experiment
    s15_experiment_changes
    full_weight_takes_stable_out
    owner_lists_the_canary
    owner_falls_back_to_the_default
    owner_reorders_destinations
    s15_ping_pong
    s15_ping_pong_as_written
    s14_two_rollouts_take_stable_out
    canary_service_changes
    alike_routes_are_told_apart
    owner_gives_the_canary_a_share
    route_selector
    routes_without_names
    owner_points_the_route_elsewhere
    default_destination_gets_company
    zero_weights_are_kept
    header_s01_several_stable_routes
    header_s02_others_are_not_copied
    header_s06_delegated_table
    header_s07_owner_edits_meanwhile
    header_s08_default_destination
    header_s09_rewrites_and_unknown_fields
    header_s14_two_rollouts
    header_matches
    header_names_and_precedence
    header_on_top
    header_refusals
    mirror_follows_the_split
    mirror_matches
    mirror_refusals
    mirror_and_header_of_one_name
    managed_routes_come_back
    managed_routes_go
    managed_routes_alone_stay
    managed_routes_while_ending
    managed_routes_move_no_record
}
