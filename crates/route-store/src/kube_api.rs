//! RouteTables and MirrorPolicies in the Kubernetes API.
//!
//! Documents are read as raw JSON, never through a typed object: what this crate does not know
//! must survive.

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use gloo_types::{
    Document, MirrorPolicy, MirrorPolicyDoc, ObjectKey, Resource, RouteTableDoc, RouteTableSelector,
};
use json_patch::Patch;
use kube::{
    Client,
    core::{
        Request, Status,
        params::{
            DeleteParams, GetParams, ListParams, Patch as Body, PatchParams, PostParams,
            Preconditions,
        },
    },
};
use rollout_types::Rollout;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    Freshness, Observer, PolicyStore, RolloutDoc, RolloutReader, RouteStore, Selection,
    ServiceReader, StoreError,
    error::label,
    lease::{Lease, LeaseObject, LeaseReader},
    service::{self, Service},
};

/// The name under which our writes appear in `metadata.managedFields`.
pub const FIELD_MANAGER: &str = "rollouts-plugin-trafficrouter-glooplatform";

/// The name for the change that makes a table its owner's again.
///
/// Argo CD can leave alone what a manager owns, and a list of routes is owned as a whole: were [`FIELD_MANAGER`] its owner
/// at rest, no edit of the routes would get from Git into the cluster any more. A client that changes a list becomes its manager.
const HAND_BACK_MANAGER: &str = "rollouts-plugin-trafficrouter-glooplatform-at-rest";

/// How many objects one list request may return.
const PAGE: u32 = 250;

/// How many tables of one selection are read at once.
const READS_AT_ONCE: usize = 16;

/// Objects read from and written to the Kubernetes API.
///
/// The client is made when it is first needed: creating the store does not wait for a
/// cluster that cannot be reached, and a later call tries again.
pub struct KubeRouteStore {
    access: KubeAccess,
    client: OnceCell<Client>,
    gate: Gate,
}

impl KubeRouteStore {
    /// A store for the cluster that `access` leads to; reads and sends nothing yet.
    #[must_use]
    pub fn new(access: KubeAccess) -> Self {
        Self {
            gate: Gate::new(access.to_string(), access.limits, access.request_timeout),
            access,
            client: OnceCell::new(),
        }
    }

    /// A store on top of `client`, each request bounded by `request_timeout`.
    #[must_use]
    pub fn with_client(client: Client, request_timeout: Duration) -> Self {
        let access = KubeAccess {
            kubeconfig: None,
            context: None,
            request_timeout,
            limits: RequestLimits::default(),
        };
        Self {
            client: OnceCell::new_with(Some(client)),
            ..Self::new(access)
        }
    }

    /// The same, and `observer` hears of every request.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.gate.observer = observer;
        self
    }

    /// The client, made when it is first needed.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub async fn client(&self) -> Result<&Client, ConnectError> {
        self.client.get_or_try_init(|| connect(&self.access)).await
    }

    /// The RouteTables of a namespace, or of all.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub async fn tables(&self, namespace: Option<&str>) -> Result<Vec<RouteTableDoc>, StoreError> {
        self.list(namespace, ListParams::default()).await
    }

    /// The Rollouts of a namespace, or of all.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub async fn rollouts(&self, namespace: Option<&str>) -> Result<Vec<RolloutDoc>, StoreError> {
        self.list(namespace, ListParams::default()).await
    }

    async fn list<K: Resource>(
        &self,
        namespace: Option<&str>,
        mut params: ListParams,
    ) -> Result<Vec<Document<K>>, StoreError> {
        let call = Call::many::<K>("list", namespace);
        params = params.limit(PAGE);
        let mut objects = Vec::new();
        loop {
            let mut page = self
                .send(&call, resource::<K>(namespace).list(&params))
                .await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                for item in items {
                    objects.push(call.parse(item)?);
                }
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(token) if !token.is_empty() => params.continue_token = Some(token.to_owned()),
                _ => return Ok(objects),
            }
        }
    }

    async fn get_object<K: Resource>(&self, key: &ObjectKey) -> Result<Document<K>, StoreError> {
        let call = Call::on::<K>("get", key);
        let request = resource::<K>(Some(&key.namespace)).get(&key.name, &GetParams::default());
        call.parse(self.send(&call, request).await?)
    }

    async fn patch_object<K: Resource>(
        &self,
        key: &ObjectKey,
        patch: &Patch,
        manager: &str,
    ) -> Result<Document<K>, StoreError> {
        let call = Call::on::<K>("patch", key);
        let params = PatchParams::apply(manager);
        let body = Body::<()>::Json(patch.clone());
        let request = resource::<K>(Some(&key.namespace)).patch(&key.name, &params, &body);
        call.parse(self.send(&call, request).await?)
    }
}

impl KubeRouteStore {
    /// The tables of one name in the selector's namespaces.
    async fn select_name(&self, selector: &RouteTableSelector, name: &str) -> Selection {
        let namespaces = selector.namespaces.iter();
        let reads =
            namespaces.map(async |namespace| self.read(&ObjectKey::new(namespace, name)).await);
        let mut selection = Selection::default();
        for read in future::join_all(reads).await {
            match read {
                Ok(table) => selection.tables.push(table),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => selection.errors.push(error),
            }
        }
        if selection.tables.is_empty() && selection.errors.is_empty() {
            selection.errors.push(selector.absent(name).into());
        }
        selection
    }

    async fn select_labels(&self, namespace: &str, params: ListParams) -> Selection {
        match self.list(Some(namespace), params).await {
            Ok(tables) => Selection {
                tables,
                errors: Vec::new(),
            },
            Err(error) => Selection::failed(error),
        }
    }
}

impl RouteStore for KubeRouteStore {
    async fn select(&self, selector: &RouteTableSelector, _freshness: Freshness) -> Selection {
        let labels = selector.label_selector_string();
        let names = selector.names.iter();
        let mut parts: Vec<BoxFuture<'_, Selection>> = names
            .map(|name| self.select_name(selector, name).boxed())
            .collect();
        for namespace in selector.namespaces.iter().filter(|_| labels.is_some()) {
            let params = ListParams::default().labels(labels.as_deref().unwrap_or_default());
            parts.push(self.select_labels(namespace, params).boxed());
        }
        // In order, so that the same failures make the same text.
        stream::iter(parts)
            .buffered(READS_AT_ONCE)
            .fold(Selection::default(), async |all, part| all.and(part))
            .await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.get_object(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.patch_object(key, patch, FIELD_MANAGER).await
    }

    async fn hand_back(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.patch_object(key, patch, HAND_BACK_MANAGER).await
    }
}

impl PolicyStore for KubeRouteStore {
    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.list(None, ListParams::default()).await
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let document = MirrorPolicyDoc::from_value(policy.clone())
            .map_err(|error| StoreError::unreadable::<MirrorPolicy>("the new object", error))?;
        let call = Call::on::<MirrorPolicy>("create", document.key());
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        let path = resource::<MirrorPolicy>(Some(&document.key().namespace));
        let request = path.create(&params, policy.to_string().into_bytes());
        call.parse(self.send(&call, request).await?)
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.patch_object(key, patch, FIELD_MANAGER).await
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
        let request = resource::<MirrorPolicy>(Some(&key.namespace)).delete(&key.name, &params);
        self.send(&call, request).await.map(|_| ())
    }
}

impl RolloutReader for KubeRouteStore {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        match self.get_object::<Rollout>(key).await {
            Ok(rollout) => Ok(Some(rollout)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn knows_rollouts(&self, namespace: &str) -> Result<bool, StoreError> {
        let call = Call::many::<Rollout>("list", Some(namespace));
        let params = ListParams::default().limit(1);
        let request = resource::<Rollout>(Some(namespace)).list(&params);
        match self.send(&call, request).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl ServiceReader for KubeRouteStore {
    async fn service_port(&self, key: &ObjectKey) -> Result<Option<u32>, StoreError> {
        match self.get_object::<Service>(key).await {
            Ok(service) => Ok(service::first_port(service.raw())),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl LeaseReader for KubeRouteStore {
    async fn lease(&self, key: &ObjectKey) -> Result<Option<Lease>, StoreError> {
        match self.get_object::<LeaseObject>(key).await {
            Ok(lease) => Ok(Lease::from_object(lease.raw())),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

type HttpRequest = http::Request<Vec<u8>>;
type RequestError = kube::core::request::Error;

/// What was asked of the API server, in the words an error uses.
struct Call {
    verb: &'static str,
    kind: &'static str,
    what: String,
    /// As RBAC names it.
    resource: String,
    /// Whether one object was named, so that its state can be in the way.
    is_on_object: bool,
}

impl Call {
    fn on<K: Resource>(verb: &'static str, key: &ObjectKey) -> Self {
        Self {
            verb,
            kind: K::KIND,
            what: label::<K>(key),
            resource: rbac_name::<K>(),
            is_on_object: true,
        }
    }

    fn many<K: Resource>(verb: &'static str, namespace: Option<&str>) -> Self {
        let place = namespace.map_or_else(
            || "all namespaces".to_owned(),
            |name| format!("namespace {name}"),
        );
        Self {
            verb,
            kind: K::KIND,
            what: format!("{} in {place}", K::PLURAL),
            resource: rbac_name::<K>(),
            is_on_object: false,
        }
    }

    fn parse<K: Resource>(&self, object: Value) -> Result<Document<K>, StoreError> {
        Document::from_value(object).map_err(|error| StoreError::unreadable::<K>(&self.what, error))
    }

    fn failed(&self, error: kube::Error) -> StoreError {
        let kube::Error::Api(status) = &error else {
            return self.unreachable(error);
        };
        let (what, reason) = (self.what.clone(), status.message.clone());
        match status.code {
            404 => StoreError::NotFound { what },
            409 if self.is_on_object => StoreError::Conflict(what),
            422 if self.is_on_object && is_failed_test(status) => StoreError::Conflict(what),
            400 | 422 if self.is_on_object => StoreError::Rejected { what, reason },
            403 if self.is_on_object && is_admission_denial(status) => {
                StoreError::Rejected { what, reason }
            }
            401 | 403 => StoreError::Forbidden {
                verb: self.verb,
                what,
                resource: self.resource.clone(),
                reason,
            },
            _ => self.unreachable(Answered::from(status.as_ref())),
        }
    }

    fn unreachable(&self, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Unreachable {
            verb: self.verb,
            what: self.what.clone(),
            source: Box::new(source),
        }
    }
}

/// A schema or CEL rejection names the kind and lists causes; a JSON Patch that does not apply
/// carries neither (apiserver `endpoints/handlers/patch.go`, `applyJSPatch`).
fn is_failed_test(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_none_or(|details| details.kind.is_empty() && details.causes.is_empty())
}

/// A validating webhook's refusal has the code of a missing permission (apiserver `admission/errors.go`).
fn is_admission_denial(status: &Status) -> bool {
    status.message.contains("admission webhook")
        || status.message.contains("ValidatingAdmissionPolicy")
}

fn rbac_name<K: Resource>() -> String {
    let name = format!("{}.{}", K::PLURAL, K::GROUP);
    // The core group has no name.
    name.trim_end_matches('.').to_owned()
}

fn resource<K: Resource>(namespace: Option<&str>) -> Request {
    let (group, version, plural) = (K::GROUP, K::VERSION, K::PLURAL);
    let place = namespace
        .map(|name| format!("namespaces/{name}/"))
        .unwrap_or_default();
    let root = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    Request::new(format!("{root}/{place}{plural}"))
}

mod breaker;
mod budget;
mod connect;
mod endpoints;
mod events;
mod gate;
mod informer;
mod keep;
mod retry;
mod send;
mod versions;
mod watch;

pub use budget::RequestLimits;
use connect::connect;
pub use connect::{ConnectError, KubeAccess};
use gate::Gate;
pub use informer::{Change, ChangeKind, Informer, InformerStatus, ScopeStatus, Unknown};
pub use keep::{Keep, Kept, WholeDocuments};
use send::Answered;
pub(crate) use versions::compare;

#[cfg(test)]
mod tests;
