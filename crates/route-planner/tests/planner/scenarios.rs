//! Every scenario is played call by call, and the table after each is the one expected.

use route_planner::{ManagedRoutes, Plan};
use serde_json::Value;

use crate::scenario::Scenario;
use crate::table::{self, Table};

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
        step.manage(&mut managed);
        for intent in step.intents(&managed) {
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
