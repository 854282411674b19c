//! What one route is to look like when a weight is in force.

use gloo_types::weight_rule;
use serde_json::json;

use crate::destinations::{DestinationList, ListForm, Slot};
use crate::edit::Warning;
use crate::error::Refusal;
use crate::intent::{Intent, WeightSplit};
use crate::record::{Original, RouteKey, RouteRecord};
use crate::select::{DestinationId, Route};
use crate::weight;

/// A checked intent.
pub(super) struct Wish<'a> {
    stable: &'a str,
    canary: &'a str,
    /// The Rollout's namespace: traffic may be moved only between Services in it.
    namespace: &'a str,
    desired: u32,
    max: u32,
    /// Services of an experiment that are to get traffic; none of them twice, none is stable or canary.
    additional: Vec<(&'a str, u32)>,
}

/// What a route is to look like.
pub(super) struct Target {
    pub(super) list: DestinationList,
    /// What has to be remembered; `None` when the list is the owner's.
    pub(super) record: Option<RouteRecord>,
}

/// The destinations of one route that a wish is about.
struct Managed {
    /// The one the owner wrote, beside which the others are put in.
    anchor: DestinationId,
    /// Stable, canary and additional destinations, in this order.
    ids: Vec<DestinationId>,
}

impl Target {
    /// The list as its owner wrote it.
    pub(super) fn owners(list: DestinationList) -> Self {
        Self {
            list: list.resting(),
            record: None,
        }
    }
}

impl<'a> Wish<'a> {
    pub(super) fn new(intent: &'a Intent, split: &'a WeightSplit) -> Result<Self, Refusal> {
        let stable = intent.services.stable.as_str();
        let canary = intent.services.canary.as_str();
        for (role, service) in [("stable", stable), ("canary", canary)] {
            if service.is_empty() {
                return Err(Refusal::NoService { role });
            }
        }
        if stable == canary {
            return Err(Refusal::SameService(stable.to_owned()));
        }
        let max = u32::try_from(split.max).ok().filter(|max| *max > 0);
        let max = max.ok_or(Refusal::MaxWeight(split.max))?;
        let mut desired = checked(canary, split.desired)?.min(max);
        let mut additional: Vec<(&str, u32)> = Vec::new();
        for extra in &split.additional {
            let service = extra.service.as_str();
            let weight = checked(service, extra.weight)?;
            if service.is_empty() || service == stable || weight == 0 {
                // Stable gets whatever nobody else asks for.
            } else if service == canary {
                desired = desired.saturating_add(weight);
            } else if let Some((_, sum)) = additional.iter_mut().find(|(name, _)| *name == service)
            {
                *sum = sum.saturating_add(weight);
            } else {
                additional.push((service, weight));
            }
        }
        let namespace = &intent.rollout.namespace;
        Ok(Self {
            stable,
            canary,
            namespace,
            desired,
            max,
            additional,
        })
    }

    /// Whether nothing is rolled out: all traffic goes to the stable Service.
    pub(super) fn is_rest(&self) -> bool {
        self.desired == 0 && self.additional.is_empty()
    }

    pub(super) fn stable_label(&self) -> String {
        format!("SERVICE {}/{}", self.namespace, self.stable)
    }

    /// The destination by which the owner's list leads to the Rollout, if it does: the stable Service or, in a route that is
    /// split already, the canary. With ping-pong the two change roles at the end of a rollout, and the owner's destination
    /// stays in one of them.
    pub(super) fn anchor(
        &self,
        owners: &DestinationList,
        record: Option<&RouteRecord>,
    ) -> Option<DestinationId> {
        let canary = record.and_then(|_| self.find(owners, self.canary).next());
        self.find(owners, self.stable).next().or(canary)?.id.clone()
    }

    /// What a selected route that leads to the Rollout is to look like.
    pub(super) fn target(
        &self,
        route: &Route<'_>,
        owners: DestinationList,
        anchor: DestinationId,
        record: Option<&RouteRecord>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Target, Refusal> {
        let ours = match self.managed(route, &owners, anchor) {
            Ok(ours) => ours,
            // While nothing is rolled out, owners may split as they like.
            Err(_) if self.is_rest() => return Ok(Target::owners(owners)),
            Err(refusal) => return Err(refusal),
        };
        let share = share_of(&owners, &ours.ids);
        if self.is_rest() && (share == 0 || !self.canary_has_share(&owners)) {
            return Ok(Target::owners(rebalanced(owners, &ours, share, record)));
        }
        if share == 0 {
            let stable = self.stable_label();
            let taken = taken_by_others(&owners, &ours.ids);
            return Err(Refusal::NoShare {
                route: route.label(),
                stable,
                taken,
            });
        }
        if self.is_rest() && ours.anchor.name == self.stable {
            let canary = self.canary.to_owned();
            warnings.push(Warning::OwnerCanaryShare {
                route: route.label(),
                canary,
            });
        }
        let is_owners = record.is_none_or(|record| record.share == share);
        if let Some(rule) = weight_rule(&owners.views()).filter(|_| is_owners) {
            warnings.push(Warning::OwnerWeights {
                route: route.label(),
                rule,
            });
        }
        self.split(route, owners, &ours, share, record)
    }

    /// The destinations to split between. Each is in the list once at most.
    fn managed(
        &self,
        route: &Route<'_>,
        owners: &DestinationList,
        anchor: DestinationId,
    ) -> Result<Managed, Refusal> {
        let additional = self.additional.iter().map(|(name, _)| *name);
        let names = [self.stable, self.canary].into_iter().chain(additional);
        let ids = names.map(|name| {
            let found: Vec<&Slot> = self.find(owners, name).collect();
            match found.as_slice() {
                [] => Ok(anchor.renamed(name)),
                [slot] => Ok(slot.id.clone().unwrap_or_else(|| anchor.renamed(name))),
                _ => Err(Refusal::Ambiguous {
                    route: route.label(),
                    service: name.to_owned(),
                    found: found
                        .iter()
                        .map(|slot| slot.place())
                        .collect::<Vec<_>>()
                        .join(", "),
                }),
            }
        });
        Ok(Managed {
            ids: ids.collect::<Result<_, _>>()?,
            anchor,
        })
    }

    fn find<'b>(
        &'b self,
        owners: &'b DestinationList,
        service: &'b str,
    ) -> impl Iterator<Item = &'b Slot> {
        owners.slots.iter().filter(move |slot| {
            slot.id
                .as_ref()
                .is_some_and(|id| id.is_service(self.namespace, service))
        })
    }

    /// Whether the owner's own list sends traffic to the canary. A zero weight beside weights that sum to 100 does not.
    fn canary_has_share(&self, owners: &DestinationList) -> bool {
        let set: u64 = owners
            .slots
            .iter()
            .filter_map(|slot| slot.view.set_weight())
            .map(u64::from)
            .sum();
        self.find(owners, self.canary)
            .any(|canary| canary.view.set_weight().is_some() || set < 100)
    }

    /// The list with `share` split between `ours`: those that get nothing are taken out, those that are missing put in.
    fn split(
        &self,
        route: &Route<'_>,
        owners: DestinationList,
        Managed { anchor, ids }: &Managed,
        share: u32,
        record: Option<&RouteRecord>,
    ) -> Result<Target, Refusal> {
        let wanted: Vec<u32> = self.additional.iter().map(|(_, weight)| *weight).collect();
        let shares = weight::split(share, self.desired, self.max, &wanted);
        let weights = [shares.stable, shares.canary]
            .into_iter()
            .chain(shares.additional);
        let ours: Vec<(&DestinationId, u32)> = ids.iter().zip(weights).collect();

        let mut slots = Vec::new();
        let mut originals = Vec::new();
        let mut added = Vec::new();
        for (at, slot) in owners.slots.iter().enumerate() {
            let Some((id, weight)) = ours.iter().find(|(id, _)| slot.is(id)) else {
                slots.push(slot.clone());
                continue;
            };
            let original = Original {
                at,
                destination: slot.raw.clone(),
            };
            let first = if *id == anchor { 0 } else { originals.len() };
            originals.insert(first, original);
            if *weight > 0 {
                slots.push(slot.clone().weighing(Some(json!(weight))));
            }
            if *id != anchor {
                continue;
            }
            let missing = ours
                .iter()
                .filter(|(id, weight)| *weight > 0 && !owners.holds(id));
            for (id, weight) in missing {
                if !slot.view.subset.is_empty() {
                    return Err(Refusal::Subset {
                        route: route.label(),
                        from: slot.label(),
                    });
                }
                slots.push(slot.renamed(&id.name).weighing(Some(json!(weight))));
                added.push((*id).clone());
            }
        }
        if !owners.form.is_listed() {
            // The owner wrote no list at all, so every destination in it is put in by us.
            originals.clear();
            added = ours
                .iter()
                .filter(|(_, weight)| *weight > 0)
                .map(|(id, _)| (*id).clone())
                .collect();
        }
        let list = DestinationList {
            slots,
            form: ListForm::Listed,
        };
        // While roles are exchanged the record is also what says that the route is split.
        let is_remembered = !list.equals(&owners) || anchor.name != self.stable;
        let record = is_remembered.then(|| RouteRecord {
            route: RouteKey::of(route, record.map(|record| &record.route)),
            // Later on the owner may give others more or less; what counts is what the originals were written for.
            share: record.map_or(share, |record| record.share),
            originals,
            added,
            list: owners.form,
        });
        Ok(Target { list, record })
    }
}

/// Percent of a route's traffic that goes to `ours`; 0 when the others leave nothing.
fn share_of(owners: &DestinationList, ours: &[DestinationId]) -> u32 {
    100_u32.saturating_sub(taken_by_others(owners, ours))
}

fn taken_by_others(owners: &DestinationList, ours: &[DestinationId]) -> u32 {
    let slots = owners.slots.iter().zip(owners.effective_weights());
    slots
        .filter(|(slot, _)| !ours.iter().any(|id| slot.is(id)))
        .fold(0, |sum: u32, (_, weight)| sum.saturating_add(weight))
}

/// The owner's list, put back after the owner gave more or less to others while it was split.
///
/// If a stable weight that was written for the old share now breaks the sum of 100, it takes the difference.
fn rebalanced(
    mut owners: DestinationList,
    ours: &Managed,
    share: u32,
    record: Option<&RouteRecord>,
) -> DestinationList {
    let as_written = record.is_none_or(|record| record.share == share);
    if as_written || weight_rule(&owners.views()).is_none() {
        return owners;
    }
    let others: u32 = owners
        .slots
        .iter()
        .filter(|slot| !slot.is(&ours.anchor) && ours.ids.iter().any(|id| slot.is(id)))
        .filter_map(|slot| slot.view.set_weight())
        .fold(0, u32::saturating_add);
    let rest = share.saturating_sub(others);
    for slot in &mut owners.slots {
        if slot.is(&ours.anchor) && slot.view.set_weight().is_some() && rest > 0 {
            *slot = slot.clone().weighing(Some(json!(rest)));
        }
    }
    owners
}

fn checked(service: &str, weight: i32) -> Result<u32, Refusal> {
    u32::try_from(weight).map_err(|_| Refusal::NegativeWeight {
        service: service.to_owned(),
        weight,
    })
}
