//! The virtual hosts of a world: the translation of its tables, prepared so that requests show what the routes mean.
//!
//! The header `x-pick` replaces the random number of a split. `x-policy` tells the upstream the timeout and the retries of the
//! route. TCP and TLS routes become virtual hosts with one route, because the model translates HTTP only.

use anyhow::{Context as _, Result};
use envoy_routes::{Objects, Reason, translate};
use gloo_types::{MirrorPolicyDoc, RetryTimeoutPolicyDoc, RouteTableDoc};
use serde_json::{Value, json};

use super::world::HOST;

/// The request header that selects the cluster of a split.
pub(super) const PICK: &str = "x-pick";
/// The request header with the route's timeout and retries.
pub(super) const POLICY: &str = "x-policy";

/// The routes of a virtual host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// `tcp0` for the first TCP route; empty for HTTP.
    pub(super) id: String,
    /// Envoy's routes.
    pub(super) routes: Vec<Value>,
}

/// A route of the owner, as far as the judge needs it.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnerRoute {
    /// Namespace, table and route.
    pub(super) name: String,
    /// Clusters and their weights, in order. Empty for a redirect or a direct response.
    pub(super) clusters: Vec<(String, u32)>,
}

/// Why tables cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unserved {
    /// A limit of the model.
    #[error("the model has no translation: {0}")]
    Model(String),
    /// Gloo would not accept the objects.
    #[error("not valid: {0}")]
    Invalid(String),
}

/// Translates tables and policies to virtual hosts.
///
/// # Errors
/// Returns `Err` if an object is malformed. The inner `Err` says why the objects cannot be served.
pub(super) fn hosts(
    tables: &[Value],
    mirrors: &[Value],
    timeouts: &[Value],
) -> Result<Result<Vec<Host>, Unserved>> {
    let http = tables.iter().map(without_layer_4);
    let tables = http.chain(tables.iter().flat_map(layer_4));
    let tables = tables.map(RouteTableDoc::from_value);
    let mirrors = mirrors.iter().cloned().map(MirrorPolicyDoc::from_value);
    let timeouts = timeouts.iter().cloned();
    let timeouts = timeouts.map(RetryTimeoutPolicyDoc::from_value);
    let translation = translate(&Objects {
        tables: &tables.collect::<Result<Vec<_>, _>>()?,
        mirror_policies: &mirrors.collect::<Result<Vec<_>, _>>()?,
        retry_timeout_policies: &timeouts.collect::<Result<Vec<_>, _>>()?,
        ..Objects::default()
    });
    if let Some(problem) = translation.untranslated.first() {
        let text = problem.to_string();
        return Ok(Err(match problem.reason {
            Reason::CannotJoin | Reason::NotModelled => Unserved::Model(text),
            _ => Unserved::Invalid(text),
        }));
    }
    let hosts = translation.route_configuration.get("virtual_hosts");
    let hosts = hosts.and_then(Value::as_array).context("no hosts")?;
    let host = |host: &Value| -> Result<Host> {
        let name = host.get("name").and_then(Value::as_str);
        let routes = host.get("routes").and_then(Value::as_array);
        let mut routes = routes.context("no routes")?.clone();
        routes.iter_mut().for_each(observe);
        let id = name.context("no name")?.strip_suffix(HOST);
        Ok(Host {
            id: id.context("another host")?.trim_end_matches('.').to_owned(),
            routes,
        })
    };
    hosts.iter().map(host).collect::<Result<Vec<_>>>().map(Ok)
}

fn without_layer_4(table: &Value) -> Value {
    let mut table = table.clone();
    if let Some(Value::Object(spec)) = table.get_mut("spec") {
        spec.shift_remove("tcp");
        spec.shift_remove("tls");
    }
    table
}

/// A table with a host of its own for each TCP and TLS route.
fn layer_4(table: &Value) -> Vec<Value> {
    let mut synthetic = Vec::new();
    for kind in ["tcp", "tls"] {
        let routes = table
            .get("spec")
            .and_then(|spec| spec.get(kind))
            .and_then(Value::as_array);
        for (index, route) in routes.into_iter().flatten().enumerate() {
            let forward = route.get("forwardTo").cloned().unwrap_or_default();
            let mut metadata = table.get("metadata").cloned().unwrap_or_default();
            if let Value::Object(metadata) = &mut metadata {
                let name = metadata
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                let name = format!("{name}-{kind}{index}");
                metadata.insert("name".to_owned(), json!(name));
                // Policies apply to HTTP routes.
                metadata.shift_remove("labels");
            }
            synthetic.push(json!({
                "metadata": metadata,
                "spec": {"hosts": [format!("{kind}{index}.{HOST}")], "http": [{"forwardTo": forward}]},
            }));
        }
    }
    synthetic
}

/// Prepares a route.
fn observe(route: &mut Value) {
    let Some(action) = route.get_mut("route") else {
        return;
    };
    if let Some(Value::Object(split)) = action.get_mut("weighted_clusters") {
        split.insert("header_name".to_owned(), json!(PICK));
    }
    let part = |key: &str| action.get(key).cloned().unwrap_or_default();
    let policy = json!([part("timeout"), part("retry_policy")]).to_string();
    let header = json!({
        "header": {"key": POLICY, "value": policy.replace('%', "%%")},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    });
    if let Value::Object(route) = route {
        route.insert("request_headers_to_add".to_owned(), json!([header]));
    }
}

/// Numbers the owner's routes by their position, so that an answer names its route, and returns what the judge needs of them.
pub(super) fn number(hosts: &mut [Host]) -> Vec<OwnerRoute> {
    let mut numbered = Vec::new();
    for route in hosts.iter_mut().flat_map(|host| &mut host.routes) {
        let name = route.get("name").and_then(Value::as_str);
        numbered.push(OwnerRoute {
            name: name.unwrap_or_default().to_owned(),
            clusters: clusters(route),
        });
        if let Value::Object(route) = route {
            let number = (numbered.len() - 1).to_string();
            route.insert("name".to_owned(), json!(number));
        }
    }
    numbered
}

/// The clusters of a route with their weights.
fn clusters(route: &Value) -> Vec<(String, u32)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(cluster) = route.pointer("/route/cluster").and_then(text) {
        return vec![(cluster, 100)];
    }
    let list = route.pointer("/route/weighted_clusters/clusters");
    let list = list.and_then(Value::as_array).into_iter().flatten();
    let parts = list.filter_map(|part| {
        let weight = part.get("weight")?.as_u64()?;
        Some((text(part.get("name")?)?, u32::try_from(weight).ok()?))
    });
    parts.collect()
}

/// The virtual host of Envoy. `tag` is a host name without the domain.
pub(super) fn virtual_host(tag: &str, host: &Host) -> Value {
    let name = authority(tag, &host.id);
    json!({"name": name, "domains": [name], "routes": host.routes})
}

/// The host of a request.
pub(super) fn authority(tag: &str, id: &str) -> String {
    match id {
        "" => format!("{tag}.example.com"),
        id => format!("{id}-{tag}.example.com"),
    }
}
