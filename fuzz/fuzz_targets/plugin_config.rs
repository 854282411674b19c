//! The plugin block of a Rollout: it is accepted, or refused with an error that names the Rollout.

#![no_main]

use std::sync::LazyLock;

use fuzz::words::PLUGIN_BLOCK;
use gloo_types::ObjectKey;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rollouts_rpc::error_chain;
use route_planner::PluginConfig;

/// Every word of a plugin block, and two namespaces.
static WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| [PLUGIN_BLOCK.as_slice(), &["mesh", "shop"]].concat());

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzz::tree::mutate(data, size, max_size, seed, &WORDS)
});

fuzz_target!(|input: &[u8]| {
    let rollout = ObjectKey::new("shop", "reviews");
    match PluginConfig::from_json(input, &rollout, &["mesh".to_owned()]) {
        Ok(config) => {
            // Whitespace does not change the result.
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
