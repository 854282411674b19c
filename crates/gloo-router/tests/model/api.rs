//! The model's API server: RouteTables in memory, requests that fail on demand, and events between requests.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use gloo_router::{GlooRouter, Policy};
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector, ServicePort};
use json_patch::Patch;
use rollouts_rpc::TrafficRouter as _;
use route_store::{
    Endpoint, Freshness, MemoryRouteStore, RolloutDoc, RolloutReader, RouteStore, Selection, Store,
    StoreError,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::controller::{POD_HASH, Pass, Pod};
use crate::history::{Edit, Fault, Target};
use crate::owner::{Status, Table};

/// `--call-timeout` of the plugin.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Duration of a slow request: the default of `--request-timeout`.
const SLOW: Duration = Duration::from_secs(3);

/// A store of the model's API server.
#[derive(Clone, Debug)]
pub(crate) struct Api(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: Arc<MemoryRouteStore>,
    world: Mutex<World>,
    /// Notified when the plugin's process has to end.
    killed: Notify,
}

/// The state outside of the plugin, and scheduled events.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) tables: Vec<Table>,
    /// The status of each Rollout.
    pub(crate) statuses: Vec<Status>,
    faults: Vec<(Target, Fault, u8)>,
    events: Vec<(u8, Event)>,
    /// What happened during the current call.
    pub(crate) met: Met,
}

/// An event before a request.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Edit(usize, Edit),
    Restart,
    /// Another process makes the SetWeight of a pass.
    Late(Box<Pass>),
}

/// What happened during a call, besides the call itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Met {
    /// Tables that their owner or another process has changed.
    pub(crate) changed: BTreeSet<usize>,
    /// Tables that could not be written.
    pub(crate) failed: BTreeSet<usize>,
    pub(crate) reads_failed: bool,
    pub(crate) policies_failed: bool,
}

enum Fate {
    CarriedOut,
    /// Carried out, and then reported as failed.
    Lost,
}

impl Api {
    pub(crate) fn new(tables: Vec<Table>, statuses: Vec<Status>) -> Self {
        let documents = tables.iter().map(|table| table.document.clone());
        let memory = MemoryRouteStore::new(documents).expect("RouteTables");
        Self(Arc::new(Shared {
            memory: Arc::new(memory),
            world: Mutex::new(World {
                tables,
                statuses,
                faults: Vec::new(),
                events: Vec::new(),
                met: Met::default(),
            }),
            killed: Notify::new(),
        }))
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the live table; `None` if it is deleted.
    pub(crate) fn live(&self, table: usize) -> Option<Value> {
        let key = self.world().tables[table].key.clone();
        self.0.memory.table(&key)
    }

    /// Returns the number of writes so far.
    pub(crate) fn writes(&self) -> usize {
        self.0.memory.writes()
    }

    /// Returns the number of MirrorPolicies, without a request that could fail.
    pub(crate) async fn count_policies(&self) -> usize {
        self.0
            .memory
            .policies()
            .await
            .map_or(0, |policies| policies.len())
    }

    /// Completes when the plugin's process has to end.
    pub(crate) async fn killed(&self) {
        self.0.killed.notified().await;
    }

    pub(crate) fn show_rollout(&self, rollout: Value) {
        self.0.memory.put_rollout(rollout).expect("a Rollout");
    }

    /// Sets the endpoints of a Service.
    pub(crate) fn show_endpoints(&self, service: &str, pods: &[Pod]) {
        for Pod { name, hash } in pods {
            let labels = json!({ POD_HASH: hash });
            let metadata =
                json!({"name": name, "namespace": "shop", "uid": name, "labels": labels});
            let pod = json!({ "metadata": metadata });
            self.0.memory.put_pod(pod).expect("a Pod");
        }
        let endpoint = |pod: &Pod| {
            let target = json!({"kind": "Pod", "uid": pod.name});
            json!({"conditions": {"ready": true}, "targetRef": target})
        };
        let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
        let labels = json!({"kubernetes.io/service-name": service});
        let slice = json!({
            "metadata": {"name": service, "namespace": "shop", "labels": labels},
            "endpoints": endpoints,
        });
        let put = self.0.memory.put_endpoint_slice(slice);
        put.expect("an EndpointSlice");
    }

    pub(crate) fn fail(&self, on: Target, fault: Fault, times: u8) {
        self.world().faults.push((on, fault, times));
    }

    /// Removes all faults.
    pub(crate) fn heal(&self) {
        self.world().faults.clear();
    }

    pub(crate) fn forget_events(&self) {
        self.world().events.clear();
    }

    /// Whether no fault and no event is scheduled.
    pub(crate) fn is_calm(&self) -> bool {
        let world = self.world();
        world.faults.is_empty() && world.events.is_empty()
    }

    /// Schedules an event, to happen after `when` more requests.
    pub(crate) fn schedule(&self, when: u8, event: Event) {
        self.world().events.push((when, event));
    }

    /// Edits a table as its owner.
    pub(crate) fn edit(&self, index: usize, edit: Edit) {
        // A shrunk setup has fewer tables.
        if index >= self.world().tables.len() {
            return;
        }
        let live = self.live(index);
        let mut world = self.world();
        let World {
            tables,
            statuses,
            met,
            ..
        } = &mut *world;
        let table = &mut tables[index];
        let Some(edited) = table.edit(edit, live, statuses) else {
            return;
        };
        met.changed.insert(index);
        if table.is_deleted {
            self.0.memory.remove(&table.key);
        } else {
            self.0.memory.put(edited).expect("still a RouteTable");
        }
    }

    /// Notes that the status of a Rollout has a new weight. A table that is not selected may still have the earlier one.
    pub(crate) fn miss_status(&self) {
        let tables = self.world().tables.len();
        for index in 0..tables {
            let live = self.live(index);
            let table = &mut self.world().tables[index];
            if !table.is_selected {
                live.iter().for_each(|live| table.note_another_status(live));
            }
        }
    }

    /// Carries out the SetWeight of a pass with another process of the plugin.
    pub(crate) async fn late(&self, pass: &Pass) {
        let router = router(Arc::clone(&self.0.memory));
        let everything = 0..self.world().tables.len();
        for table in everything.clone() {
            let live = self.live(table);
            let table = &mut self.world().tables[table];
            live.iter().for_each(|live| table.note_another_status(live));
        }
        self.world().met.changed.extend(everything.clone());
        // The caller has ended, so the result is ignored.
        let _ = router
            .update_hash(&pass.rollout, &pass.hashes, &pass.additional)
            .await;
        let _ = router
            .set_weight(&pass.rollout, pass.desired, &pass.additional)
            .await;
        for table in everything {
            let live = self.live(table);
            let table = &mut self.world().tables[table];
            live.iter().for_each(|live| table.note_live(live));
        }
    }

    /// Makes one request: plays the events that are due, and fails if a fault is set.
    async fn request(
        &self,
        target: Target,
        verb: &'static str,
        what: &str,
    ) -> Result<Fate, StoreError> {
        for event in self.due() {
            match event {
                Event::Edit(table, edit) => self.edit(table, edit),
                Event::Late(pass) => Box::pin(self.late(&pass)).await,
                Event::Restart => {
                    self.0.killed.notify_one();
                    pending::<()>().await;
                }
            }
        }
        let Some(fault) = self.fault(target) else {
            return Ok(Fate::CarriedOut);
        };
        let what = what.to_owned();
        match fault {
            Fault::AnswerLost if verb == "patch" => Ok(Fate::Lost),
            Fault::Conflict if verb == "patch" => Err(StoreError::Conflict(what)),
            Fault::Forbidden => Err(StoreError::Forbidden {
                verb,
                what,
                resource: "routetables.networking.gloo.solo.io".into(),
                reason: "no".into(),
            }),
            Fault::Slow => {
                tokio::time::sleep(SLOW).await;
                Err(timeout(verb, what))
            }
            Fault::Unreachable | Fault::Conflict | Fault::AnswerLost => {
                Err(StoreError::Unreachable {
                    verb,
                    what,
                    source: "connection refused".into(),
                })
            }
        }
    }

    fn due(&self) -> Vec<Event> {
        let mut world = self.world();
        for (when, _) in &mut world.events {
            *when = when.saturating_sub(1);
        }
        let (due, later) = world.events.drain(..).partition(|(when, _)| *when == 0);
        world.events = later;
        due.into_iter()
            .map(|(_, event): (u8, Event)| event)
            .collect()
    }

    fn fault(&self, target: Target) -> Option<Fault> {
        let mut world = self.world();
        let fault = world.faults.iter_mut().find(|(on, _, _)| *on == target)?;
        let kind = fault.1;
        if kind != Fault::Forbidden {
            fault.2 -= 1;
        }
        world.faults.retain(|(_, _, times)| *times > 0);
        match target {
            Target::Table(table) | Target::Read(table) => {
                world.met.failed.insert(table);
            }
            Target::Reads => world.met.reads_failed = true,
            Target::Policies => world.met.policies_failed = true,
        }
        Some(kind)
    }

    fn target(&self, key: &ObjectKey, target: fn(usize) -> Target) -> Target {
        let position = self
            .world()
            .tables
            .iter()
            .position(|table| table.key == *key);
        position.map_or(Target::Reads, target)
    }

    fn memory(&self) -> &Arc<MemoryRouteStore> {
        &self.0.memory
    }
}

/// Creates the router of a new process.
pub(crate) fn router<S: Store>(store: Arc<S>) -> GlooRouter<S> {
    GlooRouter::new(store, Policy::default()).with_call_timeout(CALL_TIMEOUT)
}

fn timeout(verb: &'static str, what: String) -> StoreError {
    StoreError::Timeout {
        verb,
        what,
        after: SLOW,
    }
}

fn label(key: &ObjectKey) -> String {
    format!("RouteTable {key}")
}

impl RouteStore for Api {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        let mut selection = Selection::default();
        if let Err(error) = self.request(Target::Reads, "list", "RouteTables").await {
            selection.errors.push(error);
            return selection;
        }
        let found = self.memory().select(selector, freshness).await;
        selection.errors = found.errors;
        let reads = found.tables.into_iter().map(async |table| {
            let (target, what) = (self.target(table.key(), Target::Read), label(table.key()));
            self.request(target, "get", &what).await.map(|_| table)
        });
        for read in join_all(reads).await {
            match read {
                Ok(table) => selection.tables.push(table),
                Err(error) => selection.errors.push(error),
            }
        }
        selection
    }

    async fn marked(&self, rollout: &ObjectKey) -> Selection {
        match self.request(Target::Reads, "list", "RouteTables").await {
            Ok(_) => self.memory().marked(rollout).await,
            Err(error) => Selection {
                tables: Vec::new(),
                errors: vec![error],
            },
        }
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.request(self.target(key, Target::Read), "get", &label(key))
            .await?;
        self.memory().read(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        match self
            .request(self.target(key, Target::Table), "patch", &label(key))
            .await?
        {
            Fate::CarriedOut => self.memory().patch(key, patch).await,
            Fate::Lost => {
                self.memory().patch(key, patch).await?;
                Err(timeout("patch", label(key)))
            }
        }
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.request(Target::Policies, "list", "MirrorPolicies")
            .await?;
        self.memory().policies().await
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        self.request(Target::Policies, "create", "MirrorPolicy")
            .await?;
        self.memory().create_policy(policy).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.request(Target::Policies, "patch", "MirrorPolicy")
            .await?;
        self.memory().patch_policy(key, patch).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        self.request(Target::Policies, "delete", "MirrorPolicy")
            .await?;
        self.memory().delete_policy(policy).await
    }
}

impl RolloutReader for Api {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        self.memory().rollout(key).await
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        self.memory().service_ports(key).await
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        self.memory().endpoints(namespace, services).await
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.memory().pods_of_version(namespace, hash).await
    }
}
