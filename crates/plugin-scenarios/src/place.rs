//! The environment of a scenario, and a store that counts the plugin's writes.

use std::collections::BTreeSet;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector, ServicePort};
use json_patch::Patch;
use route_store::{
    Endpoint, Freshness, MemoryRouteStore, RolloutDoc, RolloutReader, RouteStore, Selection, Store,
    StoreError,
};
use serde_json::{Value, json};

/// An environment with RouteTables, as their owners and Gloo access it.
pub trait Place: Sync {
    /// The plugin's access to the tables.
    type Store: Store;

    /// Returns a store for a newly started plugin.
    fn store(&self) -> Self::Store;

    /// Creates an object.
    ///
    /// # Errors
    /// Returns `Err` if the environment refuses it.
    fn create(&self, object: Value) -> impl Future<Output = Result<()>>;

    /// Sets the status of a RouteTable.
    ///
    /// # Errors
    /// Returns `Err` if the environment refuses it.
    fn set_status(&self, table: &ObjectKey, status: &Value) -> impl Future<Output = Result<()>>;

    /// Deletes a RouteTable.
    ///
    /// # Errors
    /// Returns `Err` if the environment refuses it.
    fn delete(&self, table: &ObjectKey) -> impl Future<Output = Result<()>>;
}

/// A [`Place`] in memory.
#[derive(Debug, Default)]
pub struct Memory(MemoryRouteStore);

impl Place for Memory {
    type Store = MemoryRouteStore;

    fn store(&self) -> MemoryRouteStore {
        self.0.clone()
    }

    async fn create(&self, object: Value) -> Result<()> {
        match object.get("kind").and_then(Value::as_str) {
            Some("Service") => self.0.put_service(object)?,
            _ => self.0.put(object)?,
        };
        Ok(())
    }

    async fn set_status(&self, table: &ObjectKey, status: &Value) -> Result<()> {
        let mut raw = self.0.read(table).await?.into_raw();
        json_patch::merge(&mut raw, &json!({ "status": status }));
        self.0.put(raw)?;
        Ok(())
    }

    async fn delete(&self, table: &ObjectKey) -> Result<()> {
        self.0.remove(table);
        Ok(())
    }
}

/// Wraps the store of a [`Place`]: it counts writes, and edits a table right before one.
#[derive(Debug)]
pub(super) struct Watched<S> {
    store: S,
    writes: AtomicUsize,
    meanwhile: Mutex<Option<(ObjectKey, Patch)>>,
}

impl<S: RouteStore> Watched<S> {
    pub(super) fn new(store: S) -> Arc<Self> {
        Arc::new(Self {
            store,
            writes: AtomicUsize::new(0),
            meanwhile: Mutex::default(),
        })
    }

    /// Returns the number of successful writes.
    pub(super) fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// Applies `edit` right before the next write.
    pub(super) fn edit_before_the_next_write(&self, table: ObjectKey, edit: Patch) {
        *self.meanwhile() = Some((table, edit));
    }

    /// Returns the inner store, for operations of others than the plugin, which are not counted.
    pub(super) fn unwatched(&self) -> &S {
        &self.store
    }

    fn meanwhile(&self) -> std::sync::MutexGuard<'_, Option<(ObjectKey, Patch)>> {
        self.meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: RouteStore> RouteStore for Watched<S> {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        self.store.select(selector, freshness).await
    }

    async fn marked(&self, rollout: &ObjectKey) -> Selection {
        self.store.marked(rollout).await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.store.read(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let meanwhile = self.meanwhile().take();
        if let Some((table, edit)) = meanwhile {
            self.store.patch(&table, &edit).await?;
        }
        let table = self.store.patch(key, patch).await?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(table)
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.store.policies().await
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let policy = self.store.create_policy(policy).await?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(policy)
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        let policy = self.store.patch_policy(key, patch).await?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(policy)
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        self.store.delete_policy(policy).await?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl<S: RolloutReader> RolloutReader for Watched<S> {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        self.store.rollout(key).await
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        self.store.service_ports(key).await
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        self.store.endpoints(namespace, services).await
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.store.pods_of_version(namespace, hash).await
    }
}
