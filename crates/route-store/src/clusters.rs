//! The two clusters of an installation: Rollouts in one, RouteTables in the other or the same one.

use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector};
use json_patch::Patch;
use serde_json::Value;

use std::{collections::BTreeSet, sync::Arc};

use crate::endpoints::{Endpoint, EndpointStream};
use crate::{
    EndpointReader, Freshness, KubeRouteStore, PolicyStore, RolloutDoc, RolloutReader, RouteStore,
    Selection, ServiceReader, StoreError, ZeroMirrors,
};

/// The stores of two clusters, which fail independently. Without a management cluster both are the same store.
#[derive(Clone, Debug)]
pub struct Clusters<L = Arc<KubeRouteStore>, T = Arc<KubeRouteStore>> {
    /// The controller's cluster: Rollouts, Services, EndpointSlices, Pods, Leases and Events about Rollouts.
    pub local: L,
    /// The cluster of Gloo: RouteTables, MirrorPolicies and Events about them.
    pub tables: T,
}

impl<S: Clone> Clusters<S, S> {
    /// Uses one cluster for everything.
    pub fn one(store: S) -> Self {
        Self {
            local: store.clone(),
            tables: store,
        }
    }
}

impl Clusters {
    /// Returns whether one cluster has everything.
    #[must_use]
    pub fn is_one(&self) -> bool {
        Arc::ptr_eq(&self.local, &self.tables)
    }
}

impl<L: Send + Sync + 'static, T: RouteStore> RouteStore for Clusters<L, T> {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        self.tables.select(selector, freshness).await
    }

    fn last_known(&self, selector: &RouteTableSelector) -> Option<Selection> {
        self.tables.last_known(selector)
    }

    async fn is_starting(&self) -> bool {
        self.tables.is_starting().await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.tables.read(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.tables.patch(key, patch).await
    }

    async fn hand_back(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.tables.hand_back(key, patch).await
    }
}

impl<L: Send + Sync + 'static, T: PolicyStore> PolicyStore for Clusters<L, T> {
    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.tables.policies().await
    }

    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        self.tables.last_known_policies()
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        self.tables.create_policy(policy).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.tables.patch_policy(key, patch).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        self.tables.delete_policy(policy).await
    }
}

impl<L: RolloutReader, T: Send + Sync + 'static> RolloutReader for Clusters<L, T> {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        self.local.rollout(key).await
    }

    async fn knows_rollouts(&self, namespace: &str) -> Result<bool, StoreError> {
        self.local.knows_rollouts(namespace).await
    }

    async fn zero_mirrors(
        &self,
        key: &ObjectKey,
        generation: i64,
    ) -> Result<Option<ZeroMirrors>, StoreError> {
        self.local.zero_mirrors(key, generation).await
    }

    fn is_called_for(&self, key: &ObjectKey) {
        self.local.is_called_for(key);
    }
}

impl<L: ServiceReader, T: Send + Sync + 'static> ServiceReader for Clusters<L, T> {
    fn keeps_services(&self) -> bool {
        self.local.keeps_services()
    }

    async fn service_port(&self, key: &ObjectKey) -> Result<Option<u32>, StoreError> {
        self.local.service_port(key).await
    }
}

impl<L: EndpointReader, T: Send + Sync + 'static> EndpointReader for Clusters<L, T> {
    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        self.local.endpoints(namespace, services).await
    }

    fn follow_endpoints(&self, namespace: &str, services: &[&str]) -> EndpointStream<'_> {
        self.local.follow_endpoints(namespace, services)
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.local.pods_of_version(namespace, hash).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::MemoryRouteStore;

    fn store(name: &str) -> Arc<MemoryRouteStore> {
        let table = json!({"apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {}});
        let store = MemoryRouteStore::new([table]).unwrap();
        let rollout = json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {}});
        store.put_rollout(rollout).unwrap();
        let service = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}});
        store.put_service(service).unwrap();
        Arc::new(store)
    }

    #[tokio::test]
    async fn rollouts_and_services_are_local_and_tables_are_not() {
        let clusters = Clusters {
            local: store("local"),
            tables: store("tables"),
        };
        for (name, is_local) in [("local", true), ("tables", false)] {
            let key = ObjectKey::new("shop", name);
            assert_eq!(clusters.read(&key).await.is_ok(), !is_local);
            assert_eq!(clusters.rollout(&key).await.unwrap().is_some(), is_local);
            let port = clusters.service_port(&key).await.unwrap();
            assert_eq!(port.is_some(), is_local);
        }
        let one = Clusters::one(store("one"));
        let key = ObjectKey::new("shop", "one");
        assert!(one.read(&key).await.is_ok());
        assert!(one.rollout(&key).await.unwrap().is_some());
    }
}
