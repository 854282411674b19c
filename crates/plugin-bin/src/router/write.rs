//! How one table is written: under its lock, with the MirrorPolicies of its mirror routes, and again after a conflict.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc};
use route_planner::{Plan, PlanError, PolicyChange, plan, plan_toward_stable};
use route_store::{Priority, RouteStore, Store, StoreError, with_context};
use tracing::{debug, info, warn};

use super::{GlooRouter, deadline::Deadline, memory::Urgency};
use crate::{error::Failure, from_rpc::Request};

/// How often one table is written before a conflict becomes an error.
const WRITE_ATTEMPTS: u32 = 3;

/// How many tables of one call are written at once.
const WRITES_AT_ONCE: usize = 16;

/// A plan that is to be carried out.
pub(super) struct Write {
    pub(super) plan: Plan,
    /// Whether a share grows with it.
    grows: bool,
    /// Whether a share may grow when the table has to be planned again.
    pub(super) may_grow: bool,
    /// Whether the MirrorPolicies of the table are brought in line.
    pub(super) with_policies: bool,
}

/// How often a table is written before a conflict becomes an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tries {
    /// As often as a call has time for.
    Many,
    /// Once, and not at all while a call is writing it.
    One,
}

/// A plan that moves no traffic to the canary.
pub(super) fn plan_again_toward_stable(
    request: &Request,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    let request = request.without_new_routes();
    plan_toward_stable(&request.config, &request.intent, table)
}

/// Whether traffic moves with a plan, or copies of it, when `live` are the MirrorPolicies that there are.
pub(super) fn moves(plan: &Plan, live: &[MirrorPolicyDoc]) -> bool {
    let changes = plan.policy_changes(live);
    plan.moves_traffic() || changes.is_ok_and(|changes| !changes.is_empty())
}

/// The tables in which traffic moves with `writes`.
pub(super) fn moving(writes: &[Write], live: &[MirrorPolicyDoc]) -> Vec<ObjectKey> {
    let moving = writes.iter().filter(|write| moves(&write.plan, live));
    moving.map(|write| write.plan.table.clone()).collect()
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

    /// A plan that moves no more traffic to the canary, now or after a conflict.
    pub(super) fn restrained(plan: Plan, with_policies: bool) -> Self {
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
            plan_again_toward_stable(request, table)
        }
    }
}

impl<S: Store> GlooRouter<S> {
    /// Writes all tables side by side, so that one that is slow does not use up the time of the others.
    pub(super) async fn write_all(
        &self,
        request: &Request,
        writes: Vec<Write>,
        live: &[MirrorPolicyDoc],
        deadline: Deadline,
        tries: Tries,
    ) -> Vec<Failure> {
        let mut running = Vec::new();
        for (index, write) in writes.into_iter().enumerate() {
            report(&write.plan, request);
            running.push(async move {
                let table = write.plan.table.clone();
                let priority = match (tries, write.grows) {
                    (Tries::One, _) => Priority::Repair,
                    (Tries::Many, true) => Priority::Call,
                    (Tries::Many, false) => Priority::TowardStable,
                };
                let written = self.write(request, write, live, tries);
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

    /// Writes one table and the MirrorPolicies behind its routes. A policy that goes, goes before its route; one that comes,
    /// comes after it. A policy that cannot be deleted does not stop traffic on its way back to stable.
    async fn write(
        &self,
        request: &Request,
        write: Write,
        live: &[MirrorPolicyDoc],
        tries: Tries,
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
                        failures.extend(self.delete_policy(request, &policy).await.err());
                    }
                }
            }
            Err(error) => failures.push(error.into()),
        }
        if grows && !failures.is_empty() {
            return failures;
        }
        let plan = match self.write_table(request, write, tries).await {
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

    /// Writes one table. After a conflict it is read and planned again. Returns the plan that was carried out, and what a
    /// plan made after a conflict leaves as it is.
    async fn write_table(
        &self,
        request: &Request,
        mut write: Write,
        tries: Tries,
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
        let (_guard, attempts) = match tries {
            Tries::Many => (lock.await, WRITE_ATTEMPTS),
            // The holder of the lock plans on a newer table.
            Tries::One => match lock.now_or_never() {
                Some(guard) => (guard, 1),
                None => return Err(StoreError::Conflict(format!("RouteTable {table}")).into()),
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
                }
                Err(error) => return Err(error.into()),
            }
        }
        for edit in &write.plan.edits {
            info!(rollout = %request.rollout, route_table = %table, "{edit}");
        }
        Ok((write.plan, left))
    }

    /// Deletes a MirrorPolicy; one that is gone already is no failure.
    pub(super) async fn delete_policy(
        &self,
        request: &Request,
        policy: &MirrorPolicyDoc,
    ) -> Result<(), Failure> {
        match self.store.delete_policy(policy).await {
            Ok(()) => {
                info!(rollout = %request.rollout, mirror_policy = %policy.key(), "deleted");
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

/// Writes the table of a plan.
pub(crate) async fn carry_out<S: RouteStore>(store: &S, plan: &Plan) -> Result<(), StoreError> {
    let patch = plan.to_json_patch();
    if plan.hands_back {
        store.hand_back(&plan.table, &patch).await?;
    } else {
        store.patch(&plan.table, &patch).await?;
    }
    Ok(())
}

/// A short pause that differs between two writers who met.
fn pause(attempt: u32) -> Duration {
    Duration::from_millis(u64::from(attempt) * fastrand::u64(5..25))
}
