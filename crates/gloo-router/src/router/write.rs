//! Decides which plans are written when a part of a call fails, and writes them.
//!
//! Traffic returns to stable table by table, and moves to the canary in all tables or in none. Each table is written under
//! its lock, with the MirrorPolicies of its mirror routes, and is read and planned again after a conflict.
//!
//! For example, SetWeight 25 for three tables, one of which was deleted:
//!
//! ```text
//! table   canary before   plan        result
//! high    50              25          25: traffic returns to stable
//! low     10              25          10: no share grows, because another table failed
//! gone    -               not found   the error names the table
//! ```

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc};
use route_planner::{IntentKind, Plan, PlanError, PolicyChange, plan, plan_toward_stable};
use route_store::{Permit, Priority, RouteStore, Store, StoreError, with_context};
use tracing::{debug, info, warn};

use super::{GlooRouter, deadline::Deadline, memory::Urgency};
use crate::{error::Failure, from_rpc::Request};

/// Attempts to write one table before a conflict becomes an error.
pub(super) const WRITE_ATTEMPTS: u32 = 3;

/// Tables of one call that are written concurrently.
const WRITES_AT_ONCE: usize = 16;

/// A plan that will be written.
pub(super) struct Write {
    pub(super) plan: Plan,
    /// Whether it increases a canary's share.
    grows: bool,
    /// Whether a share may grow if the table has to be planned again.
    pub(super) may_grow: bool,
    /// Whether the MirrorPolicies of the table are changed too.
    pub(super) with_policies: bool,
}

/// Whether a write is tried again after a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// Up to [`WRITE_ATTEMPTS`] times, within the deadline of the call.
    OnConflict,
    /// Never. The table is not written at all while a call is writing it.
    Never,
}

/// Whether a plan moves traffic or copies of it. `live` are the existing MirrorPolicies.
pub(super) fn moves(plan: &Plan, live: &[MirrorPolicyDoc]) -> bool {
    let changes = plan.policy_changes(live);
    plan.moves_traffic() || changes.is_ok_and(|changes| !changes.is_empty())
}

/// Returns the tables in which `writes` move traffic.
pub(super) fn moving(writes: &[Write], live: &[MirrorPolicyDoc]) -> Vec<ObjectKey> {
    let moving = writes.iter().filter(|write| moves(&write.plan, live));
    moving.map(|write| write.plan.table.clone()).collect()
}

/// The existing MirrorPolicies; `None` if they could not be read.
pub(super) type LivePolicies = Option<Vec<MirrorPolicyDoc>>;

/// What is written, in two steps.
pub(super) struct Writes<'t> {
    /// Written first. They increase no share.
    pub(super) steady: Vec<Write>,
    /// Written afterwards, if nothing has failed. They increase a share.
    pub(super) growing: Vec<(Write, &'t RouteTableDoc)>,
    /// What cannot be done. If there is anything, `growing` is empty.
    pub(super) failures: Vec<Failure>,
}

/// Plans each table. The results have the order of `tables`.
pub(super) fn plan_all(
    request: &Request,
    tables: &[RouteTableDoc],
) -> Vec<Result<Plan, PlanError>> {
    let plans = tables.iter();
    plans
        .map(|table| plan(&request.config, &request.intent, table))
        .collect()
}

/// Decides which of the `plans` for `tables` are written. `failures` are those met so far.
///
/// If anything has failed, a table whose plan would increase the canary's share gets a plan toward stable instead.
pub(super) fn decide<'t>(
    request: &Request,
    tables: &'t [RouteTableDoc],
    plans: Vec<Result<Plan, PlanError>>,
    live: &LivePolicies,
    mut failures: Vec<Failure>,
) -> Writes<'t> {
    // A managed route may be meant for some of the tables only.
    let is_weight = matches!(request.intent.kind, IntentKind::SetWeight(_));
    let may_be_without_route = !is_weight && plans.iter().any(Result::is_ok);
    let (mut steady, mut growing, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for (table, plan) in tables.iter().zip(plans) {
        match plan.and_then(|plan| check_policies(plan, live)) {
            Ok(Some(plan)) => {
                failures.extend(plan.left().map(Failure::Plan));
                let grows = plan.grows() || adds_route(request);
                let write = Write::new(plan, grows);
                if grows {
                    growing.push((write, table));
                } else {
                    steady.push(write);
                }
            }
            // The caller has already reported why there are no policies.
            Ok(None) => refused.push(table),
            Err(error) if may_be_without_route && error.is_without_route() => {}
            Err(error) => {
                failures.push(error.into());
                refused.push(table);
            }
        }
    }
    if !failures.is_empty() {
        refused.extend(growing.drain(..).map(|(_, table)| table));
        for write in &mut steady {
            write.may_grow = false;
        }
    }
    if adds_route(request) {
        // A managed route moves traffic to the canary and none back, so there is no plan toward stable.
        refused.clear();
    }
    for table in refused {
        match toward_stable(request, table, live) {
            Ok(write) => {
                failures.extend(write.plan.left().map(Failure::Plan));
                steady.push(write);
            }
            Err(error) => failures.push(error.into()),
        }
    }
    Writes {
        steady,
        growing,
        failures,
    }
}

/// Plans the part of the request that moves no more traffic to the canary: shares shrink, and managed routes that exist stay.
pub(super) fn toward_stable(
    request: &Request,
    table: &RouteTableDoc,
    live: &LivePolicies,
) -> Result<Write, PlanError> {
    let plan = plan_toward_stable(&request.config, &request.intent, table)?;
    let with_policies = matches!(check_policies(plan.clone(), live), Ok(Some(_)));
    Ok(Write::toward_stable(plan, with_policies))
}

/// Whether a plan sends more requests, or copies of requests, to the canary.
pub(super) fn adds_share(request: &Request, plan: &Plan) -> bool {
    plan.grows() || adds_route(request) && !plan.is_noop()
}

/// Whether the request adds a managed route, which sends or copies certain requests to the canary.
fn adds_route(request: &Request) -> bool {
    matches!(&request.intent.kind, IntentKind::SetManagedRoute(route) if !route.is_removal())
}

/// Returns the plan if its policies can be planned too, and `None` if they could not be read.
fn check_policies(plan: Plan, live: &LivePolicies) -> Result<Option<Plan>, PlanError> {
    match live {
        Some(live) => plan.policy_changes(live).map(|_| Some(plan)),
        None if plan.needs_policies() => Ok(None),
        None => Ok(Some(plan)),
    }
}

impl Write {
    pub(super) fn is_of(&self, table: &ObjectKey) -> bool {
        self.plan.table == *table
    }

    pub(super) fn new(plan: Plan, grows: bool) -> Self {
        Self {
            plan,
            grows,
            may_grow: true,
            with_policies: true,
        }
    }

    /// Creates a write that moves no more traffic to the canary, also if the table is planned again after a conflict.
    pub(super) fn toward_stable(plan: Plan, with_policies: bool) -> Self {
        Self {
            plan,
            grows: false,
            may_grow: false,
            with_policies,
        }
    }

    fn plan_again(&self, request: &Request, table: &RouteTableDoc) -> Result<Plan, PlanError> {
        if self.may_grow {
            plan(&request.config, &request.intent, table)
        } else {
            plan_toward_stable(&request.config, &request.intent, table)
        }
    }
}

impl<S: Store> GlooRouter<S> {
    /// Writes all tables concurrently, so that a slow one does not use up the time of the others.
    pub(super) async fn write_all(
        &self,
        request: &Request,
        writes: Vec<Write>,
        live: &[MirrorPolicyDoc],
        deadline: Deadline,
        retries: Retries,
    ) -> Vec<Failure> {
        let mut running = Vec::new();
        for (index, write) in writes.into_iter().enumerate() {
            report(&write.plan, request);
            running.push(async move {
                let table = write.plan.table.clone();
                let priority = match (retries, write.grows) {
                    (Retries::Never, _) => Priority::Repair,
                    (Retries::OnConflict, true) => Priority::Call,
                    (Retries::OnConflict, false) => Priority::TowardStable,
                };
                let written = self.write(request, write, live, deadline, retries);
                let written = with_context(deadline.context(priority), written);
                let written = deadline.tables(written).await;
                (
                    index,
                    written.unwrap_or_else(|| {
                        vec![Failure::NotWritten(format!("RouteTable {table}"))]
                    }),
                )
            });
        }
        let done = stream::iter(running).buffer_unordered(WRITES_AT_ONCE);
        let mut done: Vec<_> = done.collect().await;
        done.sort_by_key(|(index, _)| *index);
        let mut failures = Vec::new();
        for (_, written) in done {
            failures.extend(written);
        }
        failures
    }

    /// Writes one table and the MirrorPolicies of its routes. A policy is deleted before its route is removed, and created
    /// after its route. A policy that cannot be deleted does not stop traffic from returning to stable.
    async fn write(
        &self,
        request: &Request,
        write: Write,
        live: &[MirrorPolicyDoc],
        deadline: Deadline,
        retries: Retries,
    ) -> Vec<Failure> {
        let (grows, with_policies) = (write.grows, write.with_policies);
        let changes = |plan: &Plan| match with_policies {
            true => plan.policy_changes(live),
            false => Ok(Vec::new()),
        };
        let mut failures = Vec::new();
        match changes(&write.plan) {
            Ok(changes) => {
                for change in changes {
                    if let PolicyChange::Delete(policy) = change {
                        let deleted = self.delete_policy(&request.rollout, &policy).await;
                        failures.extend(deleted.err());
                    }
                }
            }
            Err(error) => failures.push(error.into()),
        }
        if grows && !failures.is_empty() {
            return failures;
        }
        let plan = match self.write_table(request, write, deadline, retries).await {
            Ok((plan, left)) => {
                failures.extend(left.into_iter().map(Failure::Plan));
                plan
            }
            Err(failure) => {
                failures.push(failure);
                return failures;
            }
        };
        match changes(&plan) {
            Ok(changes) => {
                for change in changes {
                    failures.extend(self.set_policy(request, change).await.err());
                }
            }
            Err(error) => failures.push(error.into()),
        }
        failures
    }

    /// Creates or changes a MirrorPolicy.
    async fn set_policy(&self, request: &Request, change: PolicyChange) -> Result<(), Failure> {
        let policy = match change {
            PolicyChange::Delete(_) => return Ok(()),
            PolicyChange::Create(policy) => self.store.create_policy(&policy).await?,
            PolicyChange::Patch(key, patch) => self.store.patch_policy(&key, &patch).await?,
        };
        info!(rollout = %request.rollout, mirror_policy = %policy.key(), "written");
        Ok(())
    }

    /// Writes one table. After a conflict it reads the table and plans again. Returns the plan that was written, and what a
    /// later plan could not do.
    async fn write_table(
        &self,
        request: &Request,
        mut write: Write,
        deadline: Deadline,
        retries: Retries,
    ) -> Result<(Plan, Vec<PlanError>), Failure> {
        let mut left = Vec::new();
        if write.plan.is_noop() {
            return Ok((write.plan, left));
        }
        let table = write.plan.table.clone();
        let urgency = if write.grows {
            Urgency::More
        } else {
            Urgency::Less
        };
        let lock = self.memory.locks.lock(&table, urgency);
        let (_guard, attempts) = match retries {
            Retries::OnConflict => (lock.await, WRITE_ATTEMPTS),
            Retries::Never => match lock.now_or_never() {
                Some(guard) => (guard, 1),
                None => {
                    self.check_after_holder(&request.rollout, &table).await;
                    return Err(StoreError::Conflict(format!("RouteTable {table}")).into());
                }
            },
        };
        for attempt in 1.. {
            match carry_out(&*self.store, &write.plan).await {
                Ok(()) => break,
                Err(StoreError::Conflict(_)) if attempt < attempts => {
                    tokio::time::sleep(pause(attempt)).await;
                    let fresh = self.store.read(&table).await?;
                    write.plan = write.plan_again(request, &fresh)?;
                    left = write.plan.left().collect();
                    if write.plan.is_noop() {
                        return Ok((write.plan, left));
                    }
                    if adds_share(request, &write.plan)
                        && let Some(failure) = self.outdated(request, deadline).await
                    {
                        return Err(failure);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        for edit in &write.plan.edits {
            info!(rollout = %request.rollout, route_table = %table, "{edit}");
        }
        Ok((write.plan, left))
    }

    /// Lets a table be checked again when the holder of its lock has ended. The holder may write for another Rollout, or
    /// nothing, so no event of a watch follows that would cause the check.
    async fn check_after_holder(&self, rollout: &ObjectKey, table: &ObjectKey) {
        let permit = Permit::current();
        tokio::select! {
            free = self.memory.locks.lock(table, Urgency::More) => drop(free),
            // A call has taken over, and must not wait.
            () = permit.withdrawn() => {}
        }
        self.background.check_again(rollout);
    }

    /// Returns the MirrorPolicies of the cluster.
    pub(super) async fn policies_if_any(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        match self.store.policies().await {
            // This cluster has no MirrorPolicies, or none that this plugin could have created.
            Err(StoreError::NotFound { .. } | StoreError::Forbidden { .. }) => Ok(Vec::new()),
            read => read,
        }
    }

    /// Deletes a MirrorPolicy. It is no error if the policy does not exist.
    pub(super) async fn delete_policy(
        &self,
        rollout: &ObjectKey,
        policy: &MirrorPolicyDoc,
    ) -> Result<(), Failure> {
        match self.store.delete_policy(policy).await {
            Ok(()) => {
                info!(%rollout, mirror_policy = %policy.key(), "deleted");
                Ok(())
            }
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn report(plan: &Plan, request: &Request) {
    let rollout = &request.rollout;
    let table = &plan.table;
    for warning in &plan.warnings {
        warn!(%rollout, route_table = %table, "{warning}");
    }
    for skip in &plan.skipped {
        debug!(%rollout, route_table = %table, "{skip}");
    }
}

/// Writes the patch of a plan.
pub async fn carry_out<S: RouteStore>(store: &S, plan: &Plan) -> Result<(), StoreError> {
    let patch = plan.to_json_patch();
    if plan.hands_back {
        store.hand_back(&plan.table, &patch).await?;
    } else {
        store.patch(&plan.table, &patch).await?;
    }
    Ok(())
}

/// Returns a short random pause, so that two writers that conflicted do not conflict again.
pub(super) fn pause(attempt: u32) -> Duration {
    Duration::from_millis(u64::from(attempt) * fastrand::u64(5..25))
}
