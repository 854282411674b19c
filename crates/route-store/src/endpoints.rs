//! The endpoints behind Services and the Pods of one version, which the promotion guard compares.
//!
//! They are read from EndpointSlices. Endpoints objects are deprecated, have at most 1,000 addresses, and the controller's
//! role has no permission to watch them.

use futures::stream::BoxStream;
use gloo_types::Document;
use serde::Deserialize;

use crate::StoreError;
use crate::resources::EndpointSlice;

/// The label of a slice with the name of its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The label that the controller sets on the Pods of a version (upstream `utils/defaults`).
pub(crate) const POD_HASH: &str = "rollouts-pod-template-hash";

/// One endpoint of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the Service.
    pub service: String,
    /// Uid of the Pod in `targetRef`; `None` without a Pod there.
    pub pod: Option<String>,
    /// `conditions.ready`.
    pub ready: Option<bool>,
    /// `conditions.terminating`.
    pub terminating: Option<bool>,
}

/// Yields the endpoints of some Services after each change and several times a minute; `None` while they are stale or
/// unknown. It never ends.
pub type EndpointStream<'s> = BoxStream<'s, Option<Vec<Endpoint>>>;

#[derive(Deserialize)]
struct SliceContent {
    endpoints: Option<Vec<EndpointContent>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointContent {
    conditions: Option<Conditions>,
    target_ref: Option<TargetRef>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TargetRef {
    kind: String,
    uid: String,
}

/// Returns the endpoints of one slice.
///
/// # Errors
/// Returns [`StoreError::Unreadable`] if a field has the wrong type.
pub(crate) fn endpoints_in(slice: &Document<EndpointSlice>) -> Result<Vec<Endpoint>, StoreError> {
    let content = SliceContent::deserialize(slice.raw()).map_err(|error| {
        let what = crate::error::label::<EndpointSlice>(slice.key());
        StoreError::unreadable::<EndpointSlice>(what, error)
    })?;
    let service = slice.labels().get(SERVICE_NAME);
    let endpoint = |content: EndpointContent| {
        let conditions = content.conditions.unwrap_or_default();
        let pod = content.target_ref.filter(|target| target.kind == "Pod");
        Endpoint {
            service: service.cloned().unwrap_or_default(),
            pod: pod.map(|pod| pod.uid).filter(|uid| !uid.is_empty()),
            ready: conditions.ready,
            terminating: conditions.terminating,
        }
    };
    let endpoints = content.endpoints.unwrap_or_default();
    Ok(endpoints.into_iter().map(endpoint).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Pod, ready, terminating.
    type Read<'a> = (Option<&'a str>, Option<bool>, Option<bool>);

    #[track_caller]
    fn check(endpoints: Value, expect: Option<Vec<Read<'_>>>) {
        let labels = json!({SERVICE_NAME: "web"});
        let metadata = json!({"name": "web-x", "namespace": "shop", "labels": labels});
        let slice = json!({"metadata": metadata, "endpoints": endpoints});
        let slice = Document::from_value(slice).unwrap();
        let found = endpoints_in(&slice).ok();
        let found: Option<Vec<Read<'_>>> = found.as_ref().map(|found| {
            assert!(found.iter().all(|endpoint| endpoint.service == "web"));
            let found = found.iter();
            found
                .map(|it| (it.pod.as_deref(), it.ready, it.terminating))
                .collect()
        });
        assert_eq!(found, expect);
    }

    #[test]
    fn reads_the_endpoints_of_a_slice() {
        let pod = json!({"kind": "Pod", "name": "web-1", "namespace": "shop", "uid": "u1"});
        check(json!(null), Some(vec![]));
        check(
            json!([{"addresses": ["10.0.0.1"], "targetRef": pod,
                    "conditions": {"ready": false, "serving": true, "terminating": true}}]),
            Some(vec![(Some("u1"), Some(false), Some(true))]),
        );
        check(
            json!([{"addresses": ["10.0.0.1"], "targetRef": pod}]),
            Some(vec![(Some("u1"), None, None)]),
        );
        check(
            json!([{"targetRef": pod, "conditions": {"ready": null}}]),
            Some(vec![(Some("u1"), None, None)]),
        );
        let node = json!({"kind": "Node", "uid": "n1"});
        check(
            json!([{"targetRef": node}, {}, {"targetRef": {"kind": "Pod"}}]),
            Some(vec![(None, None, None); 3]),
        );
        check(json!([{"conditions": {"ready": "yes"}}]), None);
    }
}
