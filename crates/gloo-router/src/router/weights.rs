//! SetWeight: it reads, decides, writes and remembers.

use std::{collections::BTreeSet, sync::Arc};

use gloo_types::ObjectKey;
use rollouts_rpc::{DesiredWeight, Rollout, WeightDestination, error_chain};
use route_planner::{IntentKind, Planned, is_rest};
use route_store::{Decision, Priority, Store, StoreError};
use tracing::info;

use super::{
    GlooRouter,
    deadline::{self, Deadline},
    guard::HeldApart,
    managed::Attempt,
    outside::TakenOver,
    read::{Plans, Selected, WeightInputs},
    write::ShiftOutcome,
};
use crate::{
    error::{Failure, Failures, ShiftError},
    from_rpc::{self, Request},
    standing::Standing,
};

/// What SetWeight has done.
pub(super) struct WeightOutcome {
    standing: Standing,
    /// Whether something of the Rollout is left in a table, or could be.
    leaves_marks: bool,
    /// Tables whose plan moved traffic.
    moved: Vec<ObjectKey>,
    /// What could not be done.
    pub(super) failures: Vec<Failure>,
}

impl WeightOutcome {
    /// Writes outside of calls have not ended in time, so it is not known what they change.
    fn unfinished(mut self) -> Self {
        let rollout = format!("Rollout {}", self.standing.request.rollout);
        self.failures.push(Failure::NotWritten(rollout));
        self.standing.is_complete = false;
        self.leaves_marks = true;
        self
    }
}

/// Whether the canary and its experiments get no traffic.
fn is_zero(weight: &IntentKind) -> bool {
    matches!(weight, IntentKind::SetWeight(split) if split.desired == 0 && split.additional.is_empty())
}

impl<S: Store> GlooRouter<S> {
    /// Carries out SetWeight, and remembers what it asked for. `others` are writes outside of calls that it has taken over from.
    pub(super) async fn set_weights(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
        others: TakenOver,
        deadline: Deadline,
    ) -> Result<(), ShiftError> {
        let shift = |decision| self.shift_weights(rollout, desired, additional, decision, deadline);
        let mut outcome = shift(Decision::Plan).await;
        if !others.is_empty() {
            // What they have sent may have changed a table after it was compared.
            match deadline.tables(others.ended()).await {
                Some(()) => outcome = shift(Decision::PlanAgain).await,
                None => outcome = outcome.map(WeightOutcome::unfinished),
            }
        }
        if outcome.is_err() {
            self.background.standing().end_call(&from_rpc::key(rollout));
        }
        let WeightOutcome {
            standing,
            leaves_marks,
            moved,
            failures,
        } = outcome?;
        self.background.set(rollout, standing, leaves_marks, &moved);
        if failures.len() > 1 {
            // The reply is one line and has no room for long reasons.
            for failure in &failures {
                info!(rollout = %from_rpc::key(rollout), "not done: {}", error_chain(failure));
            }
        }
        Ok(Failures::check(failures)?)
    }

    /// Shifts the weights, and retries what earlier calls of the pass could not do.
    pub(super) async fn shift_weights(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
        decision: Decision,
        deadline: Deadline,
    ) -> Result<WeightOutcome, ShiftError> {
        let weight = from_rpc::weight(desired, additional);
        let is_zero = is_zero(&weight);
        let request = match self.request(rollout, weight) {
            Err(block) if is_zero => return Err(self.restore_all(rollout, block, deadline).await),
            request => request?,
        };
        let inputs = self.read_weights(rollout, request, decision, deadline);
        let WeightInputs {
            complete,
            mut request,
            selected,
            has_all,
        } = inputs.await?;
        let tables = selected.keys();
        let (is_held, shifted) = self
            .write_weights(rollout, &request, selected, deadline)
            .await;
        let ShiftOutcome {
            mut failures,
            unwritten,
            moved,
            leaves_marks,
            ..
        } = shifted;
        failures.extend(unwritten);
        let deselected = self.deselected(rollout, &request, &tables, has_all, deadline);
        let deselected = deselected.await;
        failures.extend(self.release_all(&request, deselected, deadline).await);
        for call in self.memory.unfinished(rollout) {
            let managed = self.manage(&complete, call, Attempt::Retry, deadline);
            failures.extend(managed.await?);
        }
        if failures.is_empty() {
            failures = self
                .check_acceptance(&complete, &mut request, deadline)
                .await;
        }
        if failures.is_empty() && !is_held && is_rest(&request.config, &request.intent) {
            self.memory.all_restored(&request.rollout);
        }
        Ok(WeightOutcome {
            standing: Standing {
                tables,
                is_complete: failures.is_empty(),
                request: Arc::new(request),
            },
            // The promotion guard watches a held promotion, so it needs no repairs.
            leaves_marks: !is_held && (leaves_marks || !failures.is_empty()),
            moved,
            failures,
        })
    }

    /// Writes the tables that may be written, and those of a held promotion. Returns whether one is held.
    async fn write_weights(
        &self,
        rollout: &Rollout,
        request: &Request,
        selected: Selected,
        deadline: Deadline,
    ) -> (bool, ShiftOutcome) {
        let plans = selected.plan(request);
        let HeldApart { plans, held } = self.hold_apart(rollout, request, plans, deadline).await;
        let mut shifted = self.shift(request, plans, deadline, None).await;
        let Some((request, held)) = held else {
            return (false, shifted);
        };
        // Each table alone: the canary Service routes to the promoted version, so no table has to wait for another one.
        for table in held {
            let held = self.shift(&request, Plans::of(table), deadline, None).await;
            shifted.unwritten.extend(held.into_failures());
        }
        (true, shifted)
    }

    /// Returns the tables that the Rollout no longer selects and that may still have marks of it. `has_all` tells that `tables` are
    /// all that it selects.
    async fn deselected(
        &self,
        rollout: &Rollout,
        request: &Request,
        tables: &BTreeSet<ObjectKey>,
        has_all: bool,
        deadline: Deadline,
    ) -> BTreeSet<ObjectKey> {
        let left = self.memory.left_behind(&request.rollout, tables);
        let mut left: BTreeSet<ObjectKey> = left.into_iter().filter(|_| has_all).collect();
        if is_zero(&request.intent.kind)
            && deadline::priority_of_removal(rollout) == Priority::TowardStable
        {
            // A process that has just started does not remember them.
            let marked = self.marked(&request.rollout, deadline).await.tables;
            let selector = request.config.route_tables();
            let deselected = marked
                .iter()
                .filter(|it| !selector.matches(it.key(), it.labels()));
            left.extend(deselected.map(|table| table.key().clone()));
        }
        left
    }

    /// Restores tables that the Rollout selected before and no longer selects.
    pub(super) async fn release_all(
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
        let plans = Plans::of(Planned::new(&request.config, &request.intent, table));
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
}
