//! The routes that managed routes are made from: those that lead to the Rollout.

use gloo_types::{RouteTableDoc, RouteTableSpec};

use crate::config::PluginConfig;
use crate::destinations::{DestinationList, Slot};
use crate::edit::{Plan, Skip, SkipReason};
use crate::error::Refusal;
use crate::intent::Intent;
use crate::record::Records;
use crate::roles::Roles;
use crate::select::{Reading, Route};
use crate::set_weight::{default_destination, found, holds_added};

/// A selected HTTP route that leads to the Rollout.
pub(crate) struct Source {
    /// Position in `spec.http`.
    pub(crate) index: usize,
    /// The route in messages.
    pub(crate) label: String,
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
        let roles = Roles::new(config, intent)?;
        let record = Records::read(table)?.of(&intent.rollout)?;
        let reading = Reading {
            namespace: &table.key().namespace,
            by: roles.by,
        };
        let default = default_destination(table, spec, reading);
        let routes = Route::all(table, spec, config.routes());
        let (about, _) =
            record.locate(&routes, |route, record| holds_added(route, record, reading));
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
            let live = DestinationList::live(raw, destinations, reading);
            let undone = match record {
                Some(record) => live.undo(record, default.as_ref(), reading)?,
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
                    roles.check_anchor(route, &owners, record)?;
                    let canary = match roles.canary.find_only(route, &owners)? {
                        Some(canary) => canary.clone(),
                        None => roles.canary.made_from(&anchor, route)?,
                    };
                    sources.push(Self {
                        index: route.index,
                        label: route.label(),
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
    config: &PluginConfig,
    intent: &Intent,
    spec: &RouteTableSpec,
    plan: &Plan,
) -> Result<Refusal, Refusal> {
    if spec.http.is_empty() {
        return Ok(Refusal::NoHttpRoutes);
    }
    Ok(Refusal::NoStableRoute {
        stable: Roles::new(config, intent)?.stable.label(),
        found: found(&plan.skipped),
    })
}
