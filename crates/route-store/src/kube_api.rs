//! The store over the Kubernetes API: one client, one budget and one breaker per API server.
//!
//! Objects are read as untyped JSON, so that fields unknown to this crate are kept.
//!
//! Each request other than a watch passes these steps:
//!
//! ```text
//! RequestContext (priority, deadline)
//!      |
//!      v
//!   send.rs   end = min(now + request timeout, deadline - 100 ms) ----- passed? -----> Timeout, CallEnded
//!      |
//!      v  each try: kube's client, in which layer.rs is the outermost layer
//!   breaker  open, and this request is neither the probe nor urgent? ----------------> Failing
//!      |
//!      v
//!   budget   waits for a token, in order of priority; turn after `end`? -------------> Throttled
//!      |
//!      v
//!   breaker  admits; HTTP request; the outcome is reported to the breaker and the observer
//!      |
//!      v
//!   retry    429, 503, 504, broken connection: at most 3 tries, with a pause that ends before `end`
//!      |
//!      v
//!   answer, or the error of the last try
//! ```
//!
//! Lists for the cache and Events take the same way with a low [`Priority`]. A watch takes neither a token nor a permission
//! of the breaker, but every event that it receives closes the breaker. A request of kube's own helpers, with the client of
//! [`KubeRouteStore::client`], takes the same way but for the retry.

mod breaker;
mod client_error;
mod connect;
mod endpoints;
mod gate;
mod informer;
mod layer;
mod proof;
mod send;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, future, stream};
use gloo_types::{
    Document, MirrorPolicy, MirrorPolicyDoc, ObjectKey, Resource, RouteTableDoc,
    RouteTableSelector, ServicePort,
};
use json_patch::Patch;
use kube::{
    Client,
    core::{
        Request,
        params::{
            DeleteParams, GetParams, ListParams, Patch as Body, PatchParams, PostParams,
            Preconditions,
        },
    },
};
use rollout_types::Rollout;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::endpoints::endpoints_in;
use crate::event_sink::EventWriter;
use crate::lease::{Lease, LeaseReader};
use crate::resources::{CoreEvent, EndpointSlice, LeaseObject, Pod, Service};
use crate::{
    Endpoint, Freshness, Observer, Priority, RolloutDoc, RolloutReader, RouteStore, Selection,
    StoreError, lock, with_priority,
};

#[cfg(test)]
pub(crate) use client_error::CertificateFault;
pub use client_error::ClientError;
pub use connect::{ConnectError, KubeAccess, user_agent, user_agent_header};
use connect::{connect, wrapped};
use endpoints::{pods_of, slices_of};
use gate::Gate;
pub(crate) use informer::compare;
pub use informer::{Informer, InformerStatus, ScopeStatus, Unknown};
use send::{Call, HttpRequest, RequestError};
pub use watch::WholeDocuments;

/// Maximum number of objects in the answer to one list request.
const PAGE: u32 = 250;

/// Maximum number of concurrent reads for one selection.
const READS_AT_ONCE: usize = 16;

/// A store over the Kubernetes API.
///
/// The first request creates the client. So creating the store does not wait for an unreachable cluster, and if the client
/// cannot be created, the next request tries again.
pub struct KubeRouteStore {
    access: KubeAccess,
    /// The client of [`with_client`](Self::with_client).
    given: Option<Client>,
    client: OnceCell<(Client, String)>,
    gate: Arc<Gate>,
    /// When the version of each kind was asked for, so that the watches of several namespaces ask once.
    probes: Mutex<BTreeMap<&'static str, Instant>>,
}

fn gate(access: &KubeAccess, observer: Arc<dyn Observer>) -> Arc<Gate> {
    let (name, timeout) = (access.to_string(), access.request_timeout);
    Arc::new(Gate::new(name, timeout, access.limits, observer))
}

impl KubeRouteStore {
    /// A store for the cluster in `access`. Reads no file and sends no request yet.
    #[must_use]
    pub fn new(access: KubeAccess) -> Self {
        Self {
            gate: gate(&access, Arc::new(())),
            access,
            given: None,
            client: OnceCell::new(),
            probes: Mutex::default(),
        }
    }

    /// A store that uses `client`, with `request_timeout` for each request.
    #[must_use]
    pub fn with_client(client: Client, request_timeout: Duration) -> Self {
        let access = KubeAccess {
            request_timeout,
            ..KubeAccess::default()
        };
        Self {
            given: Some(client),
            ..Self::new(access)
        }
    }

    /// Reports every request to `observer`.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.gate = gate(&self.access, observer);
        self
    }

    /// Returns the client, and creates it on the first call. Each request of it passes the limits, the breaker and the observer of this
    /// store, with the priority and the deadline of the caller's [`RequestContext`](crate::RequestContext).
    ///
    /// # Errors
    /// Returns `Err` if the configuration is invalid.
    pub async fn client(&self) -> Result<&Client, ConnectError> {
        let connected = self.client.get_or_try_init(async || match &self.given {
            Some(client) => Ok((wrapped(client, &self.gate), String::new())),
            None => connect(&self.access, &self.gate).await,
        });
        Ok(&connected.await?.0)
    }

    /// Returns the address of the API server; empty before the first call of [`client`](Self::client).
    pub fn server(&self) -> &str {
        self.client.get().map_or("", |(_, server)| server)
    }

    /// Lists the objects of one kind in a namespace, or in all namespaces.
    ///
    /// # Errors
    /// Returns [`StoreError::NotFound`] if the API server has no such resource, and other errors if it does not answer or
    /// forbids the request.
    pub async fn objects<K: Resource>(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<Document<K>>, StoreError> {
        self.list(namespace, ListParams::default()).await
    }

    /// Returns whether a request for the version of a kind is due, because none was sent after `since`, and notes that it is sent.
    fn begins_probe(&self, kind: &'static str, since: Instant) -> bool {
        let mut probes = lock(&self.probes);
        let is_due = probes.get(kind).is_none_or(|last| *last < since);
        if is_due {
            probes.insert(kind, Instant::now());
        }
        is_due
    }

    async fn list<K: Resource>(
        &self,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<Vec<Document<K>>, StoreError> {
        let call = Call::many::<K>("list", namespace);
        let items = self.list_pages(&call, params, Request::list).await?;
        items.into_iter().map(|item| call.parse(item)).collect()
    }

    /// Returns the items of all pages. `request` makes the request for a page.
    async fn list_pages(
        &self,
        call: &Call,
        params: ListParams,
        request: fn(&Request, &ListParams) -> Result<HttpRequest, RequestError>,
    ) -> Result<Vec<Value>, StoreError> {
        let mut params = params.limit(PAGE);
        let mut all = Vec::new();
        loop {
            let mut page = self.send(call, request(&call.path, &params)).await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(token) if !token.is_empty() => params.continue_token = Some(token.to_owned()),
                _ => return Ok(all),
            }
        }
    }

    pub(crate) async fn get_object<K: Resource>(
        &self,
        key: &ObjectKey,
    ) -> Result<Document<K>, StoreError> {
        let call = Call::on::<K>("get", key);
        let request = call.path.get(&key.name, &GetParams::default());
        call.parse(self.send(&call, request).await?)
    }

    async fn patch_object<K: Resource>(
        &self,
        key: &ObjectKey,
        patch: &Patch,
        suffix: &str,
    ) -> Result<Document<K>, StoreError> {
        let call = Call::on::<K>("patch", key);
        let params = PatchParams::apply(&format!("{}{suffix}", self.access.field_manager));
        let body = Body::<()>::Json(patch.clone());
        let request = call.path.patch(&key.name, &params, &body);
        call.parse(self.send(&call, request).await?)
    }

    async fn create(&self, call: &Call, object: &Value) -> Result<Value, StoreError> {
        let params = PostParams {
            field_manager: Some(self.access.field_manager.clone()),
            ..PostParams::default()
        };
        let object = object.to_string().into_bytes();
        let request = call.path.create(&params, object);
        self.send(call, request).await
    }

    /// Reads the tables of this name in the selector's namespaces.
    async fn select_name(&self, selector: &RouteTableSelector, name: &str) -> Selection {
        let namespaces = selector.namespaces.iter();
        let reads =
            namespaces.map(async |namespace| self.read(&ObjectKey::new(namespace, name)).await);
        let reads = future::join_all(reads).await.into_iter();
        let found = reads.filter(|read| !matches!(read, Err(StoreError::NotFound { .. })));
        let mut selection: Selection = found.collect();
        if selection.tables.is_empty() && selection.errors.is_empty() {
            selection.errors.push(selector.absent(name).into());
        }
        selection
    }
}

impl RouteStore for KubeRouteStore {
    async fn select(&self, selector: &RouteTableSelector, _freshness: Freshness) -> Selection {
        let names = selector.names.iter();
        let by_name = names.map(|name| self.select_name(selector, name).boxed());
        let labels = selector.label_selector_string();
        let params = labels.map(|labels| ListParams::default().labels(&labels));
        let by_labels = params.iter().flat_map(|params| {
            let namespaces = selector.namespaces.iter();
            let lists = namespaces.map(|it| self.list(Some(it), params.clone()));
            lists.map(|list| list.map(Selection::of_all).boxed())
        });
        // `buffered` keeps the order, so that the same failures give the same text.
        stream::iter(by_name.chain(by_labels).collect::<Vec<_>>())
            .buffered(READS_AT_ONCE)
            .fold(Selection::default(), async |all, part| all.and(part))
            .await
    }

    async fn marked(&self, _rollout: &ObjectKey) -> Selection {
        Selection::of_all(self.objects(None).await)
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.get_object(key).await
    }

    fn field_manager(&self) -> &str {
        &self.access.field_manager
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.patch_object(key, patch, "").await
    }

    async fn hand_back(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        // A client that changes a list becomes its manager, and the list of routes has one manager as a whole. Argo CD can be
        // configured to ignore all fields of a manager. If that were still the manager at rest, Argo CD would no longer apply
        // changes of the routes from Git.
        self.patch_object(key, patch, "-at-rest").await
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.objects(None).await
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let document = MirrorPolicyDoc::from_value(policy.clone())
            .map_err(|error| StoreError::unreadable::<MirrorPolicy>("the new object", error))?;
        let call = Call::on::<MirrorPolicy>("create", document.key());
        call.parse(self.create(&call, policy).await?)
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.patch_object(key, patch, "").await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        let key = policy.key();
        let call = Call::on::<MirrorPolicy>("delete", key);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: policy.resource_version().map(str::to_owned),
                uid: None,
            }),
            ..DeleteParams::default()
        };
        let request = call.path.delete(&key.name, &params);
        self.send(&call, request).await.map(drop)
    }
}

impl RolloutReader for KubeRouteStore {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        StoreError::or_none(self.get_object(key).await)
    }

    async fn knows_rollouts(&self, namespace: &str) -> Result<bool, StoreError> {
        let call = Call::many::<Rollout>("list", Some(namespace));
        let params = ListParams::default().limit(1);
        let request = call.path.list(&params);
        Ok(StoreError::or_none(self.send(&call, request).await)?.is_some())
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        let service = StoreError::or_none(self.get_object::<Service>(key).await)?;
        Ok(service.map(|it| ServicePort::all(it.raw())))
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        let params = ListParams::default().labels(&slices_of(services));
        let slices = self.list::<EndpointSlice>(Some(namespace), params).await?;
        let endpoints: Result<Vec<_>, _> = slices.iter().map(endpoints_in).collect();
        Ok(Some(endpoints?.concat()))
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        let call = Call::many::<Pod>("list", Some(namespace));
        let params = ListParams::default().labels(&pods_of(hash));
        let pods = self.list_pages(&call, params, Request::list_metadata);
        let uid = |pod: &Value| Some(pod.pointer("/metadata/uid")?.as_str()?.to_owned());
        Ok(pods.await?.iter().filter_map(uid).collect())
    }
}

impl LeaseReader for KubeRouteStore {
    async fn lease(&self, key: &ObjectKey) -> Result<Option<Lease>, StoreError> {
        let lease = StoreError::or_none(self.get_object::<LeaseObject>(key).await)?;
        Ok(lease.and_then(|it| Lease::from_object(it.raw())))
    }
}

impl EventWriter for KubeRouteStore {
    async fn create_event(&self, key: &ObjectKey, event: &Value) -> Result<(), StoreError> {
        let call = Call::on::<CoreEvent>("create", key);
        let created = self.create(&call, event);
        with_priority(Priority::Event, created).await.map(drop)
    }

    async fn patch_event(&self, key: &ObjectKey, change: &Value) -> Result<(), StoreError> {
        let call = Call::on::<CoreEvent>("patch", key);
        let params = PatchParams::apply(&self.access.field_manager);
        let body = Body::Merge(change);
        let request = call.path.patch(&key.name, &params, &body);
        let sent = with_priority(Priority::Event, self.send(&call, request));
        sent.await.map(drop)
    }
}

impl KubeRouteStore {
    /// Lists the Events of `component` in a namespace, or in all namespaces.
    ///
    /// # Errors
    /// Returns `Err` if the API server does not answer or forbids the request.
    pub async fn events(
        &self,
        namespace: Option<&str>,
        component: &str,
    ) -> Result<Vec<Value>, StoreError> {
        let params = ListParams::default().fields(&format!("source={component}"));
        let events = self.list::<CoreEvent>(namespace, params).await?;
        Ok(events.into_iter().map(Document::into_raw).collect())
    }
}

#[cfg(test)]
mod tests;
