//! What the router does between the calls: it asks for the same as the last SetWeight, for one table, and it restores tables
//! of Rollouts that are gone.
//!
//! The plans and the writes are those of a call. A write is tried once: the write that conflicts with it causes another event.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::Rollout;
use route_planner::{Plan, belongs_to, involved, is_rest, plan, plan_toward_stable, restore};
use route_store::{Decision, INSTANCE_ID_LABEL, Store, StoreError};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info};

use super::{GlooRouter, Only, carry_out, deadline::Deadline, partial::plan_all, write::moves};
use crate::collect::{Part, Rollouts};
use crate::error::Failure;
use crate::fights::Fights;
use crate::from_rpc::{self, Request};
use crate::report::{About, Orphanage, RepairOutcome};
use crate::standing::{Standing, StandingIntents};

/// The annotation with which the owner of a table switches off its repairs.
const REPAIR_ANNOTATION: &str = "rollouts-plugin-trafficrouter-glooplatform/repair";

/// What the calls leave for the time between them.
#[derive(Debug, Default)]
pub(crate) struct Between {
    standing: Mutex<StandingIntents>,
    fights: Mutex<Fights>,
    /// Rollouts whose SetWeight ended since they were looked at.
    set: Mutex<BTreeSet<ObjectKey>>,
    /// Tables about which a fight began in a call, with the Rollout.
    fought: Mutex<Vec<(ObjectKey, About)>>,
    news: Notify,
    /// The instance id of the controller, which the first call tells.
    instance: SetOnce<Option<String>>,
    /// What runs between the calls.
    tasks: Mutex<Tasks>,
}

/// What runs between the calls.
#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    is_over: bool,
}

/// What a table needs to be as the last SetWeight left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drift {
    /// Nothing.
    None,
    /// A write after which no share of a canary is larger.
    Steady,
    /// A write after which some share is larger.
    Growing,
}

/// Whether the controller that started this process is the leader.
pub(crate) trait Fence: Send + Sync + 'static {
    fn allows(&self) -> impl Future<Output = bool> + Send;
}

/// A repair that came to an end.
#[derive(Debug, PartialEq)]
pub(crate) struct Repaired {
    pub(crate) rollout: About,
    pub(crate) table: About,
    pub(crate) outcome: RepairOutcome,
}

/// Whether a part of a table that belongs to a Rollout is gone.
#[derive(Debug)]
pub(crate) enum Collected {
    Restored(About),
    /// It is not to be restored any more.
    Spared,
    Failed,
}

impl Between {
    pub(crate) fn standing(&self) -> MutexGuard<'_, StandingIntents> {
        lock(&self.standing)
    }

    pub(crate) fn fights(&self) -> MutexGuard<'_, Fights> {
        lock(&self.fights)
    }

    /// Runs a task until the session ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        if !tasks.is_over {
            tasks.running.spawn(task);
        }
    }

    /// Ends all tasks, with the requests that they wait for.
    pub(crate) async fn stop(&self) {
        let mut running = {
            let mut tasks = lock(&self.tasks);
            tasks.is_over = true;
            std::mem::take(&mut tasks.running)
        };
        running.shutdown().await;
    }

    /// A call begins. A controller with an instance id calls for Rollouts that have it as a label only, and one without an id
    /// for those without the label.
    pub(super) fn called_for(&self, rollout: &Rollout) {
        if !self.instance.initialized() {
            let instance = rollout.metadata.labels.get(INSTANCE_ID_LABEL);
            // Another call may have been faster, with the same id.
            let _ = self.instance.set(instance.cloned());
        }
    }

    /// Waits for the first call. Returns the instance id of the controller, if it has one.
    pub(crate) async fn instance(&self) -> Option<String> {
        self.instance.wait().await.clone()
    }

    /// A call begins that may ask for something else than the last SetWeight.
    pub(super) fn suspend(&self, rollout: &Rollout) {
        self.standing().suspend(&from_rpc::key(rollout));
    }

    /// A SetWeight ended, which had to move traffic in the tables `moved`.
    pub(super) fn set(
        &self,
        rollout: &Rollout,
        standing: Standing,
        leaves_marks: bool,
        moved: &[ObjectKey],
    ) {
        let uid = standing.uid().to_owned();
        let repeats = self.standing().set(rollout, standing, leaves_marks);
        let key = from_rpc::key(rollout);
        if repeats {
            // What it asked for was in force: another client changed these tables.
            let now = Instant::now();
            for table in moved {
                if self.fights().written(table, now) {
                    let key = key.clone();
                    let uid = uid.clone();
                    lock(&self.fought).push((table.clone(), About { key, uid }));
                }
            }
        }
        if leaves_marks {
            lock(&self.set).insert(key);
            self.news.notify_one();
        }
    }

    /// Waits for the end of a SetWeight. Returns the Rollouts whose tables have to be checked, because changes during the call
    /// were ignored, and the tables about which a fight began, with the Rollout.
    pub(crate) async fn news(&self) -> (BTreeSet<ObjectKey>, Vec<(ObjectKey, About)>) {
        loop {
            let set = std::mem::take(&mut *lock(&self.set));
            let fought = std::mem::take(&mut *lock(&self.fought));
            if !set.is_empty() || !fought.is_empty() {
                return (set, fought);
            }
            self.news.notified().await;
        }
    }
}

impl<S: Store> GlooRouter<S> {
    pub(crate) fn between(&self) -> &Between {
        &self.between
    }

    /// What `table` needs to be as the last SetWeight of a Rollout left it.
    pub(crate) fn drift(&self, rollout: &ObjectKey, table: &RouteTableDoc) -> Drift {
        let (request, is_complete) = match self.between.standing().of(rollout) {
            Some(Standing {
                request: Some(request),
                is_complete,
                ..
            }) => (Arc::clone(request), *is_complete),
            _ => return Drift::None,
        };
        if is_left_alone(table) || is_owners(&request, table) {
            return Drift::None;
        }
        let (config, intent) = (&request.config, &request.intent);
        let planned = match plan(config, intent, table) {
            Ok(plan) if is_complete || !plan.grows() => Ok(plan),
            _ => plan_toward_stable(config, &request.without_new_routes().intent, table),
        };
        match planned {
            Ok(plan) if !self.moves(&plan) => Drift::None,
            Ok(plan) if plan.grows() => Drift::Growing,
            Ok(_) => Drift::Steady,
            // The call said so.
            Err(_) => Drift::None,
        }
    }

    /// Whether traffic moves with a plan, or copies of it, as far as is known without asking.
    fn moves(&self, plan: &Plan) -> bool {
        if !plan.needs_policies() {
            return plan.moves_traffic();
        }
        match self.store.last_known_policies() {
            Some(known) => moves(plan, &known),
            None => plan.moves_traffic(),
        }
    }

    /// Takes what the status of a Rollout records for what its last SetWeight asked for, if all its tables are like that: a
    /// process that has just started does not know who changed a table before.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub(crate) async fn resume(&self, rollout: &ObjectKey) -> Result<(), StoreError> {
        let Some((live, false)) = self.live_rollout(rollout).await? else {
            return Ok(());
        };
        let Some(mut standing) = Standing::recorded(&live) else {
            return Ok(());
        };
        let weight = from_rpc::weight(standing.desired, &standing.additional);
        let hashes = self.memory.hashes(&live);
        let Ok(mut request) = Request::new(&self.policy, &live, hashes, false, weight) else {
            return Ok(());
        };
        let deadline = Deadline::of_call(self.call_timeout);
        let selected = self.selected(&request, Decision::Plan, deadline).await;
        let selected = self.for_weights(&mut request, selected, deadline).await;
        let is_in_force = selected.failures.is_empty()
            && plan_all(&request, &selected.tables)
                .iter()
                .all(|plan| plan.as_ref().is_ok_and(Plan::is_noop));
        if is_in_force {
            standing.tables = selected.keys();
            standing.request = Some(Arc::new(request));
            self.between.standing().resume(rollout, standing);
            lock(&self.between.set).insert(rollout.clone());
            self.between.news.notify_one();
        }
        Ok(())
    }

    /// Asks for the same as the last SetWeight of a Rollout, for one table, if the Rollout still asks for it and `fence`
    /// allows it. `None` if nothing is to be repaired any more.
    pub(crate) async fn repair(
        &self,
        rollout: &ObjectKey,
        table: &ObjectKey,
        fence: &impl Fence,
    ) -> Option<Repaired> {
        let standing = self.between.standing().of(rollout).cloned()?;
        let mut about = About {
            key: table.clone(),
            uid: String::new(),
        };
        let uid = standing.uid().to_owned();
        let key = rollout.clone();
        let rollout = About { key, uid };
        let outcome = self
            .repair_as(&rollout.key, &mut about, &standing, fence)
            .await?;
        Some(Repaired {
            rollout,
            table: about,
            outcome,
        })
    }

    async fn repair_as(
        &self,
        rollout: &ObjectKey,
        table: &mut About,
        standing: &Standing,
        fence: &impl Fence,
    ) -> Option<RepairOutcome> {
        let (live, is_deleting) = match self.live_rollout(rollout).await {
            Ok(Some((live, is_deleting))) => (Some(live), is_deleting),
            Ok(None) => (None, false),
            Err(error) => {
                info!(%rollout, route_table = %table.key, "not repaired: {error}");
                return Some(RepairOutcome::Failed);
            }
        };
        let outdated = standing.outdated(live.as_ref(), is_deleting);
        let Some(live) = live.filter(|_| outdated.is_none()) else {
            if let Some(outdated) = outdated {
                info!(%rollout, route_table = %table.key, "not repaired: {outdated}");
            }
            let mut intents = self.between.standing();
            if intents.of(rollout) == Some(standing) {
                intents.forget(rollout);
            }
            return Some(RepairOutcome::FencedRollout);
        };
        let weight = from_rpc::weight(standing.desired, &standing.additional);
        let hashes = self.memory.hashes(&live);
        let request = Request::new(&self.policy, &live, hashes, standing.are_removed, weight);
        let mut request = request.ok()?;
        if !standing.is_complete {
            request = request.without_new_routes();
        }
        let deadline = Deadline::of_call(self.call_timeout);
        let selected = self.selected(&request, Decision::Plan, deadline).await;
        let selected = self.for_weights(&mut request, selected, deadline).await;
        let document = selected.tables.iter().find(|it| *it.key() == table.key)?;
        let uid = document.raw().pointer("/metadata/uid");
        table.uid = uid.and_then(Value::as_str).unwrap_or_default().to_owned();
        if is_left_alone(document) || is_owners(&request, document) {
            return None;
        }
        if !fence.allows().await {
            return Some(RepairOutcome::FencedLease);
        }
        // A call that has begun meanwhile looks after the table itself.
        if self.between.standing().of(rollout) != Some(standing) {
            return None;
        }
        let only = Only {
            table: &table.key,
            may_grow: standing.is_complete,
        };
        let shifted = self.shift(&request, selected, deadline, Some(only)).await;
        match shifted.unwritten.first() {
            None if shifted.moved.is_empty() => None,
            None => Some(RepairOutcome::Written),
            Some(Failure::Store(StoreError::Conflict(_))) => Some(RepairOutcome::Conflict),
            Some(failure) => {
                info!(%rollout, route_table = %table.key, "not repaired: {failure}");
                Some(RepairOutcome::Failed)
            }
        }
    }

    /// The Rollout as it is now, and whether it is being deleted.
    pub(super) async fn live_rollout(
        &self,
        rollout: &ObjectKey,
    ) -> Result<Option<(Rollout, bool)>, StoreError> {
        let Some(live) = self.store.rollout(rollout).await? else {
            return Ok(None);
        };
        let is_deleting = live.raw().pointer("/metadata/deletionTimestamp").is_some();
        // A Rollout that contradicts its API does not pass its CustomResourceDefinition.
        let mut live = Rollout::deserialize(live.raw()).unwrap_or_default();
        for step in live.steps_mut() {
            // A step that mirrors nothing removes its route.
            let mirror = step.set_mirror_route.as_mut();
            if let Some(mirror) = mirror.filter(|mirror| mirror.percentage == Some(0)) {
                mirror.percentage = None;
                mirror.matches.clear();
            }
        }
        Ok(Some((live.with_defaults(), is_deleting)))
    }

    /// Whether a Rollout selects a table, as both are now.
    async fn selects(&self, rollout: &Rollout, table: &ObjectKey) -> Result<bool, StoreError> {
        let Ok(config) = from_rpc::config(&self.policy, rollout, &from_rpc::key(rollout)) else {
            // An invalid block selects nothing for certain.
            return Ok(true);
        };
        match self.store.read(table).await {
            Ok(table) => Ok(config.route_tables().matches(table.key(), table.labels())),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A table as it is now, with who wrote which field.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub(crate) async fn live_table(&self, table: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.store.read(table).await
    }

    /// Whether a Rollout is there, and uses this plugin.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub(crate) async fn use_of(&self, rollout: &ObjectKey) -> Result<Option<Rollouts>, StoreError> {
        let live = self.live_rollout(rollout).await?;
        let names = &self.policy.plugin_names;
        Ok(live.map(|(live, _)| Rollouts::of(&live, names)))
    }

    /// Restores a table from what a Rollout left in it, unless the Rollout is there and looks after it.
    pub(crate) async fn collect(
        &self,
        part: &Part,
        why: Orphanage,
        fence: &impl Fence,
    ) -> Collected {
        let Part { rollout, table } = part;
        match self.try_collect(part, why, fence).await {
            Ok(collected) => collected,
            Err(error) => {
                info!(%rollout, route_table = %table, "not restored: {error}");
                Collected::Failed
            }
        }
    }

    async fn try_collect(
        &self,
        part: &Part,
        why: Orphanage,
        fence: &impl Fence,
    ) -> Result<Collected, Failure> {
        let Part { rollout, table } = part;
        let live = self.live_rollout(rollout).await?;
        let names = &self.policy.plugin_names;
        let is_orphan = match live.map(|(live, _)| (Rollouts::of(&live, names), live)) {
            Some((Rollouts::Uses, live)) => {
                why == Orphanage::Deselected && !self.selects(&live, table).await?
            }
            Some((state, _)) => state == Rollouts::SettledWithout,
            // Without the kind nothing is known of any Rollout.
            None => self.store.knows_rollouts(&rollout.namespace).await?,
        };
        if !is_orphan {
            debug!(%rollout, route_table = %table, "not restored: the Rollout looks after it, or Rollouts are not known");
            return Ok(Collected::Spared);
        }
        if !fence.allows().await {
            return Ok(Collected::Failed);
        }
        let document = match self.store.read(table).await {
            Err(StoreError::NotFound { .. }) => return Ok(Collected::Spared),
            read => read?,
        };
        let mark = self.policy.mark(rollout);
        let plan = restore(&mark, &document)?;
        let policies = match self.store.policies().await {
            // There are no MirrorPolicies in this cluster, or none that this plugin may have made.
            Err(StoreError::NotFound { .. } | StoreError::Forbidden { .. }) => Vec::new(),
            read => read?,
        };
        // A policy goes before the routes it is about.
        for policy in policies.iter().filter(|it| belongs_to(it, &mark)) {
            match self.store.delete_policy(policy).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if plan.is_noop() {
            return Ok(Collected::Spared);
        }
        carry_out(&*self.store, &plan).await?;
        let uid = document.raw().pointer("/metadata/uid");
        Ok(Collected::Restored(About {
            key: table.clone(),
            uid: uid.and_then(Value::as_str).unwrap_or_default().to_owned(),
        }))
    }
}

/// Whether its owner wants no repairs of a table.
fn is_left_alone(table: &RouteTableDoc) -> bool {
    let annotations = table.annotations();
    annotations.is_some_and(|all| all.get(REPAIR_ANNOTATION).is_some_and(|it| it == "off"))
}

/// Whether a table is its owner's: nothing is rolled out, and nothing of the Rollout is in the table.
fn is_owners(request: &Request, table: &RouteTableDoc) -> bool {
    let has_marks = |marks: BTreeSet<ObjectKey>| marks.contains(&request.intent.rollout);
    is_rest(&request.config, &request.intent)
        && involved(table).is_ok_and(|marks| !has_marks(marks))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
