//! EndpointSlices and the metadata of Pods in the Kubernetes API.
//!
//! The controller's role permits to list and watch Pods, but not to get one. Only the metadata of Pods is requested.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use gloo_types::{Document, ObjectKey};
use serde_json::Value;
use tokio::time::timeout;

use super::{Informer, KubeRouteStore};
use crate::endpoints::{Endpoint, EndpointStream, POD_HASH, SERVICE_NAME, endpoints_in};
use crate::resources::EndpointSlice;
use crate::{FRESH, Keep, Kept};

/// Returns the label selector of the slices of `services`.
pub(super) fn slices_of(services: &[&str]) -> String {
    format!("{SERVICE_NAME} in ({})", services.join(","))
}

/// Returns the label selector of the Pods of a version.
pub(super) fn pods_of(hash: &str) -> String {
    format!("{POD_HASH}={hash}")
}

/// The longest time without an item in the stream: the watch can become stale without a change.
const CHECK: Duration = Duration::from_secs(15);

/// The [`Keep`] of slices, which decodes their endpoints.
struct SliceKeeper;

struct Slice {
    key: ObjectKey,
    version: String,
    endpoints: Vec<Endpoint>,
}

impl Keep for SliceKeeper {
    type Kind = EndpointSlice;
    type Kept = Slice;

    fn keep(&self, object: &str) -> Result<Slice, Box<dyn Error + Send + Sync>> {
        let object: Value = serde_json::from_str(object)?;
        let slice: Document<EndpointSlice> = Document::from_value(object)?;
        Ok(Slice {
            endpoints: endpoints_in(&slice)?,
            key: slice.key().clone(),
            version: slice.resource_version().unwrap_or_default().to_owned(),
        })
    }
}

impl Kept for Slice {
    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn version(&self) -> &str {
        &self.version
    }
}

impl KubeRouteStore {
    /// Watches the slices of `services` until the stream is dropped, and yields their endpoints. Needs a Tokio runtime.
    pub(crate) fn follow_endpoints_of(
        self: &Arc<Self>,
        namespace: &str,
        services: &[&str],
    ) -> EndpointStream<'static> {
        let slices = slices_of(services);
        let informer = Informer::with_labels(Arc::clone(self), SliceKeeper, Some(slices));
        let changes = informer.subscribe();
        informer.watch_only(&BTreeSet::from([namespace.to_owned()]));
        let begin = (informer, changes, namespace.to_owned(), true);
        stream::unfold(
            begin,
            async |(informer, mut changes, namespace, is_first)| {
                if is_first {
                    informer.settled(Some(&namespace)).await;
                } else {
                    // A timeout and a lagging receiver both yield the endpoints again.
                    let _ = timeout(CHECK, changes.recv()).await;
                }
                // Several changes at once yield one item.
                while changes.try_recv().is_ok() {}
                let known = informer.objects(Some(&namespace), FRESH).ok();
                let endpoints = known.map(|slices| {
                    let endpoints = slices.iter().map(|slice| slice.endpoints.iter().cloned());
                    endpoints.flatten().collect()
                });
                Some((endpoints, (informer, changes, namespace, false)))
            },
        )
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_pods_are_selected_by_label() {
        assert_eq!(
            slices_of(&["web", "web-canary"]),
            "kubernetes.io/service-name in (web,web-canary)"
        );
        assert_eq!(pods_of("6d4f"), "rollouts-pod-template-hash=6d4f");
    }
}
