//! A stand-in for the EndpointSlice controller and the kubelet: the test creates Pods and sets the endpoints of Services.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::json;

use crate::{Canary, Cluster, manifest};

/// The Pods and EndpointSlices of a namespace.
pub struct Endpoints {
    namespace: String,
    pods: Api<Pod>,
    client: kube::Client,
    /// Uids by name.
    uids: BTreeMap<String, String>,
}

impl Endpoints {
    /// Prepares a namespace for Pods.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn of(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let client = cluster.client().clone();
        // No controller creates the default account, which every Pod needs.
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": "default", "namespace": namespace },
            "automountServiceAccountToken": false,
        });
        manifest::apply(&client, &[serde_json::from_value(account)?]).await?;
        Ok(Self {
            namespace: namespace.to_owned(),
            pods: Api::namespaced(client.clone(), namespace),
            client,
            uids: BTreeMap::new(),
        })
    }

    /// Creates Pods of the Rollout's newest version.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn add_pods(&mut self, canary: &Canary, names: &[&str]) -> Result<()> {
        let rollout = canary.rollout().await?;
        let hash = rollout.data.pointer("/status/currentPodHash");
        let hash = hash.and_then(|hash| hash.as_str()).context("no hash")?;
        for name in names {
            self.add_pod(name, hash).await?;
        }
        Ok(())
    }

    /// Creates a Pod of the version with this Pod template hash.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn add_pod(&mut self, name: &str, hash: &str) -> Result<()> {
        let labels = json!({ "app": "demo", "rollouts-pod-template-hash": hash });
        let containers = json!([{ "name": "app", "image": "registry.example.com/demo" }]);
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels },
            "spec": { "containers": containers },
        }))?;
        let pod: Pod = self.pods.create(&PostParams::default(), &pod).await?;
        let uid = pod.metadata.uid.context("no uid")?;
        self.uids.insert((*name).to_owned(), uid);
        Ok(())
    }

    /// Sets the endpoints of a Service to these Pods, which are ready.
    ///
    /// # Errors
    /// Returns `Err` if a Pod does not exist, or the API server rejects the slice.
    pub async fn set_endpoints(&self, service: &str, pods: &[&str]) -> Result<()> {
        let mut endpoints = Vec::new();
        for name in pods {
            let uid = self.uids.get(*name).context("no such Pod")?;
            let pod =
                json!({ "kind": "Pod", "namespace": self.namespace, "name": name, "uid": uid });
            endpoints.push(json!({
                "addresses": [format!("10.1.0.{}", endpoints.len() + 1)],
                "conditions": { "ready": true },
                "targetRef": pod,
            }));
        }
        let slice: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": service,
                "namespace": self.namespace,
                "labels": { "kubernetes.io/service-name": service },
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
        }))?;
        manifest::apply(&self.client, &[slice]).await
    }
}
