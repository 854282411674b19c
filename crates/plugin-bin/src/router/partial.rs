//! What a partial failure means: traffic returns to stable table by table, and moves to the canary in all tables or in none.

use gloo_types::{MirrorPolicyDoc, RouteTableDoc};
use route_planner::{IntentKind, Plan, PlanError, plan};

use super::write::{Write, plan_again_toward_stable};
use crate::{error::Failure, from_rpc::Request};

/// The MirrorPolicies that there are; `None` when they could not be read.
pub(super) type LivePolicies = Option<Vec<MirrorPolicyDoc>>;

/// What is to be written, in two steps.
pub(super) struct Decision<'t> {
    /// First: no share grows with these.
    pub(super) steady: Vec<Write>,
    /// Then, if nothing has failed: a share grows with these.
    pub(super) growing: Vec<(Write, &'t RouteTableDoc)>,
    /// What cannot be done. Then `growing` is empty.
    pub(super) failures: Vec<Failure>,
}

/// A plan for each table, in their order.
pub(super) fn plan_all(
    request: &Request,
    tables: &[RouteTableDoc],
) -> Vec<Result<Plan, PlanError>> {
    let plans = tables.iter();
    plans
        .map(|table| plan(&request.config, &request.intent, table))
        .collect()
}

/// Decides what is written of the `plans` for `tables`, when `failures` have been met so far.
pub(super) fn decide<'t>(
    request: &Request,
    tables: &'t [RouteTableDoc],
    plans: Vec<Result<Plan, PlanError>>,
    live: &LivePolicies,
    mut failures: Vec<Failure>,
) -> Decision<'t> {
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
            // The caller has said why there are no policies.
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
        // A managed route moves traffic to the canary and none back.
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
    Decision {
        steady,
        growing,
        failures,
    }
}

/// The part of the request that moves no more traffic to the canary: shares shrink, managed routes that are there follow them,
/// and none is brought back.
pub(super) fn toward_stable(
    request: &Request,
    table: &RouteTableDoc,
    live: &LivePolicies,
) -> Result<Write, PlanError> {
    let plan = plan_again_toward_stable(request, table)?;
    let with_policies = matches!(check_policies(plan.clone(), live), Ok(Some(_)));
    Ok(Write::restrained(plan, with_policies))
}

/// Whether a plan is to send more requests to the canary, or copies of some.
pub(super) fn adds_share(request: &Request, plan: &Plan) -> bool {
    plan.grows() || adds_route(request) && !plan.is_noop()
}

/// Whether the request sends or copies certain requests to the canary.
fn adds_route(request: &Request) -> bool {
    matches!(&request.intent.kind, IntentKind::SetManagedRoute(route) if !route.is_removal())
}

/// The plan, if its policies can be planned too; `None` if they could not be read.
fn check_policies(plan: Plan, live: &LivePolicies) -> Result<Option<Plan>, PlanError> {
    match live {
        Some(live) => plan.policy_changes(live).map(|_| Some(plan)),
        None if plan.needs_policies() => Ok(None),
        None => Ok(Some(plan)),
    }
}
