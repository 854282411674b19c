//! Restores a table for a Rollout whose configuration is not known any more. The record and the labels in the table are
//! enough.

use std::borrow::Cow;
use std::collections::BTreeSet;

use gloo_types::{ObjectKey, RouteTableDoc};
use serde_json::Value;

use crate::config::PluginConfig;
use crate::error::PlanError;
use crate::intent::{Intent, IntentKind, WeightSplit};
use crate::ownership::Ownership;
use crate::plan::Plan;
use crate::record::Annotation;

/// Plans the removal of everything that `rollout` inserted into `table`, and restores what the table's owner wrote. Changes
/// of other Rollouts stay.
///
/// # Errors
/// Returns `Err` if the table or its record cannot be read.
pub fn restore(rollout: &ObjectKey, table: &RouteTableDoc) -> Result<Plan, PlanError> {
    // No route can lead to Services of these names, so only the record says which routes are split.
    let (stable, canary) = ("(stable)", "(canary)");
    let rest = WeightSplit::percent(0);
    let mut intent = Intent::set_weight(rollout.clone(), stable, canary, rest);
    let record = Annotation::read(table).and_then(|it| it.record_of(&rollout.to_string()));
    record.map_err(|refusal| intent.refused(table, refusal))?;
    let config = PluginConfig::unset();
    match crate::plan(&config, &intent, table) {
        // No route is split, but there can be managed routes.
        Err(error) if error.is_without_route() => {
            intent.kind = IntentKind::RemoveManagedRoutes;
            crate::plan(&config, &intent, table)
        }
        planned => planned,
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
    let annotation = annotation.map_err(|refusal| PlanError::Refused {
        table: table.key().clone(),
        rollout: table.key().clone(),
        refusal: Box::new(refusal),
    })?;
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
