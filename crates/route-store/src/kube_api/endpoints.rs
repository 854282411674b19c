//! EndpointSlices and the metadata of Pods in the Kubernetes API.
//!
//! The controller's role may list and watch Pods, and not get one. Of a Pod only the metadata is asked for.

use std::collections::BTreeSet;

use kube::core::params::ListParams;
use serde_json::Value;

use super::{Call, KubeRouteStore, PAGE, resource};
use crate::StoreError;
use crate::endpoints::{
    Endpoint, EndpointReader, EndpointSlice, Pod, endpoints_in, pods_of, slices_of,
};

impl EndpointReader for KubeRouteStore {
    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        let params = ListParams::default().labels(&slices_of(services));
        let slices = self.list::<EndpointSlice>(Some(namespace), params).await?;
        let mut endpoints = Vec::new();
        for slice in &slices {
            endpoints.extend(endpoints_in(slice)?);
        }
        Ok(Some(endpoints))
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        let call = Call::many::<Pod>("list", Some(namespace));
        let mut params = ListParams::default().labels(&pods_of(hash)).limit(PAGE);
        let mut uids = BTreeSet::new();
        loop {
            let request = resource::<Pod>(Some(namespace)).list_metadata(&params);
            let page = self.send(&call, request).await?;
            let items = page.get("items").and_then(Value::as_array);
            for pod in items.into_iter().flatten() {
                let uid = pod.pointer("/metadata/uid").and_then(Value::as_str);
                uids.extend(uid.map(str::to_owned));
            }
            let token = page.pointer("/metadata/continue").and_then(Value::as_str);
            match token {
                Some(token) if !token.is_empty() => params.continue_token = Some(token.to_owned()),
                _ => return Ok(uids),
            }
        }
    }
}
