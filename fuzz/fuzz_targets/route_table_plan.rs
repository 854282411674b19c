//! A RouteTable, a plugin block and the calls of a controller, in the format of the scenarios of `gloo-router`. The calls go
//! directly to the planner. The expectations of a scenario are ignored; the target checks what holds for every table.

#![no_main]

use std::sync::LazyLock;

use fuzz::words::PLUGIN_BLOCK;
use gloo_types::violations;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rollouts_rpc::error_chain;
use route_planner::{
    Intent, IntentKind, ManagedRoute, ManagedRouteUpdate, ManagedRoutes, PluginConfig, PodHashes,
    observe,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use table::{Table, header_route, mirror_route};

#[allow(dead_code, reason = "the planner's tests use more of it")]
#[path = "../../crates/route-planner/tests/planner/table.rs"]
mod table;

/// The Rollout into which a scenario merges its own.
const BASE: &str = include_str!("../../crates/plugin-scenarios/src/base.yaml");

/// The words of a scenario and of a RouteTable that are not words of a plugin block.
const TABLE_AND_CALLS: &[&str] = &[
    "setWeight",
    "setHeaderRoute",
    "setMirrorRoute",
    "removeManagedRoutes",
    "updateHash",
    "edit",
    "reapply",
    "additional",
    "as",
    "rollout",
    "spec",
    "strategy",
    "trafficRouting",
    "maxTrafficWeight",
    "managedRoutes",
    "steps",
    "stableService",
    "canaryService",
    "currentStepIndex",
    "abort",
    "stable",
    "canary",
    "weight",
    "match",
    "headerName",
    "headerValue",
    "exact",
    "prefix",
    "regex",
    "percentage",
    "method",
    "path",
    "headers",
    "http",
    "tcp",
    "tls",
    "defaultDestination",
    "matchers",
    "uri",
    "forwardTo",
    "destinations",
    "pathRewrite",
    "delegate",
    "routeTables",
    "redirect",
    "directResponse",
    "status",
    "ref",
    "shop",
    "reviews",
    "reviews-canary",
    "shop/reviews",
    "shop/ratings",
    "reviews 50",
    "reviews-canary 20",
    "legacy 10",
];

static WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| [TABLE_AND_CALLS, PLUGIN_BLOCK.as_slice()].concat());

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzz::tree::mutate(data, size, max_size, seed, &WORDS)
});

/// The parts of a scenario that the target uses.
#[derive(Deserialize)]
struct Scenario {
    tables: Map<String, Value>,
    #[serde(default)]
    plugin: Option<Value>,
    #[serde(default)]
    rollout: Map<String, Value>,
    calls: Vec<Call>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Call {
    set_weight: Option<i32>,
    additional: Vec<(String, i32)>,
    set_header_route: Option<Value>,
    set_mirror_route: Option<Value>,
    remove_managed_routes: bool,
    update_hash: Option<Hashes>,
    edit: Option<json_patch::Patch>,
    reapply: bool,
    rollout: Map<String, Value>,
    #[serde(rename = "as")]
    rollout_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Hashes {
    stable: String,
    canary: String,
}

fuzz_target!(|input: &[u8]| {
    let scenario = str::from_utf8(input)
        .ok()
        .and_then(|text| serde_saphyr::from_str(text).ok());
    if let Some(scenario) = scenario {
        fuzz::within_memory(|| play(scenario));
    }
});

/// Plays the calls on the first table. Ends early if a part of the scenario is invalid.
fn play(scenario: Scenario) -> Option<()> {
    let (name, spec) = scenario.tables.into_iter().next()?;
    let (namespace, short) = name.split_once('/')?;
    if namespace.is_empty() || short.is_empty() {
        return None;
    }
    let mut table = Table::new(&name, table::expand(spec.clone()));
    table.plugin = scenario.plugin.unwrap_or(table.plugin);
    let mut rollout: Value = serde_saphyr::from_str(BASE).ok()?;
    json_patch::merge(&mut rollout, &scenario.rollout.into());
    let mut hashes = None;
    // With `zeroWeight: keep`, planning writes zero weights, which violate a rule of Gloo.
    let keeps_zeros = table.plugin.get("zeroWeight").is_some();
    let mut owner_is_valid = is_valid(&table) && !keeps_zeros;
    for call in scenario.calls {
        if let Some(edit) = &call.edit {
            // json-patch 4.2 panics on a `move` past the end of a list.
            let moves = |operation: &json_patch::PatchOperation| {
                matches!(operation, json_patch::PatchOperation::Move(_))
            };
            if edit.iter().any(moves) {
                return None;
            }
            // The owner may write any spec.
            let mut edited = table.document().clone();
            json_patch::patch(&mut edited, edit).ok()?;
            table.replace_spec(edited.get("spec")?.clone());
        }
        if call.reapply {
            table.replace_spec(table::expand(spec.clone()));
        }
        owner_is_valid &= is_valid(&table);
        json_patch::merge(&mut rollout, &call.rollout.clone().into());
        if let Some(Hashes { stable, canary }) = &call.update_hash {
            hashes = Some(PodHashes {
                stable: stable.clone(),
                canary: canary.clone(),
                ..PodHashes::default()
            });
        }
        let Some(intent) = intent(&call, &rollout, hashes.clone()) else {
            continue;
        };
        let plugin = table.plugin.to_string();
        let namespaces = ["global".to_owned()];
        let config = PluginConfig::from_json(plugin.as_bytes(), &intent.rollout, &namespaces);
        let config = config.ok()?;
        // Applies the plan, and checks that planning again changes nothing.
        match table.apply(&intent) {
            Ok(_) => assert!(!owner_is_valid || is_valid(&table), "{}", table.document()),
            Err(error) => assert!(error_chain(&error).contains(&name), "{error}"),
        }
        let _ = observe(&config, &intent, &table.doc());
    }
    Some(())
}

/// What a call asks for, if it is one of the controller's about the table.
fn intent(call: &Call, rollout: &Value, hashes: Option<PodHashes>) -> Option<Intent> {
    let canary = rollout.pointer("/spec/strategy/canary")?;
    let name = call.rollout_name.as_deref().unwrap_or("reviews");
    let max = canary.pointer("/trafficRouting/maxTrafficWeight");
    let max = max.and_then(Value::as_i64).unwrap_or(100);
    let kind = if let Some(weight) = call.set_weight {
        let additional = call.additional.iter();
        let additional = additional.map(|(service, weight)| table::experiment(service, *weight));
        table::weight(weight, max.try_into().ok()?, additional.collect())
    } else if let Some(route) = &call.set_header_route {
        let step = step(canary, "setHeaderRoute", route);
        IntentKind::SetManagedRoute(header_route(&step))
    } else if let Some(route) = &call.set_mirror_route {
        let step = step(canary, "setMirrorRoute", route);
        IntentKind::SetManagedRoute(mirror_route(&step))
    } else if call.remove_managed_routes {
        IntentKind::RemoveManagedRoutes
    } else {
        return None;
    };
    let rollout_key = format!("shop/{name}");
    let mut intent = table::intent(&rollout_key, 0, 100, vec![]);
    if call.rollout_name.is_none() {
        let service = |key: &str| canary[key].as_str().unwrap_or_default().to_owned();
        intent.services.stable = service("stableService");
        intent.services.canary = service("canaryService");
    }
    intent.kind = kind;
    intent.hashes = hashes;
    intent.managed = managed_routes(canary, &rollout["status"]);
    Some(intent)
}

/// The step with the name `route`, or `route` if no step has that name.
fn step(canary: &Value, kind: &str, route: &Value) -> Value {
    let steps = canary["steps"].as_array().into_iter().flatten();
    let mut named = steps.map(|step| &step[kind]);
    let found = named.find(|step| step["name"] == *route);
    found.unwrap_or(route).clone()
}

/// The managed routes that the steps so far ask for.
fn managed_routes(canary: &Value, status: &Value) -> ManagedRoutes {
    let names = canary.pointer("/trafficRouting/managedRoutes");
    let names = names.and_then(Value::as_array).into_iter().flatten();
    let so_far = status["currentStepIndex"].as_u64().unwrap_or_default();
    let steps = canary["steps"].as_array().into_iter().flatten();
    let mut in_force: Vec<ManagedRoute> = Vec::new();
    for step in steps.take(
        usize::try_from(so_far)
            .unwrap_or_default()
            .saturating_add(1),
    ) {
        let header = step.get("setHeaderRoute").map(header_route);
        let mirror = step.get("setMirrorRoute").map(mirror_route);
        for route in header.into_iter().chain(mirror) {
            in_force.retain(|other| other.name() != route.name());
            in_force.extend(Some(route).filter(|route| !route.is_removal()));
        }
    }
    ManagedRoutes {
        order: names
            .filter_map(|route| route["name"].as_str().map(str::to_owned))
            .collect(),
        in_force,
        update: match status["abort"] == json!(true) {
            true => ManagedRouteUpdate::RemoveAll,
            false => ManagedRouteUpdate::AsPlanned,
        },
    }
}

fn is_valid(table: &Table) -> bool {
    let spec = table.doc().spec();
    spec.is_ok_and(|spec| violations(&spec).is_empty())
}
