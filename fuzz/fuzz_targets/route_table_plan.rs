//! A RouteTable, a configuration and calls of the controller, in the format of the planner's scenarios. What they expect
//! is not looked at; what holds for every table is.

#![no_main]

use gloo_types::{ObjectKey, violations};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rollouts_rpc::error_chain;
use route_planner::{ManagedRoutes, PluginConfig, observe};

use scenario::Scenario;
use table::Table;

#[allow(dead_code, reason = "the tests look at more")]
#[path = "../../crates/route-planner/tests/planner/scenario.rs"]
mod scenario;
#[allow(dead_code, reason = "the tests look at more")]
#[path = "../../crates/route-planner/tests/planner/table.rs"]
mod table;

const KEYS: &[&str] = &[
    "in_force",
    "mirrors_in_force",
    "managed_routes",
    "ending",
    "remove",
    "hashes",
    "edit",
    "reapply",
    "additional",
    "max",
    "weight",
    "rollout",
    "stable",
    "canary",
    "header",
    "mirror",
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
    "name",
    "labels",
    "matchers",
    "uri",
    "port",
    "sniHosts",
    "forwardTo",
    "destinations",
    "pathRewrite",
    "delegate",
    "routeTables",
    "redirect",
    "directResponse",
    "status",
    "ref",
    "namespace",
    "cluster",
    "kind",
    "number",
    "subset",
    "own",
    "routeTableSelector",
    "routeSelector",
    "tcpRoutes",
    "tlsRoutes",
    "stableDestination",
    "canaryDestination",
    "headerMatch",
    "headerRoutePlacement",
    "zeroWeight",
    "verify",
    "service",
    "shop",
    "reviews",
    "reviews-canary",
    "shop/reviews",
    "shop/ratings",
    "reviews 50",
    "reviews-canary 20",
    "legacy 10",
    "SERVICE",
    "VIRTUAL_DESTINATION",
];

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzz::tree::mutate(data, size, max_size, seed, KEYS)
});

fuzz_target!(|input: &[u8]| {
    let scenario = str::from_utf8(input)
        .ok()
        .and_then(|text| serde_saphyr::from_str(text).ok());
    if let Some(scenario) = scenario {
        fuzz::within_memory(|| play(scenario));
    }
});

fn play(scenario: Scenario) -> Option<()> {
    let name = |text: &str| {
        let (namespace, name) = text.split_once('/')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| ObjectKey::new(namespace, name))
    };
    name(&scenario.table)?;
    let mut table = Table::new(&scenario.table, table::expand(scenario.spec.clone()));
    table.plugin = scenario.plugin.unwrap_or(table.plugin);
    let mut managed = ManagedRoutes {
        order: scenario.managed_routes,
        ..ManagedRoutes::default()
    };
    // Zero weights that are kept are against the rules too.
    let keeps_zeros = table.plugin.get("zeroWeight").is_some();
    let mut owner_is_valid = is_valid(&table) && !keeps_zeros;
    for step in scenario.steps {
        if let Some(edit) = &step.edit {
            // The owner may write any spec.
            let mut edited = table.document().clone();
            json_patch::patch(&mut edited, edit).ok()?;
            table.replace_spec(edited.get("spec")?.clone());
        }
        if step.reapply {
            table.replace_spec(table::expand(scenario.spec.clone()));
        }
        owner_is_valid &= is_valid(&table);
        step.manage(&mut managed);
        let rollout = name(step.rollout.as_deref().unwrap_or("shop/reviews"))?;
        let plugin = table.plugin.to_string();
        let config = PluginConfig::from_json(plugin.as_bytes(), &rollout, &["global".to_owned()]);
        let config = config.ok()?;
        for intent in step.intents(&managed) {
            // Applies the plan, and checks that planning again changes nothing.
            match table.apply(&intent) {
                Ok(_) => assert!(!owner_is_valid || is_valid(&table), "{}", table.document()),
                Err(error) => assert!(error_chain(&error).contains(&scenario.table), "{error}"),
            }
            let _ = observe(&config, &intent, &table.doc());
        }
    }
    Some(())
}

fn is_valid(table: &Table) -> bool {
    let spec = table.doc().spec();
    spec.is_ok_and(|spec| violations(&spec).is_empty())
}
