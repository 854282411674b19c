//! Work of the router outside of calls: it carries out the last SetWeight again for one table, and restores tables of deleted
//! Rollouts.
//!
//! Plans and writes are those of a call. A write that conflicts is not retried: the other write causes another event, or another
//! check if it is one of this process. The caller tries again what gets no answer, and what another object prevents.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc};
use rollouts_rpc::{DesiredWeight, Rollout, WeightDestination, error_chain};
use route_planner::{
    Plan, Portion, belongs_to, involved, is_for_table, is_rest, plan, plan_toward_stable, restore,
};
use route_store::{Decision, INSTANCE_ID_LABEL, Store, StoreError};
use serde::Deserialize as _;
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info};

use super::{
    GlooRouter, carry_out,
    deadline::Deadline,
    memory::Memory,
    outside::{OutsideWrites, TakenOver},
    read::Selected,
    write::RepairScope,
};
use crate::collect::{Part, PluginUse};
use crate::error::Failure;
use crate::fights::Fights;
use crate::from_rpc::{self, Policy, Request};
use crate::lock;
use crate::report::{About, Behind, OrphanCause, RepairOutcome};
use crate::standing::{Standing, StandingIntents};

/// The first pause before work outside of calls is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// The longest one, where the pauses double.
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The annotation with which the owner of a table turns off repairs.
const REPAIR_ANNOTATION: &str = "rollouts-plugin-trafficrouter-glooplatform/repair";

/// State that calls share with the work outside of calls.
#[derive(Debug, Default)]
pub(crate) struct Background {
    standing: Mutex<StandingIntents>,
    fights: Mutex<Fights>,
    pub(super) outside: OutsideWrites,
    /// Rollouts whose tables have to be checked, for example because their SetWeight has ended.
    set: Mutex<BTreeSet<ObjectKey>>,
    /// Tables for which a call detected a fight, with the Rollout.
    fought: Mutex<Vec<(ObjectKey, About)>>,
    news: Notify,
    /// The instance id of the controller, known from the first call on.
    instance: SetOnce<Option<String>>,
    /// The background tasks of the session.
    tasks: Mutex<Tasks>,
}

/// The background tasks of the session.
#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    is_over: bool,
}

/// What a repair of a table would have to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drift {
    /// Nothing.
    None,
    /// A write that increases no canary's share.
    Steady,
    /// A write that increases a canary's share.
    Growing,
}

/// What a repair has read before it was allowed to write.
struct Prepared {
    request: Request,
    selected: Selected,
    /// Begun before the Lease was read, so that the write does not come later than the Lease covers.
    deadline: Deadline,
}

/// What a repair has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// `None` if nothing had to be repaired.
    pub(crate) outcome: Option<RepairOutcome>,
    /// Whether it has to be tried again, because no other event may follow.
    pub(crate) is_open: bool,
}

impl From<Option<RepairOutcome>> for Repaired {
    fn from(outcome: Option<RepairOutcome>) -> Self {
        Self {
            outcome,
            is_open: outcome == Some(RepairOutcome::Unanswered),
        }
    }
}

/// Permission to write outside of calls: whether the controller that started this process is the leader.
pub(crate) trait Fence: Send + Sync + 'static {
    /// Returns `None` if that is not known: the API server did not answer, or the controller is late to say that it still is.
    fn allows(&self) -> impl Future<Output = Option<bool>> + Send;
}

/// The outcome of restoring a table.
#[derive(Debug)]
pub(crate) enum Collected {
    Restored(About),
    /// It does not have to be restored.
    Skipped,
    /// The API server does not know the kind Rollout, so it is not known which Rollouts were deleted.
    RolloutsUnknown,
    Failed,
}

impl Background {
    pub(crate) fn standing(&self) -> MutexGuard<'_, StandingIntents> {
        lock(&self.standing)
    }

    pub(crate) fn fights(&self) -> MutexGuard<'_, Fights> {
        lock(&self.fights)
    }

    /// Spawns a task that is cancelled when the session ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        if !tasks.is_over {
            tasks.running.spawn(task);
        }
    }

    /// Cancels all tasks and the requests that they wait for.
    pub(crate) async fn stop(&self) {
        let mut running = {
            let mut tasks = lock(&self.tasks);
            // A task that is spawned while the others end would outlive the session.
            tasks.is_over = true;
            std::mem::take(&mut tasks.running)
        };
        running.shutdown().await;
    }

    /// Records the instance id of the controller. A controller with an instance id calls only for Rollouts that have it as a
    /// label, and one without an id only for Rollouts without the label.
    pub(super) fn record_instance(&self, rollout: &Rollout) {
        if !self.instance.initialized() {
            let instance = rollout.metadata.labels.get(INSTANCE_ID_LABEL);
            // A concurrent call may have set it, to the same id.
            let _ = self.instance.set(instance.cloned());
        }
    }

    /// Waits for the first call. Returns the instance id of the controller, if it has one.
    pub(crate) async fn instance(&self) -> Option<String> {
        self.instance.wait().await.clone()
    }

    /// Suspends the standing intent of a Rollout, and takes over from writes outside of calls: a call begins that may ask for
    /// something else.
    pub(super) fn suspend(&self, rollout: &Rollout) -> TakenOver {
        let rollout = from_rpc::key(rollout);
        // Suspend first: a write that begins between the two lines must find no standing intent.
        self.standing().suspend(&rollout);
        self.outside.take_over(&rollout)
    }

    /// Records the standing intent after a SetWeight. `moved` are the tables in which it had to move traffic.
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
            // The same weights were in force before, so another client has changed these tables.
            let now = Instant::now();
            for table in moved {
                if self.fights().written(table, now) {
                    let key = key.clone();
                    let uid = uid.clone();
                    lock(&self.fought).push((table.clone(), About { key, uid }));
                    self.news.notify_one();
                }
            }
        }
        if leaves_marks {
            self.check_again(&key);
        }
    }

    /// Lets the tables of a Rollout be checked.
    pub(super) fn check_again(&self, rollout: &ObjectKey) {
        lock(&self.set).insert(rollout.clone());
        self.news.notify_one();
    }

    /// Waits for the end of a SetWeight or of a write that a repair met. Returns the Rollouts whose tables have to be checked,
    /// because changes in the meantime were ignored, and the tables for which a fight was detected, with the Rollout.
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

/// Returns how far a table is behind the weight that the status of a Rollout records.
#[must_use]
pub fn behind_recorded(policy: &Policy, live: &Rollout, table: &RouteTableDoc) -> Option<Behind> {
    let hashes = Memory::default().hashes(live);
    let standing = Standing::recorded(policy, live, hashes)?;
    Behind::of(&standing.request, table)
}

/// Returns the portions of the routes of a table that a Rollout splits, for SetWeight with these weights.
#[must_use]
pub fn portions(
    policy: &Policy,
    rollout: &Rollout,
    weight: i32,
    additional: &[WeightDestination],
    table: &RouteTableDoc,
) -> Vec<Portion> {
    let hashes = Memory::default().hashes(rollout);
    let max = rollout.max_traffic_weight();
    let kind = from_rpc::weight(DesiredWeight { value: weight, max }, additional);
    // The caller reports a plugin block that cannot be read.
    let request = Request::new(policy, rollout, hashes, false, kind).ok();
    let portions = request.map(|it| route_planner::portions(&it.config, &it.intent, table));
    portions.unwrap_or_default()
}

impl<S: Store> GlooRouter<S> {
    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    /// Spawns a task that is cancelled when the session ends. Must be called within a Tokio runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(task);
    }

    /// Returns what a repair of `table` would write for the last SetWeight of a Rollout.
    pub(crate) fn drift(&self, rollout: &ObjectKey, table: &RouteTableDoc) -> Drift {
        let (request, is_complete) = match self.background.standing().of(rollout) {
            Some(it) => (Arc::clone(&it.request), it.is_complete),
            None => return Drift::None,
        };
        if has_repairs_off(table) || is_unmodified_at_rest(&request, table) {
            return Drift::None;
        }
        let (config, intent) = (&request.config, &request.intent);
        let planned = match plan(config, intent, table) {
            Ok(plan) if is_complete || !plan.grows() => Ok(plan),
            // The call has not reached all tables, so a share that grows here would not grow there.
            _ => plan_toward_stable(config, intent, table),
        };
        match planned {
            Ok(plan) if !self.moves(&plan) => Drift::None,
            Ok(plan) if plan.grows() => Drift::Growing,
            Ok(_) => Drift::Steady,
            // The call has reported the error.
            Err(_) => Drift::None,
        }
    }

    /// Whether a plan moves traffic or copies of it, as far as the last known MirrorPolicies tell.
    fn moves(&self, plan: &Plan) -> bool {
        if !plan.needs_policies() {
            return plan.moves_traffic();
        }
        match self.store.last_known_policies() {
            Some(known) => plan.moves(&known),
            None => plan.moves_traffic(),
        }
    }

    /// Restores the standing intent of a Rollout from its status, if all its tables agree with it. A process that has just
    /// started does not know who changed a table before.
    ///
    /// # Errors
    /// Returns `Err` if something that decides about it could not be read in time.
    pub(crate) async fn resume(&self, rollout: &ObjectKey) -> Result<(), Failure> {
        match self.resumable(rollout).await {
            Err(failure) if failure.is_unanswered() => Err(failure),
            resumable => {
                let standing = resumable.ok().flatten();
                self.background.standing().resume(rollout, standing);
                self.background.check_again(rollout);
                Ok(())
            }
        }
    }

    async fn resumable(&self, rollout: &ObjectKey) -> Result<Option<Standing>, Failure> {
        let Some(mut standing) = self.recorded(rollout).await? else {
            return Ok(None);
        };
        let mut request = Request::clone(&standing.request);
        let deadline = Deadline::of_call(self.call_timeout);
        let selected = self.selected(&request, Decision::Plan, deadline).await;
        let mut selected = self.for_weights(&mut request, selected, deadline).await;
        // A table that differs may have been edited on purpose while no plugin ran. The next call decides.
        if selected.is_in_force(&request) {
            standing.tables = selected.keys();
            standing.request = Arc::new(request);
            return Ok(Some(standing));
        }
        selected.failures.retain(Failure::is_unanswered);
        selected.failures.pop().map_or(Ok(None), Err)
    }

    /// Returns what the last SetWeight asked for, as the current status of the Rollout records it.
    async fn recorded(&self, rollout: &ObjectKey) -> Result<Option<Standing>, StoreError> {
        let Some((live, false)) = self.live_rollout(rollout).await? else {
            return Ok(None);
        };
        let hashes = self.memory.hashes(&live);
        Ok(Standing::recorded(&self.policy, &live, hashes))
    }

    /// Returns how far a table with marks of a Rollout is behind the weight in the Rollout's status. There is no standing
    /// intent if another write has changed the table after the last call.
    ///
    /// # Errors
    /// Returns `Err` if the API server does not answer the request.
    pub(crate) async fn behind_status(
        &self,
        rollout: &ObjectKey,
        table: &RouteTableDoc,
    ) -> Result<Option<Behind>, StoreError> {
        let recorded = self.recorded(rollout).await?;
        Ok(recorded.and_then(|it| Behind::of(&it.request, table)))
    }

    /// Carries out the last SetWeight of a Rollout again for one table, if the Rollout still admits it and `fence` allows it.
    pub(crate) async fn repair(&self, part: &Part, fence: &impl Fence) -> Repaired {
        let standing = self.background.standing().of(&part.rollout).cloned();
        let Some(standing) = standing else {
            return None.into();
        };
        match self.prepare_repair(part, &standing, fence).await {
            Ok(prepared) => self.write_repair(part, &standing, prepared).await,
            Err(outcome) => outcome.into(),
        }
    }

    /// Reads what a repair needs. Returns the outcome if nothing is written.
    async fn prepare_repair(
        &self,
        part: &Part,
        standing: &Standing,
        fence: &impl Fence,
    ) -> Result<Prepared, Option<RepairOutcome>> {
        let Part { rollout, table } = part;
        let (live, is_deleting) = match self.live_rollout(rollout).await {
            Ok(Some((live, is_deleting))) => (Some(live), is_deleting),
            Ok(None) => (None, false),
            Err(error) => return Err(Some(not_repaired(part, &error.into()))),
        };
        let outdated = standing.outdated(live.as_ref(), is_deleting);
        let Some(live) = live.filter(|_| outdated.is_none()) else {
            if let Some(outdated) = outdated {
                info!(%rollout, route_table = %table, "not repaired: {outdated}");
            }
            let mut intents = self.background.standing();
            // A call may have set another intent meanwhile.
            if intents.of(rollout) == Some(standing) {
                intents.forget(rollout);
            }
            return Err(Some(RepairOutcome::FencedRollout));
        };
        let hashes = self.memory.hashes(&live);
        let request = standing.request_for(&self.policy, &live, hashes);
        let mut request = request.map_err(|_| None)?;
        if !standing.is_complete {
            request = request.without_new_routes();
        }
        let deadline = Deadline::of_call(self.call_timeout);
        let selected = self.selected(&request, Decision::Plan, deadline).await;
        let selected = self.for_weights(&mut request, selected, deadline).await;
        let Some(document) = selected.tables.iter().find(|it| it.key() == table) else {
            // Either the Rollout no longer selects it, or it could not be read.
            let unanswered = selected.failures.iter().find(|it| it.is_unanswered());
            return Err(unanswered.map(|failure| not_repaired(part, failure)));
        };
        if has_repairs_off(document) || is_unmodified_at_rest(&request, document) {
            return Err(None);
        }
        match fence.allows().await {
            Some(true) => Ok(Prepared {
                request,
                selected,
                deadline,
            }),
            Some(false) => Err(Some(RepairOutcome::FencedLease)),
            None => Err(Some(RepairOutcome::Unanswered)),
        }
    }

    async fn write_repair(&self, part: &Part, standing: &Standing, prepared: Prepared) -> Repaired {
        let Part { rollout, table } = part;
        let Prepared {
            request,
            selected,
            deadline,
        } = prepared;
        let only = RepairScope {
            table,
            may_grow: standing.is_complete,
        };
        let is_current = || self.background.standing().of(rollout) == Some(standing);
        // On the heap: otherwise each layer of futures would reserve stack for it again.
        let write = Box::pin(async {
            // A call that has begun meanwhile takes over the table.
            let is_current = is_current();
            let plans = selected.plan(&request);
            let shift = self.shift(&request, plans, deadline, Some(only));
            if is_current { Some(shift.await) } else { None }
        });
        let Some(shifted) = self.background.outside.run(rollout, write).await else {
            return None.into();
        };
        // Why this table got a part only, or nothing. After an incomplete call it gets no more before the next one, which may also
        // have taken over.
        let elsewhere = || shifted.failures.iter().filter(|it| !it.is_plan_of(table));
        let unanswered = elsewhere().find(|it| it.is_unanswered());
        let elsewhere = unanswered.or(elsewhere().next());
        let is_partial = shifted.is_partial && standing.is_complete && is_current();
        let elsewhere = elsewhere.filter(|_| is_partial);
        let unwritten = &shifted.unwritten;
        let unanswered = unwritten.iter().find(|it| it.is_unanswered());
        let outcome = match unanswered.or(unwritten.first()) {
            Some(Failure::Store(StoreError::Withdrawn { .. })) => None,
            Some(Failure::Store(StoreError::Conflict(_))) => Some(RepairOutcome::Conflict),
            Some(failure) => Some(not_repaired(part, failure)),
            None if !shifted.moved.is_empty() => Some(RepairOutcome::Written),
            None => elsewhere.map(|failure| not_repaired(part, failure)),
        };
        Repaired {
            is_open: Repaired::from(outcome).is_open || elsewhere.is_some(),
            outcome,
        }
    }

    /// Reads a Rollout, and whether it is being deleted.
    pub(super) async fn live_rollout(
        &self,
        rollout: &ObjectKey,
    ) -> Result<Option<(Rollout, bool)>, StoreError> {
        let Some(live) = self.store.rollout(rollout).await? else {
            return Ok(None);
        };
        let is_deleting = live.raw().pointer("/metadata/deletionTimestamp").is_some();
        // The CustomResourceDefinition does not admit a Rollout that cannot be parsed.
        let mut live = Rollout::deserialize(live.raw()).unwrap_or_default();
        for step in live.steps_mut() {
            // A mirror step of 0 % removes its route.
            let mirror = step.set_mirror_route.as_mut();
            if let Some(mirror) = mirror.filter(|mirror| mirror.percentage == Some(0)) {
                mirror.percentage = None;
                mirror.matches.clear();
            }
        }
        Ok(Some((live.with_defaults(), is_deleting)))
    }

    /// Whether the current Rollout selects the current table.
    async fn selects(&self, rollout: &Rollout, table: &ObjectKey) -> Result<bool, StoreError> {
        let Ok(config) = from_rpc::config(&self.policy, rollout, &from_rpc::key(rollout)) else {
            // It is unknown what an invalid block selects, so nothing may be restored.
            return Ok(true);
        };
        match self.store.read(table).await {
            Ok(table) => Ok(config.route_tables().matches(table.key(), table.labels())),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns how an existing Rollout uses this plugin; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Err` if the API server does not answer the request.
    pub(crate) async fn plugin_use_of(
        &self,
        rollout: &ObjectKey,
    ) -> Result<Option<PluginUse>, StoreError> {
        let live = self.live_rollout(rollout).await?;
        let names = &self.policy.plugin_names;
        Ok(live.map(|(live, _)| PluginUse::of(&live, names)))
    }

    /// Removes what a Rollout left in a table, unless the Rollout exists and still takes care of it.
    pub(crate) async fn collect(
        &self,
        part: &Part,
        why: OrphanCause,
        fence: &impl Fence,
    ) -> Collected {
        let Part { rollout, table } = part;
        let collect = self.try_collect(part, why, fence);
        match self.background.outside.run(rollout, collect).await {
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
        why: OrphanCause,
        fence: &impl Fence,
    ) -> Result<Collected, Failure> {
        let Part { rollout, table } = part;
        let live = self.live_rollout(rollout).await?;
        let names = &self.policy.plugin_names;
        let is_orphan = match live.map(|(live, _)| (PluginUse::of(&live, names), live)) {
            Some((PluginUse::Uses, live)) => {
                why == OrphanCause::Deselected && !self.selects(&live, table).await?
            }
            Some((state, _)) => state == PluginUse::SettledWithout,
            None if self.store.knows_rollouts(&rollout.namespace).await? => true,
            None => return Ok(Collected::RolloutsUnknown),
        };
        if !is_orphan {
            debug!(%rollout, route_table = %table, "not restored: the Rollout still uses the table");
            return Ok(Collected::Skipped);
        }
        let document = match self.store.read(table).await {
            Err(StoreError::NotFound { .. }) => return Ok(Collected::Skipped),
            read => read?,
        };
        let mark = self.policy.mark(rollout);
        let plan = restore(&mark, &document)?;
        let policies = self.policies_if_any().await?;
        // A Rollout that only deselected this table may mirror requests of others.
        let is_left = |policy: &&MirrorPolicyDoc| match why {
            OrphanCause::Deselected => is_for_table(policy, &mark, table),
            _ => belongs_to(policy, &mark),
        };
        // A policy is deleted before its routes.
        for policy in policies.iter().filter(is_left) {
            if fence.allows().await != Some(true) {
                return Ok(Collected::Failed);
            }
            self.delete_policy(rollout, policy).await?;
        }
        if plan.is_noop() {
            return Ok(Collected::Skipped);
        }
        // Asked again: the requests before may have taken longer than the controller's Lease lasts.
        if fence.allows().await != Some(true) {
            return Ok(Collected::Failed);
        }
        carry_out(&*self.store, &plan).await?;
        Ok(Collected::Restored(About::of(&document)))
    }
}

/// Logs why a table was not repaired.
fn not_repaired(part: &Part, why: &Failure) -> RepairOutcome {
    let Part { rollout, table } = part;
    info!(%rollout, route_table = %table, "not repaired: {}", error_chain(why));
    match why.is_unanswered() {
        true => RepairOutcome::Unanswered,
        false => RepairOutcome::Failed,
    }
}

/// Whether the owner of a table has turned off repairs.
fn has_repairs_off(table: &RouteTableDoc) -> bool {
    let annotations = table.annotations();
    annotations.is_some_and(|all| all.get(REPAIR_ANNOTATION).is_some_and(|it| it == "off"))
}

/// Whether the Rollout is at rest and a table has nothing of it, so that every edit is the owner's.
fn is_unmodified_at_rest(request: &Request, table: &RouteTableDoc) -> bool {
    let has_marks = |marks: BTreeSet<ObjectKey>| marks.contains(&request.intent.rollout);
    is_rest(&request.config, &request.intent)
        && involved(table).is_ok_and(|marks| !has_marks(marks))
}
