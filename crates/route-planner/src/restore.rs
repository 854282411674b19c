//! Restores a table for a Rollout whose configuration is no longer known: the record and the labels are enough.

use std::borrow::Cow;
use std::collections::BTreeSet;

use gloo_types::{ObjectKey, RouteTableDoc};
use serde_json::Value;

use crate::config::PluginConfig;
use crate::error::PlanError;
use crate::intent::{Intent, IntentKind, ManagedRoutes, ServicePair, WeightSplit};
use crate::ownership::Ownership;
use crate::plan::Plan;
use crate::record::Records;

/// Decides how `table` loses everything that a Rollout inserted, and gets back what its owner wrote. What other
/// Rollouts have changed stays.
///
/// # Errors
/// Returns `Err` if the table or its record cannot be read.
pub fn restore(rollout: &ObjectKey, table: &RouteTableDoc) -> Result<Plan, PlanError> {
    let split = WeightSplit {
        desired: 0,
        max: 100,
        additional: Vec::new(),
    };
    let mut intent = Intent {
        rollout: rollout.clone(),
        // No route leads to such Services: for every one the record alone tells what was split.
        services: ServicePair {
            stable: "(stable)".to_owned(),
            canary: "(canary)".to_owned(),
            ping_pong: false,
        },
        hashes: None,
        applied: None,
        kind: IntentKind::SetWeight(split),
        managed: ManagedRoutes::default(),
    };
    let records = Records::read(table).and_then(|records| records.of(&rollout.to_string()));
    records.map_err(|refusal| intent.refused(table, refusal))?;
    let config = PluginConfig::unset();
    match crate::plan(&config, &intent, table) {
        // No route is split: there can be managed ones.
        Err(error) if error.is_without_route() => {
            intent.kind = IntentKind::RemoveManagedRoutes;
            crate::plan(&config, &intent, table)
        }
        planned => planned,
    }
}

/// `table` as its owner wrote it: without what any Rollout changed or inserted.
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

/// The Rollouts that have changed something in `table`, or have inserted routes.
///
/// # Errors
/// Returns `Err` if the record of the table cannot be read.
pub fn involved(table: &RouteTableDoc) -> Result<BTreeSet<ObjectKey>, PlanError> {
    let records = Records::read(table);
    let records = records.map_err(|refusal| PlanError::Refused {
        table: table.key().clone(),
        rollout: table.key().clone(),
        refusal: Box::new(refusal),
    })?;
    let changed = records.rollouts().filter_map(|name| {
        let (namespace, name) = name.split_once('/')?;
        Some(ObjectKey::new(namespace, name))
    });
    let routes = table.raw().pointer("/spec/http");
    let routes = routes.and_then(Value::as_array).into_iter();
    let put_in = routes.flatten().filter_map(managed_by);
    Ok(changed.chain(put_in).collect())
}

/// The Rollout that a route of `spec.http` was inserted for, by its labels; `None` for one that its owner wrote.
pub fn managed_by(route: &Value) -> Option<ObjectKey> {
    Ownership::of(route).map(|ownership| ownership.owner.key())
}
