//! CustomResourceDefinitions, generated from the types.
//!
//! Tests install them into an API server; Gloo has its own. Unknown fields are preserved at every level, so a document keeps
//! the fields of a newer Gloo.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::resource::{KubernetesCluster, MirrorPolicy, Resource, RouteTable, Workspace};

/// The definition of RouteTable (`apiextensions.k8s.io/v1`), ready to apply.
pub fn route_table() -> Value {
    let mut spec = structural_schema::<<RouteTable as Resource>::Spec>();
    spec.insert(
        "x-kubernetes-validations".to_owned(),
        json!([{
            "rule": "has(self.http) || has(self.tcp) || has(self.tls)",
            "message": "one of http, tcp or tls must be set",
        }]),
    );
    definition::<RouteTable>(spec)
}

/// The definition of MirrorPolicy (`apiextensions.k8s.io/v1`), ready to apply.
pub fn mirror_policy() -> Value {
    definition::<MirrorPolicy>(structural_schema::<<MirrorPolicy as Resource>::Spec>())
}

/// The definition of Workspace (`apiextensions.k8s.io/v1`), ready to apply.
pub fn workspace() -> Value {
    definition::<Workspace>(structural_schema::<<Workspace as Resource>::Spec>())
}

/// The definition of KubernetesCluster (`apiextensions.k8s.io/v1`), ready to apply.
pub fn kubernetes_cluster() -> Value {
    let spec = structural_schema::<<KubernetesCluster as Resource>::Spec>();
    definition::<KubernetesCluster>(spec)
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
    RecursiveTransform(tolerant).transform(&mut schema);
    schema
}

/// Preserves unknown fields, and removes what comes from Rust: type names, serde's defaults, `Option` and `u32`.
fn tolerant(schema: &mut Schema) {
    for key in ["title", "default", "nullable"] {
        schema.remove(key);
    }
    if schema
        .get("format")
        .is_some_and(|format| format == "uint32")
    {
        schema.remove("format");
    }
    let is_any = schema.get("type").is_none() && schema.get("x-kubernetes-int-or-string").is_none();
    let is_struct = schema.get("properties").is_some();
    if is_any || is_struct {
        schema.insert(
            "x-kubernetes-preserve-unknown-fields".to_owned(),
            json!(true),
        );
    }
}
