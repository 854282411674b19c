//! Reading and patching RouteTables and MirrorPolicies, wherever they live.
//!
//! The store knows *how* a table is read and changed; it never knows *why*. A change is a JSON
//! Patch that guards itself with `test` operations, so a store needs no lock of its own:
//!
//! | store | a table is | a failed `test` is |
//! |---|---|---|
//! | [`KubeRouteStore`] | a `RouteTable` in the Kubernetes API | a 422 without causes, or a 409 |
//! | [`CachedRouteStore`] | the same, as watches report it | the same |
//! | [`DirRouteStore`] | a YAML document in a directory | seen before the file is replaced |
//! | [`MemoryRouteStore`] | a value in a map | seen under its lock |
//!
//! Whatever the store, [`StoreError::Conflict`] means the same: somebody else was faster, read
//! again and decide again.

mod cached;
mod clusters;
mod dir;
mod endpoints;
mod error;
pub mod event_sink;
#[cfg(feature = "testing")]
pub mod fake_api;
mod kube_api;
mod lease;
mod memory;
mod request;
mod resources;
mod rollout;
mod selection;
mod table;

use gloo_types::{Document, MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector};
use json_patch::Patch;
use rollout_types::Rollout;
use serde_json::Value;

pub use cached::CachedRouteStore;
pub use clusters::Clusters;
pub use dir::DirRouteStore;
pub use endpoints::{Endpoint, EndpointReader, EndpointStream};
pub use error::StoreError;
pub use kube_api::{
    Change, ChangeKind, ConnectError, FIELD_MANAGER, Informer, InformerStatus, Keep, Kept,
    KubeAccess, KubeRouteStore, RequestLimits, ScopeStatus, Unknown, WholeDocuments,
};
pub use lease::{Controller, Leadership, Lease, LeaseReader};
pub use memory::{MemoryRouteStore, Operation, Write};
pub use request::{Observer, Outcome, Priority, RequestContext, SentRequest, with_context};
pub use rollout::{
    INSTANCE_ID_LABEL, PluginBlock, ReadBlock, RecordedWeight, RolloutFacts, RolloutKeeper,
    TrafficFacts, ZeroMirrors,
};
pub use selection::{Decision, FRESH, Freshness, Selection};
pub use table::{CompactTable, TableKeeper};

/// A whole Rollout.
pub type RolloutDoc = Document<Rollout>;

/// Everything that a traffic router reads and writes.
pub trait Store: RouteStore + PolicyStore + RolloutReader + ServiceReader + EndpointReader {}

impl<S: RouteStore + PolicyStore + RolloutReader + ServiceReader + EndpointReader> Store for S {}

/// Where RouteTables are read from and written to.
pub trait RouteStore: Send + Sync + 'static {
    /// The tables that `selector` selects, and an error for each that could not be read. A store without a cache always
    /// reads them.
    fn select(
        &self,
        selector: &RouteTableSelector,
        freshness: Freshness,
    ) -> impl Future<Output = Selection> + Send;

    /// The tables as a store with a cache heard of them last, however long ago. Nobody answers a question about now with
    /// them, unless the answer is that nothing has to change.
    fn last_known(&self, _selector: &RouteTableSelector) -> Option<Selection> {
        None
    }

    /// Whether a store with a cache has just been started and still fills it, so that each answer takes a request of its own.
    /// Waits a moment for that to end.
    fn is_starting(&self) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// One table, as it is now.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it is not there, otherwise whatever kept the store from answering.
    fn read(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<RouteTableDoc, StoreError>> + Send;

    /// Applies `patch` as a whole or not at all, and returns the table after it.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when a `test` of the patch failed, otherwise whatever kept the
    /// store from writing. After an error nothing is half-written.
    fn patch(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> impl Future<Output = Result<RouteTableDoc, StoreError>> + Send;

    /// The same for a change after which the table is its owner's again, for a store that tells who wrote what: it gives
    /// up what it is said to have written.
    ///
    /// # Errors
    /// As [`RouteStore::patch`].
    fn hand_back(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> impl Future<Output = Result<RouteTableDoc, StoreError>> + Send {
        self.patch(key, patch)
    }
}

/// Where MirrorPolicies are read from and written to.
pub trait PolicyStore: Send + Sync + 'static {
    /// The policies of all namespaces: one of another namespace may apply to a table too.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the API server has no such resource, otherwise whatever kept the
    /// store from answering.
    fn policies(&self) -> impl Future<Output = Result<Vec<MirrorPolicyDoc>, StoreError>> + Send;

    /// The policies as a store with a cache heard of them last, however long ago.
    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        None
    }

    /// Creates a policy from a whole object with `metadata.namespace` and `metadata.name`.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when one of that name is there, otherwise whatever kept the store from
    /// writing.
    fn create_policy(
        &self,
        policy: &Value,
    ) -> impl Future<Output = Result<MirrorPolicyDoc, StoreError>> + Send;

    /// Applies `patch` as a whole or not at all, and returns the policy after it.
    ///
    /// # Errors
    /// As [`RouteStore::patch`].
    fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> impl Future<Output = Result<MirrorPolicyDoc, StoreError>> + Send;

    /// Deletes a policy as long as it is the one that was read: [`MirrorPolicyDoc::resource_version`]
    /// is tested.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it is gone already, [`StoreError::Conflict`] when it changed,
    /// otherwise whatever kept the store from writing.
    fn delete_policy(
        &self,
        policy: &MirrorPolicyDoc,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Where Rollouts can be looked up.
///
/// The controller hands every Rollout to the plugin, but Go's gob drops pointers to zero values on the
/// way: only here can a field that says 0 be told from one that is absent.
pub trait RolloutReader: Send + Sync + 'static {
    /// The object; `None` when there is no such Rollout here, for example because this is another
    /// cluster than the controller's.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    fn rollout(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<RolloutDoc>, StoreError>> + Send;

    /// Whether this is a cluster with Rollouts, as opposed to one whose CustomResourceDefinition is gone. It is asked in the
    /// namespace of a Rollout that is not there.
    ///
    /// # Errors
    /// As [`RolloutReader::rollout`].
    fn knows_rollouts(
        &self,
        _namespace: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async { Ok(true) }
    }

    /// Its mirror steps with `percentage: 0`, of this generation or a later one; `None` as for [`RolloutReader::rollout`].
    ///
    /// # Errors
    /// As [`RolloutReader::rollout`].
    fn zero_mirrors(
        &self,
        key: &ObjectKey,
        _generation: i64,
    ) -> impl Future<Output = Result<Option<ZeroMirrors>, StoreError>> + Send {
        async {
            let rollout = self.rollout(key).await?;
            // A Rollout that contradicts its API does not pass its CustomResourceDefinition.
            Ok(rollout.map(|it| ZeroMirrors::of(it.spec().unwrap_or_default().steps())))
        }
    }

    /// What is known of a Rollout beyond this version of it, mostly from a watch: a controller that was frozen calls with what
    /// it knew before. `None` if nothing newer is known.
    fn newer_rollout(
        &self,
        _key: &ObjectKey,
        _version: &str,
    ) -> impl Future<Output = Option<std::sync::Arc<RolloutFacts>>> + Send {
        async { None }
    }

    /// A call is about this Rollout: a store that may not read all namespaces learns of this one.
    fn is_called_for(&self, _key: &ObjectKey) {}
}

/// Where Services can be looked up.
pub trait ServiceReader: Send + Sync + 'static {
    /// Whether Services are kept here at all. A copy of some tables has none, which says nothing about the cluster.
    fn keeps_services(&self) -> bool {
        true
    }

    /// The first port of a Service; `None` when there is no such Service here, or it has no port.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    fn service_port(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send;
}

/// A shared store is a store.
impl<S: RouteStore> RouteStore for std::sync::Arc<S> {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        S::select(self, selector, freshness).await
    }

    fn last_known(&self, selector: &RouteTableSelector) -> Option<Selection> {
        S::last_known(self, selector)
    }

    async fn is_starting(&self) -> bool {
        S::is_starting(self).await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        S::read(self, key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        S::patch(self, key, patch).await
    }

    async fn hand_back(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        S::hand_back(self, key, patch).await
    }
}

/// A shared store is a store.
impl<S: PolicyStore> PolicyStore for std::sync::Arc<S> {
    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        S::policies(self).await
    }

    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        S::last_known_policies(self)
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        S::create_policy(self, policy).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        S::patch_policy(self, key, patch).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        S::delete_policy(self, policy).await
    }
}

/// A shared reader is a reader.
impl<S: RolloutReader> RolloutReader for std::sync::Arc<S> {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        S::rollout(self, key).await
    }

    async fn knows_rollouts(&self, namespace: &str) -> Result<bool, StoreError> {
        S::knows_rollouts(self, namespace).await
    }

    async fn zero_mirrors(
        &self,
        key: &ObjectKey,
        generation: i64,
    ) -> Result<Option<ZeroMirrors>, StoreError> {
        S::zero_mirrors(self, key, generation).await
    }

    async fn newer_rollout(
        &self,
        key: &ObjectKey,
        version: &str,
    ) -> Option<std::sync::Arc<RolloutFacts>> {
        S::newer_rollout(self, key, version).await
    }

    fn is_called_for(&self, key: &ObjectKey) {
        S::is_called_for(self, key);
    }
}

/// A shared reader is a reader.
impl<S: ServiceReader> ServiceReader for std::sync::Arc<S> {
    fn keeps_services(&self) -> bool {
        S::keeps_services(self)
    }

    async fn service_port(&self, key: &ObjectKey) -> Result<Option<u32>, StoreError> {
        S::service_port(self, key).await
    }
}
