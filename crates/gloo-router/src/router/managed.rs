//! Calls about managed routes. SetWeight of the same pass retries what they could not do.

use std::borrow::Cow;

use rollouts_rpc::{Rollout, error_chain};
use route_planner::{IntentKind, ManagedRouteUpdate, Plan, TableWrite, belongs_to};
use route_store::{Decision, Store, StoreError};
use tracing::{debug, info};

use super::{
    GlooRouter,
    deadline::Deadline,
    read::{Plans, policies_unreadable},
    write::Retries,
};
use crate::{
    error::{Failure, Failures, ShiftError},
    from_rpc::{self, Request},
    report::{About, Report},
};

/// Whether a call about managed routes comes from the controller or is the retry in SetWeight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Call,
    Retry,
}

impl<S: Store> GlooRouter<S> {
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
    pub(super) async fn complete_or_defer<'r>(
        &self,
        rollout: &'r Rollout,
        deadline: Deadline,
    ) -> Option<Cow<'r, Rollout>> {
        match self.complete(rollout, deadline).await {
            Ok(complete) => Some(complete),
            Err(failure) => {
                info!("{}; the next SetWeight tries again", error_chain(&failure));
                None
            }
        }
    }

    /// Carries out a call about managed routes. If it fails, SetWeight of the same pass tries it again and reports the error.
    /// An error here would keep the controller from calling SetWeight, and the controller makes Events of SetWeight's errors
    /// only (upstream `rollout/trafficrouting.go`).
    pub(super) async fn manage_or_defer(
        &self,
        rollout: &Rollout,
        kind: IntentKind,
        deadline: Deadline,
    ) {
        let is_set = matches!(kind, IntentKind::SetManagedRoute(_));
        if is_set && rollout.metadata.resource_version.is_empty() {
            // No API server has stored this Rollout, so there is no pass of a controller to which an earlier removal belongs too.
            self.memory.end_pass(rollout);
        }
        let failed = match self.manage(rollout, kind, Attempt::Call, deadline).await {
            Ok(failures) => Failures::check(failures).map_err(ShiftError::from),
            Err(error) => Err(error),
        };
        if let Err(error) = failed {
            let key = from_rpc::key(rollout);
            let error = error_chain(&error);
            info!(rollout = %key, "{error}; the next SetWeight tries again");
            let rollout = About::of_call(rollout);
            self.observer
                .observe(&Report::ManagedRoutesFailed { rollout, error });
        }
    }

    /// Carries out a call about managed routes, and records whether SetWeight has to retry it.
    pub(super) async fn manage(
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
