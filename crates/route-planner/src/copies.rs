//! Which routes without a record are copies of split routes.

use std::collections::BTreeSet;

use crate::destinations::{DestinationList, Slot};
use crate::matching::{Candidate, holds};
use crate::record::{Record, Split};
use crate::route::Protocol;

/// Routes that their owner copied from a split one: they hold what was inserted there, with the same weights.
pub(crate) struct Copies {
    /// For each split, the weights of its routes.
    weights: Vec<(usize, BTreeSet<Vec<String>>)>,
}

impl Copies {
    /// `found` holds for each candidate the index of the record that is about it.
    pub(crate) fn of(
        record: &Record,
        candidates: &[Candidate<'_, '_>],
        found: &[Option<usize>],
    ) -> Self {
        let mut weights: Vec<(usize, BTreeSet<Vec<String>>)> = record
            .splits
            .iter()
            .enumerate()
            .filter(|(_, split)| !split.added.is_empty())
            .map(|(index, _)| (index, BTreeSet::new()))
            .collect();
        let lists = candidates.iter().zip(found);
        let mut unmatched = lists.clone().filter(|(_, found)| found.is_none());
        let may_be = unmatched.any(|(candidate, _)| {
            let list = candidate.list;
            list.is_some_and(|list| record.splits.iter().any(|split| holds(list, split)))
        });
        if !may_be {
            weights.clear();
        }
        for (index, seen) in &mut weights {
            let Some(split) = record.splits.get(*index) else {
                continue;
            };
            for (candidate, found) in lists.clone() {
                let record = found.and_then(|found| record.routes.get(found));
                if record.is_some_and(|record| record.3 == *index)
                    && let Some(list) = candidate.list
                {
                    seen.insert(weights_of(list, split));
                }
            }
        }
        Self { weights }
    }

    /// The split of the route that a route was copied from, if it was copied from one.
    pub(crate) fn split_of<'a>(
        &self,
        record: &'a Record,
        protocol: Protocol,
        list: &DestinationList<'_>,
        is_stable: &dyn Fn(&Slot<'_>) -> bool,
    ) -> Option<&'a Split> {
        self.weights.iter().find_map(|(index, seen)| {
            let split = record.splits.get(*index);
            let split = split.filter(|split| split.protocol == protocol)?;
            // An owner's own route to stable may look the same.
            let mut slots = list.slots.iter();
            let has_inserted = slots.any(|slot| split.inserted(slot) && !is_stable(slot));
            let stable = list.slots.iter().filter(|slot| is_stable(slot));
            let is_split = has_inserted || stable.count() > 1;
            let has_weights =
                || seen.contains(&weights_of(list, split)) || has_full_weight(list, split);
            (is_split && holds(list, split) && has_weights()).then_some(split)
        })
    }
}

/// Whether the canary has the whole share, as the record says. The route that was copied may be gone.
fn has_full_weight(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut inserted = list.slots.iter().filter(|slot| split.inserted(slot));
    let (first, second) = (inserted.next(), inserted.next());
    let has_share = |slot: &Slot<'_>| slot.weight() == Some(split.share);
    split.stable.is_absent() && second.is_none() && first.is_some_and(has_share)
}

/// The weights of what was inserted. The rest may be edited in a copy, or since in the route that was copied.
fn weights_of(list: &DestinationList<'_>, split: &Split) -> Vec<String> {
    let inserted = list.slots.iter().filter(|slot| split.inserted(slot));
    inserted
        .map(|slot| format!("{} {:?}", slot.label(), slot.weight()))
        .collect()
}
