//! The plugin block of a Rollout: it is read, or refused in one line that an event can carry.

#![no_main]

use gloo_types::ObjectKey;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rollouts_rpc::error_chain;
use route_planner::PluginConfig;

const KEYS: &[&str] = &[
    "routeTableSelector",
    "routeSelector",
    "tcpRoutes",
    "tlsRoutes",
    "stableDestination",
    "canaryDestination",
    "subset",
    "headerMatch",
    "headerRoutePlacement",
    "zeroWeight",
    "verify",
    "routeTableName",
    "routeTableNamespace",
    "destinationKind",
    "destinationNamespace",
    "name",
    "names",
    "namespace",
    "namespaces",
    "labels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "In",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "port",
    "number",
    "sniHosts",
    "kind",
    "cluster",
    "clusters",
    "service",
    "stable",
    "canary",
    "label",
    "SERVICE",
    "VIRTUAL_DESTINATION",
    "any",
    "all",
    "beforeSource",
    "top",
    "keep",
    "remove",
    "auto",
    "weights",
    "accepted",
    "mesh",
    "shop",
];

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzz::tree::mutate(data, size, max_size, seed, KEYS)
});

fuzz_target!(|input: &[u8]| {
    let rollout = ObjectKey::new("shop", "reviews");
    match PluginConfig::from_json(input, &rollout, &["mesh".to_owned()]) {
        Ok(config) => {
            // The order of keys and the space between them mean nothing, and nor does what is absent.
            let parsed: serde_json::Value =
                serde_json::from_slice(input).expect("a config is JSON");
            let again = PluginConfig::from_json(
                parsed.to_string().as_bytes(),
                &rollout,
                &["mesh".to_owned()],
            );
            assert_eq!(again.ok(), Some(config));
        }
        Err(error) => {
            let text = error_chain(&error);
            assert!(text.contains("shop/reviews"), "{text}");
        }
    }
});
