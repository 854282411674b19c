//! The routes that managed routes are made from: those that lead to the Rollout.

use gloo_types::{RouteTableDoc, RouteTableSpec};

use crate::config::PluginConfig;
use crate::destinations::{DestinationList, Slot};
use crate::edit::{Plan, Skip, SkipReason};
use crate::error::Refusal;
use crate::intent::Intent;
use crate::record::Records;
use crate::roles::{Role, Roles};
use crate::select::Route;
use crate::set_weight::{default_destination, found, holds_added};

/// A selected HTTP route that leads to the Rollout.
pub(crate) struct Source {
    /// Position in `spec.http`.
    pub(crate) index: usize,
    /// The canary's destination in it, without weight.
    pub(crate) canary: Slot,
}

impl Source {
    /// The sources in a table. Routes that are none of them go into `plan`.
    pub(crate) fn all(
        config: &PluginConfig,
        intent: &Intent,
        table: &RouteTableDoc,
        spec: &RouteTableSpec,
        plan: &mut Plan,
    ) -> Result<Vec<Self>, Refusal> {
        let roles = Roles::new(intent)?;
        let record = Records::read(table)?.of(&intent.rollout)?;
        let namespace = table.key().namespace.as_str();
        let default = default_destination(table, spec);
        let routes = Route::all(table, spec, config.routes());
        let (about, _) = record.locate(&routes, |route, record| {
            holds_added(route, record, namespace)
        });
        let mut sources = Vec::new();
        let http = routes.iter().zip(about);
        for (route, record) in http.filter(|(route, _)| route.protocol.is_http()) {
            let mut skip = |reason| {
                plan.skipped.push(Skip {
                    route: route.label(),
                    reason,
                });
            };
            let Some((raw, destinations)) = route.forward else {
                skip(route.other_action());
                continue;
            };
            let live = DestinationList::live(raw, destinations, namespace);
            let undone = match record {
                Some(record) => live.undo(record, default.as_ref(), namespace)?,
                None => None,
            };
            let record = record.filter(|_| undone.is_some());
            let owners = undone.unwrap_or_else(|| live.materialised(default.as_ref()));
            match roles.anchor(&owners, record) {
                None => skip(SkipReason::LeadsTo(
                    owners.slots.iter().map(Slot::label).collect(),
                )),
                Some(_) if !route.selected => skip(SkipReason::NotSelected(route.selector_key())),
                Some(anchor) => {
                    only(route, &roles.stable, &owners)?;
                    let canary = match only(route, &roles.canary, &owners)? {
                        Some(canary) => canary.clone(),
                        None => roles.canary.made_from(&anchor, route)?,
                    };
                    sources.push(Self {
                        index: route.index,
                        canary: canary.weighing(None),
                    });
                }
            }
        }
        Ok(sources)
    }
}

/// The refusal for a table of which no http route is meant.
pub(crate) fn no_source(
    intent: &Intent,
    spec: &RouteTableSpec,
    plan: &Plan,
) -> Result<Refusal, Refusal> {
    if spec.http.is_empty() {
        return Ok(Refusal::NoHttpRoutes);
    }
    Ok(Refusal::NoStableRoute {
        stable: Roles::new(intent)?.stable.label(),
        found: found(&plan.skipped),
    })
}

/// The one destination in a role.
fn only<'l>(
    route: &Route<'_>,
    role: &'l Role<'_>,
    owners: &'l DestinationList,
) -> Result<Option<&'l Slot>, Refusal> {
    let found: Vec<&Slot> = role.find(owners).collect();
    if found.len() > 1 {
        let places: Vec<String> = found.iter().map(|slot| slot.place()).collect();
        return Err(Refusal::Ambiguous {
            route: route.label(),
            service: role.name.to_owned(),
            found: places.join(", "),
        });
    }
    Ok(found.first().copied())
}
