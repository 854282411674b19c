//! Recovers what the owner of a table wrote: from the record or, if that is lost, from what is left in the list.
//!
//! With a record, [`recover`] removes what was inserted and gives the other destinations of the record their weights back. What
//! the owner edited meanwhile stays:
//!
//! ```text
//! record                    live                          recovered
//! share 80                  reviews          60           reviews  80    the weight of the record
//! reviews 80 at 0           reviews-canary   20           legacy   10    the owner's edit stays
//! reviews-canary inserted   legacy           10
//! legacy is foreign
//! ```
//!
//! SetWeight divides 90 from then on. At rest `reviews` gets 90, since 80 and 10 are no longer 100.
//!
//! At full weight the stable destination is not in the list. It returns where the canary is:
//!
//! ```text
//! reviews 80 at 0           reviews-canary   80           reviews  80
//! reviews-canary inserted   legacy           20           legacy   20
//! ```
//!
//! Without a record, the list itself is the evidence. [`without_applied`] takes weights for ours if they are those that the
//! Rollout's status says were set, and [`stable_from_canary`] rebuilds the stable destination from the canary at full weight.
//! [`without_canary`] gives up the owner's weights: it only moves the traffic to stable.

use gloo_types::weight_shares;

use crate::destinations::{DestinationId, DestinationList, ListForm, Object, Reading, Slot};
use crate::intent::{AdditionalDestination, AppliedWeights};
use crate::record::{Original, Split};
use crate::roles::{Role, Roles};
use crate::weight;

/// What the record says about a live list.
pub(crate) enum Recovered<'a> {
    /// The list as its owner wants it.
    Owners(DestinationList<'a>),
    /// Nothing of ours is left: the owner led the route elsewhere.
    Repointed,
    /// The owner replaced the stable destination while the route was split.
    Replaced {
        /// The list as its owner wants it.
        owners: DestinationList<'a>,
        /// The stable destination.
        stable: String,
        /// What replaced it.
        by: Box<Slot<'a>>,
    },
}

/// Recovers the owner's list from the live one and the `split` that was recorded.
///
/// The owner may have edited everything meanwhile. Positions in the record count in the owner's list: what is missing is
/// inserted where the inserted destinations are, or found from its neighbours.
pub(crate) fn recover<'a>(
    live: &DestinationList<'a>,
    split: &'a Split,
    roles: &Roles<'_>,
    default: Option<&Slot<'a>>,
    reading: Reading<'a>,
) -> Recovered<'a> {
    // Distinguishes recorded destinations as when they were recorded: the configuration may have changed since.
    let then = Reading {
        by: split.by,
        ..reading
    };
    let recorded = |Original(at, destination): &'a Original| (*at, Slot::new(destination, then));
    let originals: Vec<(usize, Slot<'a>)> = split.originals.iter().map(recorded).collect();
    let is_added = |slot: &Slot<'a>| split.inserted(slot);
    let is_original = |slot: &Slot<'a>| originals.iter().any(|(_, it)| slot.is_same(it));
    let is_new = |slot: &Slot<'a>| {
        let place = slot.place();
        let idle = split.idle.iter().map(recorded);
        !split.foreign.contains(&place) && !idle.into_iter().any(|(_, it)| slot.is_same(&it))
    };
    let was_reapplied = !live.form.is_listed() && !split.list.is_listed();
    let mut ours = live.slots.iter();
    let is_ours =
        |slot: &Slot<'a>| is_added(slot) || is_original(slot) || roles.stable.is_owners(slot);
    if !was_reapplied && !ours.any(is_ours) {
        return Recovered::Repointed;
    }

    let mut stand_in = live.slots.iter().position(is_added);
    let kept = live.slots.iter().filter(|slot| !is_added(slot));
    let mut slots: Vec<Slot<'a>> = kept.cloned().collect();
    let mut replaced = None;
    for (index, (at, original)) in originals.iter().enumerate() {
        let mut original = original.clone();
        let mut found = slots.iter().position(|slot| slot.is_same(&original));
        if index > 0 && found.is_none() {
            // The owner led it to another cluster, for example.
            let changed =
                |slot: &Slot<'a>| !is_original(slot) && is_new(slot) && slot.is_named_as(&original);
            found = slots.iter().position(changed);
        }
        if index == 0 && found.is_none() {
            let changed = |slot: &Slot<'a>| !is_original(slot) && roles.is_anchor(slot);
            let replacement = |slot: &Slot<'a>| {
                let is_canarys = roles.canary.is(slot) && !roles.stable.is(slot);
                !is_original(slot) && !is_canarys && is_new(slot)
            };
            let may_be_replaced = !split.stable.is_absent() && stand_in.is_some();
            let in_place = edited_in_place(&original, split, live, roles);
            let made = split.made_stable();
            let is_made = |slot: &Slot<'a>| made.is_some_and(|id| slot.is(id));
            if live.slots.iter().any(is_made) {
                original = in_place.unwrap_or(original);
            } else if let Some(at) = slots.iter().position(changed) {
                // The owner led the stable destination to another cluster, for example.
                if let Some(slot) = slots.get_mut(at) {
                    *slot = match made {
                        Some(id) => following(&original, id, slot, roles),
                        None => roles.stable.listed_as(slot),
                    };
                }
                found = Some(at);
            } else if may_be_replaced && let Some(at) = slots.iter().position(replacement) {
                let by = slots.get(at).cloned();
                replaced = by.map(|by| (original.label(), Box::new(by)));
                found = Some(at);
            } else {
                original = in_place.unwrap_or(original);
            }
        }
        if let Some(slot) = found.and_then(|found| slots.get_mut(found)) {
            *slot = slot.clone().weighing_as(&original);
            stand_in = None;
            continue;
        }
        let position = match stand_in.take() {
            Some(index) => index,
            None => position(*at, &originals, &slots),
        };
        slots.insert(position.min(slots.len()), original);
    }
    // Subsets of other versions, which a table from Git or an older record may bring back.
    slots.retain(|slot| !roles.stable.selects_pods(slot));
    // Destinations beyond those that were foreign then: their owner wrote them since.
    let mut present: Vec<String> = {
        let foreign = slots.iter().filter(|slot| !is_original(slot));
        foreign.map(Slot::place).collect()
    };
    for place in &split.foreign {
        remove_first(&mut present, place);
    }
    for (at, original) in split.idle.iter().map(recorded) {
        if !remove_first(&mut present, &original.place()) {
            let position = position(at, &originals, &slots);
            slots.insert(position.min(slots.len()), original);
        }
    }
    let form = split.list;
    let owners = DestinationList { slots, form }.materialised(default);
    match replaced {
        Some((stable, by)) => Recovered::Replaced { owners, stable, by },
        None => Recovered::Owners(owners),
    }
}

/// The owner's stable destination with what its owner changed in a destination that stands for it: the one that is stable now,
/// or the one that was when the record was written. `None` if there is no such destination.
fn edited_in_place<'a>(
    original: &Slot<'a>,
    split: &'a Split,
    live: &DestinationList<'a>,
    roles: &Roles<'_>,
) -> Option<Slot<'a>> {
    let find = |is: &dyn Fn(&Slot<'a>) -> bool| live.slots.iter().find(|slot| is(slot));
    let there = |id: &'a DestinationId| {
        // A subset that its owner led to another cluster, for example, is told by its labels.
        let is_moved =
            |slot: &Slot<'a>| roles.stable.selects_pods(slot) && Some(slot.subset()) == id.subset;
        let found = find(&|slot| slot.is(id)).or_else(|| find(&is_moved))?;
        Some((id, found))
    };
    let is_stable = |(_, slot): &(&DestinationId, &Slot<'a>)| roles.stable.is(slot);
    let now = split.added.iter().filter_map(there).find(is_stable);
    let then = split.made_stable().and_then(there);
    let in_place = now.into_iter().chain(then);
    let mut edited = in_place.map(|(id, there)| following(original, id, there, roles));
    let first = edited.next()?;
    let is_edited = |slot: &Slot<'a>| !slot.has_content_of(original);
    Some(match is_edited(&first) {
        true => first,
        false => edited.find(is_edited).unwrap_or(first),
    })
}

/// `original` with what its owner changed since in `there`, which was made from it as `id`.
fn following<'a>(
    original: &Slot<'a>,
    id: &'a DestinationId,
    there: &Slot<'a>,
    roles: &Roles<'_>,
) -> Slot<'a> {
    let (Some(then), Some(now)) = (original.object(), there.object()) else {
        return original.clone();
    };
    let made = original.leading_to(id.object(), id.port.as_ref(), id.subset.as_ref());
    if made.has_content_of(there) {
        return original.clone();
    }
    let object = Object {
        cluster: match now.cluster == id.cluster {
            true => then.cluster,
            false => now.cluster,
        },
        ..then
    };
    let port = original.port().filter(|_| id.port == there.port());
    let is_as_made = id.subset.as_ref().is_some_and(|it| there.has_subset(it));
    let subset = is_as_made.then(|| original.subset());
    roles
        .stable
        .listed_as(there)
        .leading_to(object, port.as_ref(), subset.as_ref())
        .weighing_as(original)
}

fn remove_first(texts: &mut Vec<String>, text: &str) -> bool {
    let found = texts.iter().position(|it| it == text);
    found.map(|found| texts.swap_remove(found)).is_some()
}

/// Where a destination that was at `at` in the owner's list goes, from the nearest of `originals` that is there.
fn position(at: usize, originals: &[(usize, Slot<'_>)], slots: &[Slot<'_>]) -> usize {
    let neighbours = originals.iter().filter_map(|(other_at, other)| {
        Some((
            *other_at,
            slots.iter().position(|slot| slot.is_same(other))?,
        ))
    });
    match neighbours.min_by_key(|(other_at, _)| other_at.abs_diff(at)) {
        Some((other_at, index)) if other_at < at => index + (at - other_at),
        Some((other_at, index)) => (index + 1).saturating_sub(other_at - at),
        None => at,
    }
}

/// The owner's list of a route without a record, if its weights are those that the controller recorded as set, or would have
/// recorded had the answer for the `asked` Services of an experiment not been lost. The weights are ours then: the canary and
/// the experiment go, and the stable destination weighs what they shared.
pub(crate) fn without_applied<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
    applied: &'a AppliedWeights,
    asked: &'a [AdditionalDestination],
) -> Option<DestinationList<'a>> {
    let max = u32::try_from(applied.total()).ok().filter(|max| *max > 0)?;
    let canary = u32::try_from(applied.canary).unwrap_or(0);
    let asked = asked.iter().filter(|it| !it.service.is_empty());
    let asked = asked.map(|it| (roles.additional(&it.service, None), it.weight));
    // Without its Services, what is left of the list may look as set, too.
    let experiments = [asked.collect(), additional_roles(roles, applied)];
    experiments
        .iter()
        .find_map(|additional| without_weights(live, roles, (canary, max), additional))
}

/// The list without canary and `additional`, if it divides its share as `canary` out of `max` and they ask for.
fn without_weights<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
    (canary, max): (u32, u32),
    additional: &[(Role<'a>, i32)],
) -> Option<DestinationList<'a>> {
    let parts = |(_, weight): &(Role<'_>, i32)| u32::try_from(*weight).unwrap_or(0);
    let wanted: Vec<u32> = additional.iter().map(parts).collect();
    if canary == 0 && wanted.iter().all(|weight| *weight == 0) {
        return None;
    }
    let of = |role: &Role<'_>| {
        let mut found = live.slots.iter().filter(|slot| role.is(slot));
        (found.next(), found.next())
    };
    let (Some(stable), None) = of(&roles.stable) else {
        return None;
    };
    let share = share_of(live, |slot| {
        roles.stable.is(slot)
            || roles.canary.is(slot)
            || additional.iter().any(|(role, _)| role.is(slot))
    });
    let shares = weight::split(share, canary, max, &wanted);
    let has = |role: &Role<'_>, weight: u32| match of(role) {
        (None, None) => weight == 0,
        (Some(slot), None) => weight > 0 && slot.weight() == Some(weight),
        _ => false,
    };
    let mut others = additional.iter().zip(&shares.additional);
    let is_applied = stable.weight() == Some(shares.stable)
        && has(&roles.canary, shares.canary)
        && others.all(|((role, _), weight)| has(role, *weight));
    if !is_applied {
        return None;
    }
    let is_ours =
        |slot: &Slot<'_>| roles.canary.is(slot) || additional.iter().any(|(role, _)| role.is(slot));
    let mut slots: Vec<Slot<'a>> = live
        .slots
        .iter()
        .filter(|it| !is_ours(it))
        .cloned()
        .collect();
    let is_alone = slots.len() == 1;
    for slot in slots.iter_mut().filter(|slot| roles.stable.is(slot)) {
        *slot = slot.clone().weighing(Some(share).filter(|_| !is_alone));
    }
    Some(DestinationList {
        slots,
        form: ListForm::Listed,
    })
}

/// The owner's list of a route that sends its whole share to the canary and whose record is lost: the stable destination is
/// like the canary's but for what the configuration says of it. `None` if the list is not what full weight leaves.
pub(crate) fn stable_from_canary<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
) -> Option<DestinationList<'a>> {
    let mut found = live.slots.iter().filter(|slot| roles.canary.is(slot));
    let (Some(canary), None) = (found.next(), found.next()) else {
        return None;
    };
    if canary.weight() != Some(share_of(live, |slot| slot.is_same(canary))) {
        return None;
    }
    let is_alone = live.slots.len() == 1;
    let stable = roles.stable.copy_of(canary);
    let stable = stable.weighing(canary.weight().filter(|_| !is_alone));
    let slots = live.slots.iter().map(|slot| {
        if slot.is_same(canary) {
            stable.clone()
        } else {
            slot.clone()
        }
    });
    Some(DestinationList {
        slots: slots.collect(),
        form: ListForm::Listed,
    })
}

/// The live list without canary and experiment, whose shares go to the stable destination: what can be done without a record.
/// `None` if the list has neither. Where subsets by Pods distinguish the roles, the subset of stable goes too unless
/// `keeps_subset`.
pub(crate) fn without_canary<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
    applied: Option<&'a AppliedWeights>,
    keeps_subset: bool,
) -> Option<DestinationList<'a>> {
    let additional = applied.map(|applied| additional_roles(roles, applied));
    let additional = additional.unwrap_or_default();
    let is_ours = |slot: &Slot<'_>| {
        (roles.canary.is(slot) && !roles.stable.is(slot))
            || (roles.stable.selects_pods(slot) && !(keeps_subset && roles.stable.is(slot)))
            || additional.iter().any(|(role, _)| role.is(slot))
    };
    let is_stable = |slot: &Slot<'_>| roles.stable.is_owners(slot) && !is_ours(slot);
    let first = |is: &dyn Fn(&Slot<'_>) -> bool| live.slots.iter().find(|slot| is(slot));
    let place = match (first(&is_stable), first(&is_ours)) {
        (Some(stable), None) if !keeps_subset || roles.stable.is(stable) => return None,
        (stable, ours) => stable.or(ours)?,
    };
    let share = share_of(live, |slot| is_ours(slot) || std::ptr::eq(slot, place));
    let slots = live.slots.iter().filter_map(|slot| {
        if !std::ptr::eq(slot, place) {
            // The share of the others of ours is the stable destination's.
            return (!is_ours(slot)).then(|| slot.clone());
        }
        let stable = match keeps_subset {
            true if roles.stable.is(slot) => slot.clone(),
            true => roles.stable.copy_of(slot),
            false if is_stable(slot) => slot.clone(),
            false => roles.stable.listed_as(&roles.stable.copy_of(slot)),
        };
        let weight = slot.weight().map(|_| share);
        Some(stable.weighing(weight))
    });
    let mut slots: Vec<Slot<'a>> = slots.collect();
    if let ([_], false) = (&*slots, keeps_subset) {
        slots = slots.into_iter().map(Slot::without_weight).collect();
    }
    Some(DestinationList {
        slots,
        form: ListForm::Listed,
    })
}

/// Percent of a route's traffic that the destinations `of` share: what the others leave.
pub(crate) fn share_of<'a>(list: &DestinationList<'a>, of: impl Fn(&Slot<'a>) -> bool) -> u32 {
    100_u32.saturating_sub(taken_by_others(list, of))
}

/// Percent that the destinations other than `of` take. One with an explicit weight of 0 takes nothing, as its owner means.
pub(crate) fn taken_by_others<'a>(
    list: &DestinationList<'a>,
    of: impl Fn(&Slot<'a>) -> bool,
) -> u32 {
    let is_idle = |slot: &Slot<'a>| slot.is_explicit_zero() && !of(slot);
    let active: Vec<&Slot<'a>> = list.slots.iter().filter(|slot| !is_idle(slot)).collect();
    let weights: Vec<Option<u32>> = active.iter().map(|slot| slot.weight()).collect();
    let slots = active.into_iter().zip(weight_shares(&weights));
    slots
        .filter(|(slot, _)| !of(slot))
        .fold(0, |sum: u32, (_, weight)| sum.saturating_add(weight))
}

/// The Services of an experiment that has a recorded weight, with that weight.
pub(crate) fn additional_roles<'a>(
    roles: &Roles<'a>,
    applied: &'a AppliedWeights,
) -> Vec<(Role<'a>, i32)> {
    let services = applied.additional.iter();
    services
        .filter(|(service, _)| !service.is_empty())
        .map(|(service, weight)| (roles.additional(service, None), *weight))
        .collect()
}
