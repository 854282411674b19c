//! A store in memory, which applies patches with their `test` operations and records writes. For tests and dry runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

use futures::{StreamExt as _, stream};
use gloo_types::{
    Document, MirrorPolicy, MirrorPolicyDoc, ObjectKey, Resource, RouteTable, RouteTableDoc,
    RouteTableSelector, ServicePort,
};
use json_patch::Patch;
use rollout_types::Rollout;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    Endpoint, EndpointStream, Freshness, RolloutDoc, RolloutReader, RouteStore, Selection,
    StoreError,
    endpoints::{POD_HASH, endpoints_in},
    lock,
    resources::{EndpointSlice, Pod, Service},
};

/// Called with the version of an object before and after each patch, and with what others put, in any store.
static OBSERVER: OnceLock<fn(Option<&Value>, &Value)> = OnceLock::new();

/// A store in memory. Every write sets a new `metadata.resourceVersion`. Clones share their objects.
#[derive(Clone, Debug, Default)]
pub struct MemoryRouteStore {
    state: Arc<Mutex<State>>,
    /// Notified of changes of endpoints, for the streams of endpoints.
    endpoints: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<(&'static str, ObjectKey), Value>,
    version: u64,
    writes: Vec<Write>,
    failures: Vec<StoreError>,
}

/// A successful write.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Write {
    /// Kind of the object.
    pub kind: &'static str,
    /// The object.
    pub key: ObjectKey,
    /// What was done to it.
    pub operation: Operation,
}

/// What a [`Write`] did to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Created with this content.
    Create(Value),
    /// Changed by this patch.
    Patch(Patch),
    /// Deleted.
    Delete,
}

impl MemoryRouteStore {
    /// A store with `tables`.
    ///
    /// # Errors
    /// Returns `Err` if one of them is not a RouteTable.
    pub fn new(tables: impl IntoIterator<Item = Value>) -> Result<Self, StoreError> {
        let store = Self::default();
        for table in tables {
            store.put(table)?;
        }
        Ok(store)
    }

    /// Stores a RouteTable as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// Returns `Err` if it is not a RouteTable.
    pub fn put(&self, table: Value) -> Result<ObjectKey, StoreError> {
        self.state().put::<RouteTable>(table)
    }

    /// Stores a MirrorPolicy as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// Returns `Err` if it is not a MirrorPolicy.
    pub fn put_policy(&self, policy: Value) -> Result<ObjectKey, StoreError> {
        self.state().put::<MirrorPolicy>(policy)
    }

    /// Stores a Rollout as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// Returns `Err` if it is not a Rollout.
    pub fn put_rollout(&self, rollout: Value) -> Result<ObjectKey, StoreError> {
        self.state().put::<Rollout>(rollout)
    }

    /// Stores a Service as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// Returns `Err` if it is not a Service.
    pub fn put_service(&self, service: Value) -> Result<ObjectKey, StoreError> {
        self.state().put::<Service>(service)
    }

    /// Stores an EndpointSlice as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// Returns `Err` if it is not an EndpointSlice.
    pub fn put_endpoint_slice(&self, slice: Value) -> Result<ObjectKey, StoreError> {
        let key = self.state().put::<EndpointSlice>(slice)?;
        self.endpoints.send_replace(());
        Ok(key)
    }

    /// Stores a Pod as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// Returns `Err` if it is not a Pod.
    pub fn put_pod(&self, pod: Value) -> Result<ObjectKey, StoreError> {
        self.state().put::<Pod>(pod)
    }

    /// Removes a Rollout as another client would.
    pub fn remove_rollout(&self, key: &ObjectKey) {
        self.state().objects.remove(&id::<Rollout>(key));
    }

    /// Removes a RouteTable as another client would.
    pub fn remove(&self, key: &ObjectKey) {
        self.state().objects.remove(&id::<RouteTable>(key));
    }

    /// Returns a RouteTable as stored; `None` if it does not exist.
    #[must_use]
    pub fn table(&self, key: &ObjectKey) -> Option<Value> {
        self.state().objects.get(&id::<RouteTable>(key)).cloned()
    }

    /// Returns all RouteTables, sorted by namespace and name.
    ///
    /// # Errors
    /// Returns `Err` if a patch made a table that cannot be decoded.
    pub fn tables(&self) -> Result<Vec<RouteTableDoc>, StoreError> {
        self.state().all()
    }

    /// Returns the successful writes so far, in order.
    #[must_use]
    pub fn written(&self) -> Vec<Write> {
        self.state().writes.clone()
    }

    /// Returns the number of successful writes so far.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.state().writes.len()
    }

    /// Makes the next call of [`RouteStore::patch`] fail with `error`. Several errors are used in order.
    #[cfg(feature = "testing")]
    pub fn fail_next_patch(&self, error: StoreError) {
        self.state().failures.insert(0, error);
    }

    /// Shows `observer` the version before and after each patch, and what others put without one before it, for all stores of
    /// this process. The first observer stays.
    #[cfg(feature = "testing")]
    pub fn observe(observer: fn(Option<&Value>, &Value)) {
        let _ = OBSERVER.set(observer);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn put<K: Resource>(&mut self, object: Value) -> Result<ObjectKey, StoreError> {
        let key = parse::<K>(object.clone())?.key().clone();
        let object = self.stamp(object);
        show(None, &object);
        self.objects.insert(id::<K>(&key), object);
        Ok(key)
    }

    fn get<K: Resource>(&self, key: &ObjectKey) -> Result<Document<K>, StoreError> {
        let object = self.objects.get(&id::<K>(key)).cloned();
        parse(object.ok_or_else(|| StoreError::not_found::<K>(key))?)
    }

    fn all<K: Resource>(&self) -> Result<Vec<Document<K>>, StoreError> {
        let objects = self.objects.iter();
        let of_kind = objects.filter(|((kind, _), _)| *kind == K::KIND);
        of_kind.map(|(_, it)| parse(it.clone())).collect()
    }

    fn patch<K: Resource>(
        &mut self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<Document<K>, StoreError> {
        let object = self.objects.get(&id::<K>(key)).cloned();
        let object = object.ok_or_else(|| StoreError::not_found::<K>(key))?;
        let changed = gloo_types::patched(object, patch);
        let object = self.stamp(changed.map_err(|_| StoreError::conflict::<K>(key))?);
        let before = self.objects.insert(id::<K>(key), object.clone());
        show(before.as_ref(), &object);
        self.wrote::<K>(key, Operation::Patch(patch.clone()));
        parse(object)
    }

    fn wrote<K: Resource>(&mut self, key: &ObjectKey, operation: Operation) {
        self.writes.push(Write {
            kind: K::KIND,
            key: key.clone(),
            operation,
        });
    }

    fn stamp(&mut self, mut object: Value) -> Value {
        self.version += 1;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        }
        object
    }
}

impl RouteStore for MemoryRouteStore {
    async fn select(&self, selector: &RouteTableSelector, _freshness: Freshness) -> Selection {
        match self.tables() {
            Ok(tables) => Selection::of_all(Ok(tables)).selected_by(selector),
            Err(error) => Selection::of_all(Err(error)),
        }
    }

    async fn marked(&self, _rollout: &ObjectKey) -> Selection {
        Selection::of_all(self.tables())
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.state().get(key)
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let mut state = self.state();
        match state.failures.pop() {
            Some(failure) => Err(failure),
            None => state.patch(key, patch),
        }
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.state().all()
    }

    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        self.state().all().ok()
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let mut state = self.state();
        let key = parse::<MirrorPolicy>(policy.clone())?.key().clone();
        if state.objects.contains_key(&id::<MirrorPolicy>(&key)) {
            return Err(StoreError::conflict::<MirrorPolicy>(&key));
        }
        state.put::<MirrorPolicy>(policy.clone())?;
        state.wrote::<MirrorPolicy>(&key, Operation::Create(policy.clone()));
        state.get(&key)
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.state().patch(key, patch)
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        let mut state = self.state();
        let key = policy.key();
        let found: MirrorPolicyDoc = state.get(key)?;
        if found.resource_version() != policy.resource_version() {
            return Err(StoreError::conflict::<MirrorPolicy>(key));
        }
        state.objects.remove(&id::<MirrorPolicy>(key));
        state.wrote::<MirrorPolicy>(key, Operation::Delete);
        Ok(())
    }
}

impl RolloutReader for MemoryRouteStore {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        StoreError::or_none(self.state().get(key))
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        let state = self.state();
        Ok(state.objects.get(&id::<Service>(key)).map(ServicePort::all))
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        let slices = self.state().all::<EndpointSlice>()?;
        if slices.is_empty() {
            return Ok(None);
        }
        let slices = slices.iter().filter(|it| it.key().namespace == namespace);
        let endpoints: Result<Vec<_>, _> = slices.map(endpoints_in).collect();
        let mut endpoints = endpoints?.concat();
        endpoints.retain(|endpoint| services.contains(&endpoint.service.as_str()));
        Ok(Some(endpoints))
    }

    fn watch_endpoints(&self, namespace: &str, services: &[&str]) -> EndpointStream<'_> {
        let services: Vec<String> = services.iter().map(ToString::to_string).collect();
        let mut changes = self.endpoints.subscribe();
        changes.mark_changed();
        let begin = (changes, namespace.to_owned(), services);
        stream::unfold(begin, async |(mut changes, namespace, services)| {
            changes.changed().await.ok()?;
            let names: Vec<&str> = services.iter().map(String::as_str).collect();
            let endpoints = self.endpoints(&namespace, &names).await;
            Some((endpoints.ok().flatten(), (changes, namespace, services)))
        })
        .boxed()
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut pods = self.state().all::<Pod>()?;
        pods.retain(|pod| {
            let label = pod.labels().get(POD_HASH);
            pod.key().namespace == namespace && label.is_some_and(|label| label == hash)
        });
        let uids = pods.iter().map(|pod| pod.uid().to_owned());
        Ok(uids.filter(|uid| !uid.is_empty()).collect())
    }
}

fn show(before: Option<&Value>, after: &Value) {
    if let Some(observer) = OBSERVER.get() {
        observer(before, after);
    }
}

fn id<K: Resource>(key: &ObjectKey) -> (&'static str, ObjectKey) {
    (K::KIND, key.clone())
}

fn parse<K: Resource>(object: Value) -> Result<Document<K>, StoreError> {
    Document::from_value(object).map_err(|error| StoreError::unreadable::<K>("the object", error))
}
