//! Events in the Kubernetes API.

use gloo_types::{Document, ObjectKey, Resource};
use kube::core::params::{ListParams, Patch as Body, PatchParams, PostParams};
use serde_json::Value;

use super::{Call, FIELD_MANAGER, HttpRequest, KubeRouteStore, RequestError, resource};
use crate::event_sink::EventWriter;
use crate::{Priority, RequestContext, StoreError, with_context};

/// `v1` Event: the controller's role has no permission for those of `events.k8s.io`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CoreEvent {}

impl Resource for CoreEvent {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Event";
    const PLURAL: &'static str = "events";

    type Spec = Value;
    type Status = Value;
}

impl EventWriter for KubeRouteStore {
    async fn create_event(&self, key: &ObjectKey, event: &Value) -> Result<(), StoreError> {
        let call = Call::on::<CoreEvent>("create", key);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        let path = resource::<CoreEvent>(Some(&key.namespace));
        let request = path.create(&params, event.to_string().into_bytes());
        self.send_event(&call, request).await
    }

    async fn patch_event(&self, key: &ObjectKey, change: &Value) -> Result<(), StoreError> {
        let call = Call::on::<CoreEvent>("patch", key);
        let params = PatchParams::apply(FIELD_MANAGER);
        let path = resource::<CoreEvent>(Some(&key.namespace));
        let request = path.patch(&key.name, &params, &Body::Merge(change));
        self.send_event(&call, request).await
    }
}

impl KubeRouteStore {
    /// The Events of `component` in a namespace, or in all.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub async fn events(
        &self,
        namespace: Option<&str>,
        component: &str,
    ) -> Result<Vec<Value>, StoreError> {
        let params = ListParams::default().fields(&format!("source={component}"));
        let events = self.list::<CoreEvent>(namespace, params).await?;
        Ok(events.into_iter().map(Document::into_raw).collect())
    }

    async fn send_event(
        &self,
        call: &Call,
        request: Result<HttpRequest, RequestError>,
    ) -> Result<(), StoreError> {
        let context = RequestContext {
            deadline: None,
            priority: Priority::Event,
        };
        with_context(context, self.send(call, request))
            .await
            .map(|_| ())
    }
}
