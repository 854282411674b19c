//! Manifests in documents and in `deploy` match the program. That those in `deploy` work is tested by the cluster tests, with
//! the kustomize components; here the values for the chart are compared with these.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers are test code too"
)]

use clap::CommandFactory as _;
use gloo_types::{MirrorPolicy, ObjectKey, Resource as _, RouteTable};
use plugin_commands::CommandLine;
use route_planner::{DEFAULT_PLUGIN_NAMES, PluginConfig};
use serde_json::{Value, json};

const README: &str = include_str!("../../../README.md");
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");

const COMMANDS: &str = include_str!("../../../docs/commands.md");

/// Parses the YAML blocks of a document.
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
fn the_plugin_block_of_the_reference_is_valid() {
    for block in yaml(CONFIGURATION) {
        let block = block.to_string().into_bytes();
        PluginConfig::from_json(&block, &ObjectKey::new("shop", "reviews"), &[]).unwrap();
    }
}

/// The commands of the page are tested with this file.
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

macro_rules! deployed {
    ($path:literal) => {
        serde_saphyr::from_str::<Value>(include_str!(concat!("../../../deploy/", $path))).unwrap()
    };
}

/// Returns, for each variant, the chart's values, the ConfigMap and the Deployment.
fn variants() -> [[Value; 3]; 2] {
    [
        [
            deployed!("helm/init-container.yaml"),
            deployed!("kustomize/init-container/config-map.yaml"),
            deployed!("kustomize/init-container/deployment.yaml"),
        ],
        [
            deployed!("helm/https.yaml"),
            deployed!("kustomize/https/config-map.yaml"),
            deployed!("kustomize/https/deployment.yaml"),
        ],
    ]
}

fn plugins(config_map: &Value) -> Value {
    let text = config_map["data"]["trafficRouterPlugins"].as_str().unwrap();
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn every_variant_registers_a_name_that_the_plugin_reads() {
    for [_, config_map, _] in variants() {
        let name = plugins(&config_map)[0]["name"].clone();
        assert!(DEFAULT_PLUGIN_NAMES.contains(&name.as_str().unwrap()));
    }
}

#[test]
fn the_role_grants_the_resources_that_the_plugin_edits() {
    let role = deployed!("kustomize/rights/cluster-role.yaml");
    let resources = |index: usize| {
        let rule = &role["rules"][index];
        json!([rule["apiGroups"], rule["resources"]])
    };
    let expect = |group, plural| json!([[group], [plural]]);
    assert_eq!(
        [resources(0), resources(1)],
        [
            expect(RouteTable::GROUP, RouteTable::PLURAL),
            expect(MirrorPolicy::GROUP, MirrorPolicy::PLURAL),
        ]
    );
}

#[test]
fn the_chart_has_the_values_of_the_kustomize_components() {
    for [values, config_map, deployment] in variants() {
        let controller = &values["controller"];
        assert_eq!(controller["trafficRouterPlugins"], plugins(&config_map));
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(controller["initContainers"], pod["initContainers"]);
        assert_eq!(controller["volumes"], pod["volumes"]);
        let mounts = &pod["containers"][0]["volumeMounts"];
        assert_eq!(&controller["volumeMounts"], mounts);
    }
}

#[test]
fn the_chart_has_the_same_permissions() {
    let mut binding = deployed!("kustomize/rights/cluster-role-binding.yaml");
    // The chart may give the account another name.
    binding["subjects"][0]["name"] = r#"{{ include "argo-rollouts.serviceAccountName" . }}"#.into();
    binding["subjects"][0]["namespace"] = r#"{{ include "argo-rollouts.namespace" . }}"#.into();
    let mut role = deployed!("kustomize/rights/cluster-role.yaml");
    // Without `clusterInstall`, the permissions are those of a namespace.
    let kind = |everywhere: &Value| {
        let everywhere = everywhere.as_str().unwrap();
        let in_namespace = everywhere.strip_prefix("Cluster").unwrap();
        format!(r#"{{{{ ternary "{everywhere}" "{in_namespace}" .Values.clusterInstall }}}}"#)
    };
    role["kind"] = kind(&role["kind"]).into();
    binding["kind"] = kind(&binding["kind"]).into();
    binding["roleRef"]["kind"] = kind(&binding["roleRef"]["kind"]).into();
    let values = deployed!("helm/rights.yaml");
    assert_eq!(values["extraObjects"], json!([role, binding]));
}

#[test]
fn prometheus_scrapes_the_port_of_the_metrics() {
    let deployment = deployed!("observability/deployment.yaml");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let values = deployed!("observability/helm.yaml");
    assert_eq!(values["controller"]["extraEnv"], container["env"]);

    let command = CommandLine::command();
    let flag = |flag: &&clap::Arg| flag.get_id() == "metrics_address";
    let variable = command.get_arguments().find(flag).unwrap().get_env();
    assert_eq!(
        container["env"][0]["name"],
        variable.unwrap().to_str().unwrap()
    );
    let address = container["env"][0]["value"].as_str().unwrap();
    let port = address.parse::<std::net::SocketAddr>().unwrap().port();
    assert_eq!(container["ports"][0]["containerPort"], port);
    let monitor = deployed!("observability/objects/pod-monitor.yaml");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(
        endpoint["relabelings"][0]["replacement"],
        format!("$1:{port}")
    );
}

/// Every path in the values exists in the chart's own values (argo-helm, charts/argo-rollouts 2.41.0, values.yaml).
#[test]
fn every_value_exists_in_the_chart() {
    const KNOWN: [&str; 7] = [
        "controller.extraEnv",
        "controller.initContainers",
        "controller.trafficRouterPlugins",
        "controller.volumeMounts",
        "controller.volumes",
        "extraObjects",
        "providerRBAC.providers.glooPlatform",
    ];
    fn check(path: &str, value: &Value) {
        match value {
            Value::Object(values) => {
                for (key, value) in values {
                    check(format!("{path}.{key}").trim_start_matches('.'), value);
                }
            }
            _ => assert!(KNOWN.contains(&path), "{path}"),
        }
    }
    let [[init_container, ..], [https, ..]] = variants();
    let rights = deployed!("helm/rights.yaml");
    let observability = deployed!("observability/helm.yaml");
    for values in [init_container, https, rights, observability] {
        check("", &values);
    }
}
