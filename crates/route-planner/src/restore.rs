//! Restores a table for a Rollout whose configuration is not known any more. The record and the labels in the table are
//! enough.

use std::borrow::Cow;
use std::collections::BTreeSet;

use gloo_types::{ObjectKey, RouteTableDoc};
use serde_json::Value;

use crate::config::PluginConfig;
use crate::error::{PlanError, Refusal};
use crate::intent::{Intent, IntentKind, WeightSplit};
use crate::ownership::Ownership;
use crate::plan::Plan;
use crate::planning;
use crate::record::Annotation;
use crate::set_weight::CanaryGrowth;

/// Plans the removal of everything that `rollout` inserted into `table`, and restores what the table's owner wrote. Changes
/// of other Rollouts stay.
///
/// # Errors
/// Returns `Err` if the table or its record cannot be read.
pub fn restore(rollout: &ObjectKey, table: &RouteTableDoc) -> Result<Plan, PlanError> {
    // No route can forward to Services of these names, so only the record says which routes are split.
    let (stable, canary) = ("(stable)", "(canary)");
    let rest = WeightSplit::percent(0);
    let mut intent = Intent::set_weight(rollout.clone(), stable, canary, rest);
    let record = Annotation::read(table).and_then(|it| it.record_of(&rollout.to_string()));
    record.map_err(|refusal| intent.refused(table, refusal))?;
    // Without any key: the record and the labels are enough.
    let config = PluginConfig::default();
    let planned = planning::plan(&config, &intent, table, CanaryGrowth::Allowed);
    match planned {
        // No route is split, but there can be managed routes.
        Err(error) if error.is_without_route() => {
            intent.kind = IntentKind::RemoveManagedRoutes;
            planning::plan(&config, &intent, table, CanaryGrowth::Allowed)
        }
        planned => planned,
    }
}

/// Plans weight 0 for a table that cannot be planned because the Rollout or its plugin block names other Services, or invalid ones:
/// the record and the labels say what to restore. The error is in [`Plan::left`].
///
/// # Errors
/// Returns `error` if it has another reason, for another request, and if there is nothing to restore.
pub(crate) fn at_weight_0(
    intent: &Intent,
    table: &RouteTableDoc,
    error: PlanError,
) -> Result<Plan, PlanError> {
    let PlanError::Refused { refusal, .. } = &error else {
        return Err(error);
    };
    let names_others = matches!(
        **refusal,
        Refusal::NoService { .. }
            | Refusal::SameDestination(_)
            | Refusal::SwitchedService { .. }
            | Refusal::NoStableRoute { .. }
    );
    if !names_others || !intent.sends_all_to_stable() {
        return Err(error);
    }
    match restore(&intent.rollout, table) {
        Ok(mut plan) if !plan.is_noop() => {
            plan.left.push((**refusal).clone());
            Ok(plan)
        }
        _ => Err(error),
    }
}

/// Returns `table` as its owner wrote it: without the changes of any Rollout.
///
/// # Errors
/// Returns `Err` if the table or its record cannot be read.
pub fn at_rest(table: &RouteTableDoc) -> Result<Cow<'_, RouteTableDoc>, PlanError> {
    let mut rest = Cow::Borrowed(table);
    for rollout in involved(table)? {
        let plan = restore(&rollout, &rest)?;
        if let Some(restored) = plan.applied_to(&rest) {
            rest = Cow::Owned(restored);
        }
    }
    Ok(rest)
}

/// The Rollouts that have a record or managed routes in `table`, by their [`mark`](crate::mark)s.
///
/// # Errors
/// Returns `Err` if the record of the table cannot be read.
pub fn involved(table: &RouteTableDoc) -> Result<BTreeSet<ObjectKey>, PlanError> {
    let annotation = Annotation::read(table);
    let refused = |refusal| PlanError::refused(table.key(), table.key(), refusal);
    let annotation = annotation.map_err(refused)?;
    let changed = annotation.rollouts().filter_map(|name| {
        let (namespace, name) = name.split_once('/')?;
        Some(ObjectKey::new(namespace, name))
    });
    let routes = table.raw().pointer("/spec/http");
    let routes = routes.and_then(Value::as_array).into_iter();
    let inserted = routes.flatten().filter_map(managed_by);
    Ok(changed.chain(inserted).collect())
}

/// The Rollout for which a route of `spec.http` was inserted, by the labels of the route; `None` for a route of the owner.
pub fn managed_by(route: &Value) -> Option<ObjectKey> {
    Ownership::of(route).map(|ownership| ownership.owner.key())
}
