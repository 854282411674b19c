//! What a gateway serves: the routes of a translation, and for each of its clusters the Pods of a Service.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use envoy_routes::{Backend, Translation};
use gloo_types::DestinationKind;

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
    /// Where the Pod serves, whatever the port of the Service.
    pub address: SocketAddr,
    /// Labels of the Pod, for subsets.
    pub labels: BTreeMap<String, String>,
}

/// An Envoy, with what it has heard of.
#[derive(Debug)]
pub struct Gateway {
    envoy: Envoy,
    clusters: BTreeMap<String, Backend>,
    services: BTreeMap<ServiceName, Vec<Endpoint>>,
}

impl Gateway {
    /// A gateway that has heard of nothing.
    #[must_use]
    pub fn new(envoy: Envoy) -> Self {
        Self {
            envoy,
            clusters: BTreeMap::new(),
            services: BTreeMap::new(),
        }
    }

    /// Where it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.envoy.address()
    }

    /// The Envoy behind it.
    pub fn envoy(&mut self) -> &mut Envoy {
        &mut self.envoy
    }

    /// Serves the routes. Clusters come first, so that no request meets a route to a cluster that is not there.
    ///
    /// # Errors
    /// Returns `Err` if something is not translated, or Envoy refuses it.
    pub async fn set_routes(&mut self, translation: &Translation) -> Result<(), LabError> {
        if let Some(first) = translation.untranslated.first() {
            return Err(LabError::Untranslated(first.clone()));
        }
        let endpoints = self.add_clusters(translation);
        self.envoy.set_endpoints(&endpoints).await?;
        self.envoy
            .set_routes(&translation.route_configuration)
            .await
    }

    /// Takes over the Pods behind a Service.
    ///
    /// # Errors
    /// Returns `Err` if Envoy refuses them.
    pub async fn set_endpoints(
        &mut self,
        service: &ServiceName,
        endpoints: Vec<Endpoint>,
    ) -> Result<(), LabError> {
        self.services.insert(service.clone(), endpoints);
        let affected = self.clusters_of(service);
        self.envoy.set_endpoints(&affected).await
    }

    /// Adds the clusters that are new, and returns their endpoints.
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

    /// The clusters of a Service, which differ in port and subset, and their endpoints.
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

    /// The Pods of a backend; none unless the backend is a Service of this cluster.
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
