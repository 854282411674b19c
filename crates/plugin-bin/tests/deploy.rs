//! The manifests of `deploy` as text. That they work is shown by the cluster tests, with the kustomize components; here
//! the values for the chart are held against these.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers are test code too"
)]

use clap::CommandFactory as _;
use gloo_types::{MirrorPolicy, Resource as _, RouteTable};
use plugin_bin::{CommandLine, DEFAULT_PLUGIN_NAMES};
use serde_json::{Value, json};

macro_rules! manifest {
    ($path:literal) => {
        serde_saphyr::from_str::<Value>(include_str!(concat!("../../../deploy/", $path))).unwrap()
    };
}

/// A variant's values, its ConfigMap and its Deployment.
fn variants() -> [[Value; 3]; 2] {
    [
        [
            manifest!("helm/init-container.yaml"),
            manifest!("kustomize/init-container/config-map.yaml"),
            manifest!("kustomize/init-container/deployment.yaml"),
        ],
        [
            manifest!("helm/https.yaml"),
            manifest!("kustomize/https/config-map.yaml"),
            manifest!("kustomize/https/deployment.yaml"),
        ],
    ]
}

fn plugins(config_map: &Value) -> Value {
    let text = config_map["data"]["trafficRouterPlugins"].as_str().unwrap();
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn every_variant_registers_a_name_the_plugin_reads() {
    for [_, config_map, _] in variants() {
        let name = plugins(&config_map)[0]["name"].clone();
        assert!(DEFAULT_PLUGIN_NAMES.contains(&name.as_str().unwrap()));
    }
}

#[test]
fn the_role_is_for_the_resources_the_plugin_edits() {
    let role = manifest!("kustomize/rights/cluster-role.yaml");
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
fn the_chart_gets_what_kustomize_makes() {
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
fn the_chart_gets_the_same_rights() {
    let mut binding = manifest!("kustomize/rights/cluster-role-binding.yaml");
    // The chart may call the account otherwise.
    binding["subjects"][0]["name"] = r#"{{ include "argo-rollouts.serviceAccountName" . }}"#.into();
    binding["subjects"][0]["namespace"] = r#"{{ include "argo-rollouts.namespace" . }}"#.into();
    let role = manifest!("kustomize/rights/cluster-role.yaml");
    let values = manifest!("helm/rights.yaml");
    assert_eq!(values["extraObjects"], json!([role, binding]));
}

#[test]
fn prometheus_asks_where_the_plugin_serves_its_metrics() {
    let deployment = manifest!("observability/deployment.yaml");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let values = manifest!("observability/helm.yaml");
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
    let monitor = manifest!("observability/objects/pod-monitor.yaml");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(
        endpoint["relabelings"][0]["replacement"],
        format!("$1:{port}")
    );
}

/// Every path of the values is one of the chart's (argo-helm, charts/argo-rollouts 2.41.0, values.yaml).
#[test]
fn the_chart_knows_every_value() {
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
    let rights = manifest!("helm/rights.yaml");
    let observability = manifest!("observability/helm.yaml");
    for values in [init_container, https, rights, observability] {
        check("", &values);
    }
}
