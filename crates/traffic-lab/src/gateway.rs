//! The configuration of a gateway: the routes of a translation, and the Pods of a Service for each cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use envoy_routes::{Backend, Translation};
use gloo_types::DestinationKind;
use serde_json::{Map, Value};

use crate::{Envoy, LabError};

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
}

impl ServiceName {
    /// The Service `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// A Pod behind a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the Pod. The port of the Service is not used.
    pub address: SocketAddr,
    /// Labels of the Pod, for subsets.
    pub labels: BTreeMap<String, String>,
}

/// An Envoy, and the routes, clusters and endpoints that it has received.
#[derive(Debug)]
pub struct Gateway {
    envoy: Envoy,
    clusters: BTreeMap<String, Backend>,
    services: BTreeMap<ServiceName, Vec<Endpoint>>,
    /// The route configuration of each part.
    routes: BTreeMap<Part, Value>,
}

/// A part of a gateway's routes that changes independently of the others. No two parts have the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part(pub usize);

impl Gateway {
    /// A gateway without routes and endpoints.
    #[must_use]
    pub fn new(envoy: Envoy) -> Self {
        Self {
            envoy,
            clusters: BTreeMap::new(),
            services: BTreeMap::new(),
            routes: BTreeMap::new(),
        }
    }

    /// The address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.envoy.address()
    }

    /// The Envoy.
    pub fn envoy(&mut self) -> &mut Envoy {
        &mut self.envoy
    }

    /// Replaces the routes. It adds clusters first, so that no route forwards to a missing cluster.
    ///
    /// # Errors
    /// Returns `Err` if a part is not translated, or Envoy rejects it.
    pub async fn set_routes(&mut self, translation: &Translation) -> Result<(), LabError> {
        self.set_part(Part::default(), translation).await
    }

    /// Replaces a part of the routes. The other parts do not change.
    ///
    /// # Errors
    /// See [`Gateway::set_routes`]. Envoy rejects parts with the same host.
    pub async fn set_part(
        &mut self,
        part: Part,
        translation: &Translation,
    ) -> Result<(), LabError> {
        if let Some(first) = translation.untranslated.first() {
            return Err(LabError::Untranslated(first.clone()));
        }
        let endpoints = self.add_clusters(translation);
        self.envoy.set_endpoints(&endpoints).await?;
        let configuration = translation.route_configuration.clone();
        self.routes.insert(part, configuration);
        self.envoy.set_routes(&joined(self.routes.values())).await
    }

    /// Replaces the Pods behind a Service.
    ///
    /// # Errors
    /// Returns `Err` if Envoy rejects them.
    pub async fn set_endpoints(
        &mut self,
        service: &ServiceName,
        endpoints: Vec<Endpoint>,
    ) -> Result<(), LabError> {
        self.services.insert(service.clone(), endpoints);
        let affected = self.clusters_of(service);
        self.envoy.set_endpoints(&affected).await
    }

    /// Adds the new clusters, and returns their endpoints.
    fn add_clusters(&mut self, translation: &Translation) -> BTreeMap<String, Vec<SocketAddr>> {
        let mut new = BTreeMap::new();
        for (name, backend) in &translation.clusters {
            if !self.clusters.contains_key(name) {
                new.insert(name.clone(), self.endpoints(backend));
                self.clusters.insert(name.clone(), backend.clone());
            }
        }
        new
    }

    /// Returns the endpoints of all clusters of a Service. They differ in port and subset.
    fn clusters_of(&self, service: &ServiceName) -> BTreeMap<String, Vec<SocketAddr>> {
        let is_affected = |backend: &Backend| {
            backend.namespace == service.namespace && backend.name == service.name
        };
        let clusters = self.clusters.iter();
        clusters
            .filter(|(_, backend)| is_affected(backend))
            .map(|(name, backend)| (name.clone(), self.endpoints(backend)))
            .collect()
    }

    /// Returns the Pods of a backend; empty unless the backend is a Service of this cluster.
    fn endpoints(&self, backend: &Backend) -> Vec<SocketAddr> {
        if backend.kind != DestinationKind::Service || !backend.cluster.is_empty() {
            return Vec::new();
        }
        let name = ServiceName::new(&backend.namespace, &backend.name);
        let pods = self.services.get(&name).into_iter().flatten();
        let is_in_subset = |pod: &&Endpoint| {
            let mut subset = backend.subset.iter();
            subset.all(|(key, value)| pod.labels.get(key) == Some(value))
        };
        pods.filter(is_in_subset).map(|pod| pod.address).collect()
    }
}

/// Returns one route configuration with the virtual hosts of all parts.
fn joined<'a>(parts: impl Iterator<Item = &'a Value>) -> Value {
    let mut all = Map::new();
    let mut hosts = Vec::new();
    for part in parts {
        let fields = part.as_object().into_iter().flatten();
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("virtual_hosts", Value::Array(its)) => hosts.extend(its.iter().cloned()),
                _ => drop(all.insert(key.clone(), value.clone())),
            }
        }
    }
    all.insert("virtual_hosts".to_owned(), hosts.into());
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(parts: &[Value], expect: &Value) {
        assert_eq!(joined(parts.iter()), *expect);
    }

    #[test]
    fn parts_become_one_configuration_with_all_hosts() {
        let part = |host: &str| json!({"virtual_hosts": [{"name": host}], "ignore_port_in_host_matching": true});
        check(&[], &json!({"virtual_hosts": []}));
        check(&[part("a")], &part("a"));
        check(
            &[part("a"), part("b")],
            &json!({"virtual_hosts": [{"name": "a"}, {"name": "b"}], "ignore_port_in_host_matching": true}),
        );
    }
}
