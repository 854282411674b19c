//! Recovers the list of destinations that the owner of a table wrote: from the record or, if that is lost, from the live
//! list.
//!
//! With a record, [`recover`] removes what was inserted, and gives the other destinations of the record their weights back.
//! Edits that the owner made since then are kept:
//!
//! ```text
//! record                    live                          recovered
//! share 80                  reviews          60           reviews  80    the weight of the record
//! reviews 80 at 0           reviews-canary   20           legacy   10    the owner's edit is kept
//! reviews-canary inserted   legacy           10
//! legacy is foreign
//! ```
//!
//! From then on SetWeight divides a share of 90. At rest `reviews` gets 90, since 80 and 10 do not sum to 100.
//!
//! At full weight the stable destination is not in the list. It is inserted where the canary is:
//!
//! ```text
//! reviews 80 at 0           reviews-canary   80           reviews  80
//! reviews-canary inserted   legacy           20           legacy   20
//! ```
//!
//! A list that the owner has applied in place of the split one is the owner's as it is: see [`crate::applied_again`].
//!
//! Without a record, only the live list is left:
//!
//! - [`without_applied`] compares its weights with those that the Rollout's status says were set. If they are equal,
//!   planning wrote them.
//! - [`stable_from_canary`] rebuilds the stable destination from the canary at full weight.
//! - [`without_canary`] does not recover the owner's weights: it only moves the traffic to stable.

use gloo_types::weight_shares;

use crate::destinations::{
    Destination, DestinationId, DestinationList, ListForm, Object, ReadContext,
};
use crate::intent::AppliedWeights;
use crate::record::{Original, Split, StableInList};
use crate::roles::{Role, Roles, Version};
use crate::weight::{self, Shares};

/// What [`recover`] finds.
pub(crate) enum Recovered<'a> {
    /// The list as its owner wants it.
    List(DestinationList<'a>),
    /// The owner changed the route to other destinations: it has none of the Rollout's destinations any more.
    Repointed,
    /// The owner replaced the stable destination while the route was split.
    StableReplaced {
        /// The list as its owner wants it.
        list: DestinationList<'a>,
        /// The stable destination, for messages.
        stable: String,
        /// What replaced it.
        replacement: Box<Destination<'a>>,
    },
}

/// Recovers the owner's list from the live list and the recorded `split`.
///
/// The owner may have edited anything since the split. A missing destination is inserted where planning had inserted one, or
/// else at its position in the owner's list.
pub(crate) fn recover<'a>(
    live: &DestinationList<'a>,
    split: &'a Split,
    roles: &Roles<'_>,
    default: Option<&Destination<'a>>,
    context: ReadContext<'a>,
) -> Recovered<'a> {
    // The configuration may have changed since the split: compare recorded destinations as it said then.
    let then = ReadContext {
        distinction: split.distinction,
        ..context
    };
    let recorded = |it: &'a Original| (it.position, Destination::new(&it.destination, then));
    let originals: Vec<(usize, Destination<'a>)> = split.originals.iter().map(recorded).collect();
    let is_added = |it: &Destination<'a>| split.has_inserted(it);
    let is_original =
        |destination: &Destination<'a>| originals.iter().any(|(_, it)| destination.is_same(it));
    let is_new = |destination: &Destination<'a>| {
        let place = destination.place();
        let idle = split.idle.iter().map(recorded);
        !split.foreign.contains(&place) && !idle.into_iter().any(|(_, it)| destination.is_same(&it))
    };
    let mut ours = live.destinations.iter();
    let is_ours =
        |it: &Destination<'a>| is_added(it) || is_original(it) || roles.stable.is_listed_as(it);
    // Nothing of the split is left. To insert the stable destination would revert the edit of the owner.
    if !ours.any(is_ours) {
        return Recovered::Repointed;
    }

    // The stable destination is missing at full weight. It returns to the place of what was inserted instead of it.
    let stand_in = live.destinations.iter().position(is_added);
    let kept = live.destinations.iter().filter(|it| !is_added(it));
    let mut destinations: Vec<Destination<'a>> = kept.cloned().collect();
    let mut missing: Vec<(usize, Destination<'a>)> = Vec::new();
    let mut replaced = None;
    for (index, (at, original)) in originals.iter().enumerate() {
        let mut original = original.clone();
        let mut found = destinations.iter().position(|it| it.is_same(&original));
        if index > 0 && found.is_none() {
            // The owner changed it: its cluster, for example.
            let changed =
                |it: &Destination<'a>| !is_original(it) && is_new(it) && it.is_named_as(&original);
            found = destinations.iter().position(changed);
        }
        if index == 0 && found.is_none() {
            let changed = |it: &Destination<'a>| !is_original(it) && roles.is_anchor(it);
            let replacement = |it: &Destination<'a>| !is_original(it) && is_new(it);
            // If the owner lists the canary with a share, weight 0 can take it away only in a list with a stable destination.
            let mut others = originals.iter().skip(1);
            let keeps_share = others.any(|(_, other)| !other.is_explicit_zero());
            let may_be_replaced = !split.stable.is_absent() && (stand_in.is_some() || !keeps_share);
            let in_place = edited_in_place(&original, split, live, roles);
            let made = split.added.first();
            let made = made.filter(|_| split.stable == StableInList::Made);
            if made.is_some_and(|id| live.destinations.iter().any(|it| it.is(id))) {
                original = in_place.unwrap_or(original);
            } else if let Some(at) = destinations.iter().position(changed) {
                // The owner changed the stable destination: its cluster, for example.
                if let Some(destination) = destinations.get_mut(at) {
                    *destination = match made {
                        Some(id) => with_owner_edits(&original, id, destination, roles),
                        None => roles.stable.without_pod_label(destination),
                    };
                }
                found = Some(at);
            } else if may_be_replaced && let Some(at) = destinations.iter().position(replacement) {
                let replacement = destinations.get(at).cloned();
                replaced = replacement.map(|it| (original.label(), Box::new(it)));
                found = Some(at);
            } else {
                original = in_place.unwrap_or(original);
            }
        }
        if let Some(destination) = found.and_then(|found| destinations.get_mut(found)) {
            *destination = destination.clone().with_weight_of(&original);
            continue;
        }
        match stand_in.filter(|_| index == 0) {
            Some(stand_in) => destinations.insert(stand_in.min(destinations.len()), original),
            None => missing.push((*at, original)),
        }
    }
    // A table from Git, or an old record, may bring back subsets of earlier versions.
    destinations.retain(|it| !roles.stable.selects_pods(it));
    // Foreign destinations that the record does not have: the owner added them since the split.
    let mut present: Vec<String> = {
        let foreign = destinations.iter().filter(|it| !is_original(it));
        foreign.map(Destination::place).collect()
    };
    for place in &split.foreign {
        remove_first(&mut present, place);
    }
    let idle = split.idle.iter().map(recorded);
    missing.extend(idle.filter(|(_, original)| !remove_first(&mut present, &original.place())));
    // In the order of their positions, so that each one counts those before it.
    missing.sort_by_key(|(at, _)| *at);
    for (at, original) in missing {
        destinations.insert(at.min(destinations.len()), original);
    }
    let form = split.list;
    let list = DestinationList { destinations, form }.with_default(default);
    match replaced {
        Some((stable, replacement)) => Recovered::StableReplaced {
            list,
            stable,
            replacement,
        },
        None => Recovered::List(list),
    }
}

/// Returns the owner's stable destination with the edits that its owner made in the destination that planning derived from it: the
/// one that is stable now or, if the list has none, the one that was stable then. `None` if it has neither.
fn edited_in_place<'a>(
    original: &Destination<'a>,
    split: &'a Split,
    live: &DestinationList<'a>,
    roles: &Roles<'_>,
) -> Option<Destination<'a>> {
    let find = |is: &dyn Fn(&Destination<'a>) -> bool| live.destinations.iter().find(|it| is(it));
    let there = |id: &'a DestinationId| {
        // The owner may have changed a subset, for example its cluster: its labels identify it.
        let is_moved =
            |it: &Destination<'a>| roles.stable.selects_pods(it) && Some(it.subset()) == id.subset;
        let found = find(&|it| it.is(id)).or_else(|| find(&is_moved))?;
        Some((id, found))
    };
    let mut now = split.added.iter().filter_map(there);
    // A table is also restored without the configuration, which says what is stable.
    let made = split.added.first();
    let then = made.filter(|_| split.stable == StableInList::Made);
    let stable = now.find(|(_, found)| roles.stable.is(found));
    let (id, there) = stable.or_else(|| then.and_then(there))?;
    Some(with_owner_edits(original, id, there, roles))
}

/// Applies to `original` the edits that its owner made in `there`, which planning had derived from it as `id`.
fn with_owner_edits<'a>(
    original: &Destination<'a>,
    id: &'a DestinationId,
    there: &Destination<'a>,
    roles: &Roles<'_>,
) -> Destination<'a> {
    let (Some(then), Some(now)) = (original.object(), there.object()) else {
        return original.clone();
    };
    let made = original.routing_to(id.object(), id.port.as_ref(), id.subset.as_ref());
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
    // What planning had changed, and the owner has not, is as in the original.
    let port = original.port().filter(|_| id.port == there.port());
    let made = id.subset.as_ref().filter(|made| there.has_subset(made));
    let subset = made.map(|_| original.subset());
    let there = roles.stable.without_pod_label(there);
    there
        .routing_to(object, port.as_ref(), subset.as_ref())
        .with_weight_of(original)
}

/// Removes the first text that equals `text`; returns whether there was one.
fn remove_first(texts: &mut Vec<String>, text: &str) -> bool {
    let found = texts.iter().position(|it| it == text);
    found.map(|found| texts.swap_remove(found)).is_some()
}

/// Recovers the owner's list of a route without a record, if planning wrote its weights.
///
/// That is so if the weights are those that the controller recorded as set (`applied`). Then the canary and the experiment are
/// removed, and the stable destination gets the sum of all:
///
/// ```text
/// applied: canary 25 of 100         live                        recovered
///                                   reviews          60         reviews  80
///                                   reviews-canary   20         legacy   20
///                                   legacy           20
/// ```
pub(crate) fn without_applied<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
    applied: &'a AppliedWeights,
) -> Option<DestinationList<'a>> {
    let additional = additional_roles(roles, applied);
    let of = |role: &Role<'_>| {
        let mut found = live.destinations.iter().filter(|it| role.is(it));
        (found.next(), found.next())
    };
    let (Some(stable), None) = of(&roles.stable) else {
        return None;
    };
    let is_ours = |it: &Destination<'_>| {
        roles.canary.is(it) || additional.iter().any(|(role, _)| role.is(it))
    };
    let share = share_of(live, |it| roles.stable.is(it) || is_ours(it));
    let shares = applied_shares(share, roles, applied)?;
    let has = |role: &Role<'_>, weight: u32| match of(role) {
        // Planning removes a destination whose weight is 0.
        (None, None) => weight == 0,
        (Some(destination), None) => weight > 0 && destination.weight() == Some(weight),
        _ => false,
    };
    let mut others = additional.iter().zip(&shares.additional);
    let is_applied = stable.weight() == Some(shares.stable)
        && has(&roles.canary, shares.canary)
        && others.all(|((role, _), weight)| has(role, *weight));
    if !is_applied {
        return None;
    }
    let kept = live.destinations.iter().filter(|it| !is_ours(it));
    let mut destinations: Vec<Destination<'a>> = kept.cloned().collect();
    let is_alone = destinations.len() == 1;
    for destination in destinations.iter_mut().filter(|it| roles.stable.is(it)) {
        let weight = Some(share).filter(|_| !is_alone);
        *destination = destination.clone().with_weight(weight);
    }
    Some(DestinationList {
        destinations,
        form: ListForm::Listed,
    })
}

/// How planning divided a `share` for the weights that were `applied`. `None` if stable got all of it: equal weights prove nothing
/// then, since stable alone with the whole share is what owners write.
pub(crate) fn applied_shares<'a>(
    share: u32,
    roles: &Roles<'a>,
    applied: &'a AppliedWeights,
) -> Option<Shares> {
    let max = u32::try_from(applied.total()).ok().filter(|max| *max > 0)?;
    let checked = |weight: i32| u32::try_from(weight).unwrap_or(0);
    // An experiment may run the canary's own Service: then one destination got both weights.
    let additional = applied.additional.iter();
    let own = additional.filter(|(it, _)| roles.version_of(it) == Version::Canary);
    let canary = own.fold(checked(applied.canary), |sum, (_, it)| {
        sum.saturating_add(checked(*it))
    });
    let additional = additional_roles(roles, applied).into_iter();
    let wanted: Vec<u32> = additional.map(|(_, it)| checked(it)).collect();
    let is_split = canary > 0 || wanted.iter().any(|weight| *weight > 0);
    is_split.then(|| weight::split(share, canary, max, &wanted))
}

/// Recovers the owner's list of a route without a record that sends its whole share to the canary: the stable destination is
/// a copy of the canary's, with the fields that the configuration sets. `None` if the list is not one that full weight
/// writes.
pub(crate) fn stable_from_canary<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
) -> Option<DestinationList<'a>> {
    let mut found = live.destinations.iter().filter(|it| roles.canary.is(it));
    let (Some(canary), None) = (found.next(), found.next()) else {
        return None;
    };
    let share = share_of(live, |it| it.is_same(canary));
    // A canary without traffic is no trace of a split: its owner wrote it so.
    if share == 0 || canary.weight() != Some(share) {
        return None;
    }
    let is_alone = live.destinations.len() == 1;
    let stable = roles.stable.copy_of(canary);
    let stable = stable.with_weight(canary.weight().filter(|_| !is_alone));
    let destinations = live.destinations.iter().map(|it| {
        if it.is_same(canary) {
            stable.clone()
        } else {
            it.clone()
        }
    });
    Some(DestinationList {
        destinations: destinations.collect(),
        form: ListForm::Listed,
    })
}

/// Moves the shares of the canary and of the `applied` experiment to the stable destination. This needs no record. `None` if
/// the list has neither.
///
/// If subsets by Pod hash distinguish the roles, the subset of stable is removed too, unless `keeps_subset` is set.
pub(crate) fn without_canary<'a>(
    live: &DestinationList<'a>,
    roles: &Roles<'a>,
    applied: Option<&'a AppliedWeights>,
    keeps_subset: bool,
) -> Option<DestinationList<'a>> {
    let additional = applied.map(|applied| additional_roles(roles, applied));
    let additional = additional.unwrap_or_default();
    let is_ours = |it: &Destination<'_>| {
        (roles.canary.is(it) && !roles.stable.is(it))
            || (roles.stable.selects_pods(it) && !(keeps_subset && roles.stable.is(it)))
            || additional.iter().any(|(role, _)| role.is(it))
    };
    let is_stable = |it: &Destination<'_>| roles.stable.is_listed_as(it) && !is_ours(it);
    let first = |is: &dyn Fn(&Destination<'_>) -> bool| live.destinations.iter().find(|it| is(it));
    let place = match (first(&is_stable), first(&is_ours)) {
        (Some(stable), None) if !keeps_subset || roles.stable.is(stable) => return None,
        (stable, ours) => stable.or(ours)?,
    };
    let share = share_of(live, |it| is_ours(it) || std::ptr::eq(it, place));
    let destinations = live.destinations.iter().filter_map(|it| {
        if !std::ptr::eq(it, place) {
            // The Rollout's other destinations are removed: the stable destination gets their share.
            return (!is_ours(it)).then(|| it.clone());
        }
        let stable = match keeps_subset {
            true if roles.stable.is(it) => it.clone(),
            true => roles.stable.copy_of(it),
            false if is_stable(it) => it.clone(),
            false => roles.stable.without_pod_label(&roles.stable.copy_of(it)),
        };
        let weight = it.weight().map(|_| share);
        Some(stable.with_weight(weight))
    });
    let mut destinations: Vec<Destination<'a>> = destinations.collect();
    if let ([only], false) = (&mut *destinations, keeps_subset) {
        *only = only.clone().with_weight(None);
    }
    Some(DestinationList {
        destinations,
        form: ListForm::Listed,
    })
}

/// Percent of a route's traffic that the destinations selected by `of` divide: what the others leave.
pub(crate) fn share_of<'a>(
    list: &DestinationList<'a>,
    of: impl Fn(&Destination<'a>) -> bool,
) -> u32 {
    100_u32.saturating_sub(taken_by_others(list, of))
}

/// Percent of a route's traffic that the destinations not selected by `of` get. A destination with an explicit weight of 0
/// gets nothing, since that is what its owner means.
pub(crate) fn taken_by_others<'a>(
    list: &DestinationList<'a>,
    of: impl Fn(&Destination<'a>) -> bool,
) -> u32 {
    let is_idle = |it: &Destination<'a>| it.is_explicit_zero() && !of(it);
    let active: Vec<&Destination<'a>> =
        list.destinations.iter().filter(|it| !is_idle(it)).collect();
    let weights: Vec<Option<u32>> = active.iter().map(|it| it.weight()).collect();
    let destinations = active.into_iter().zip(weight_shares(&weights));
    destinations
        .filter(|(destination, _)| !of(destination))
        .fold(0, |sum: u32, (_, weight)| sum.saturating_add(weight))
}

/// The roles of the Services of the experiment whose weights are recorded as set, with these weights. The stable and the canary
/// Service, which it may run too, are not among them.
pub(crate) fn additional_roles<'a>(
    roles: &Roles<'a>,
    applied: &'a AppliedWeights,
) -> Vec<(Role<'a>, i32)> {
    let services = applied.additional.iter();
    let is_additional = |service: &str| roles.version_of(service) == Version::Additional;
    services
        .filter(|(service, _)| !service.is_empty() && is_additional(service))
        .map(|(service, weight)| (roles.additional(service, None), *weight))
        .collect()
}
