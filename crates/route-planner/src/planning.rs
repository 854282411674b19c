//! Plans one request for one table: reads the table once, decides weights and managed routes, and assembles the plan.
//!
//! ```text
//! annotation --> RecordSet --\
//! table ----------------------\
//! configuration --------------->  TableState --> WeightPlan --------\
//! intent --------------------/            \                         >--> Plan
//!                                          \--> ManagedRoutePlan ---/
//! ```

use gloo_types::RouteTableDoc;
use serde_json::Value;

use crate::config::PluginConfig;
use crate::error::{PlanError, Refusal};
use crate::intent::{Intent, IntentKind, ManagedRoute, ManagedRouteUpdate, WeightSplit};
use crate::limits;
use crate::managed_routes::{self, ManagedRoutePlan};
use crate::ownership::{Owner, Ownership};
use crate::plan::{Edit, Plan};
use crate::record::RecordSet;
use crate::roles::Roles;
use crate::route::{Protocol, raw_routes};
use crate::set_weight::{CanaryGrowth, WeightPlan, plan_weights};
use crate::table_state::{Action, TableState};

/// Plans an intent. See [`crate::plan()`] and [`crate::plan_toward_stable`].
pub(crate) fn plan(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    growth: CanaryGrowth,
) -> Result<Plan, PlanError> {
    let records = RecordSet::read(table, &intent.rollout.to_string());
    let removed = match &intent.kind {
        IntentKind::RemoveManagedRoutes => None,
        IntentKind::SetManagedRoute(route) if route.is_removal() => Some(route.name()),
        IntentKind::SetManagedRoute(route) => {
            return set_managed_route(config, intent, table, &records, route);
        }
        IntentKind::SetWeight(split) => {
            return set_weight(config, intent, table, &records, split, growth);
        }
    };
    let managed = managed_routes::remove(config, intent, table, removed);
    let assembly = Assembly::new(intent, table, &records).with_managed(managed);
    Ok(assembly.finish())
}

/// Whether `intent` asks that nothing is rolled out, so that tables become what their owners wrote. If subsets by Pod hash
/// distinguish the versions, that is not so as long as Pods of two versions may exist.
pub fn is_rest(config: &PluginConfig, intent: &Intent) -> bool {
    Roles::new(config, intent).is_ok_and(|roles| roles.is_rest(intent))
}

fn set_managed_route(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    records: &RecordSet,
    route: &ManagedRoute,
) -> Result<Plan, PlanError> {
    let state = TableState::new(config, intent, table, records)?;
    let managed = managed_routes::set_one(&state, route);
    let managed = managed.map_err(|refusal| intent.refused(table, refusal))?;
    let mut plan = Assembly::new(intent, table, records).with_managed(managed);
    plan.plan.skipped = state.skipped().collect();
    Ok(plan.finish())
}

fn set_weight(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    records: &RecordSet,
    split: &WeightSplit,
    growth: CanaryGrowth,
) -> Result<Plan, PlanError> {
    let refused = |refusal| intent.refused(table, refusal);
    let state = TableState::new(config, intent, table, records)?;
    let mut weights = plan_weights(&state, split, growth).map_err(refused)?;
    let update = growth.limit(intent.managed.update);
    let managed = managed_routes::reconcile(&state, &weights.targets, update);
    let managed = managed.or_else(|refusal| {
        // The route itself may have been refused for the same reason.
        if !weights.left.contains(&refusal) {
            weights.left.push(refusal);
        }
        managed_routes::reconcile(&state, &weights.targets, ManagedRouteUpdate::KeepExisting)
    });
    let managed = managed.map_err(refused)?;
    weights.left.extend(managed.left.iter().cloned());
    let is_refused = !weights.left.is_empty() && weights.grows && growth == CanaryGrowth::Allowed;
    if is_refused && let Some(refusal) = weights.left.first() {
        return Err(refused(refusal.clone()));
    }
    let mut assembly = Assembly::new(intent, table, records)
        .with_weights(&state, &mut weights)
        .map_err(refused)?;
    // Restoring the owner's routes is possible without a route to stable, if there is something to restore.
    let has_work = !assembly.plan.is_noop() || !assembly.plan.left.is_empty();
    if !(weights.routes_to_rollout || weights.is_rest && has_work) {
        let left = assembly.plan.left.first().cloned();
        let refusal = left.unwrap_or_else(|| Refusal::NoStableRoute {
            selectors: selectors(state.table),
            stable: state.roles.stable.label(),
            found: state.found(),
        });
        if managed.edits.is_empty() {
            return Err(refused(refusal));
        }
        // Managed routes without a source still serve requests, and are removed.
        if assembly.plan.left.is_empty() {
            assembly.plan.left.push(refusal);
        }
    }
    assembly = assembly.with_managed(managed);
    assembly.plan.grows = weights.grows && growth == CanaryGrowth::Allowed;
    assembly.plan.shrinks = weights.shrinks;
    if assembly.plan.grows {
        limits::check(&state, &assembly.plan).map_err(refused)?;
    }
    Ok(assembly.finish())
}

/// A plan under construction.
struct Assembly<'a> {
    plan: Plan,
    intent: &'a Intent,
    table: &'a RouteTableDoc,
    /// Whether the table has a record of any Rollout afterwards.
    has_record: bool,
    /// Whether the table has a record of this Rollout afterwards.
    has_own_record: bool,
    /// Whether the table has managed routes of this Rollout afterwards.
    has_routes: bool,
}

impl<'a> Assembly<'a> {
    fn new(intent: &'a Intent, table: &'a RouteTableDoc, records: &RecordSet) -> Self {
        Self {
            plan: Plan::nothing(&intent.rollout, table),
            intent,
            table,
            has_record: records.problem.is_some() || records.annotation.rollouts().next().is_some(),
            has_own_record: !records.own.routes.is_empty(),
            has_routes: true,
        }
    }

    fn with_weights(
        mut self,
        state: &TableState<'_>,
        weights: &mut WeightPlan<'_>,
    ) -> Result<Self, Refusal> {
        for (route_state, target) in state.routes.iter().zip(&weights.targets) {
            let Action::Forward { live, .. } = &route_state.action else {
                continue;
            };
            let Some(target) = target else { continue };
            let changes = live.changes_to(target);
            let route = &route_state.route;
            if !changes.is_empty()
                && let Some(forward) = route.forward()
            {
                let index = route.index.to_string();
                self.plan.edits.push(Edit::Destinations {
                    route: route.label(),
                    path: ["spec", route.protocol.key(), &index, "forwardTo"]
                        .map(str::to_owned)
                        .to_vec(),
                    expect: forward.clone(),
                    changes,
                });
            }
        }
        let records = state.records;
        self.has_own_record = !weights.record.routes.is_empty();
        if records.problem.is_none() {
            let rollout = &self.intent.rollout;
            let (edit, is_left) =
                records
                    .annotation
                    .replace(self.table, rollout, &records.own, &weights.record)?;
            self.plan.edits.extend(edit);
            self.has_record = is_left;
        }
        self.plan.left = std::mem::take(&mut weights.left);
        self.plan.warnings = std::mem::take(&mut weights.warnings);
        self.plan.skipped = state.skipped().collect();
        Ok(self)
    }

    fn with_managed(mut self, managed: ManagedRoutePlan) -> Self {
        self.plan.edits.extend(managed.edits);
        self.plan.warnings.extend(managed.warnings);
        self.plan.policies = managed.policies;
        self.has_routes = managed.has_routes;
        self
    }

    fn finish(mut self) -> Plan {
        let is_left = self.has_record || self.has_routes || self.has_others_routes();
        self.plan.hands_back = !self.plan.is_noop() && !is_left;
        self.plan.leaves_marks = self.has_own_record || self.has_routes;
        self.plan
    }

    /// Whether the table has managed routes of other Rollouts.
    fn has_others_routes(&self) -> bool {
        let owner = Owner::new(&self.intent.rollout);
        let mut routes = raw_routes(self.table, Protocol::Http).iter();
        let is_others = |route: &Value| Ownership::of(route).is_some_and(|at| at.owner != owner);
        routes.any(is_others)
    }
}

/// The keys of the plugin block that select the routes of such a table, for messages.
fn selectors(table: &RouteTableDoc) -> &'static str {
    let has = |protocol| !raw_routes(table, protocol).is_empty();
    match (has(Protocol::Http), has(Protocol::Tcp), has(Protocol::Tls)) {
        (_, false, false) => "routeTableSelector and routeSelector",
        (true, true, false) => "routeTableSelector, routeSelector and tcpRoutes",
        (true, false, true) => "routeTableSelector, routeSelector and tlsRoutes",
        (true, true, true) => "routeTableSelector, routeSelector, tcpRoutes and tlsRoutes",
        (false, true, false) => "routeTableSelector and tcpRoutes",
        (false, false, true) => "routeTableSelector and tlsRoutes",
        (false, true, true) => "routeTableSelector, tcpRoutes and tlsRoutes",
    }
}
