//! SetWeight: splitting each route that leads to the stable Service, and putting it back.
//!
//! Every call starts from what the owner wrote. For each route the owner's list is recovered from the live one and the
//! record, the wanted list is computed from that, and the difference to the live list becomes the edit. Nothing depends
//! on the previous call, so a repeated call finds no difference.

mod wish;

use gloo_types::{RouteTableDoc, RouteTableSpec};
use serde_json::Value;

use self::wish::{Target, Wish};
use crate::config::PluginConfig;
use crate::destinations::{self, Base, Slot};
use crate::edit::{Edit, Plan, Skip, SkipReason, Warning};
use crate::error::{PlanError, Refusal};
use crate::intent::{Intent, WeightSplit};
use crate::record::{Record, Records, RouteRecord, unusable};
use crate::select::{DestinationId, Route};

/// Plans a [`WeightSplit`].
pub(crate) fn plan(
    config: &PluginConfig,
    intent: &Intent,
    split: &WeightSplit,
    table: &RouteTableDoc,
) -> Result<Plan, PlanError> {
    let spec = table.spec()?;
    decide(config, intent, split, table, &spec).map_err(|refusal| PlanError::Refused {
        table: table.key().clone(),
        rollout: intent.rollout.clone(),
        refusal: Box::new(refusal),
    })
}

fn decide(
    config: &PluginConfig,
    intent: &Intent,
    split: &WeightSplit,
    table: &RouteTableDoc,
    spec: &RouteTableSpec,
) -> Result<Plan, Refusal> {
    let wish = Wish::new(intent, split)?;
    let records = Records::read(table)?;
    let old = records.of(&intent.rollout)?;
    let namespace = table.key().namespace.as_str();
    let default = table.raw().pointer("/spec/defaultDestination");

    let routes = Route::all(table, spec, config.routes());
    let (about, lost) = old.locate(&routes, |route, record| {
        holds_added(route, record, namespace)
    });
    let mut new = Record::default();
    let mut plan = Plan {
        table: table.key().clone(),
        resource_version: table.resource_version().map(str::to_owned),
        edits: Vec::new(),
        skipped: Vec::new(),
        warnings: lost
            .into_iter()
            .map(|record| Warning::RouteGone {
                route: record.route.label(),
            })
            .collect(),
    };
    if split
        .additional
        .iter()
        .any(|additional| additional.service.is_empty())
    {
        plan.warnings.push(Warning::UnnamedService);
    }

    let mut managed = 0_usize;
    for (route, record) in routes.iter().zip(about) {
        let Some(forward) = route.forward else {
            plan.skipped.push(Skip {
                route: route.label(),
                reason: route.other_action(),
            });
            continue;
        };
        let live = destinations::live(forward, namespace).map_err(unusable)?;
        let base = owner_list(&live, record, default, namespace)?;
        if base.is_none() {
            plan.warnings.push(Warning::Repointed {
                route: route.label(),
            });
        }
        // Pointed elsewhere: what is there now is what the owner wants.
        let base = match base {
            Some(base) => base,
            None => live.clone().materialised(default, namespace)?,
        };

        let target = if !wish.is_led_to(&base, record) {
            let found = base.slots.iter().map(Slot::label).collect();
            plan.skipped.push(Skip {
                route: route.label(),
                reason: SkipReason::LeadsTo(found),
            });
            Target::owners(base)
        } else if !route.selected {
            plan.skipped.push(Skip {
                route: route.label(),
                reason: SkipReason::NotSelected,
            });
            Target::owners(base)
        } else {
            managed += 1;
            wish.target(route, base, record, &mut plan.warnings)?
        };
        new.http.extend(target.record);
        let changes = live.changes_to(target.list);
        if !changes.is_empty() {
            let index = route.index.to_string();
            plan.edits.push(Edit::Destinations {
                route: route.label(),
                path: ["spec", "http", &index, "forwardTo"]
                    .map(str::to_owned)
                    .to_vec(),
                expect: forward.clone(),
                changes,
            });
        }
    }
    plan.edits
        .extend(records.replace(table, &intent.rollout, &old, &new)?);

    // Leaving everything as the owner wrote it needs no stable route, if that is what is still to be done.
    let cleans_up = wish.is_rest() && !plan.is_noop();
    if managed == 0 && !cleans_up {
        return Err(Refusal::NoStableRoute {
            stable: wish.stable_label(),
            found: found(&plan.skipped, spec),
        });
    }
    Ok(plan)
}

/// The owner's list of a route; `None` when the owner has pointed the route elsewhere since we changed it.
fn owner_list(
    live: &Base,
    record: Option<&RouteRecord>,
    default: Option<&Value>,
    namespace: &str,
) -> Result<Option<Base>, Refusal> {
    match record {
        None => live.clone().materialised(default, namespace).map(Some),
        Some(record) => live.undo(record, default, namespace),
    }
}

fn holds_added(route: &Route<'_>, record: &RouteRecord, namespace: &str) -> bool {
    let forward = route.view.forward_to.as_ref();
    let destinations = forward.and_then(|forward| forward.destinations.as_deref());
    destinations
        .unwrap_or_default()
        .iter()
        .filter_map(|destination| DestinationId::of(destination, namespace))
        .any(|id| record.added.contains(&id))
}

/// What the routes lead to instead, for the refusal.
fn found(skipped: &[Skip], spec: &RouteTableSpec) -> String {
    const SHOWN: usize = 5;
    if skipped.is_empty() {
        return format!(
            "no http routes, {} tcp and {} tls routes",
            spec.tcp.len(),
            spec.tls.len()
        );
    }
    let mut found: Vec<String> = skipped
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    if skipped.len() > SHOWN {
        found.push(format!("{} more", skipped.len() - SHOWN));
    }
    found.join("; ")
}
