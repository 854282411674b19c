//! A cache of RouteTables, MirrorPolicies and Rollouts that watches fill, with live reads where the cache is stale or not
//! allowed ([`Decision::freshness`](crate::Decision::freshness)).

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, try_join_all};
use gloo_types::{
    MirrorPolicy, MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector, ServicePort,
};
use json_patch::Patch;
use rollout_types::{Rollout, RolloutFacts};
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, timeout_at};

use crate::kube_api::compare;
use crate::{
    CompactTable, Endpoint, EndpointStream, FRESH, Freshness, Informer, Keep, KubeRouteStore,
    Lease, LeaseReader, RolloutDoc, RolloutKeeper, RolloutReader, RouteStore, Selection,
    StoreError, TableKeeper, Unknown, WholeDocuments, ZeroMirrors,
};

/// How long calls wait for the first list, from the creation of the store.
const START: Duration = Duration::from_secs(1);

/// The shortest pause between two checks of whether MirrorPolicies must be watched.
const BETWEEN_CHECKS: Duration = Duration::from_secs(1);

/// A store that reads RouteTables, MirrorPolicies and Rollouts from watches, and sends writes and other reads to the
/// clusters. [`CachedRouteStore::run`] starts the watches.
pub struct CachedRouteStore {
    /// The stores behind the cache, for live reads.
    pub live: Clusters,
    /// The informer of RouteTables.
    pub tables: Informer<TableKeeper>,
    /// The informer of Rollouts.
    pub rollouts: Informer<RolloutKeeper>,
    /// The informer of MirrorPolicies, which watches only while a known Rollout has mirror steps.
    pub policies: Informer<WholeDocuments<MirrorPolicy>>,
    /// Namespaces to watch without permission for all namespaces, in addition to those of the calls.
    namespaces: Vec<String>,
    started: Instant,
}

/// The stores of two clusters, which fail independently. Without a management cluster both are the same store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Clusters {
    /// The controller's cluster: Rollouts, Services, EndpointSlices, Pods, Leases and Events about Rollouts.
    pub local: Arc<KubeRouteStore>,
    /// The cluster of Gloo: RouteTables, MirrorPolicies and Events about them.
    pub tables: Arc<KubeRouteStore>,
}

impl Clusters {
    /// Uses `tables` for the objects of Gloo, or one cluster for everything.
    #[must_use]
    pub fn new(local: KubeRouteStore, tables: Option<KubeRouteStore>) -> Self {
        let local = Arc::new(local);
        let tables = tables.map_or_else(|| Arc::clone(&local), Arc::new);
        Self { local, tables }
    }

    /// Returns whether one cluster has everything.
    #[must_use]
    pub fn is_one(&self) -> bool {
        Arc::ptr_eq(&self.local, &self.tables)
    }
}

impl CachedRouteStore {
    /// A cache over `live` without watches yet. Without permission for RouteTables of all namespaces, it watches
    /// `namespaces` and the namespaces that calls select.
    #[must_use]
    pub fn new(
        live: Clusters,
        tables: TableKeeper,
        rollouts: RolloutKeeper,
        namespaces: Vec<String>,
    ) -> Self {
        Self {
            tables: Informer::new(Arc::clone(&live.tables), tables),
            rollouts: Informer::new(Arc::clone(&live.local), rollouts),
            policies: Informer::new(Arc::clone(&live.tables), WholeDocuments::default()),
            live,
            namespaces,
            started: Instant::now(),
        }
    }

    /// Watches RouteTables and Rollouts, and MirrorPolicies while a Rollout needs them. Never returns. Dropping it ends all
    /// watches and clears the cache.
    pub async fn run(&self) {
        let _ends = EndOnDrop(self);
        self.tables.watch_all();
        self.rollouts.watch_all();
        join(self.follow_namespaces(), self.follow_policies()).await;
    }

    /// While all namespaces cannot be watched: watches the tables of each configured namespace, and the Rollouts of each
    /// namespace that have marks in a table. Other namespaces are watched from the first call on.
    async fn follow_namespaces(&self) {
        loop {
            self.tables.settled(None).await;
            for namespace in &self.namespaces {
                self.tables.watch(namespace);
            }
            self.tables.settled(None).await;
            let tables = self.tables.all();
            let owners = tables.iter().flat_map(|table| &table.owners);
            let namespaces: BTreeSet<&String> = owners.map(|owner| &owner.namespace).collect();
            self.rollouts.settled(None).await;
            for namespace in namespaces {
                self.rollouts.watch(namespace);
            }
            sleep(FRESH).await;
        }
    }

    /// Watches MirrorPolicies while a known Rollout has mirror steps.
    async fn follow_policies(&self) {
        loop {
            let mut changes = self.rollouts.subscribe();
            let known = self.rollouts.objects(None, FRESH);
            let is_known = known.is_ok();
            let rollouts = known.unwrap_or_else(|_| self.rollouts.all());
            let mut plugins = rollouts.iter().filter_map(|it| it.plugin.as_ref());
            if plugins.any(|plugin| plugin.has_mirrors) {
                self.watch_policies();
            } else if is_known {
                self.policies.watch_only(&BTreeSet::new());
            }
            if let Err(RecvError::Closed) = changes.recv().await {
                return;
            }
            sleep(BETWEEN_CHECKS).await;
        }
    }

    /// Watches MirrorPolicies: of all namespaces, or of those whose tables are watched.
    fn watch_policies(&self) {
        self.policies.watch_all();
        for namespace in self.tables.namespaces() {
            self.policies.watch(&namespace);
        }
    }

    /// Waits for the first list of the tables of a namespace, or of all, at most until [`START`] has passed.
    async fn wait(&self, namespace: Option<&str>) {
        let settled = self.tables.settled(namespace);
        let _ = timeout_at(self.started + START, settled).await;
    }

    /// Returns the selected tables from the cache; `None` if the tables of a namespace are not cached or older than `age`.
    fn cached(&self, selector: &RouteTableSelector, age: Duration) -> Option<Selection> {
        let mut tables: Vec<Arc<CompactTable>> = Vec::new();
        for namespace in &selector.namespaces {
            tables.extend(self.tables.objects(Some(namespace), age).ok()?);
        }
        // The others need not be parsed.
        tables.retain(|table| selector.matches(&table.key, &table.labels));
        let tables: Result<_, StoreError> = tables.iter().map(|it| it.document()).collect();
        Some(Selection::of_all(Ok(tables.ok()?)).selected_by(selector))
    }

    fn cache(&self, table: &RouteTableDoc) {
        let table = self.tables.keeper().compact(table.clone());
        self.tables.put(table);
    }

    fn cached_policies(&self, age: Duration) -> Option<Vec<MirrorPolicyDoc>> {
        let policies = self.policies.objects(None, age).ok()?.into_iter();
        Some(policies.map(|policy| (*policy).clone()).collect())
    }

    /// Reads the selected names that the cache lacks from the API server, before they become errors.
    async fn confirmed(&self, selector: &RouteTableSelector, cached: Selection) -> Selection {
        let is_missing = |name: &&String| !cached.tables.iter().any(|it| it.key().name == **name);
        let missing = RouteTableSelector {
            names: selector.names.iter().filter(is_missing).cloned().collect(),
            namespaces: selector.namespaces.clone(),
            ..RouteTableSelector::default()
        };
        let found = self.live.tables.select(&missing, Freshness::Live).await;
        Selection::of_all(Ok(cached.tables)).and(found)
    }
}

/// Ends the watches of a store when it is dropped.
struct EndOnDrop<'a>(&'a CachedRouteStore);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.tables.watch_only(&BTreeSet::new());
        self.0.rollouts.watch_only(&BTreeSet::new());
        self.0.policies.watch_only(&BTreeSet::new());
    }
}

impl RouteStore for CachedRouteStore {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        for namespace in &selector.namespaces {
            self.tables.watch(namespace);
        }
        if freshness == Freshness::Cached {
            if let Some(namespace) = selector.namespaces.first() {
                self.wait(Some(namespace)).await;
            }
            // A selection without any table is read again completely.
            let cached = self.cached(selector, FRESH);
            match cached.filter(|cached| !cached.tables.is_empty()) {
                Some(cached) if cached.errors.is_empty() => return cached,
                Some(cached) => return self.confirmed(selector, cached).await,
                None => {}
            }
        }
        self.live.tables.select(selector, Freshness::Live).await
    }

    fn last_known(&self, selector: &RouteTableSelector) -> Option<Selection> {
        self.cached(selector, Duration::MAX)
    }

    async fn marked(&self, rollout: &ObjectKey) -> Selection {
        let tables = match self.tables.objects(None, Duration::MAX) {
            Ok(tables) => tables,
            Err(Unknown::NoAnswer) => return self.live.tables.marked(rollout).await,
            Err(_) => self.tables.all(),
        };
        let marked = tables.iter().filter(|it| it.owners.contains(rollout));
        marked.map(|table| table.document()).collect()
    }

    async fn is_starting(&self) -> bool {
        self.wait(None).await;
        match self.tables.check(None, Duration::MAX) {
            Err(Unknown::NoAnswer | Unknown::NotWatched) => true,
            Err(Unknown::Failed(error)) => error.is_unavailable(),
            Ok(()) | Err(Unknown::Unproven(_)) => false,
        }
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.live.tables.read(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let table = self.live.tables.patch(key, patch).await?;
        self.cache(&table);
        Ok(table)
    }

    fn field_manager(&self) -> &str {
        self.live.tables.field_manager()
    }

    async fn hand_back(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let table = self.live.tables.hand_back(key, patch).await?;
        self.cache(&table);
        Ok(table)
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.watch_policies();
        if let Some(policies) = self.cached_policies(FRESH) {
            return Ok(policies);
        }
        let of_all = self.live.tables.policies().await;
        let namespaces = self.tables.namespaces();
        if of_all.is_ok() || namespaces.is_empty() {
            return of_all;
        }
        let namespaces = namespaces.iter();
        let lists = namespaces.map(|it| self.live.tables.objects(Some(it)));
        Ok(try_join_all(lists).await?.concat())
    }

    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        self.cached_policies(Duration::MAX)
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let policy = self.live.tables.create_policy(policy).await?;
        self.policies.put(policy.clone().without_managed_fields());
        Ok(policy)
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        let policy = self.live.tables.patch_policy(key, patch).await?;
        self.policies.put(policy.clone().without_managed_fields());
        Ok(policy)
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        let deleted = self.live.tables.delete_policy(policy).await;
        if let Ok(()) | Err(StoreError::NotFound { .. }) = deleted {
            self.policies.remove(policy.key());
        }
        deleted
    }
}

impl RolloutReader for CachedRouteStore {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        self.live.local.rollout(key).await
    }

    async fn knows_rollouts(&self, namespace: &str) -> Result<bool, StoreError> {
        self.live.local.knows_rollouts(namespace).await
    }

    async fn zero_mirrors(
        &self,
        key: &ObjectKey,
        generation: i64,
    ) -> Result<Option<ZeroMirrors>, StoreError> {
        if let Ok(Some(cached)) = self.rollouts.find(key, FRESH)
            && let Some(plugin) = &cached.plugin
            && cached.facts.generation >= generation
        {
            return Ok(Some(plugin.zero_mirrors.clone()));
        }
        self.live.local.zero_mirrors(key, generation).await
    }

    async fn newer_rollout(
        &self,
        key: &ObjectKey,
        version: &str,
    ) -> Result<Option<RolloutFacts>, StoreError> {
        let facts = match self.rollouts.find(key, FRESH) {
            Ok(cached) => cached.map(|it| it.facts.clone()),
            // The cache is stale, for example because this process was frozen too.
            Err(unknown) if unknown.may_pass() => {
                let live = self.live.local.get_object::<Rollout>(key).await?;
                let kept = self.rollouts.keeper().keep(&live.raw().to_string());
                kept.ok().map(|it| it.facts)
            }
            // Rollouts cannot be watched, for example without permission: nothing newer will be known.
            Err(_) => None,
        };
        let is_newer =
            |facts: &RolloutFacts| compare(&facts.version, version) == Some(Ordering::Greater);
        Ok(facts.filter(is_newer))
    }

    fn is_called_for(&self, key: &ObjectKey) {
        self.rollouts.watch(&key.namespace);
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        self.live.local.service_ports(key).await
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        self.live.local.endpoints(namespace, services).await
    }

    fn watch_endpoints(&self, namespace: &str, services: &[&str]) -> EndpointStream<'_> {
        self.live.local.follow_endpoints_of(namespace, services)
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.live.local.pods_of_version(namespace, hash).await
    }
}

impl LeaseReader for CachedRouteStore {
    async fn lease(&self, key: &ObjectKey) -> Result<Option<Lease>, StoreError> {
        self.live.local.lease(key).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::PluginBlock;
    use crate::fake_api::FakeApi;

    /// An API server with a RouteTable, a Rollout and a Service of this name.
    fn api(name: &str) -> KubeRouteStore {
        let api = FakeApi::default();
        let metadata = json!({"name": name, "namespace": "shop"});
        api.put("routetables", json!({"metadata": metadata, "spec": {}}));
        api.put("rollouts", json!({"metadata": metadata, "spec": {}}));
        let spec = json!({"ports": [{"port": 80}]});
        api.put("services", json!({"metadata": metadata, "spec": spec}));
        api.store()
    }

    fn cached(clusters: Clusters) -> CachedRouteStore {
        let tables = TableKeeper::new(|_| Ok(Vec::new()));
        let rollouts = RolloutKeeper::new(Box::new(|_| PluginBlock::Absent));
        CachedRouteStore::new(clusters, tables, rollouts, Vec::new())
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("shop", name)
    }

    #[tokio::test]
    async fn rollouts_and_services_are_local_and_tables_are_not() {
        let store = cached(Clusters::new(api("local"), Some(api("tables"))));
        for (name, is_local) in [("local", true), ("tables", false)] {
            let key = key(name);
            assert_eq!(store.read(&key).await.is_ok(), !is_local);
            assert_eq!(store.rollout(&key).await.unwrap().is_some(), is_local);
            let port = store.service_ports(&key).await.unwrap();
            assert_eq!(port.is_some(), is_local);
        }
        let one = cached(Clusters::new(api("one"), None));
        assert!(one.live.is_one());
        assert!(one.read(&key("one")).await.is_ok());
        assert!(one.rollout(&key("one")).await.unwrap().is_some());
    }
}
