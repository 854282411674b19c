//! Where a scenario takes place, and a store that counts what the plugin writes.

use std::collections::BTreeSet;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector};
use json_patch::Patch;
use route_store::{
    Endpoint, EndpointReader, EndpointStream, Freshness, PolicyStore, RolloutDoc, RolloutReader,
    RouteStore, Selection, ServiceReader, Store, StoreError,
};
use serde_json::Value;

/// Somewhere that RouteTables can live, as their owners and Gloo see it.
pub trait Place: Sync {
    /// How the plugin gets at the tables.
    type Store: Store;

    /// A store as a newly started plugin has it.
    fn store(&self) -> Self::Store;

    /// Creates an object.
    ///
    /// # Errors
    /// The place refuses it.
    fn create(&self, object: Value) -> impl Future<Output = Result<()>>;

    /// Sets the status of a RouteTable.
    ///
    /// # Errors
    /// The place refuses it.
    fn set_status(&self, table: &ObjectKey, status: &Value) -> impl Future<Output = Result<()>>;

    /// Deletes a RouteTable.
    ///
    /// # Errors
    /// The place refuses it.
    fn delete(&self, table: &ObjectKey) -> impl Future<Output = Result<()>>;
}

/// The store of a [`Place`] that counts writes, and that lets an owner edit a table before one.
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

    /// How many writes succeeded.
    pub(super) fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// Applies `edit` right before the next write.
    pub(super) fn get_in_before_a_write(&self, table: ObjectKey, edit: Patch) {
        *self.meanwhile() = Some((table, edit));
    }

    /// The store for what others than the plugin do; nothing is counted.
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
}

impl<S: PolicyStore> PolicyStore for Watched<S> {
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
}

impl<S: ServiceReader> ServiceReader for Watched<S> {
    fn keeps_services(&self) -> bool {
        self.store.keeps_services()
    }

    async fn service_port(&self, key: &ObjectKey) -> Result<Option<u32>, StoreError> {
        self.store.service_port(key).await
    }
}

impl<S: EndpointReader> EndpointReader for Watched<S> {
    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        self.store.endpoints(namespace, services).await
    }

    fn follow_endpoints(&self, namespace: &str, services: &[&str]) -> EndpointStream<'_> {
        self.store.follow_endpoints(namespace, services)
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.store.pods_of_version(namespace, hash).await
    }
}
