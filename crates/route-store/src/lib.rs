//! Stores that read, watch and patch RouteTables and MirrorPolicies, and look up Rollouts, Services and endpoints.
//!
//! A store does not know why a table changes. A change is a JSON Patch with `test` operations, which detect concurrent
//! writes, so callers need no lock:
//!
//! | store | a table is | a failed `test` is |
//! |---|---|---|
//! | [`KubeRouteStore`] | a `RouteTable` in the Kubernetes API | a 422 without causes, or a 409 |
//! | [`CachedRouteStore`] | the same, read from a watch | the same |
//! | [`DirRouteStore`] | a YAML document in a directory | detected before the file is replaced |
//! | [`MemoryRouteStore`] | a value in a map | detected under the map's lock |
//!
//! Every store returns [`StoreError::Conflict`] if a `test` fails: another writer changed the object. Read it again, plan
//! again and retry.
//!
//! [`KubeRouteStore`], [`CachedRouteStore`] and all that belongs to them need the feature `kube`. Without it nothing of a
//! Kubernetes client is compiled.
#![doc = include_str!("../README.md")]

mod bucket;
#[cfg(feature = "kube")]
mod cached;
mod dir;
mod endpoints;
mod error;
pub mod event_sink;
#[cfg(all(feature = "kube", feature = "testing"))]
pub mod fake_api;
mod keep;
#[cfg(feature = "kube")]
mod kube_api;
mod lease;
mod memory;
mod request;
mod resources;
mod rollout;
mod selection;
mod table;
#[cfg(all(test, feature = "kube"))]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::stream;
use gloo_types::{
    Document, MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector, ServicePort,
};
use json_patch::Patch;
use rollout_types::{Rollout, RolloutFacts};
use serde_json::Value;

pub use bucket::RequestLimits;
#[cfg(feature = "kube")]
pub use cached::{CachedRouteStore, Clusters};
pub use dir::DirRouteStore;
pub use endpoints::{Endpoint, EndpointStream};
pub use error::StoreError;
pub use keep::{Change, ChangeKind, Keep, Kept};
#[cfg(feature = "kube")]
pub use kube_api::{
    ClientError, ConnectError, Informer, InformerStatus, KubeAccess, KubeRouteStore, ScopeStatus,
    Unknown, WholeDocuments, user_agent, user_agent_header,
};
pub use lease::{Controller, Leadership, Lease, LeaseReader};
pub use memory::{MemoryRouteStore, Operation, Write};
pub use request::{
    Observer, Outcome, Permit, Priority, RequestContext, SentRequest, with_context, with_permit,
    with_priority,
};
pub use rollout::{
    CachedRollout, INSTANCE_ID_LABEL, PluginBlock, PluginFacts, ReadBlock, RolloutKeeper,
    ZeroMirrors,
};
pub use selection::{Decision, FRESH, Freshness, Selection};
pub use table::{CompactTable, TableKeeper};

/// The field manager of a store's writes in `metadata.managedFields`, unless its user sets another one.
pub const FIELD_MANAGER: &str = "rollouts-plugin-trafficrouter-glooplatform";

/// Locks a mutex. No state of this crate is left inconsistent by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A whole Rollout.
pub type RolloutDoc = Document<Rollout>;

/// All traits that a traffic router needs.
pub trait Store: RouteStore + RolloutReader {}

impl<S: RouteStore + RolloutReader> Store for S {}

/// Reads and writes RouteTables and MirrorPolicies.
pub trait RouteStore: Send + Sync + 'static {
    /// Returns the tables that `selector` selects, and an error for each one that cannot be read. A store without a cache
    /// ignores `freshness`.
    fn select(
        &self,
        selector: &RouteTableSelector,
        freshness: Freshness,
    ) -> impl Future<Output = Selection> + Send;

    /// Returns the selected tables from the cache, however stale; `None` without a cache. Use them only to see that nothing
    /// has to change, never to plan a write.
    fn last_known(&self, _selector: &RouteTableSelector) -> Option<Selection> {
        None
    }

    /// Returns at least those tables that may have a record or managed routes of a Rollout, however stale. A table that is not
    /// known is missing.
    fn marked(&self, rollout: &ObjectKey) -> impl Future<Output = Selection> + Send;

    /// Returns whether the cache has not been filled since the start, so that each read takes a request. Waits at most a
    /// second for the cache. A store without a cache returns `false`.
    fn is_starting(&self) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Reads one table, never from a cache.
    ///
    /// # Errors
    /// Returns [`StoreError::NotFound`] if there is no such table, and other errors if it cannot be read.
    fn read(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<RouteTableDoc, StoreError>> + Send;

    /// Applies the whole `patch` atomically, and returns the changed table.
    ///
    /// # Errors
    /// Returns [`StoreError::Conflict`] if a `test` of the patch fails, and other errors if the table cannot be written.
    /// No error leaves a part of the patch applied.
    fn patch(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> impl Future<Output = Result<RouteTableDoc, StoreError>> + Send;

    /// Returns the field manager of this store's writes.
    fn field_manager(&self) -> &str {
        FIELD_MANAGER
    }

    /// Applies a patch that restores the owner's content. A store with field managers adds `-at-rest` to its manager for it, so
    /// that the usual one owns no field of the table afterwards.
    ///
    /// # Errors
    /// See [`RouteStore::patch`].
    fn hand_back(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> impl Future<Output = Result<RouteTableDoc, StoreError>> + Send {
        self.patch(key, patch)
    }

    /// Returns the policies of all namespaces, because a policy of another namespace can apply to a table too.
    ///
    /// # Errors
    /// Returns [`StoreError::NotFound`] if the API server has no such resource, and other errors if they cannot be read.
    fn policies(&self) -> impl Future<Output = Result<Vec<MirrorPolicyDoc>, StoreError>> + Send;

    /// Returns the policies from the cache, however stale; `None` without a cache.
    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        None
    }

    /// Creates a policy from a complete object with `metadata.namespace` and `metadata.name`.
    ///
    /// # Errors
    /// Returns [`StoreError::Conflict`] if the policy exists, and other errors if it cannot be written.
    fn create_policy(
        &self,
        policy: &Value,
    ) -> impl Future<Output = Result<MirrorPolicyDoc, StoreError>> + Send;

    /// Applies the whole `patch` atomically, and returns the changed policy.
    ///
    /// # Errors
    /// See [`RouteStore::patch`].
    fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> impl Future<Output = Result<MirrorPolicyDoc, StoreError>> + Send;

    /// Deletes a policy if its version is still [`MirrorPolicyDoc::resource_version`] of `policy`.
    ///
    /// # Errors
    /// Returns [`StoreError::NotFound`] if it is deleted already, [`StoreError::Conflict`] if it changed, and other errors if
    /// it cannot be deleted.
    fn delete_policy(
        &self,
        policy: &MirrorPolicyDoc,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Looks up Rollouts, their Services, and the endpoints of these, which it also watches. By default a store has no endpoints.
///
/// The controller sends the Rollout with each call, but Go's gob drops pointers to zero values. Only the stored object
/// distinguishes a field that is 0 from an absent one.
pub trait RolloutReader: Send + Sync + 'static {
    /// Returns the Rollout; `None` if it does not exist here, for example because this is not the controller's cluster.
    ///
    /// # Errors
    /// Returns `Err` if the store cannot be read.
    fn rollout(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<RolloutDoc>, StoreError>> + Send;

    /// Returns whether the CustomResourceDefinition of Rollouts exists, by a list in `namespace`. It distinguishes a deleted
    /// Rollout from a deleted CustomResourceDefinition.
    ///
    /// # Errors
    /// See [`RolloutReader::rollout`].
    fn knows_rollouts(
        &self,
        _namespace: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async { Ok(true) }
    }

    /// Returns the Rollout's mirror steps with `percentage: 0`, of this generation or a later one; `None` as
    /// [`RolloutReader::rollout`].
    ///
    /// # Errors
    /// See [`RolloutReader::rollout`].
    fn zero_mirrors(
        &self,
        key: &ObjectKey,
        _generation: i64,
    ) -> impl Future<Output = Result<Option<ZeroMirrors>, StoreError>> + Send {
        async {
            let rollout = self.rollout(key).await?;
            // An invalid spec counts as one without steps: the CustomResourceDefinition does not admit it.
            Ok(rollout.map(|it| ZeroMirrors::of(it.spec().unwrap_or_default().steps())))
        }
    }

    /// Returns the facts of a Rollout if a newer version than `version` is known, mostly from a watch. A controller that was
    /// frozen sends a stale Rollout.
    ///
    /// # Errors
    /// Returns `Err` if it is not known whether there is a newer version, or the Rollout does not exist.
    fn newer_rollout(
        &self,
        _key: &ObjectKey,
        _version: &str,
    ) -> impl Future<Output = Result<Option<RolloutFacts>, StoreError>> + Send {
        async { Ok(None) }
    }

    /// Notes that a call concerns this Rollout, so that a store without permission for all namespaces follows its namespace.
    fn is_called_for(&self, _key: &ObjectKey) {}

    /// Returns the TCP ports of a Service; `None` if the Service does not exist.
    ///
    /// # Errors
    /// Returns `Err` if the store cannot be read.
    fn service_ports(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<Vec<ServicePort>>, StoreError>> + Send;

    /// Returns the endpoints of `services`; `None` if the store has no endpoints at all.
    ///
    /// # Errors
    /// Returns `Err` if the store cannot be read.
    fn endpoints(
        &self,
        _namespace: &str,
        _services: &[&str],
    ) -> impl Future<Output = Result<Option<Vec<Endpoint>>, StoreError>> + Send {
        async { Ok(None) }
    }

    /// Watches the endpoints of `services`. In a store without endpoints the stream never yields.
    fn watch_endpoints(&self, _namespace: &str, _services: &[&str]) -> EndpointStream<'_> {
        Box::pin(stream::pending())
    }

    /// Returns the uids of the Pods whose label `rollouts-pod-template-hash` is `hash`.
    ///
    /// # Errors
    /// Returns `Err` if the store cannot be read.
    fn pods_of_version(
        &self,
        _namespace: &str,
        _hash: &str,
    ) -> impl Future<Output = Result<BTreeSet<String>, StoreError>> + Send {
        async { Ok(BTreeSet::new()) }
    }
}
