//! One call from its beginning to its end: survey the table once, decide weights and managed routes, assemble the plan.
//!
//! ```text
//! annotation --\
//! table --------> survey --> weights ---------\
//! configuration    |                           >--> plan: edits, policies, what is left
//! intent ---------/ \------> managed routes --/
//! ```

use gloo_types::RouteTableDoc;
use serde_json::Value;

use crate::config::PluginConfig;
use crate::error::{PlanError, Refusal};
use crate::intent::{Intent, IntentKind, ManagedRoute, WeightSplit};
use crate::limits;
use crate::managed_routes::{self, Managed};
use crate::ownership::{Owner, Ownership};
use crate::plan::{Edit, Plan};
use crate::roles::Roles;
use crate::route::{Protocol, raw_routes};
use crate::set_weight::{Growth, Weights, weights};
use crate::table_state::{Finding, Memory, Survey};

/// Plans an intent.
pub(crate) fn plan(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    growth: Growth,
) -> Result<Plan, PlanError> {
    let memory = Memory::read(table, &intent.rollout.to_string());
    match &intent.kind {
        IntentKind::RemoveManagedRoutes => {
            let managed = managed_routes::remove(intent, table, None);
            Ok(Assembly::new(intent, table, &memory)
                .with_managed(managed)
                .finish())
        }
        IntentKind::SetManagedRoute(route) if route.is_removal() => {
            let managed = managed_routes::remove(intent, table, Some(route.name()));
            Ok(Assembly::new(intent, table, &memory)
                .with_managed(managed)
                .finish())
        }
        IntentKind::SetManagedRoute(route) => {
            set_managed_route(config, intent, table, &memory, route)
        }
        IntentKind::SetWeight(split) => set_weight(config, intent, table, &memory, split, growth),
    }
}

/// Whether nothing is rolled out, so that tables become what their owners wrote. Where subsets distinguish the versions, they
/// are kept as long as there may be Pods of two.
pub fn is_rest(config: &PluginConfig, intent: &Intent) -> bool {
    Roles::new(config, intent).is_ok_and(|roles| roles.are_at_rest(intent))
}

fn set_managed_route(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    memory: &Memory,
    route: &ManagedRoute,
) -> Result<Plan, PlanError> {
    let survey = Survey::new(config, intent, table, memory)?;
    let managed = managed_routes::set(&survey, route);
    let managed = managed.map_err(|refusal| intent.refused(table, refusal))?;
    let mut plan = Assembly::new(intent, table, memory).with_managed(managed);
    plan.plan.skipped = survey.skipped().collect();
    Ok(plan.finish())
}

fn set_weight(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    memory: &Memory,
    split: &WeightSplit,
    growth: Growth,
) -> Result<Plan, PlanError> {
    let refused = |refusal| intent.refused(table, refusal);
    let survey = Survey::new(config, intent, table, memory)?;
    let mut weights = weights(&survey, split, growth).map_err(refused)?;
    let is_withheld = growth == Growth::Withheld && !intent.managed.in_force.is_empty();
    let managed = match managed_routes::keep(&survey, &weights.targets) {
        // Managed routes that are missing would lead requests to the canary.
        Ok(_) if is_withheld && !intent.managed.is_ending => Managed::untouched(intent, table),
        Ok(managed) => managed,
        Err(refusal) => {
            if !weights.left.contains(&refusal) {
                weights.left.push(refusal);
            }
            Managed::untouched(intent, table)
        }
    };
    let is_refused = !weights.left.is_empty() && weights.grows && growth == Growth::Allowed;
    if is_refused && let Some(refusal) = weights.left.first() {
        return Err(refused(refusal.clone()));
    }
    let grows = weights.grows && growth == Growth::Allowed;
    let shrinks = weights.shrinks;
    let is_led_to = weights.is_led_to;
    let is_rest = weights.is_rest;
    let is_left = !weights.left.is_empty();
    let mut assembly = Assembly::new(intent, table, memory)
        .with_weights(&survey, weights)
        .map_err(refused)?;
    // Restoring what the owner wrote needs no route to stable, as long as there is something to restore.
    let cleans_up = is_rest && (!assembly.plan.is_noop() || is_left);
    if !is_led_to && !cleans_up {
        let nothing = || Refusal::NoStableRoute {
            stable: survey.roles.stable.label(),
            found: survey.found(),
        };
        let left = assembly.plan.left.first().cloned();
        return Err(refused(left.unwrap_or_else(nothing)));
    }
    assembly = assembly.with_managed(managed);
    assembly.plan.grows = grows;
    assembly.plan.shrinks = shrinks;
    if grows {
        limits::check(&survey, &assembly.plan).map_err(refused)?;
    }
    Ok(assembly.finish())
}

/// A plan under construction.
struct Assembly<'a> {
    plan: Plan,
    intent: &'a Intent,
    table: &'a RouteTableDoc,
    /// Whether a record of any Rollout is left.
    has_record: bool,
    /// Whether a record of this Rollout is left.
    has_own_record: bool,
    /// Whether managed routes of this Rollout are left.
    has_routes: bool,
}

impl<'a> Assembly<'a> {
    fn new(intent: &'a Intent, table: &'a RouteTableDoc, memory: &Memory) -> Self {
        Self {
            plan: Plan::nothing(&intent.rollout, table),
            intent,
            table,
            has_record: memory.problem.is_some() || memory.records.rollouts().next().is_some(),
            has_own_record: !memory.own.routes.is_empty(),
            has_routes: true,
        }
    }

    fn with_weights(mut self, survey: &Survey<'_>, weights: Weights<'_>) -> Result<Self, Refusal> {
        for (surveyed, target) in survey.routes.iter().zip(&weights.targets) {
            let Finding::Forward { live, .. } = &surveyed.finding else {
                continue;
            };
            let Some(target) = target else { continue };
            let changes = live.changes_to(target);
            let route = &surveyed.route;
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
        let memory = survey.memory;
        self.has_own_record = !weights.record.routes.is_empty();
        if memory.problem.is_none() {
            let rollout = &self.intent.rollout;
            let (edit, is_left) =
                memory
                    .records
                    .replace(self.table, rollout, &memory.own, &weights.record)?;
            self.plan.edits.extend(edit);
            self.has_record = is_left;
        }
        self.plan.left = weights.left;
        self.plan.warnings = weights.warnings;
        self.plan.skipped = survey.skipped().collect();
        Ok(self)
    }

    fn with_managed(mut self, managed: Managed) -> Self {
        self.plan.edits.extend(managed.edits);
        self.plan.warnings.extend(managed.warnings);
        self.plan.policies = managed.policies;
        self.has_routes = managed.is_left;
        self
    }

    fn finish(mut self) -> Plan {
        let is_left = self.has_record || self.has_routes || self.has_others_routes();
        self.plan.hands_back = !self.plan.is_noop() && !is_left;
        self.plan.leaves_marks = self.has_own_record || self.has_routes;
        self.plan
    }

    fn has_others_routes(&self) -> bool {
        let owner = Owner::new(&self.intent.rollout);
        let mut routes = raw_routes(self.table, Protocol::Http).iter();
        let is_others = |route: &Value| Ownership::of(route).is_some_and(|at| at.owner != owner);
        routes.any(is_others)
    }
}
