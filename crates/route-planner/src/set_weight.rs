//! SetWeight: splitting each route that leads to the stable Service, and putting it back.
//!
//! Every call starts from what the owner wrote. For each route the owner's list is recovered from the live one and the
//! record, the wanted list is computed from that, and the difference to the live list becomes the edit. Nothing depends
//! on the previous call, so a repeated call finds no difference.

mod wish;

use gloo_types::{RouteTableDoc, RouteTableSpec};

use self::wish::{Target, Wish};
use crate::config::PluginConfig;
use crate::destinations::{DestinationList, Slot};
use crate::edit::{Edit, Plan, Skip, SkipReason, Warning};
use crate::error::Refusal;
use crate::intent::{Intent, WeightSplit};
use crate::managed_routes;
use crate::record::{Record, Records, RouteRecord};
use crate::roles::Roles;
use crate::select::{DestinationId, Reading, Route};

/// Plans a [`WeightSplit`].
pub(crate) fn plan(
    config: &PluginConfig,
    intent: &Intent,
    split: &WeightSplit,
    table: &RouteTableDoc,
    spec: &RouteTableSpec,
) -> Result<Plan, Refusal> {
    let roles = Roles::new(config, intent)?;
    let wish = Wish::new(config, &roles, split)?;
    let records = Records::read(table)?;
    let old = records.of(&intent.rollout)?;
    let reading = Reading {
        namespace: &table.key().namespace,
        by: roles.by,
    };

    let routes = Route::all(table, spec, config.routes());
    let (about, lost) = old.locate(&routes, |route, record| holds_added(route, record, reading));
    let mut decision = Decision {
        roles: &roles,
        wish: &wish,
        reading,
        default: default_destination(table, spec, reading),
        is_led_to: false,
        record: Record::default(),
        edits: Vec::new(),
        skipped: Vec::new(),
        warnings: Vec::new(),
    };
    for record in lost {
        decision.warnings.push(Warning::RouteGone {
            route: record.route.label(),
        });
    }
    if split
        .additional
        .iter()
        .any(|additional| additional.service.is_empty())
    {
        decision.warnings.push(Warning::UnnamedService);
    }
    for (route, record) in routes.iter().zip(about) {
        decision.route(route, record)?;
    }

    let Decision {
        is_led_to,
        record,
        mut edits,
        skipped,
        warnings,
        ..
    } = decision;
    edits.extend(records.replace(table, &intent.rollout, &old, &record)?);
    // Putting back what the owner wrote needs no stable route, as long as there is something to put back.
    let cleans_up = wish.is_rest() && !edits.is_empty();
    if !is_led_to && !cleans_up {
        let found = found(&skipped);
        return Err(Refusal::NoStableRoute {
            stable: roles.stable.label(),
            found,
        });
    }
    let mut plan = Plan {
        grows: !wish.is_rest() && !edits.is_empty(),
        edits,
        skipped,
        warnings,
        ..Plan::nothing(&intent.rollout, table)
    };
    managed_routes::keep(config, intent, table, spec, &mut plan)?;
    Ok(plan)
}

/// What has been decided about the routes so far.
struct Decision<'a> {
    roles: &'a Roles<'a>,
    wish: &'a Wish<'a>,
    reading: Reading<'a>,
    /// Where http routes without destinations lead.
    default: Option<Slot>,
    /// Whether a selected route leads to the Rollout.
    is_led_to: bool,
    record: Record,
    edits: Vec<Edit>,
    skipped: Vec<Skip>,
    warnings: Vec<Warning>,
}

impl Decision<'_> {
    fn route(&mut self, route: &Route<'_>, record: Option<&RouteRecord>) -> Result<(), Refusal> {
        let Some((raw, view)) = route.forward else {
            self.skip(route, route.other_action());
            return Ok(());
        };
        let live = DestinationList::live(raw, view, self.reading);
        let (owners, record) = self.owners_list(route, &live, record)?;

        let target = match self.roles.anchor(&owners, record) {
            None => {
                let found = owners.slots.iter().map(Slot::label).collect();
                self.skip(route, SkipReason::LeadsTo(found));
                match record {
                    Some(record) => Target::released(owners, record, self.reading),
                    None => Target::owners(owners),
                }
            }
            Some(_) if !route.selected => {
                self.skip(route, SkipReason::NotSelected(route.selector_key()));
                Target::owners(owners)
            }
            Some(anchor) => {
                self.is_led_to = true;
                self.wish
                    .target(route, owners, anchor, record, &mut self.warnings)?
            }
        };
        self.record.routes.extend(target.record);
        let changes = live.changes_to(target.list);
        if !changes.is_empty() {
            let index = route.index.to_string();
            self.edits.push(Edit::Destinations {
                route: route.label(),
                path: ["spec", route.protocol.key(), &index, "forwardTo"]
                    .map(str::to_owned)
                    .to_vec(),
                expect: raw.clone(),
                changes,
            });
        }
        Ok(())
    }

    /// What the owner wrote, and the record as long as it still holds.
    fn owners_list<'r>(
        &mut self,
        route: &Route<'_>,
        live: &DestinationList,
        record: Option<&'r RouteRecord>,
    ) -> Result<(DestinationList, Option<&'r RouteRecord>), Refusal> {
        let default = self.default.as_ref().filter(|_| route.protocol.is_http());
        if let Some(record) = record {
            if let Some(owners) = live.undo(record, default, self.reading)? {
                return Ok((owners, Some(record)));
            }
            // Pointed elsewhere: what is there now is what the owner wants.
            self.warnings.push(Warning::Repointed {
                route: route.label(),
            });
        }
        Ok((live.clone().materialised(default), None))
    }

    fn skip(&mut self, route: &Route<'_>, reason: SkipReason) {
        self.skipped.push(Skip {
            route: route.label(),
            reason,
        });
    }
}

pub(crate) fn default_destination(
    table: &RouteTableDoc,
    spec: &RouteTableSpec,
    reading: Reading<'_>,
) -> Option<Slot> {
    let raw = table.raw().pointer("/spec/defaultDestination")?;
    let view = spec.default_destination.clone()?;
    Some(Slot::new(raw.clone(), view, reading).weighing(None))
}

/// Whether a route still holds a destination that was put in.
pub(crate) fn holds_added(route: &Route<'_>, record: &RouteRecord, reading: Reading<'_>) -> bool {
    let then = Reading {
        by: record.by,
        ..reading
    };
    let destinations = route.forward.and_then(|(_, view)| view);
    destinations
        .unwrap_or_default()
        .iter()
        .filter_map(|destination| DestinationId::of(destination, then))
        .any(|id| record.added.contains(&id))
}

/// What the routes lead to instead, for the refusal.
pub(crate) fn found(skipped: &[Skip]) -> String {
    const SHOWN: usize = 5;
    if skipped.is_empty() {
        return "no routes".to_owned();
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
