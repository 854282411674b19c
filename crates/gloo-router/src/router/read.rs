//! Reads the inputs of a call: the tables that the Rollout selects, MirrorPolicies, the ports of an experiment's Services,
//! and what the Rollout lost on the wire.
//!
//! Go's gob drops pointers to zero values, so that a mirror step with `percentage: 0` arrives as one without percentage,
//! which copies all requests.

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures::future::join;
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, ServicePort};
use rollouts_rpc::{Rollout, rollout::SetMirrorRoute};
use route_planner::{ExperimentPorts, IntentKind, Plan, Planned, plan, stable_service};
use route_store::{Decision, RolloutReader, Selection, Store, StoreError};
use tracing::{info, warn};

use super::{GlooRouter, deadline::Deadline};
use crate::{
    error::{Failure, ShiftError},
    from_rpc::{self, Request},
    report::{About, Report},
};

/// The end of the warning about a Service whose ports are not known.
pub const ASSUMED_PORT: &str = "it gets the port of the stable destination";

/// The selected tables.
pub(super) struct Selected {
    /// The tables that could be read, sorted.
    pub(super) tables: Vec<RouteTableDoc>,
    /// Why other inputs of the call could not be read.
    pub(super) failures: Vec<Failure>,
}

/// What SetWeight reads.
pub(super) struct WeightInputs<'r> {
    /// The Rollout with the zero percentages that gob drops.
    pub(super) complete: Cow<'r, Rollout>,
    pub(super) request: Request,
    pub(super) selected: Selected,
    /// Whether `selected` has all tables that the Rollout selects.
    pub(super) has_all: bool,
}

/// The selected tables with the plans of a request.
pub(super) struct Plans {
    pub(super) tables: Vec<Planned>,
    pub(super) failures: Vec<Failure>,
}

impl Plans {
    /// One planned table.
    pub(super) fn of(planned: Planned) -> Self {
        Self {
            tables: vec![planned],
            failures: Vec::new(),
        }
    }
}

impl Selected {
    /// Plans a request for each table.
    pub(super) fn plan(self, request: &Request) -> Plans {
        let tables = self.tables.into_iter();
        let plan = |table| Planned::new(&request.config, &request.intent, table);
        Plans {
            tables: tables.map(plan).collect(),
            failures: self.failures,
        }
    }

    /// Whether everything could be read, and the request would change nothing.
    pub(super) fn is_in_force(&self, request: &Request) -> bool {
        let plans = self.tables.iter();
        let mut plans = plans.map(|table| plan(&request.config, &request.intent, table));
        self.failures.is_empty() && plans.all(|plan| plan.is_ok_and(|plan| plan.is_noop()))
    }

    /// Ignores selected tables that do not exist: nothing has to be removed from them.
    pub(super) fn without_absent_tables(mut self) -> Self {
        let is_absent =
            |failure: &Failure| matches!(failure, Failure::Store(StoreError::NotFound { .. }));
        self.failures.retain(|failure| !is_absent(failure));
        self
    }

    pub(super) fn keys(&self) -> BTreeSet<ObjectKey> {
        self.tables
            .iter()
            .map(|table| table.key().clone())
            .collect()
    }
}

impl<S: Store> GlooRouter<S> {
    /// Reads what SetWeight needs. Reports entries of the plugin block that select no route.
    pub(super) async fn read_weights<'r>(
        &self,
        rollout: &'r Rollout,
        request: Request,
        decision: Decision,
        deadline: Deadline,
    ) -> Result<WeightInputs<'r>, ShiftError> {
        let complete = self.complete(rollout, deadline);
        let selected = self.selected(&request, decision, deadline);
        let (complete, selected) = join(complete, selected).await;
        let (complete, mut request, unread) = match complete {
            Ok(Cow::Owned(complete)) => {
                let request = self.request(&complete, request.intent.kind)?;
                (Cow::Owned(complete), request, None)
            }
            Ok(complete) => (complete, request, None),
            Err(failure) => {
                let request = request.without_new_routes();
                (Cow::Borrowed(rollout), request, Some(failure))
            }
        };
        let has_all = selected.failures.is_empty();
        let mut selected = self.for_weights(&mut request, selected, deadline).await;
        if has_all {
            let entries = request.config.unmatched(&selected.tables);
            if self.memory.is_news(&request.rollout, &entries) {
                let rollout = About::of_call(rollout);
                self.observer
                    .observe(&Report::Unmatched { rollout, entries });
            }
        }
        selected.failures.extend(unread);
        Ok(WeightInputs {
            complete,
            request,
            selected,
            has_all,
        })
    }

    /// Returns the Rollout with the zero percentages that gob drops.
    pub(super) async fn complete<'r>(
        &self,
        rollout: &'r Rollout,
        deadline: Deadline,
    ) -> Result<Cow<'r, Rollout>, Failure> {
        let complete = restore_zero_percentages(&*self.store, rollout);
        let rollout = from_rpc::key(rollout);
        match deadline.reading(complete).await {
            Some(complete) => complete.map_err(|source| Failure::Read {
                rollout,
                source: Box::new(source),
            }),
            None => Err(Failure::NotRead(format!("Rollout {rollout}"))),
        }
    }

    /// Reads the tables of a request, as fresh as `decision` needs them.
    ///
    /// While the API server does not answer, a request that would change nothing in the last known tables succeeds with
    /// these. An error would only keep the controller from scaling the Rollout.
    pub(super) async fn selected(
        &self,
        request: &Request,
        decision: Decision,
        deadline: Deadline,
    ) -> Selected {
        let selector = request.config.route_tables();
        let selection = self.store.select(selector, decision.freshness());
        let Some(Selection { tables, errors }) = deadline.tables(selection).await else {
            let unread = || Selected {
                tables: Vec::new(),
                failures: vec![Failure::NotRead(format!("RouteTables ({selector})"))],
            };
            return self.unchanged(request, decision).unwrap_or_else(unread);
        };
        if !errors.is_empty()
            && errors.iter().all(StoreError::is_unavailable)
            && let Some(unchanged) = self.unchanged(request, decision)
        {
            return unchanged;
        }
        Selected {
            tables,
            failures: errors.into_iter().map(Failure::Store).collect(),
        }
    }

    /// Returns the last known tables if the request would change nothing in them.
    fn unchanged(&self, request: &Request, decision: Decision) -> Option<Selected> {
        if decision != Decision::Plan {
            return None;
        }
        let known = self.store.last_known(request.config.route_tables())?;
        let known = Selected {
            tables: known.complete().ok()?,
            failures: Vec::new(),
        };
        if known.tables.is_empty() || !known.is_in_force(request) {
            return None;
        }
        info!(rollout = %request.rollout, "the API server does not answer: the last known tables need no change");
        Some(known)
    }

    /// Adds a failure if no table is selected, since no traffic would move. Completes the request with the ports of Services,
    /// which the tables do not have.
    pub(super) async fn for_weights(
        &self,
        request: &mut Request,
        mut selected: Selected,
        deadline: Deadline,
    ) -> Selected {
        if selected.tables.is_empty() && selected.failures.is_empty() {
            selected.failures.push(Failure::NothingSelected {
                rollout: request.rollout.clone(),
                selector: request.config.route_tables().to_string(),
            });
        }
        let unread = self.find_ports(request, &selected.tables, deadline).await;
        selected.failures.extend(unread);
        selected
    }

    /// Reads all MirrorPolicies if a plan needs them. If they cannot be read, the last known ones do, as long as no plan changes a
    /// table or a policy.
    pub(super) async fn policies_for(
        &self,
        request: &Request,
        planned: &[Planned],
        deadline: Deadline,
    ) -> Result<Vec<MirrorPolicyDoc>, Failure> {
        let mut plans = planned.iter().filter_map(Planned::plan);
        if !plans.any(Plan::needs_policies) {
            return Ok(Vec::new());
        }
        let failure = match deadline.reading(self.store.policies()).await {
            Some(Ok(policies)) => return Ok(policies),
            Some(Err(error)) => policies_unreadable(request, error),
            None => Failure::NotRead("MirrorPolicies".to_owned()),
        };
        self.unchanged_policies(planned).ok_or(failure)
    }

    /// Finds the ports of each Service of an experiment that gets traffic, and of the stable Service if that has to tell which of
    /// several ports is the right one. While an experiment runs, a Service is read once.
    async fn find_ports(
        &self,
        request: &mut Request,
        tables: &[RouteTableDoc],
        deadline: Deadline,
    ) -> Vec<Failure> {
        let rollout = request.rollout.clone();
        let stable = stable_service(&request.config, &request.intent);
        let IntentKind::SetWeight(split) = &mut request.intent.kind else {
            return Vec::new();
        };
        if split.additional.is_empty() {
            self.memory.forget_ports(&rollout);
        }
        let mut failures = Vec::new();
        let mut stable_ports = None;
        for destination in &mut split.additional {
            let name = &destination.service;
            if destination.weight <= 0 || name.is_empty() {
                continue;
            }
            let service = ObjectKey::new(&rollout.namespace, name);
            let in_tables = tables.iter().flat_map(|table| ports_to(table, &service));
            let in_tables: Vec<_> = in_tables.collect();
            let own = match self.ports(&rollout, &service, deadline).await {
                Ok(Some(ports)) => ports,
                Ok(None) => {
                    if in_tables.is_empty() {
                        warn!(%rollout, "the port of Service {service} of the experiment is not known: {ASSUMED_PORT}");
                    }
                    continue;
                }
                // It keeps its port.
                Err(Failure::Read { .. }) if !in_tables.is_empty() => {
                    let numbers: BTreeSet<u32> = in_tables.into_iter().flatten().collect();
                    if numbers.is_empty() {
                        continue;
                    }
                    numbers.into_iter().map(ServicePort::plain).collect()
                }
                Err(failure) => {
                    failures.push(failure);
                    continue;
                }
            };
            if own.len() > 1
                && stable_ports.is_none()
                && let Some(stable) = &stable
            {
                match self.ports(&rollout, stable, deadline).await {
                    Ok(ports) => stable_ports = Some(ports.unwrap_or_default()),
                    Err(failure) => failures.push(failure),
                }
            }
            let stable = stable_ports.clone().unwrap_or_default();
            destination.ports = Some(ExperimentPorts { own, stable });
        }
        failures
    }

    /// Returns the ports of a Service; `None` if they are not known.
    async fn ports(
        &self,
        rollout: &ObjectKey,
        service: &ObjectKey,
        deadline: Deadline,
    ) -> Result<Option<Vec<ServicePort>>, Failure> {
        if let Some(known) = self.memory.ports(rollout, service) {
            return Ok(Some(known));
        }
        let read = deadline.reading(self.store.service_ports(service)).await;
        match read.ok_or_else(|| Failure::NotRead(format!("Service {service}")))? {
            Ok(Some(ports)) if !ports.is_empty() => {
                let service = service.clone();
                self.memory.remember_ports(rollout, service, ports.clone());
                Ok(Some(ports))
            }
            // In another cluster than the controller's there is no such Service, and no reason to grant it.
            Ok(_) | Err(StoreError::Forbidden { .. }) => Ok(None),
            Err(source) => Err(Failure::Read {
                rollout: rollout.clone(),
                source: Box::new(source),
            }),
        }
    }
}

/// Returns the port of each destination of a table that routes to a Service.
fn ports_to(table: &RouteTableDoc, service: &ObjectKey) -> Vec<Option<u32>> {
    let Ok(spec) = table.spec() else {
        return Vec::new();
    };
    let http = spec
        .http
        .iter()
        .flat_map(|route| spec.destinations_of(route));
    let tcp = spec
        .tcp
        .iter()
        .filter_map(|route| route.forward_to.as_ref());
    let tcp = tcp.filter_map(|action| action.destinations.as_deref());
    let tls = spec
        .tls
        .iter()
        .filter_map(|route| route.forward_to.as_ref());
    let tls = tls.filter_map(|action| action.destinations.as_deref());
    let routes_there = http.chain(tcp.flatten()).chain(tls.flatten()).filter(|to| {
        to.reference.as_ref().is_some_and(|reference| {
            let namespace = reference.namespace_from(&table.key().namespace);
            reference.name == service.name && namespace == service.namespace
        })
    });
    routes_there
        .map(|to| to.port.as_ref().and_then(|port| port.number))
        .collect()
}

/// Returns the failure for MirrorPolicies that cannot be read.
pub(super) fn policies_unreadable(request: &Request, error: StoreError) -> Failure {
    Failure::Policies {
        rollout: request.rollout.clone(),
        source: Box::new(error),
    }
}

/// Returns the Rollout with each mirror step of `percentage: 0` changed to a step that removes its route.
///
/// The object is read only if a mirror step without percentage may be in force. If it cannot be found, as with RouteTables in
/// another cluster, a step without percentage is used as it arrived.
pub(super) async fn restore_zero_percentages<'r>(
    reader: &impl RolloutReader,
    rollout: &'r Rollout,
) -> Result<Cow<'r, Rollout>, StoreError> {
    let mut steps = rollout.steps().iter();
    let may_have_lost_any = steps.any(|step| {
        step.set_mirror_route
            .as_ref()
            .is_some_and(may_have_lost_a_zero)
    });
    if !may_have_lost_any || from_rpc::is_ending(rollout) {
        return Ok(Cow::Borrowed(rollout));
    }
    let key = from_rpc::key(rollout);
    let zero = match reader.zero_mirrors(&key, rollout.metadata.generation).await {
        // In another cluster than the controller's there is no reason to grant it.
        Err(error @ StoreError::Forbidden { .. }) => {
            warn!(rollout = %key, "a mirror step without percentage copies all requests: {error}");
            None
        }
        read => read?,
    };
    let Some(zero) = zero else {
        return Ok(Cow::Borrowed(rollout));
    };
    let mut rollout = rollout.clone();
    for (index, step) in rollout.steps_mut().iter_mut().enumerate() {
        let route = step.set_mirror_route.as_mut();
        if let Some(route) = route.filter(|route| may_have_lost_a_zero(route))
            && zero.contains(index, &route.name)
        {
            route.matches.clear();
        }
    }
    Ok(Cow::Owned(rollout))
}

/// Returns `route` as [`restore_zero_percentages`] left it in the current step.
pub(super) fn as_in_current_step<'r>(
    rollout: &'r Rollout,
    route: &'r SetMirrorRoute,
) -> &'r SetMirrorRoute {
    let step = rollout.current_step();
    let step = step.and_then(|step| step.set_mirror_route.as_ref());
    let copies_nothing =
        |step: &&SetMirrorRoute| step.name == route.name && step.matches.is_empty();
    step.filter(|step| may_have_lost_a_zero(route) && copies_nothing(step))
        .unwrap_or(route)
}

fn may_have_lost_a_zero(route: &SetMirrorRoute) -> bool {
    route.percentage.is_none() && !route.matches.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_mirror_route_of_the_current_step_is_taken_from_it() {
        let rollout: Rollout = serde_json::from_value(json!({
            "spec": {"strategy": {"canary": {"steps": [{"setMirrorRoute": {"name": "none", "match": []}}]}}},
            "status": {"currentStepIndex": 0},
        }))
        .unwrap();
        let check = |name: &str, percentage: Option<i32>, expect: usize| {
            let route: SetMirrorRoute = serde_json::from_value(json!({
                "name": name, "match": [{"method": {"exact": "GET"}}], "percentage": percentage,
            }))
            .unwrap();
            let matches = as_in_current_step(&rollout, &route).matches.len();
            assert_eq!(matches, expect, "{name}");
        };
        // gob drops the percentage 0, which the live object showed.
        check("none", None, 0);
        check("none", Some(5), 1);
        check("another", None, 1);
    }
}
