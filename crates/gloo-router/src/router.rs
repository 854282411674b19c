//! The traffic router: plans all selected tables, then writes those that change.
//!
//! [`read`] reads the inputs of a call, [`mod@write`] decides which plans are written and carries them out, and
//! [`verification`] answers VerifyWeight. [`deadline`] divides the time of a call between reading and writing.

mod background;
mod deadline;
mod deferred;
mod guard;
mod marks;
mod memory;
mod outside;
mod read;
mod target;
mod verification;
mod write;

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::join;
use gloo_types::ObjectKey;
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, Verification, WeightDestination,
    error_chain,
    rollout::{Outdated, SetHeaderRoute, SetMirrorRoute},
};
use route_planner::{
    IntentKind, ManagedRouteUpdate, Plan, Planned, TableWrite, belongs_to, decide, is_rest,
};
use route_store::{Decision, Priority, Store, StoreError, with_context};
use tracing::{debug, info};

pub use self::{
    background::behind_recorded,
    deferred::{rollout_keeper, table_keeper},
    read::ASSUMED_PORT,
    target::Target,
    write::carry_out,
};
pub(crate) use self::{
    background::{Background, Collected, Drift, Fence, Repaired},
    guard::{Promotion, Release, end_of, observation_of},
};
use self::{
    deadline::Deadline,
    deferred::Deferred,
    guard::{HeldApart, Holds},
    memory::Memory,
    outside::TakenOver,
    read::{Plans, policies_unreadable},
    verification::is_waited_for,
    write::{Retries, moving},
};
use crate::{
    error::{Failure, Failures, ShiftError},
    from_rpc::{self, Policy, Request},
    report::{About, Observer, Report},
    standing::Standing,
};

/// Whether a call about managed routes comes from the controller or is the retry in SetWeight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Call,
    Retry,
}

/// Shifts traffic by editing RouteTables in `S`.
#[derive(Debug)]
pub struct GlooRouter<S> {
    store: Arc<S>,
    policy: Policy,
    memory: Memory,
    deferred: Deferred,
    holds: Holds,
    guards_promotions: bool,
    call_timeout: Option<Duration>,
    observer: Arc<dyn Observer>,
    background: Background,
}

/// The one table that a repair may write.
#[derive(Clone, Copy, Debug)]
struct RepairScope<'t> {
    table: &'t ObjectKey,
    /// Whether the canary's share in it may grow.
    may_grow: bool,
}

/// The outcome of carrying out a request.
struct ShiftOutcome {
    /// Why some tables could not be planned.
    failures: Vec<Failure>,
    /// Why some objects could not be written.
    unwritten: Vec<Failure>,
    /// Tables whose plan moved traffic, whether or not the write succeeded.
    moved: Vec<ObjectKey>,
    /// Whether some table keeps marks of the Rollout.
    leaves_marks: bool,
}

/// What SetWeight has done.
struct WeightOutcome {
    standing: Standing,
    /// Whether something of the Rollout is left in a table, or could be.
    leaves_marks: bool,
    /// Tables whose plan moved traffic.
    moved: Vec<ObjectKey>,
    /// What could not be done.
    failures: Vec<Failure>,
}

impl ShiftOutcome {
    fn into_failures(self) -> Vec<Failure> {
        self.failures.into_iter().chain(self.unwritten).collect()
    }
}

impl<S: Store> GlooRouter<S> {
    /// Creates a router over `store` that obeys `policy`.
    pub fn new(store: Arc<S>, policy: Policy) -> Self {
        Self {
            store,
            policy,
            memory: Memory::default(),
            deferred: Deferred::default(),
            holds: Holds::default(),
            guards_promotions: true,
            call_timeout: None,
            observer: Arc::new(()),
            background: Background::default(),
        }
    }

    /// Reports to `observer` what the replies to the controller do not show.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Sets a deadline for each call. The reply names the tables that were not written by then.
    #[must_use]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self {
            call_timeout: Some(call_timeout),
            ..self
        }
    }

    /// Sets whether promotions wait for Pods. By default they do.
    #[must_use]
    pub fn with_promotion_guard(self, guards_promotions: bool) -> Self {
        Self {
            guards_promotions,
            ..self
        }
    }

    pub(crate) fn store(&self) -> &Arc<S> {
        &self.store
    }

    pub(crate) fn observer(&self) -> &Arc<dyn Observer> {
        &self.observer
    }

    /// Runs a call of the controller. Its requests share the deadline of the call and have `priority`.
    async fn call<F: Future>(
        &self,
        priority: Priority,
        work: impl FnOnce(Deadline) -> F,
    ) -> F::Output {
        let deadline = Deadline::of_call(self.call_timeout);
        // On the heap: otherwise each layer of futures would reserve stack for it again.
        let work = Box::pin(work(deadline));
        with_context(deadline.context(priority), work).await
    }

    fn request(&self, rollout: &Rollout, kind: IntentKind) -> Result<Request, ShiftError> {
        self.store.is_called_for(&from_rpc::key(rollout));
        let are_removed = self.memory.has_removed(rollout);
        let hashes = self.memory.hashes(rollout);
        let request = Request::new(&self.policy, rollout, hashes, are_removed, kind)?;
        Ok(if self.holds.is_held(&request.rollout) {
            request.after_full_weight()
        } else {
            request
        })
    }

    /// Returns the Rollout with the zero percentages that gob drops.
    async fn complete<'r>(
        &self,
        rollout: &'r Rollout,
        deadline: Deadline,
    ) -> Result<Cow<'r, Rollout>, Failure> {
        let complete = read::restore_zero_percentages(&*self.store, rollout);
        let rollout = from_rpc::key(rollout);
        match deadline.reading(complete).await {
            Some(complete) => complete.map_err(|source| Failure::Read {
                rollout,
                source: Box::new(source),
            }),
            None => Err(Failure::NotRead(format!("Rollout {rollout}"))),
        }
    }

    /// Writes every plan that may be written. `only` limits a repair to one table.
    async fn shift(
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
        let mut moved: Vec<ObjectKey> = moving(&writes.steady, live);
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
        let written = self.write_all(request, rest, live, deadline, retries);
        unwritten.extend(written.await);
        ShiftOutcome {
            failures,
            unwritten,
            moved,
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

    /// Carries out SetWeight, and remembers what it asked for. `others` are writes outside of calls that it has taken over from.
    async fn set_weights(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
        others: TakenOver,
        deadline: Deadline,
    ) -> Result<(), ShiftError> {
        let shift = |decision| self.shift_weights(rollout, desired, additional, decision, deadline);
        let mut shifted = shift(Decision::Plan).await;
        if !others.is_empty() {
            // What they have sent may have changed a table after it was compared.
            if deadline.tables(others.ended()).await.is_none() {
                let rollout = format!("Rollout {}", from_rpc::key(rollout));
                return Err(Failures::from(Failure::NotWritten(rollout)).into());
            }
            shifted = shift(Decision::PlanAgain).await;
        }
        let shifted = shifted?;
        let failures = shifted.failures;
        self.background.set(
            rollout,
            shifted.standing,
            shifted.leaves_marks,
            &shifted.moved,
        );
        if failures.len() > 1 {
            // The reply is one line and has no room for long reasons.
            for failure in &failures {
                info!(rollout = %from_rpc::key(rollout), "not done: {}", error_chain(failure));
            }
        }
        Ok(Failures::check(failures)?)
    }

    /// Shifts the weights, and retries what earlier calls of the pass could not do.
    async fn shift_weights(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
        decision: Decision,
        deadline: Deadline,
    ) -> Result<WeightOutcome, ShiftError> {
        let weight = from_rpc::weight(desired, additional);
        let is_down = desired.value == 0 && additional.is_empty();
        let request = match self.request(rollout, weight.clone()) {
            Err(block) if is_down => return Err(self.restore_all(rollout, block, deadline).await),
            request => request?,
        };
        let (complete, selected) = join(
            self.complete(rollout, deadline),
            self.selected(&request, decision, deadline),
        )
        .await;
        let (complete, unread) = match complete {
            Ok(complete) => (complete, None),
            Err(failure) => (Cow::Borrowed(rollout), Some(failure)),
        };
        let mut request = match &complete {
            Cow::Owned(complete) => self.request(complete, weight)?,
            Cow::Borrowed(_) => request,
        };
        if unread.is_some() {
            request = request.without_new_routes();
        }
        // An incomplete selection does not tell which tables are no longer selected.
        let is_complete = selected.failures.is_empty();
        let mut selected = self.for_weights(&mut request, selected, deadline).await;
        if is_complete {
            let entries = request.config.routes().unmatched(&selected.tables);
            if self.memory.is_news(&request.rollout, &entries) {
                let rollout = About::of_call(rollout);
                self.observer
                    .observe(&Report::Unmatched { rollout, entries });
            }
        }
        let keys = selected.keys();
        selected.failures.extend(unread);
        let plans = selected.plan(&request);
        let HeldApart { plans, held } = self.hold_apart(rollout, &request, plans, deadline).await;
        let is_held = held.is_some();
        let shifted = self.shift(&request, plans, deadline, None).await;
        let (moved, leaves_marks) = (shifted.moved.clone(), shifted.leaves_marks);
        let mut failures = shifted.into_failures();
        if let Some((request, held)) = held {
            // Each table alone: the canary Service leads to the promoted version, so no table has to wait for another one.
            for table in held {
                let plans = Plans {
                    tables: vec![table],
                    failures: Vec::new(),
                };
                let shifted = self.shift(&request, plans, deadline, None).await;
                failures.extend(shifted.into_failures());
            }
        }

        let key = &request.rollout;
        let left_behind = self.memory.left_behind(key, &keys).into_iter();
        let mut left_behind: BTreeSet<ObjectKey> = left_behind.filter(|_| is_complete).collect();
        if is_down && deadline::priority_of_removal(rollout) == Priority::TowardStable {
            // A process that has just started does not remember them.
            let marked = self.marked(key, deadline).await.tables.into_iter();
            let selector = request.config.route_tables();
            let deselected = marked.filter(|it| !selector.matches(it.key(), it.labels()));
            left_behind.extend(deselected.map(|table| table.key().clone()));
        }
        failures.extend(self.release_all(&request, left_behind, deadline).await);
        for call in self.memory.unfinished(rollout) {
            failures.extend(
                self.manage(&complete, call, Attempt::Retry, deadline)
                    .await?,
            );
        }
        if failures.is_empty() {
            failures = self.check_acceptance(&complete, &request, deadline).await;
        }
        if failures.is_empty() && !is_held && is_rest(&request.config, &request.intent) {
            self.memory.all_restored(key);
        }
        let standing = Standing {
            tables: keys,
            is_complete: failures.is_empty(),
            request: Arc::new(request),
        };
        // The promotion guard watches a held promotion, so it needs no repairs.
        let leaves_marks = !is_held && (leaves_marks || !failures.is_empty());
        Ok(WeightOutcome {
            standing,
            leaves_marks,
            moved,
            failures,
        })
    }

    /// Restores tables that the Rollout selected before and no longer selects.
    async fn release_all(
        &self,
        request: &Request,
        tables: BTreeSet<ObjectKey>,
        deadline: Deadline,
    ) -> Vec<Failure> {
        let mut failures = Vec::new();
        for table in tables {
            let released = deadline.tables(self.release(request, &table, deadline));
            let late = || Err(Failure::NotWritten(format!("RouteTable {table}")));
            match released.await.unwrap_or_else(late) {
                Ok(()) => self.memory.restored(&request.rollout, &table),
                Err(source) => failures.push(Failure::NotRestored {
                    table,
                    source: Box::new(source),
                }),
            }
        }
        failures
    }

    /// Restores a table.
    async fn release(
        &self,
        request: &Request,
        table: &ObjectKey,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let request = request.resting();
        let table = match self.store.read(table).await {
            Ok(table) => table,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let plans = Plans::of(&request, table);
        let shifted = self.shift(&request, plans, deadline, None).await;
        let failures = shifted.into_failures();
        // A table without a route to the Rollout has nothing to restore.
        let is_without_route =
            |failure: &Failure| matches!(failure, Failure::Plan(error) if error.is_without_route());
        let failure = failures
            .into_iter()
            .find(|failure| !is_without_route(failure));
        failure.map_or(Ok(()), Err)
    }

    /// Removes the managed routes from every selected table that exists. A failing table does not stop the others.
    async fn remove(
        &self,
        request: &Request,
        attempt: Attempt,
        deadline: Deadline,
    ) -> Vec<Failure> {
        let selected = self.selected(request, Decision::Plan, deadline).await;
        let Plans {
            tables,
            mut failures,
        } = selected.without_absent_tables().plan(request);
        let mut plans = Vec::new();
        for planned in tables {
            match planned.plan {
                Ok(plan) => plans.push(plan),
                Err(error) => failures.push(error.into()),
            }
        }
        let policies = self
            .remove_policies(request, attempt, &plans, deadline)
            .await;
        if !policies.is_empty() {
            // A policy is deleted before its routes.
            plans.retain(|plan| !plan.needs_policies());
        }
        failures.extend(policies);
        let writes = plans.into_iter().map(|plan| TableWrite::new(plan, false));
        let written = self
            .write_all(
                request,
                writes.collect(),
                &[],
                deadline,
                Retries::OnConflict,
            )
            .await;
        // A deleted table has no routes left.
        let is_gone =
            |failure: &Failure| matches!(failure, Failure::Store(StoreError::NotFound { .. }));
        failures.extend(written.into_iter().filter(|failure| !is_gone(failure)));
        failures
    }

    /// Deletes every MirrorPolicy of the Rollout, also if another client has removed its routes.
    async fn remove_policies(
        &self,
        request: &Request,
        attempt: Attempt,
        plans: &[Plan],
        deadline: Deadline,
    ) -> Vec<Failure> {
        let has_routes = plans.iter().any(Plan::needs_policies);
        if !has_routes && !request.has_mirrors {
            return Vec::new();
        }
        let (rollout, mark) = (&request.rollout, &request.intent.rollout);
        let Some(live) = deadline.reading(self.store.policies()).await else {
            return vec![Failure::NotRead("MirrorPolicies".to_owned())];
        };
        let live = match live {
            Ok(live) => live,
            Err(error @ (StoreError::NotFound { .. } | StoreError::Forbidden { .. }))
                if !has_routes && attempt == Attempt::Call =>
            {
                // The mirror step was never carried out, and it reports the error itself.
                debug!(%rollout, "MirrorPolicies are not read: {error}");
                return Vec::new();
            }
            // As far as is known, there is no policy to delete.
            Err(error) if error.is_unavailable() && !self.has_known_policy(mark) => {
                return Vec::new();
            }
            Err(error) => return vec![policies_unreadable(request, error)],
        };
        let mut failures = Vec::new();
        for policy in live.iter().filter(|policy| belongs_to(policy, mark)) {
            let late = || {
                Err(Failure::NotWritten(format!(
                    "MirrorPolicy {}",
                    policy.key()
                )))
            };
            let deleted = deadline.tables(self.delete_policy(rollout, policy)).await;
            failures.extend(deleted.unwrap_or_else(late).err());
        }
        failures
    }

    /// Returns the complete Rollout for a call about a managed route. SetWeight of the same pass reads it too and reports the
    /// error.
    async fn complete_or_defer<'r>(
        &self,
        rollout: &'r Rollout,
        deadline: Deadline,
    ) -> Option<Cow<'r, Rollout>> {
        match self.complete(rollout, deadline).await {
            Ok(complete) => Some(complete),
            Err(failure) => {
                info!("SetWeight retries this: {}", error_chain(&failure));
                None
            }
        }
    }

    /// Carries out a call about managed routes. If it fails, SetWeight of the same pass tries it again and reports the error.
    /// An error here would keep the controller from calling SetWeight, and the controller makes Events of SetWeight's errors
    /// only (upstream `rollout/trafficrouting.go`).
    async fn manage_or_defer(&self, rollout: &Rollout, kind: IntentKind, deadline: Deadline) {
        let failed = match self.manage(rollout, kind, Attempt::Call, deadline).await {
            Ok(failures) => Failures::check(failures).map_err(ShiftError::from),
            Err(error) => Err(error),
        };
        if let Err(error) = failed {
            let key = from_rpc::key(rollout);
            let error = error_chain(&error);
            info!(rollout = %key, "SetWeight retries this: {error}");
            let rollout = About::of_call(rollout);
            self.observer
                .observe(&Report::ManagedRoutesFailed { rollout, error });
        }
    }

    /// Carries out a call about managed routes, and records whether SetWeight has to retry it.
    async fn manage(
        &self,
        rollout: &Rollout,
        call: IntentKind,
        attempt: Attempt,
        deadline: Deadline,
    ) -> Result<Vec<Failure>, ShiftError> {
        let request = self.request(rollout, call)?;
        let failures = match &request.intent.kind {
            IntentKind::SetManagedRoute(route)
                if request.intent.managed.update == ManagedRouteUpdate::RemoveAll
                    && !route.is_removal() =>
            {
                // The controller sends this call even in a pass that removes the route, for example after an abort.
                let name = route.name();
                info!(rollout = %request.rollout, "managed route {name} is not set while managed routes are removed");
                Vec::new()
            }
            IntentKind::SetManagedRoute(_) => {
                let selected = self.selected(&request, Decision::Plan, deadline).await;
                let plans = selected.plan(&request);
                let shifted = self.shift(&request, plans, deadline, None).await;
                shifted.into_failures()
            }
            IntentKind::RemoveManagedRoutes | IntentKind::SetWeight(_) => {
                self.remove(&request, attempt, deadline).await
            }
        };
        let call = &request.intent.kind;
        self.memory
            .leave_unfinished(rollout, call, !failures.is_empty());
        Ok(failures)
    }
}

/// Whether no traffic may move to the canary, because another version is rolled out, or none. The controller may have read the
/// Rollout before other changes of it, as a full promotion, and asks for what they need in its next pass.
fn forbids_growth(why: Outdated) -> bool {
    use Outdated::{Abort, CurrentVersion, Gone, StableVersion};
    matches!(why, Gone | StableVersion | CurrentVersion | Abort)
}

impl<S: Store> TrafficRouter for GlooRouter<S> {
    fn type_name(&self) -> &str {
        "GlooPlatform"
    }

    async fn init(&self) -> Result<(), RouterError> {
        // The controller holds a lock over all traffic routers during this call, so nothing is contacted here.
        Ok(())
    }

    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        _additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.background.record_instance(rollout);
        // Nothing is written before SetWeight. Where destinations are Services, the controller has changed their selectors
        // itself.
        self.memory.record_hashes(rollout, hashes);
        Ok(())
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.background.record_instance(rollout);
        if desired.value < desired.max {
            self.memory.end_full(&from_rpc::key(rollout));
        }
        if desired.value == 0 && additional.is_empty() && self.defer(rollout).await {
            return Ok(());
        }
        let others = self.take_over(rollout);
        let priority = deadline::priority_of_weight(rollout, desired);
        let set = self.call(priority, |deadline| {
            self.set_weights(rollout, desired, additional, others, deadline)
        });
        Ok(set.await?)
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        let verified = if self.holds.is_held(&from_rpc::key(rollout)) {
            Ok(Verification::NotVerified)
        } else if is_waited_for(rollout, desired) {
            let verify = |deadline| self.verify(rollout, desired, additional, deadline);
            self.call(Priority::Call, verify).await
        } else {
            Ok(Verification::NotImplemented)
        };
        self.memory.end_pass(rollout);
        Ok(verified?)
    }

    async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), RouterError> {
        self.take_over(rollout);
        self.call(Priority::Call, |deadline| async move {
            if let Some(complete) = self.complete_or_defer(rollout, deadline).await {
                self.manage_or_defer(&complete, from_rpc::header_route(route), deadline)
                    .await;
            }
        })
        .await;
        Ok(())
    }

    async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), RouterError> {
        self.take_over(rollout);
        self.call(Priority::Call, |deadline| async move {
            if let Some(complete) = self.complete_or_defer(rollout, deadline).await {
                let route = read::as_in_current_step(&complete, route);
                self.manage_or_defer(&complete, from_rpc::mirror_route(route), deadline)
                    .await;
            }
        })
        .await;
        Ok(())
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), RouterError> {
        self.background.record_instance(rollout);
        self.memory.begin_removal(rollout);
        if self.defer(rollout).await {
            return Ok(());
        }
        self.take_over(rollout);
        let removal = IntentKind::RemoveManagedRoutes;
        self.call(deadline::priority_of_removal(rollout), |deadline| {
            self.manage_or_defer(rollout, removal, deadline)
        })
        .await;
        Ok(())
    }

    async fn stop(&self) {
        self.background.stop().await;
    }
}

#[cfg(test)]
mod tests;
