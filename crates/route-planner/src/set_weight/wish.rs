//! What one route is to look like when a weight is in force.

use gloo_types::{DestinationReference, weight_rule};
use serde::Deserialize as _;
use serde_json::json;

use crate::config::PluginConfig;
use crate::destinations::{DestinationList, ListForm, Slot};
use crate::edit::Warning;
use crate::error::Refusal;
use crate::intent::WeightSplit;
use crate::record::{Original, RouteKey, RouteRecord};
use crate::roles::{Role, Roles};
use crate::select::{DestinationId, Reading, Route};
use crate::weight;

/// A checked intent.
pub(super) struct Wish<'a> {
    roles: &'a Roles<'a>,
    desired: u32,
    max: u32,
    /// Services of an experiment that are to get traffic; none of them twice, none is stable or canary.
    additional: Vec<(Role<'a>, u32)>,
    /// Whether the owner's destinations stay in the list with weight 0 while they get nothing.
    keeps_zero: bool,
}

/// What a route is to look like.
pub(super) struct Target {
    pub(super) list: DestinationList,
    /// What has to be remembered; `None` when the list is the owner's.
    pub(super) record: Option<RouteRecord>,
}

/// The destinations of one route that a wish is about.
struct Managed<'a> {
    /// The one the owner wrote, beside which the others are put in.
    anchor: Slot,
    /// Stable, canary and additional destinations, in this order: as found in the owner's list, or as they would be made.
    ours: Vec<(&'a Role<'a>, Slot)>,
}

impl Managed<'_> {
    fn slots(&self) -> Vec<&Slot> {
        let ours = self.ours.iter().map(|(_, mine)| mine);
        [&self.anchor].into_iter().chain(ours).collect()
    }
}

impl Target {
    /// The list as its owner wrote it.
    pub(super) fn owners(list: DestinationList) -> Self {
        Self {
            list: list.resting(),
            record: None,
        }
    }

    /// The same for a route that no longer leads to the Rollout, or whose Rollout is gone: which destinations were split
    /// only the `record` tells.
    pub(super) fn released(
        list: DestinationList,
        record: &RouteRecord,
        reading: Reading<'_>,
    ) -> Self {
        let then = Reading {
            by: record.by,
            ..reading
        };
        let ids = record.originals.iter().filter_map(|original| {
            let view = DestinationReference::deserialize(&original.destination).ok()?;
            DestinationId::of(&view, then)
        });
        let slots = ids.filter_map(|id| list.slots.iter().find(|slot| slot.is(&id)).cloned());
        let slots: Vec<Slot> = slots.collect();
        let ours: Vec<&Slot> = slots.iter().collect();
        let share = share_of(&list, &ours);
        Self::owners(rebalanced(list, &ours, share, Some(record)))
    }
}

impl<'a> Wish<'a> {
    pub(super) fn new(
        config: &PluginConfig,
        roles: &'a Roles<'a>,
        split: &'a WeightSplit,
    ) -> Result<Self, Refusal> {
        let max = u32::try_from(split.max).ok().filter(|max| *max > 0);
        let max = max.ok_or(Refusal::MaxWeight(split.max))?;
        let mut desired = checked(roles.canary.name(), split.desired)?.min(max);
        let mut additional: Vec<(Role<'_>, u32)> = Vec::new();
        for extra in &split.additional {
            let service = extra.service.as_str();
            let weight = checked(service, extra.weight)?;
            if service.is_empty() || weight == 0 || roles.is_service(&roles.stable, service) {
                // Stable gets whatever nobody else asks for.
            } else if roles.is_service(&roles.canary, service) {
                desired = desired.saturating_add(weight);
            } else if let Some((_, sum)) = additional
                .iter_mut()
                .find(|(role, _)| role.name() == service)
            {
                *sum = sum.saturating_add(weight);
            } else {
                additional.push((roles.additional(service), weight));
            }
        }
        if desired > 0 {
            roles.check_hashes()?;
            if !roles.are_two() {
                desired = 0;
            }
        }
        Ok(Self {
            roles,
            desired,
            max,
            additional,
            keeps_zero: config.keeps_zero_weights(),
        })
    }

    /// Whether nothing is rolled out: all traffic goes to the stable destination, as the owner wrote it.
    pub(super) fn is_rest(&self) -> bool {
        let has_canary_to_keep_apart = self.roles.share_a_service() && self.roles.are_two();
        self.desired == 0 && self.additional.is_empty() && !has_canary_to_keep_apart
    }

    /// What a selected route that leads to the Rollout is to look like.
    pub(super) fn target(
        &self,
        route: &Route<'_>,
        owners: DestinationList,
        anchor: Slot,
        record: Option<&RouteRecord>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Target, Refusal> {
        let ours = match self.managed(route, &owners, anchor, record) {
            Ok(ours) => ours,
            // While nothing is rolled out, owners may split as they like.
            Err(_) if self.is_rest() => return Ok(Target::owners(owners)),
            Err(refusal) => return Err(refusal),
        };
        let slots = ours.slots();
        let share = share_of(&owners, &slots);
        if self.is_rest() && (share == 0 || !self.canary_has_share(&owners)) {
            return Ok(Target::owners(rebalanced(owners, &slots, share, record)));
        }
        if share == 0 {
            let stable = self.roles.stable.label();
            let taken = taken_by_others(&owners, &slots);
            return Err(Refusal::NoShare {
                route: route.label(),
                stable,
                taken,
            });
        }
        if self.is_rest() && self.roles.stable.is(&ours.anchor) {
            let canary = self.roles.canary.name().to_owned();
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
    fn managed<'w>(
        &'w self,
        route: &Route<'_>,
        owners: &DestinationList,
        anchor: Slot,
        record: Option<&RouteRecord>,
    ) -> Result<Managed<'w>, Refusal> {
        self.roles.check_anchor(route, owners, record)?;
        let additional = self.additional.iter().map(|(role, _)| role);
        let roles = [&self.roles.stable, &self.roles.canary]
            .into_iter()
            .chain(additional);
        let ours = roles.map(|role| {
            let found = role.find_only(route, owners)?;
            let slot = found.map_or_else(|| role.copy_of(&anchor), Slot::clone);
            Ok((role, slot))
        });
        Ok(Managed {
            ours: ours.collect::<Result<_, _>>()?,
            anchor,
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
        self.roles
            .canary
            .find(owners)
            .any(|canary| canary.view.set_weight().is_some() || set < 100)
    }

    /// The list with `share` split between `ours`: those that get nothing are taken out, those that are missing put in.
    fn split(
        &self,
        route: &Route<'_>,
        owners: DestinationList,
        Managed { anchor, ours }: &Managed<'_>,
        share: u32,
        record: Option<&RouteRecord>,
    ) -> Result<Target, Refusal> {
        let wanted: Vec<u32> = self.additional.iter().map(|(_, weight)| *weight).collect();
        let shares = weight::split(share, self.desired, self.max, &wanted);
        let weights = [shares.stable, shares.canary]
            .into_iter()
            .chain(shares.additional);
        let ours: Vec<(&Role<'_>, &Slot, u32)> = ours
            .iter()
            .zip(weights)
            .map(|((role, slot), weight)| (*role, slot, weight))
            .collect();

        let mut slots = Vec::new();
        let mut originals = Vec::new();
        let mut added = Vec::new();
        for (at, slot) in owners.slots.iter().enumerate() {
            let is_anchor = slot.is_same(anchor);
            let mine = ours.iter().find(|(_, mine, _)| slot.is_same(mine));
            // Where subsets tell the roles apart, the anchor itself has none of them.
            let Some(weight) = mine
                .map(|(_, _, weight)| *weight)
                .or(is_anchor.then_some(0))
            else {
                slots.push(slot.clone());
                continue;
            };
            let original = Original {
                at,
                destination: slot.raw.clone(),
            };
            let first = if is_anchor { 0 } else { originals.len() };
            originals.insert(first, original);
            if weight > 0 || (self.keeps_zero && mine.is_some()) {
                slots.push(slot.clone().weighing(Some(json!(weight))));
            }
            if !is_anchor {
                continue;
            }
            let missing = ours
                .iter()
                .filter(|(_, mine, weight)| *weight > 0 && !owners.holds(mine));
            for (role, _, weight) in missing {
                let made = role.made_from(slot, route)?;
                added.extend(made.id.clone());
                slots.push(made.weighing(Some(json!(weight))));
            }
        }
        if !owners.form.is_listed() {
            // The owner wrote no list at all, so every destination in it is put in by us.
            originals.clear();
            added = ours
                .iter()
                .filter(|(_, _, weight)| *weight > 0)
                .filter_map(|(_, mine, _)| mine.id.clone())
                .collect();
        }
        let list = DestinationList {
            slots,
            form: ListForm::Listed,
        };
        // While roles are exchanged the record is also what says that the route is split.
        let is_remembered = !list.equals(&owners) || !self.roles.stable.is(anchor);
        let record = is_remembered.then(|| RouteRecord {
            route: RouteKey::of(route, record.map(|record| &record.route)),
            // Later on the owner may give others more or less; what counts is what the originals were written for.
            share: record.map_or(share, |record| record.share),
            originals,
            added,
            by: self.roles.by,
            list: owners.form,
        });
        Ok(Target { list, record })
    }
}

/// Percent of a route's traffic that is ours to split; 0 when the others leave nothing.
fn share_of(owners: &DestinationList, ours: &[&Slot]) -> u32 {
    100_u32.saturating_sub(taken_by_others(owners, ours))
}

fn taken_by_others(owners: &DestinationList, ours: &[&Slot]) -> u32 {
    let slots = owners.slots.iter().zip(owners.effective_weights());
    slots
        .filter(|(slot, _)| !ours.iter().any(|mine| slot.is_same(mine)))
        .fold(0, |sum: u32, (_, weight)| sum.saturating_add(weight))
}

/// The owner's list, put back after the owner gave more or less to others while it was split.
///
/// If the weight of the first of `ours`, the stable one, was written for the old share and now breaks the sum of 100, it
/// takes the difference.
fn rebalanced(
    mut owners: DestinationList,
    ours: &[&Slot],
    share: u32,
    record: Option<&RouteRecord>,
) -> DestinationList {
    let as_written = record.is_none_or(|record| record.share == share);
    let Some((anchor, rest)) = ours.split_first() else {
        return owners;
    };
    if as_written || weight_rule(&owners.views()).is_none() {
        return owners;
    }
    let others: u32 = owners
        .slots
        .iter()
        .filter(|slot| !slot.is_same(anchor) && rest.iter().any(|mine| slot.is_same(mine)))
        .filter_map(|slot| slot.view.set_weight())
        .fold(0, u32::saturating_add);
    let rest = share.saturating_sub(others);
    for slot in &mut owners.slots {
        if slot.is_same(anchor) && slot.view.set_weight().is_some() && rest > 0 {
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
