//! Reading and patching RouteTables, wherever they live.
//!
//! The store knows *how* a table is read and changed; it never knows *why*. A change is a JSON
//! Patch that guards itself with `test` operations, so a store needs no lock of its own:
//!
//! | store | a table is | a failed `test` is |
//! |---|---|---|
//! | [`KubeRouteStore`] | a `RouteTable` in the Kubernetes API | a 422 without causes, or a 409 |
//! | [`DirRouteStore`] | a YAML document in a directory | seen before the file is replaced |
//! | `MemoryRouteStore` (feature `testing`) | a value in a map | seen under its lock |
//!
//! Whatever the store, [`StoreError::Conflict`] means the same: somebody else was faster, read
//! again and decide again.

mod dir;
mod error;
mod kube_api;
#[cfg(feature = "testing")]
mod memory;
mod pick;

use gloo_types::{ObjectKey, RouteTableDoc, RouteTableSelector};
use json_patch::Patch;

pub use dir::DirRouteStore;
pub use error::StoreError;
pub use kube_api::{ConnectError, FIELD_MANAGER, KubeAccess, KubeRouteStore};
#[cfg(feature = "testing")]
pub use memory::MemoryRouteStore;

/// Where RouteTables are read from and written to.
pub trait RouteStore: Send + Sync + 'static {
    /// The tables that `selector` selects, sorted by namespace and name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when a table selected by name is in none of the namespaces; labels
    /// that match nothing are no error. Otherwise whatever kept the store from answering.
    fn select(
        &self,
        selector: &RouteTableSelector,
    ) -> impl Future<Output = Result<Vec<RouteTableDoc>, StoreError>> + Send;

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
}

/// A shared store is a store.
impl<S: RouteStore> RouteStore for std::sync::Arc<S> {
    async fn select(
        &self,
        selector: &RouteTableSelector,
    ) -> Result<Vec<RouteTableDoc>, StoreError> {
        S::select(self, selector).await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        S::read(self, key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        S::patch(self, key, patch).await
    }
}
