//! Putting a table back for a Rollout that can no longer say how it was configured: the record and the labels suffice.

use std::borrow::Cow;
use std::collections::BTreeSet;

use gloo_types::{ObjectKey, RouteTableDoc};
use serde_json::Value;

use crate::config::PluginConfig;
use crate::edit::Plan;
use crate::error::{PlanError, Refusal};
use crate::intent::{Intent, IntentKind, ManagedRoutes, ServicePair, WeightSplit};
use crate::managed_routes;
use crate::ownership::Ownership;
use crate::record::Records;
use crate::set_weight;

/// Decides how `table` gets rid of everything a Rollout has put in, and gets back what its owner wrote. What other
/// Rollouts have changed stays.
///
/// # Errors
/// When the table, or what is remembered of it, cannot be read.
pub fn restore(rollout: &ObjectKey, table: &RouteTableDoc) -> Result<Plan, PlanError> {
    let refused = |refusal| refused(rollout, table, refusal);
    let spec = table.spec()?;
    let split = WeightSplit {
        desired: 0,
        max: 100,
        additional: Vec::new(),
    };
    let intent = Intent {
        rollout: rollout.clone(),
        // No route leads to such Services: for every one the record alone tells what was split.
        services: ServicePair {
            stable: "(stable)".to_owned(),
            canary: "(canary)".to_owned(),
        },
        hashes: None,
        applied: None,
        kind: IntentKind::SetWeight(split.clone()),
        managed: ManagedRoutes::default(),
    };
    let config = PluginConfig::unset();
    let plan = match set_weight::plan(&config, &intent, &split, table, &spec) {
        // No route is split: there can be managed ones.
        Err(Refusal::NoStableRoute { .. }) => managed_routes::remove_all(&config, &intent, table),
        planned => planned.map_err(refused)?,
    };
    Ok(plan.with_what_it_leaves(table))
}

impl Plan {
    /// Looks at the table as it will be; there is no need to when nothing changes, as with most calls.
    pub(crate) fn with_what_it_leaves(self, table: &RouteTableDoc) -> Self {
        if self.is_noop() {
            return self;
        }
        let left = self
            .applied_to(table)
            .and_then(|after| involved(&after).ok());
        Self {
            hands_back: left.is_some_and(|rollouts| rollouts.is_empty()),
            ..self
        }
    }

    /// The table after the edits; there is one, as they were planned on `table`.
    fn applied_to(&self, table: &RouteTableDoc) -> Option<RouteTableDoc> {
        let mut after = table.raw().clone();
        json_patch::patch(&mut after, &self.to_json_patch()).ok()?;
        RouteTableDoc::from_value(after).ok()
    }
}

/// `table` as its owner wrote it: without what any Rollout has changed or put in.
///
/// # Errors
/// When the table, or what is remembered of it, cannot be read.
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

/// The Rollouts that have changed something in `table`, or have put routes in.
///
/// # Errors
/// When what is remembered of the table cannot be read.
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

/// The Rollout that a route of `spec.http` was put in for, as its labels tell; `None` for one that its owner wrote.
pub fn managed_by(route: &Value) -> Option<ObjectKey> {
    Ownership::of(route).map(|ownership| ownership.owner.key())
}

fn refused(rollout: &ObjectKey, table: &RouteTableDoc, refusal: Refusal) -> PlanError {
    PlanError::Refused {
        table: table.key().clone(),
        rollout: rollout.clone(),
        refusal: Box::new(refusal),
    }
}
