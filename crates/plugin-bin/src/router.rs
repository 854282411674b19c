//! The traffic router: plans all selected tables, then writes those that change.

mod live_rollout;
mod mirror_policies;
mod pass;
mod pod_hashes;
mod selections;
mod turns;
mod verification;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, RouteTableSelector};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, Verification, WeightDestination,
    error_chain,
    rollout::{SetHeaderRoute, SetMirrorRoute},
};
use route_planner::{IntentKind, Observation, Plan, PolicyChange, observe, plan};
use route_store::{PolicyStore, RolloutReader, RouteStore, StoreError};
use tracing::{debug, info, warn};

use self::{
    pass::Removals, pod_hashes::PodHashMemory, selections::Selections, turns::Turns,
    verification::is_waited_for,
};
use crate::{
    error::{ShiftError, TableError, TableErrors},
    from_rpc::{self, Policy, Request},
};

/// How often one table is written before a conflict becomes an error.
const WRITE_ATTEMPTS: u32 = 3;

/// Shifts traffic by editing RouteTables in `S`.
#[derive(Debug)]
pub struct GlooRouter<S> {
    store: S,
    policy: Policy,
    turns: Turns,
    removals: Removals,
    hashes: PodHashMemory,
    selections: Selections,
}

impl<S: RouteStore + PolicyStore + RolloutReader> GlooRouter<S> {
    /// A router over `store`, within `policy`.
    pub fn new(store: S, policy: Policy) -> Self {
        Self {
            store,
            policy,
            turns: Turns::default(),
            removals: Removals::default(),
            hashes: PodHashMemory::default(),
            selections: Selections::default(),
        }
    }

    fn request(&self, rollout: &Rollout, kind: IntentKind) -> Result<Request, ShiftError> {
        let are_removed = self.removals.include(rollout);
        Request::new(
            &self.policy,
            rollout,
            self.hashes.of(rollout),
            are_removed,
            kind,
        )
    }

    /// The Rollout with what the wire left out.
    async fn complete<'r>(&self, rollout: &'r Rollout) -> Result<Cow<'r, Rollout>, ShiftError> {
        let complete = live_rollout::with_zero_percentages(&self.store, rollout).await;
        complete.map_err(|source| ShiftError::Select {
            rollout: ObjectKey::new(&rollout.namespace, &rollout.name),
            source: Box::new(source),
        })
    }

    /// The tables of a request. Selecting none is an error: nobody's traffic would move.
    async fn tables(&self, request: &Request) -> Result<Vec<RouteTableDoc>, ShiftError> {
        let rollout = || request.intent.rollout.clone();
        let selector = request.config.route_tables();
        let tables = self
            .store
            .select(selector)
            .await
            .map_err(|source| ShiftError::Select {
                rollout: rollout(),
                source: Box::new(source),
            })?;
        if tables.is_empty() {
            return Err(ShiftError::NothingSelected {
                rollout: rollout(),
                selector: selector.to_string(),
            });
        }
        Ok(tables)
    }

    /// Puts the request into force and tells on which tables: every table is planned before any is written.
    async fn shift(&self, request: &Request) -> Result<BTreeSet<ObjectKey>, ShiftError> {
        let mut plans = Vec::new();
        let mut errors = Vec::new();
        for table in self.tables(request).await? {
            match plan(&request.config, &request.intent, &table) {
                Ok(plan) => plans.push(plan),
                Err(error) => errors.push(error),
            }
        }
        // A managed route may be meant for some of the tables only.
        let is_weight = matches!(request.intent.kind, IntentKind::SetWeight(_));
        if !is_weight && !plans.is_empty() {
            errors.retain(|error| !error.is_without_route());
        }
        let mut live = Vec::new();
        if plans.iter().any(Plan::needs_policies) {
            live = self.policies(request).await?;
        }
        errors.extend(
            plans
                .iter()
                .filter_map(|plan| plan.policy_changes(&live).err()),
        );
        TableErrors::check(errors.into_iter().map(TableError::from).collect())?;
        let tables = plans.iter().map(|plan| plan.table.clone()).collect();
        TableErrors::check(self.write_all(request, plans, &live).await)?;
        Ok(tables)
    }

    /// Puts back the tables that the Rollout selected before and selects no longer. What fails is tried again with the
    /// next weight: it is no reason to hold up the tables that are selected.
    async fn release_others(&self, request: &Request, selected: BTreeSet<ObjectKey>) {
        let rollout = &request.intent.rollout;
        let left = self.selections.left_behind(rollout, selected);
        for table in left {
            match self.release(request, &table).await {
                Ok(()) => self.selections.released(rollout, &table),
                Err(error) => {
                    warn!(%rollout, route_table = %table, "it is no longer selected and not put back yet: {}", error_chain(&error));
                }
            }
        }
    }

    async fn release(&self, request: &Request, table: &ObjectKey) -> Result<(), TableError> {
        let request = request.resting();
        let table = match self.store.read(table).await {
            Ok(table) => table,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match plan(&request.config, &request.intent, &table) {
            Ok(plan) if plan.is_noop() => Ok(()),
            Ok(plan) => {
                let mut live = Vec::new();
                if plan.needs_policies() {
                    live = self.store.policies().await?;
                }
                self.write(&request, plan, &live).await
            }
            Err(error) if error.is_without_route() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn write_all(
        &self,
        request: &Request,
        plans: Vec<Plan>,
        live: &[MirrorPolicyDoc],
    ) -> Vec<TableError> {
        let mut errors = Vec::new();
        for plan in plans {
            report(&plan, request);
            errors.extend(self.write(request, plan, live).await.err());
        }
        errors
    }

    /// Removes the managed routes of every table that is there. A table that fails keeps none of the others from it.
    async fn remove(&self, request: &Request) -> Result<(), ShiftError> {
        let mut plans = Vec::new();
        let mut errors: Vec<TableError> = Vec::new();
        for table in self.present_tables(request).await? {
            match plan(&request.config, &request.intent, &table) {
                Ok(plan) => plans.push(plan),
                Err(error) => errors.push(error.into()),
            }
        }
        let policies = self.remove_policies(request, &plans).await;
        if !policies.is_empty() {
            // A policy goes before the routes it is about.
            plans.retain(|plan| !plan.needs_policies());
        }
        errors.extend(policies);
        let written = self.write_all(request, plans, &[]).await.into_iter();
        // Whoever deleted a table has removed its routes.
        let gone =
            |error: &TableError| matches!(error, TableError::Store(StoreError::NotFound { .. }));
        errors.extend(written.filter(|error| !gone(error)));
        Ok(TableErrors::check(errors)?)
    }

    /// The tables of a request, as far as they exist.
    async fn present_tables(&self, request: &Request) -> Result<Vec<RouteTableDoc>, ShiftError> {
        let selector = request.config.route_tables();
        let mut parts: Vec<RouteTableSelector> = Vec::new();
        for name in &selector.names {
            parts.push(RouteTableSelector {
                names: vec![name.clone()],
                namespaces: selector.namespaces.clone(),
                ..RouteTableSelector::default()
            });
        }
        if selector.by_label() {
            parts.push(RouteTableSelector {
                names: Vec::new(),
                ..selector.clone()
            });
        }
        let mut tables = BTreeMap::new();
        for part in &parts {
            match self.store.select(part).await {
                Ok(found) => {
                    tables.extend(found.into_iter().map(|table| (table.key().clone(), table)));
                }
                Err(StoreError::NotFound { .. }) => {}
                Err(source) => {
                    return Err(ShiftError::Select {
                        rollout: request.intent.rollout.clone(),
                        source: Box::new(source),
                    });
                }
            }
        }
        Ok(tables.into_values().collect())
    }

    /// Writes one table and the MirrorPolicies behind its routes. A policy that goes, goes before its route; one that
    /// comes, comes after it.
    async fn write(
        &self,
        request: &Request,
        plan: Plan,
        live: &[MirrorPolicyDoc],
    ) -> Result<(), TableError> {
        let rollout = &request.intent.rollout;
        for change in plan.policy_changes(live)? {
            if let PolicyChange::Delete(policy) = change {
                self.delete_policy(request, &policy).await?;
            }
        }
        let plan = self.write_table(request, plan).await?;
        for change in plan.policy_changes(live)? {
            let policy = match change {
                PolicyChange::Delete(_) => continue,
                PolicyChange::Create(policy) => self.store.create_policy(&policy).await?,
                PolicyChange::Patch(key, patch) => self.store.patch_policy(&key, &patch).await?,
            };
            info!(%rollout, mirror_policy = %policy.key(), "written");
        }
        Ok(())
    }

    /// Writes one table. When somebody else was faster it is read and planned again. Gives back the plan that was carried
    /// out.
    async fn write_table(&self, request: &Request, mut plan: Plan) -> Result<Plan, TableError> {
        if plan.is_noop() {
            return Ok(plan);
        }
        let table = plan.table.clone();
        let turn = self.turns.of(&table);
        let _turn = turn.lock().await;
        for attempt in 1.. {
            match carry_out(&self.store, &plan).await {
                Ok(()) => break,
                Err(StoreError::Conflict(_)) if attempt < WRITE_ATTEMPTS => {
                    tokio::time::sleep(pause(attempt)).await;
                    let fresh = self.store.read(&table).await?;
                    plan = route_planner::plan(&request.config, &request.intent, &fresh)?;
                    if plan.is_noop() {
                        return Ok(plan);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        for edit in &plan.edits {
            info!(rollout = %request.intent.rollout, route_table = %table, "{edit}");
        }
        Ok(plan)
    }

    /// Sets or removes a managed route.
    async fn set_managed(&self, rollout: &Rollout, kind: IntentKind) -> Result<(), RouterError> {
        let request = self.request(rollout, kind)?;
        if let IntentKind::SetManagedRoute(route) = &request.intent.kind
            && request.intent.managed.is_ending
            && !route.is_removal()
        {
            // The controller asks for it even in a pass that removes it, for example after an abort.
            let name = route.name();
            info!(rollout = %request.intent.rollout, "managed route {name} is not set while managed routes are removed");
            return Ok(());
        }
        self.shift(&request).await?;
        Ok(())
    }

    /// The answer for all tables is that of the table furthest behind.
    async fn verify(&self, request: &Request) -> Result<Verification, ShiftError> {
        let mut verification = Verification::Verified;
        for table in self.tables(request).await? {
            let observation =
                observe(&request.config, &request.intent, &table).map_err(TableError::from);
            let reason = match observation.map_err(TableErrors::from)? {
                Observation::Verified => continue,
                Observation::NotApplicable { reason } => {
                    if verification == Verification::Verified {
                        verification = Verification::NotImplemented;
                    }
                    reason
                }
                Observation::NotVerified { reason } => {
                    verification = Verification::NotVerified;
                    reason
                }
                Observation::Refused { reason } => {
                    verification = Verification::NotVerified;
                    warn!(rollout = %request.intent.rollout, "not verified until the table is corrected: {reason}");
                    continue;
                }
            };
            info!(rollout = %request.intent.rollout, "not verified: {reason}");
        }
        Ok(verification)
    }
}

impl<S: RouteStore + PolicyStore + RolloutReader> TrafficRouter for GlooRouter<S> {
    fn type_name(&self) -> &str {
        "GlooPlatform"
    }

    async fn init(&self) -> Result<(), RouterError> {
        // The controller holds a lock over all traffic routers meanwhile: nothing is contacted here.
        Ok(())
    }

    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        _additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        // Nothing is written before the weight is told. Where destinations are Services, the controller has moved their
        // selectors itself.
        self.hashes.remember(rollout, hashes);
        Ok(())
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        let rollout = self.complete(rollout).await?;
        let request = self.request(&rollout, from_rpc::weight(desired, additional))?;
        let selected = self.shift(&request).await?;
        self.release_others(&request, selected).await;
        Ok(())
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        if !is_waited_for(rollout, desired) {
            self.removals.end(rollout);
            return Ok(Verification::NotImplemented);
        }
        let complete = self.complete(rollout).await;
        let request =
            complete.map(|rollout| self.request(&rollout, from_rpc::weight(desired, additional)));
        // VerifyWeight is the last call of a pass.
        self.removals.end(rollout);
        let verified = match request {
            Ok(request) => self.verify(&request?).await,
            Err(error) => Err(error),
        };
        match verified {
            Ok(verification) => Ok(verification),
            Err(error) => {
                // An error would let a promotion go ahead unverified (upstream rollout/sync.go);
                // this answer makes the controller ask again.
                let error: RouterError = error.into();
                warn!(rollout = %ObjectKey::new(&rollout.namespace, &rollout.name), "not verified: {error}");
                Ok(Verification::NotVerified)
            }
        }
    }

    async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), RouterError> {
        let rollout = self.complete(rollout).await?;
        self.set_managed(&rollout, from_rpc::header_route(route))
            .await
    }

    async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), RouterError> {
        let rollout = self.complete(rollout).await?;
        let route = live_rollout::current(&rollout, route);
        self.set_managed(&rollout, from_rpc::mirror_route(route))
            .await
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), RouterError> {
        self.removals.begin(rollout);
        match self.request(rollout, IntentKind::RemoveManagedRoutes) {
            Ok(request) => Ok(self.remove(&request).await?),
            Err(error) => {
                // An error here would come before the one of SetWeight, and only that one becomes an event
                // (upstream rollout/trafficrouting.go). Until it is resolved no other call changes a table either.
                let error: RouterError = error.into();
                warn!("managed routes are not removed: {error}");
                Ok(())
            }
        }
    }
}

fn report(plan: &Plan, request: &Request) {
    let rollout = &request.intent.rollout;
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

#[cfg(test)]
mod tests;
