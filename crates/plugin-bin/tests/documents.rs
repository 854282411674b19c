//! Manifests in the documents are used as they stand: they must be what the plugin accepts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers are test code too"
)]

use clap::CommandFactory as _;
use gloo_types::ObjectKey;
use plugin_bin::{CommandLine, DEFAULT_PLUGIN_NAMES};
use route_planner::PluginConfig;
use serde_json::Value;

const README: &str = include_str!("../../../README.md");
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");

const COMMANDS: &str = include_str!("../../../docs/commands.md");

/// What stands in the YAML blocks of a document.
fn yaml(document: &str) -> impl Iterator<Item = Value> {
    let blocks = document.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    blocks.flat_map(|block| serde_saphyr::from_multiple::<Value>(block).unwrap())
}

fn manifest(kind: &str) -> Value {
    let mut documents = yaml(README);
    documents.find(|document| document["kind"] == kind).unwrap()
}

#[test]
fn the_rollout_configures_the_plugin() {
    let rollout = manifest("Rollout");
    let plugins = rollout["spec"]["strategy"]["canary"]["trafficRouting"]["plugins"].clone();
    let plugins = plugins.as_object().unwrap().iter();
    let plugins = plugins
        .map(|(name, block)| (name.clone(), block.to_string().into_bytes()))
        .collect();
    let config = PluginConfig::for_rollout(
        &plugins,
        &DEFAULT_PLUGIN_NAMES,
        &ObjectKey::new("shop", "reviews"),
        &[],
    )
    .unwrap();
    assert_eq!(
        config.route_tables().to_string(),
        "names shop; namespaces gloo-mesh"
    );
}

#[test]
fn the_plugin_block_of_the_reference_is_accepted() {
    for block in yaml(CONFIGURATION) {
        let block = block.to_string().into_bytes();
        PluginConfig::from_json(&block, &ObjectKey::new("shop", "reviews"), &[]).unwrap();
    }
}

/// Its commands are tested with this file.
#[test]
fn the_quick_start_shows_its_manifests() {
    let page = include_str!("../../../docs/quick-start.md");
    let manifests = include_str!("../../../docs/quick-start.in/shop.yaml");
    assert!(page.contains(&format!("```yaml\n{manifests}```\n")));
}

#[test]
fn every_command_is_described() {
    let command = CommandLine::command();
    for command in command.get_subcommands().map(clap::Command::get_name) {
        let is_described = COMMANDS.contains(&format!("`{command}`"));
        assert!(is_described, "{command}");
    }
}
