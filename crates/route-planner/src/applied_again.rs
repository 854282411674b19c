//! Recognises a list that the owner of a split route has applied in place of the split one.
//!
//! `kubectl apply` and most GitOps tools write the list of the manifest and leave the annotation, because it is not in the
//! manifest. If the manifest has changed since the split, the record says nothing about the new list:
//!
//! ```text
//! record                    planning wrote            live             owner's list
//! reviews 100 at 0          reviews          75       reviews          reviews
//! reviews-canary inserted   reviews-canary   25       legacy           legacy
//! ```
//!
//! If the owner only took the inserted destination out of the list, the other weights are still those that planning wrote, and
//! the record says what they were.

use serde_json::Value;

use crate::destinations::{Destination, DestinationId, DestinationList};
use crate::intent::AppliedWeights;
use crate::record::{Original, Split};
use crate::recovery::applied_shares;
use crate::roles::Roles;

/// Whether the `live` list of a route with this `split` is the owner's as it is. `default` is the table's default destination.
pub(crate) fn is_applied_again<'a>(
    live: &DestinationList<'a>,
    split: &Split,
    roles: &Roles<'a>,
    default: Option<&Destination<'a>>,
    applied: Option<&'a AppliedWeights>,
) -> bool {
    if is_written(live, split) {
        return false;
    }
    let default = default.filter(|_| !live.form.is_listed());
    let mut all = live.destinations.iter().chain(default);
    let is_rollouts = |it: &Destination<'a>| {
        roles.is_anchor(it) || split.has_inserted(it) || split.has_original(it)
    };
    // If only what planning inserted is gone, the weights that are left do not sum to 100.
    let is_valid = live.is_valid_without_idle();
    // Beside destinations without a weight any sum is valid, but stable still has the weight that planning gave it.
    let stable = split.originals.first().and_then(|it| find(live, split, it));
    let shares = applied.and_then(|applied| applied_shares(split.share, roles, applied));
    let has_planned = |it: &Destination<'a>| {
        let shares = shares.as_ref();
        shares.is_some_and(|shares| it.weight() == Some(shares.stable))
    };
    is_valid && !stable.is_some_and(has_planned) && all.any(is_rollouts)
}

/// Whether the list can be one that planning wrote: it gives each destination of the Rollout a weight as long as a route is split.
fn is_written(live: &DestinationList<'_>, split: &Split) -> bool {
    let has_share = |id: &DestinationId| {
        let mut destinations = live.destinations.iter();
        destinations.any(|it| it.nonzero_weight().is_some() && is_named(it, id))
    };
    if !split.list.is_listed() {
        // Planning wrote the whole list, stable first unless it gets nothing. The owner's list may have stable too.
        let others = split.added.iter();
        let mut others = others.skip(usize::from(split.added.len() > 1));
        return others.any(has_share);
    }
    let Some((stable, others)) = split.originals.split_first() else {
        return true;
    };
    let gets_share =
        |it: &Original| find(live, split, it).is_some_and(|it| it.nonzero_weight().is_some());
    if split.added.iter().any(has_share) || others.iter().any(gets_share) {
        return true;
    }
    // If the Services were exchanged, nothing but the owner's first destination gets traffic.
    if others.is_empty() {
        return split.added.is_empty();
    }
    // At weight 0, planning takes away the share that the owner's list gives to the canary, and gives it to stable.
    let weight = |it: &Original| it.destination.get("weight").and_then(Value::as_u64);
    let foreign = live.destinations.iter();
    let foreign = foreign.filter(|it| !split.has_name_of_original(it));
    let foreign = foreign.filter_map(Destination::weight).map(u64::from);
    let sum: u64 = split
        .originals
        .iter()
        .filter_map(weight)
        .chain(foreign)
        .sum();
    // A share of 1 cannot be divided at any weight.
    let had_share =
        others.iter().filter_map(weight).any(|it| it > 0) || sum < 100 || split.share == 1;
    had_share && gets_share(stable)
}

/// Whether a destination is the one of `id`, whose cluster or port the owner may have changed.
fn is_named(destination: &Destination<'_>, id: &DestinationId) -> bool {
    let mut subset = id.subset.iter();
    destination.object().is_some_and(|object| {
        (object.name, object.namespace) == (id.name.as_str(), id.namespace.as_str())
    }) && subset.all(|subset| destination.has_subset(subset))
}

/// The destination of `list` that is the recorded one, whose cluster the owner may have changed.
fn find<'l, 'a>(
    list: &'l DestinationList<'a>,
    split: &Split,
    original: &Original,
) -> Option<&'l Destination<'a>> {
    let find = |is: &dyn Fn(&Destination<'a>) -> bool| list.destinations.iter().find(|it| is(it));
    let is_moved =
        |it: &Destination<'a>| it.has_name_of(&original.destination) && !split.has_original(it);
    find(&|it| split.is(it, original)).or_else(|| find(&is_moved))
}
