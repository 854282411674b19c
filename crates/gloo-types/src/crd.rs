//! CustomResourceDefinitions, generated from the types.
//!
//! Tests install them into an API server; Gloo has its own. Those of RouteTable and MirrorPolicy have every field and every rule of
//! Gloo's protos, and `tests/tests/host_gloo.rs` compares them.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::resource::{KubernetesCluster, MirrorPolicy, Resource, RouteTable, Workspace};
use crate::route_table::RouteTableSpec;

/// The fields that must be set, by the path of the object that has them.
const REQUIRED: [(&str, &[&str]); 5] = [
    ("portalMetadata", &["apiProductId", "apiVersion"]),
    ("http[].directResponse", &["status"]),
    ("tcp[]", &["forwardTo"]),
    ("tls[]", &["forwardTo"]),
    ("tls[].forwardTo", &["destinations"]),
];

/// The rules in CEL, by the path of the value that they are about, each with its message.
const RULES: [(&str, &str, &str); 10] = [
    (
        "",
        "has(self.hosts) || !has(self.virtualGateways)",
        "virtualGateways needs hosts: a table to which others delegate has neither",
    ),
    (
        "",
        "has(self.hosts) || !has(self.applyToDestinations)",
        "applyToDestinations needs hosts: a table to which others delegate has neither",
    ),
    (
        "",
        "has(self.hosts) || !has(self.failureMode)",
        "failureMode needs hosts: a table to which others delegate has neither",
    ),
    (
        "",
        "has(self.http) || has(self.tcp) || has(self.tls)",
        "one of http, tcp and tls must be set",
    ),
    (
        "",
        "has(self.defaultDestination) ? has(self.http) && self.http.exists(r, has(r.forwardTo)) : true",
        "defaultDestination needs an http route with forwardTo",
    ),
    (
        "",
        "has(self.http) && self.http.exists(r, has(r.forwardTo) && has(r.forwardTo.destinations) && r.forwardTo.destinations.size() == 0) ? has(self.defaultDestination) : true",
        "an http forwardTo with an empty list of destinations needs defaultDestination",
    ),
    (
        "workloadSelectors",
        "self.all(s, !has(s.kind) || s.kind == 'KUBE')",
        "kind must be KUBE",
    ),
    (
        "applyToDestinations",
        "self.all(s, !has(s.kind) || s.kind == 'KUBE')",
        "kind must be KUBE",
    ),
    (
        "tcp[].forwardTo",
        "has(self.destinations) && 1 <= self.destinations.size() && self.destinations.size() <= 100",
        "destinations must have 1 to 100 entries",
    ),
    (
        "portalMetadata.apiProductId",
        "!self.contains(' ')",
        "must have no spaces",
    ),
];

/// The definition of RouteTable (`apiextensions.k8s.io/v1`), ready to apply.
pub fn route_table() -> Value {
    let mut spec = structural_schema::<RouteTableSpec>();
    for (path, fields) in REQUIRED {
        if let Some(schema) = at(&mut spec, path) {
            schema.insert("required".to_owned(), json!(fields));
        }
    }
    for (path, rule, message) in RULES {
        let rules = at(&mut spec, path).map(|schema| {
            schema
                .entry("x-kubernetes-validations")
                .or_insert(json!([]))
        });
        if let Some(Value::Array(rules)) = rules {
            rules.push(json!({"rule": rule, "message": message}));
        }
    }
    definition::<RouteTable>(spec)
}

/// The schema at a path such as `http[].forwardTo`.
fn at<'s>(spec: &'s mut Schema, path: &str) -> Option<&'s mut Map<String, Value>> {
    let schema = spec.as_object_mut()?;
    let mut keys = path.split('.').filter(|key| !key.is_empty());
    keys.try_fold(schema, |schema, key| {
        let properties = schema.get_mut("properties")?;
        let property = properties.get_mut(key.trim_end_matches("[]"))?;
        match key.ends_with("[]") {
            true => property.get_mut("items")?.as_object_mut(),
            false => property.as_object_mut(),
        }
    })
}

/// The definition of MirrorPolicy (`apiextensions.k8s.io/v1`), ready to apply.
pub fn mirror_policy() -> Value {
    definition::<MirrorPolicy>(structural_schema::<<MirrorPolicy as Resource>::Spec>())
}

/// The definition of Workspace (`apiextensions.k8s.io/v1`), ready to apply. The types do not have all fields of Gloo.
pub fn workspace() -> Value {
    tolerant(definition::<Workspace>(structural_schema::<
        <Workspace as Resource>::Spec,
    >()))
}

/// The definition of KubernetesCluster (`apiextensions.k8s.io/v1`), ready to apply. The types do not have all fields of Gloo.
pub fn kubernetes_cluster() -> Value {
    let spec = structural_schema::<<KubernetesCluster as Resource>::Spec>();
    tolerant(definition::<KubernetesCluster>(spec))
}

/// Makes a definition keep unknown fields and accept unknown values, as if a newer Gloo had them.
pub fn tolerant(mut definition: Value) -> Value {
    let open = |schema: &mut Schema| {
        schema.remove("enum");
        if schema.get("properties").is_some() {
            preserve_unknown_fields(schema);
        }
    };
    let parts = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties");
    let parts = parts.and_then(Value::as_object_mut).into_iter().flatten();
    for (_, part) in parts {
        if let Ok(schema) = <&mut Schema>::try_from(part) {
            RecursiveTransform(open).transform(schema);
        }
    }
    definition
}

fn definition<K: Resource<Status: JsonSchema>>(spec: Schema) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{}", K::PLURAL, K::GROUP) },
        "spec": {
            "group": K::GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": K::KIND,
                "listKind": format!("{}List", K::KIND),
                "plural": K::PLURAL,
                "singular": K::KIND.to_lowercase(),
            },
            "versions": [{
                "name": K::VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": spec,
                        "status": structural_schema::<K::Status>(),
                    },
                } },
            }],
        },
    })
}

/// The schema of `T` in the subset of OpenAPI v3 that Kubernetes calls a structural schema: no references, one type per
/// value.
fn structural_schema<T: JsonSchema>() -> Schema {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(plain).transform(&mut schema);
    schema
}

/// Removes what comes from Rust: type names, serde's defaults, `Option` and `u32`.
fn plain(schema: &mut Schema) {
    for key in ["title", "default", "nullable"] {
        schema.remove(key);
    }
    if schema
        .get("format")
        .is_some_and(|format| format == "uint32")
    {
        schema.remove("format");
    }
    if schema.get("type").is_none() && schema.get("x-kubernetes-int-or-string").is_none() {
        preserve_unknown_fields(schema);
    }
}

fn preserve_unknown_fields(schema: &mut Schema) {
    let key = "x-kubernetes-preserve-unknown-fields";
    schema.insert(key.to_owned(), json!(true));
}
