//! Decides what is written, and writes it: each table under its lock, with the MirrorPolicies of its mirror routes. After a
//! conflict it is read and planned again.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc};
use json_patch::Patch;
use rollouts_rpc::rollout::Outdated;
use route_planner::{Plan, PlanError, Planned, PolicyChange, TableWrite, combine, decide};
use route_store::{Permit, Priority, RouteStore, Store, StoreError, with_context};
use tracing::{debug, info, warn};

use super::{
    GlooRouter,
    deadline::Deadline,
    memory::{Accepted, Offer, TableGuard, Turn, Urgency, Written},
    outside::Running,
    read::Plans,
};
use crate::{error::Failure, from_rpc::Request};

/// Attempts to write one table before a conflict becomes an error.
pub(super) const WRITE_ATTEMPTS: u32 = 3;

/// Tables of one call that are written concurrently.
const WRITES_AT_ONCE: usize = 16;

/// Whether a write is tried again after a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// Up to [`WRITE_ATTEMPTS`] times, within the deadline of the call.
    OnConflict,
    /// Never. The table is not written at all while a call is writing it.
    Never,
}

/// The one table that a repair may write.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepairScope<'t> {
    pub(super) table: &'t ObjectKey,
    /// Whether the canary's share in it may grow.
    pub(super) may_grow: bool,
}

/// A write of another call that is part of our patch. A later call of its Rollout waits until the patch has ended.
struct Carried<'w> {
    accepted: Accepted,
    /// Whether the Rollout was read after the last wait, and is still the one of the call.
    is_current: bool,
    _running: Running<'w>,
}

/// The outcome of carrying out a request.
pub(super) struct ShiftOutcome {
    /// Why some tables could not be planned.
    pub(super) failures: Vec<Failure>,
    /// Why some objects could not be written.
    pub(super) unwritten: Vec<Failure>,
    /// Tables whose plan moved traffic, whether or not the write succeeded.
    pub(super) moved: Vec<ObjectKey>,
    /// Whether some table got a part of its plan only, because of the failures.
    pub(super) is_partial: bool,
    /// Whether some table keeps marks of the Rollout.
    pub(super) leaves_marks: bool,
}

impl ShiftOutcome {
    pub(super) fn into_failures(self) -> Vec<Failure> {
        self.failures.into_iter().chain(self.unwritten).collect()
    }
}

/// Returns the tables in which `writes` move traffic. `live` are the existing MirrorPolicies.
fn moving(writes: &[TableWrite], live: &[MirrorPolicyDoc]) -> Vec<ObjectKey> {
    let moving = writes.iter().filter(|write| match write.with_policies {
        true => write.plan.moves(live),
        false => write.plan.moves_traffic(),
    });
    moving.map(|write| write.plan.table.clone()).collect()
}

impl<S: Store> GlooRouter<S> {
    /// Writes every plan that may be written. `only` limits a repair to one table.
    pub(super) async fn shift(
        &self,
        request: &Request,
        plans: Plans,
        deadline: Deadline,
        only: Option<RepairScope<'_>>,
    ) -> ShiftOutcome {
        let (config, intent) = (&request.config, &request.intent);
        let Plans {
            tables,
            mut failures,
        } = plans;
        let leaves_marks = tables
            .iter()
            .filter_map(Planned::plan)
            .any(|plan| plan.leaves_marks);
        let policies = self.policies_for(request, &tables, deadline).await;
        let policies = policies.map_err(|failure| failures.push(failure)).ok();
        let policies = policies.as_deref();
        // A repair has just read the Rollout. And traffic toward stable is right whatever has changed since.
        if only.is_none() && tables.iter().any(|it| it.adds_share(intent)) {
            failures.extend(self.outdated(request, deadline).await);
        }
        let mut writes = decide(config, intent, tables, policies, !failures.is_empty());
        failures.extend(writes.errors.drain(..).map(Failure::Plan));
        if let Some(only) = only {
            writes.retain(only.table);
        }
        let retries = only.map_or(Retries::OnConflict, |_| Retries::Never);
        let live = policies.unwrap_or_default();
        let mut moved = moving(&writes.steady, live);
        let mut is_partial = writes.steady.iter().any(|write| write.is_partial);
        // Down first: if one of these fails, no share grows anywhere.
        let written = self.write_all(request, writes.steady, live, deadline, retries);
        let mut unwritten = written.await;
        let may_grow =
            failures.is_empty() && unwritten.is_empty() && only.is_none_or(|only| only.may_grow);
        let mut rest = Vec::new();
        for growing in writes.growing {
            if may_grow {
                rest.push(growing.write);
            } else {
                match growing.toward_stable(config, intent, policies) {
                    Ok(write) => rest.push(write),
                    Err(error) => failures.push(error.into()),
                }
            }
        }
        moved.extend(moving(&rest, live));
        is_partial |= rest.iter().any(|write| write.is_partial);
        let written = self.write_all(request, rest, live, deadline, retries);
        unwritten.extend(written.await);
        ShiftOutcome {
            failures,
            unwritten,
            moved,
            is_partial,
            leaves_marks,
        }
    }

    /// Returns why no traffic may move to the canary: the Rollout changed after the caller read it, or it is not known whether
    /// it did. The caller may have been paused while another controller was the leader.
    async fn outdated(&self, request: &Request, deadline: Deadline) -> Option<Failure> {
        let facts = request.facts.as_ref()?;
        let newer = self.store.newer_rollout(&request.rollout, &facts.version);
        let rollout = request.rollout.clone();
        match deadline.reading(newer).await {
            Some(Ok(newer)) => {
                let why = facts.outdated(newer.as_ref()?)?;
                forbids_growth(why).then_some(Failure::Outdated { rollout, why })
            }
            Some(Err(StoreError::NotFound { .. })) => {
                let why = Outdated::Gone;
                Some(Failure::Outdated { rollout, why })
            }
            Some(Err(source)) => Some(Failure::Read {
                rollout,
                source: Box::new(source),
            }),
            None => Some(Failure::NotRead(format!("Rollout {rollout}"))),
        }
    }

    /// Writes all tables concurrently, so that a slow one does not use up the time of the others.
    pub(super) async fn write_all(
        &self,
        request: &Request,
        writes: Vec<TableWrite>,
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
                    // These pass the limit of requests before all others, so that an abort is not delayed.
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
        // In the order of the tables: Kubernetes counts Events of equal text instead of storing each of them.
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
        write: TableWrite,
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

    /// Writes one table. Returns the plan that was written, and what a later plan could not do.
    async fn write_table(
        &self,
        request: &Request,
        write: TableWrite,
        deadline: Deadline,
        retries: Retries,
    ) -> Written {
        // As in most calls. It takes no lock and sends no request.
        if write.plan.is_noop() {
            return Ok((write.plan, Vec::new()));
        }
        let table = write.plan.table.clone();
        let locks = &self.memory.locks;
        let turn = match retries {
            Retries::OnConflict => locks.lock_or_ride(request, &write).await,
            // A repair must not delay a call, whose own write makes it needless.
            Retries::Never => match locks.lock(&table, Urgency::of(&write)).now_or_never() {
                Some(guard) => Turn::Lead(guard),
                None => {
                    self.check_after_holder(&request.rollout, &table).await;
                    return Err(StoreError::Conflict(format!("RouteTable {table}")).into());
                }
            },
        };
        let written = match turn {
            // On the heap: a call that writes nothing, which most do, needs no stack for it.
            Turn::Lead(guard) => {
                Box::pin(self.lead(request, write, guard, deadline, retries)).await
            }
            Turn::Carried(written) => *written,
        }?;
        for edit in &written.0.edits {
            info!(rollout = %request.rollout, route_table = %table, "{edit}");
        }
        Ok(written)
    }

    /// Writes the table whose lock is `guard`, in one patch with the writes that wait for it. After a conflict it reads the table
    /// and plans again.
    async fn lead(
        &self,
        request: &Request,
        mut write: TableWrite,
        mut guard: TableGuard,
        deadline: Deadline,
        retries: Retries,
    ) -> Written {
        let table = write.plan.table.clone();
        let urgency = Urgency::of(&write);
        let attempts = match retries {
            Retries::OnConflict => WRITE_ATTEMPTS,
            Retries::Never => 1,
        };
        let mut left = Vec::new();
        let mut carried: Vec<Carried<'_>> = Vec::new();
        for attempt in 1.. {
            // Without a newer version of the table the plan is right as it is.
            let (patch, hands_back) = match &guard.newest {
                None => (write.plan.to_json_patch(), write.plan.hands_back),
                Some(newer) => {
                    carried.extend(self.carry(&guard, urgency));
                    // After a conflict time has passed again.
                    carried.iter_mut().for_each(|it| it.is_current = false);
                    let combined = loop {
                        let own = (&request.config, &request.intent, &mut write);
                        let others = carried.iter_mut().map(|it| {
                            let Offer { request, write } = &mut it.accepted.offer;
                            (&request.config, &request.intent, write)
                        });
                        let mut combined = combine(newer, std::iter::once(own).chain(others));
                        let mut errors = combined.errors.drain(..);
                        if let Some(error) = errors.next().flatten() {
                            return Err(error.into());
                        }
                        let before = carried.len();
                        carried = self.answer_unwritable(carried, errors, deadline).await;
                        // Each plan is for the result of those before it. Without one of them, the others are planned again.
                        if carried.len() == before {
                            break combined;
                        }
                    };
                    left = write.plan.left().collect();
                    if write.plan.adds_share(&request.intent)
                        && let Some(failure) = self.outdated(request, deadline).await
                    {
                        return Err(failure);
                    }
                    (combined.patch, combined.hands_back)
                }
            };
            // Another call may have written the same meanwhile.
            if patch.0.is_empty() {
                break;
            }
            match send(&*self.store, &table, &patch, hands_back).await {
                Ok(written) => {
                    guard.newest = Some(Box::new(written));
                    break;
                }
                Err(StoreError::Conflict(_)) if attempt < attempts => {
                    tokio::time::sleep(pause(attempt)).await;
                }
                // One of the others may be the reason.
                // Those that are dropped write by themselves, and get an error of their own if they have one.
                Err(StoreError::Rejected { .. }) if !carried.is_empty() => carried.clear(),
                Err(error) => return Err(error.into()),
            }
            // From the API server: a cache may not have the write that caused the conflict.
            guard.newest = Some(Box::new(self.store.read(&table).await?));
        }
        for Carried { accepted, .. } in carried {
            let plan = accepted.offer.write.plan.clone();
            let left = plan.left().collect();
            accepted.answer(Ok((plan, left)));
        }
        Ok((write.plan, left))
    }

    /// Accepts the writes that wait for a table and are not more urgent.
    fn carry(&self, guard: &TableGuard, urgency: Urgency) -> Vec<Carried<'_>> {
        let accepted = guard.accept(urgency).into_iter();
        let carried = accepted.map(|accepted| Carried {
            _running: self
                .background
                .outside
                .begin(&accepted.offer.request.rollout, Permit::default()),
            accepted,
            is_current: false,
        });
        carried.collect()
    }

    /// Answers the writes that have one of the `errors`, and those that would give the canary more traffic although their Rollout
    /// has changed, or may have: each has waited, for the lock or after a conflict. Returns the others.
    async fn answer_unwritable<'w>(
        &self,
        carried: Vec<Carried<'w>>,
        errors: impl Iterator<Item = Option<PlanError>>,
        deadline: Deadline,
    ) -> Vec<Carried<'w>> {
        let mut writable = Vec::new();
        for (mut it, error) in carried.into_iter().zip(errors) {
            let Offer { request, write } = &it.accepted.offer;
            let failure = match error {
                Some(error) => Some(error.into()),
                // Once for each write, however often it is planned again.
                None if !it.is_current && write.plan.adds_share(&request.intent) => {
                    it.is_current = true;
                    self.outdated(request, deadline).await
                }
                None => None,
            };
            match failure {
                Some(failure) => it.accepted.answer(Err(failure)),
                None => writable.push(it),
            }
        }
        writable
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

/// Whether no traffic may move to the canary, because another version is rolled out, or none. The controller may have read the
/// Rollout before other changes of it, as a full promotion, and asks for what they need in its next pass.
fn forbids_growth(why: Outdated) -> bool {
    use Outdated::{Abort, CurrentVersion, Gone, StableVersion};
    matches!(why, Gone | StableVersion | CurrentVersion | Abort)
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

/// Writes the patch of a plan, and returns the changed table.
///
/// # Errors
/// See [`RouteStore::patch`].
pub async fn carry_out<S: RouteStore>(store: &S, plan: &Plan) -> Result<RouteTableDoc, StoreError> {
    send(store, &plan.table, &plan.to_json_patch(), plan.hands_back).await
}

async fn send<S: RouteStore>(
    store: &S,
    table: &ObjectKey,
    patch: &Patch,
    hands_back: bool,
) -> Result<RouteTableDoc, StoreError> {
    match hands_back {
        true => store.hand_back(table, patch).await,
        false => store.patch(table, patch).await,
    }
}

/// Returns a short random pause, so that two writers that conflicted do not conflict again.
pub(super) fn pause(attempt: u32) -> Duration {
    Duration::from_millis(u64::from(attempt) * fastrand::u64(5..25))
}
