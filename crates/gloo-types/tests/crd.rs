//! The generated CustomResourceDefinitions.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

use gloo_types::crd;
use serde_json::{Map, Value, json};

fn schema() -> Value {
    schema_of(&crd::route_table())
}

fn schema_of(crd: &Value) -> Value {
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn the_definition_names_the_resource() {
    let crd = crd::route_table();
    assert_eq!(
        crd["metadata"]["name"],
        "routetables.networking.gloo.solo.io"
    );
    assert_eq!(crd["spec"]["scope"], "Namespaced");
    assert_eq!(crd["spec"]["versions"][0]["name"], "v2");
    assert_eq!(
        crd["spec"]["versions"][0]["subresources"],
        json!({"status": {}})
    );
}

#[test]
fn the_schema_has_every_part_of_the_api() {
    let schema = schema();
    let property = |path: &[&str]| {
        path.iter().fold(&schema, |schema, key| match *key {
            "[]" => &schema["items"],
            key => &schema["properties"][key],
        })
    };
    let destination = property(&["spec", "http", "[]", "forwardTo", "destinations", "[]"]);
    assert_eq!(destination["properties"]["weight"]["type"], "integer");
    assert_eq!(destination["properties"]["weight"]["minimum"], 0);
    assert_eq!(
        destination["properties"]["kind"],
        json!({
            "type": "string",
            "enum": ["SERVICE", "VIRTUAL_DESTINATION", "EXTERNAL_SERVICE"],
            "description": "Kind of the object; `SERVICE` if absent.",
        })
    );
    assert_eq!(property(&["spec", "http"])["maxItems"], 10000);
    let portal = property(&["spec", "portalMetadata"]);
    assert_eq!(portal["required"], json!(["apiProductId", "apiVersion"]));
    assert_eq!(
        schema["properties"]["spec"]["x-kubernetes-validations"]
            .as_array()
            .unwrap()
            .len(),
        6
    );
    assert_eq!(
        property(&["spec", "tls", "[]", "matchers", "[]", "sniHosts", "[]"])["type"],
        "string"
    );
    assert_eq!(
        property(&["status", "common", "State", "observedGeneration"])["x-kubernetes-int-or-string"],
        true
    );
}

/// The rules for structural schemas (Kubernetes documentation, "Specifying a structural schema").
#[test]
fn schemas_are_structural() {
    fn walk(path: &str, schema: &Map<String, Value>, is_tolerant: bool) {
        let allowed = [
            "type",
            "description",
            "properties",
            "items",
            "additionalProperties",
            "minimum",
            "maximum",
            "minItems",
            "maxItems",
            "maxLength",
            "enum",
            "required",
            "format",
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-int-or-string",
            "x-kubernetes-validations",
        ];
        for key in schema.keys() {
            assert!(allowed.contains(&key.as_str()), "{path}: {key}");
        }
        let keeps = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
        let int_or_string = schema.contains_key("x-kubernetes-int-or-string");
        assert!(
            schema.get("type").is_some_and(Value::is_string) || keeps || int_or_string,
            "{path}: type"
        );
        if schema.contains_key("properties") {
            assert_eq!(keeps, is_tolerant && path != "$", "{path}: unknown fields");
            assert!(!schema.contains_key("additionalProperties"), "{path}: both");
        }
        assert!(
            schema.get("format").is_none_or(
                |format| ["int32", "int64", "double"].contains(&format.as_str().unwrap())
            ),
            "{path}"
        );
        for (key, property) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            walk(
                &format!("{path}.{key}"),
                property.as_object().unwrap(),
                is_tolerant,
            );
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(key) {
                walk(
                    &format!("{path}.{key}"),
                    inner.as_object().unwrap(),
                    is_tolerant,
                );
            }
        }
    }
    for (crd, is_tolerant) in [
        (crd::route_table(), false),
        (crd::mirror_policy(), false),
        (crd::tolerant(crd::route_table()), true),
        (crd::workspace(), true),
        (crd::kubernetes_cluster(), true),
    ] {
        walk("$", schema_of(&crd).as_object().unwrap(), is_tolerant);
    }
}

#[test]
fn a_mirror_policy_names_its_own_resource() {
    let crd = crd::mirror_policy();
    assert_eq!(
        crd["metadata"]["name"],
        "mirrorpolicies.trafficcontrol.policy.gloo.solo.io"
    );
    let config = &schema_of(&crd)["properties"]["spec"]["properties"]["config"]["properties"];
    assert_eq!(config["percentage"]["type"], "number");
}

#[test]
fn a_workspace_names_its_own_resource() {
    let crd = crd::workspace();
    assert_eq!(crd["metadata"]["name"], "workspaces.admin.gloo.solo.io");
    let clusters = &schema_of(&crd)["properties"]["spec"]["properties"]["workloadClusters"];
    let namespaces = &clusters["items"]["properties"]["namespaces"]["items"]["properties"];
    assert_eq!(namespaces["configEnabled"]["type"], "boolean");
    assert_eq!(
        crd::kubernetes_cluster()["spec"]["names"]["plural"],
        "kubernetesclusters"
    );
}
