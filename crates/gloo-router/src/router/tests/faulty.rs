//! A memory store that fails on demand and records requests and writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use gloo_types::{MirrorPolicyDoc, RouteTableDoc, RouteTableSelector, ServicePort};
use json_patch::Patch;
use route_store::{
    Endpoint, Freshness, MemoryRouteStore, RequestContext, RolloutDoc, RolloutReader, RouteStore,
    Selection, StoreError,
};

use rollouts_rpc::rollout::RolloutFacts;

use super::*;

/// How a request fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Forbidden,
    Timeout,
    /// The request is never answered.
    Silence,
    /// The answer takes a second.
    Slowness,
}

pub(super) struct Faulty {
    store: MemoryRouteStore,
    /// Faults by request, for example `patch shop`.
    faults: Mutex<BTreeMap<String, Fault>>,
    /// Faults that no request has met yet.
    unmet: Mutex<BTreeSet<String>>,
    written: Mutex<Vec<String>>,
    services_read: Mutex<usize>,
    /// Each request with its context.
    contexts: Mutex<Vec<(String, RequestContext)>>,
    endpoints_read: Mutex<usize>,
    before_next_patch: Mutex<Option<Value>>,
    /// Each request and each answer takes up to 300 ms.
    delays: Mutex<Option<fastrand::Rng>>,
}

/// A store that checks at the end of a test that every fault was met by a request: a test with another one shows less than it says.
pub(super) struct Checked(pub(super) Arc<Faulty>);

impl Deref for Checked {
    type Target = Arc<Faulty>;

    fn deref(&self) -> &Arc<Faulty> {
        &self.0
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(*self.unmet.lock().unwrap(), BTreeSet::new());
        }
    }
}

impl Faulty {
    pub(super) fn new(tables: impl IntoIterator<Item = Value>) -> Arc<Self> {
        Arc::new(Self {
            store: MemoryRouteStore::new(tables).unwrap(),
            faults: Mutex::default(),
            unmet: Mutex::default(),
            written: Mutex::default(),
            services_read: Mutex::default(),
            contexts: Mutex::default(),
            endpoints_read: Mutex::default(),
            before_next_patch: Mutex::default(),
            delays: Mutex::default(),
        })
    }

    /// Makes every request `what` fail: `get shop`, `select shop` (only as a part of a selection), `patch shop`, `list
    /// policies`, `delete policy`, `get rollout`, `get service`, `list endpointslices` or `list pods`.
    pub(super) fn fail(&self, what: &str, fault: Fault) {
        self.faults().insert(what.to_owned(), fault);
        self.unmet.lock().unwrap().insert(what.to_owned());
    }

    /// Replaces a table, as its owner would, right before the next patch.
    pub(super) fn put_before_next_patch(&self, table: Value) {
        *self.before_next_patch.lock().unwrap() = Some(table);
    }

    /// Delays each request and each answer by a random time.
    pub(super) fn delay(&self, random: Option<fastrand::Rng>) {
        *self.delays.lock().unwrap() = random;
    }

    async fn travel(&self) {
        let delay = self
            .delays
            .lock()
            .unwrap()
            .as_mut()
            .map(|it| it.u64(0..300));
        if let Some(delay) = delay {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
    }

    pub(super) fn heal(&self) {
        self.faults().clear();
    }

    /// Returns the writes since the last call: `table`, `create`, `patch` or `delete`.
    pub(super) fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    pub(super) fn services_read(&self) -> usize {
        *self.services_read.lock().unwrap()
    }

    /// Returns the requests since the last call, each with its context.
    pub(super) fn contexts(&self) -> Vec<(String, RequestContext)> {
        std::mem::take(&mut self.contexts.lock().unwrap())
    }

    pub(super) fn endpoints_read(&self) -> usize {
        *self.endpoints_read.lock().unwrap()
    }

    fn note(&self, what: &str) {
        self.written.lock().unwrap().push(what.to_owned());
    }

    fn faults(&self) -> MutexGuard<'_, BTreeMap<String, Fault>> {
        self.faults.lock().unwrap()
    }

    async fn reach(&self, verb: &'static str, name: &str) -> Result<(), StoreError> {
        self.travel().await;
        let what = name.to_owned();
        let request = format!("{verb} {name}");
        let context = (request, RequestContext::current());
        self.contexts.lock().unwrap().push(context);
        let request = format!("{verb} {name}");
        let fault = self.faults().get(&request).copied();
        self.unmet.lock().unwrap().remove(&request);
        Err(match fault {
            None => return Ok(()),
            Some(Fault::Forbidden) => StoreError::Forbidden {
                verb,
                what,
                resource: "it".into(),
                reason: "no".into(),
            },
            Some(Fault::Timeout) => StoreError::Timeout {
                verb,
                what,
                after: Duration::from_secs(3),
            },
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Slowness) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Ok(());
            }
        })
    }
}

impl Deref for Faulty {
    type Target = MemoryRouteStore;

    fn deref(&self) -> &MemoryRouteStore {
        &self.store
    }
}

impl RouteStore for Faulty {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        let selected = self.store.select(selector, freshness).await;
        let Selection { tables, mut errors } = selected;
        let mut reached = Vec::new();
        for table in tables {
            let name = &table.key().name;
            let selected = self.reach("select", name).await;
            match selected.and(self.reach("get", name).await) {
                Ok(()) => reached.push(table),
                Err(error) => errors.push(error),
            }
        }
        Selection {
            tables: reached,
            errors,
        }
    }

    async fn marked(&self, rollout: &ObjectKey) -> Selection {
        self.store.marked(rollout).await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.reach("get", &key.name).await?;
        self.store.read(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.reach("patch", &key.name).await?;
        if let Some(table) = self.before_next_patch.lock().unwrap().take() {
            self.store.put(table)?;
        }
        let patched = self.store.patch(key, patch).await;
        self.travel().await;
        let patched = patched?;
        self.note("table");
        Ok(patched)
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.reach("list", "policies").await?;
        self.store.policies().await
    }

    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        self.store.last_known_policies()
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        self.note("create");
        self.store.create_policy(policy).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.note("patch");
        self.store.patch_policy(key, patch).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        self.reach("delete", "policy").await?;
        self.note("delete");
        self.store.delete_policy(policy).await
    }
}

impl RolloutReader for Faulty {
    async fn newer_rollout(
        &self,
        key: &ObjectKey,
        version: &str,
    ) -> Result<Option<RolloutFacts>, StoreError> {
        let live = self.store.rollout(key).await?;
        let live = live.map(|live| serde_json::from_value::<Rollout>(live.into_raw()).unwrap());
        // Most tests call with a Rollout that has no version.
        let is_newer =
            |live: &Rollout| !version.is_empty() && live.metadata.resource_version != version;
        let newer = live.filter(is_newer);
        Ok(newer.as_ref().map(RolloutFacts::of))
    }

    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        self.reach("get", "rollout").await?;
        self.store.rollout(key).await
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        *self.services_read.lock().unwrap() += 1;
        self.reach("get", "service").await?;
        self.store.service_ports(key).await
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        *self.endpoints_read.lock().unwrap() += 1;
        self.reach("list", "endpointslices").await?;
        self.store.endpoints(namespace, services).await
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.reach("list", "pods").await?;
        self.store.pods_of_version(namespace, hash).await
    }
}
