//! Which route a record is about, after the owner renamed, moved, copied or edited routes.
//!
//! [`matched`] goes from strong evidence to weak evidence. Each step pairs the records and the routes that are still free and
//! have equal keys, so that the work grows with the number of routes:
//!
//! | a route must have | key |
//! |---|---|
//! | what planning inserted | name and matchers, then matchers, then name |
//! | nothing | name and matchers |
//! | a list that cannot be read | matchers, then name |
//! | less weight than the record's share, and no new destination | name, then matchers |
//! | what planning inserted | the destinations of others and the share, with the name, then without |
//! | less weight than the record's share | name, then matchers |
//! | what planning inserted | the destinations of others, then nothing |
//! | nothing | name, then matchers |
//!
//! ```text
//! recorded                          live                              matched by
//! one  at 0, matchers /a            two  at 0, matchers /b, canary    canary, matchers and name
//! two  at 1, matchers /b            uno  at 1, matchers /a, canary    canary and matchers
//! ```
//!
//! A route that lost what was inserted has no canary to match by. Its own weights show what is missing, so it goes before other
//! routes with a canary, such as a mirror route that lost our labels:
//!
//! ```text
//! recorded                            live                                matched by
//! -    at 1, matchers /b, share 100   kept at 1, matchers /x, canary 30   nothing: no record is about it
//!                                     -    at 2, matchers /b, stable 70   matchers and the 30 that are missing
//! ```
//!
//! A route without record may still be a copy of a split one: [`Copies`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash as StdHash;

use crate::destinations::{DestinationList, Reading, Slot};
use crate::record::{Hash, Original, Record, RouteRecord, Split};
use crate::route::{Protocol, Route};

/// A route as matching sees it.
pub(crate) struct Candidate<'r, 'a> {
    pub(crate) route: &'r Route<'a>,
    /// `None` for a route that does not forward, or cannot be read.
    pub(crate) list: Option<&'r DestinationList<'a>>,
    pub(crate) is_readable: bool,
    pub(crate) matchers: &'r Hash,
}

/// For each candidate, the index of the record that is about it.
///
/// A record whose route is not found appears nowhere.
pub(crate) fn matched(
    record: &Record,
    candidates: &[Candidate<'_, '_>],
    reading: Reading<'_>,
    is_stable: &dyn Fn(&Slot<'_>) -> bool,
) -> Vec<Option<usize>> {
    let mut pairs = Pairs {
        record,
        candidates,
        found: vec![None; candidates.len()],
        free: (0..record.routes.len()).collect(),
    };
    if record.routes.is_empty() {
        return pairs.found;
    }
    let name = |record: &RouteRecord| Some(record.0.clone()).filter(|name| !name.is_empty());
    let foreign = Foreign::of(record, reading);
    let own_name = |it: &Candidate<'_, '_>| it.route.is_named.then(|| it.route.name.to_owned());
    let matchers = |record: &RouteRecord| Some(record.2).filter(|hash| *hash != Hash::default());

    pairs.pair_in_order();
    pairs.pair(
        Sign::Inserted,
        |it| Some((name(it), matchers(it)?, foreign.recorded(it))),
        |it| Some((own_name(it), *it.matchers, foreign.live(it))),
    );
    pairs.pair(
        Sign::Inserted,
        |it| Some((matchers(it)?, foreign.recorded(it))),
        |it| Some((*it.matchers, foreign.live(it))),
    );
    pairs.pair(Sign::Inserted, matchers, |it| Some(*it.matchers));
    pairs.pair(Sign::Inserted, name, own_name);
    pairs.pair(
        Sign::None,
        |it| Some((name(it)?, matchers(it)?)),
        |it| Some((own_name(it)?, *it.matchers)),
    );
    // What is in an unreadable route is not known.
    let unread = |it: &Candidate<'_, '_>| (!it.is_readable).then_some(*it.matchers);
    pairs.pair(Sign::None, matchers, unread);
    let unread = |it: &Candidate<'_, '_>| own_name(it).filter(|_| !it.is_readable);
    pairs.pair(Sign::None, name, unread);
    // A route that lost what was inserted goes before routes that are alike by nothing but what was inserted in them.
    pairs.pair(Sign::Gap, name, own_name);
    pairs.pair(Sign::Gap, matchers, |it| Some(*it.matchers));
    // Without an inserted destination, only name and matchers identify the route.
    let has_added = |it: &RouteRecord| record.split_of(it).is_some_and(|it| !it.added.is_empty());
    pairs.pair(
        Sign::Inserted,
        |it| has_added(it).then(|| (name(it), foreign.recorded(it), foreign.recorded_share(it))),
        |it| Some((own_name(it), foreign.live(it), foreign.live_share(it))),
    );
    pairs.pair(
        Sign::Inserted,
        |it| has_added(it).then(|| (foreign.recorded(it), foreign.recorded_share(it))),
        |it| Some((foreign.live(it), foreign.live_share(it))),
    );
    // The owner may also have added destinations to a route that lost what was inserted. It may be a new route as well, so a
    // route that holds as much as the record says goes before it.
    pairs.pair(Sign::GapBesideNew, name, own_name);
    pairs.pair(Sign::GapBesideNew, matchers, |it| Some(*it.matchers));
    if pairs.free.is_empty() {
        return pairs.found;
    }
    // A copy of a route that is found is not taken for another one.
    let copies = Copies::of(record, candidates, &pairs.found);
    let is_copy = |it: &Candidate<'_, '_>| {
        let split = |list| copies.split_of(record, it.route.protocol, list, is_stable);
        it.list.and_then(split).is_some()
    };
    pairs.pair(
        Sign::Inserted,
        |it| has_added(it).then(|| foreign.recorded(it)),
        |it| (!is_copy(it)).then(|| foreign.live(it)),
    );
    pairs.pair(
        Sign::Inserted,
        |it| has_added(it).then_some(()),
        |it| (!is_copy(it)).then_some(()),
    );
    pairs.pair(Sign::None, name, own_name);
    pairs.pair(Sign::None, matchers, |it| Some(*it.matchers));
    pairs.found
}

/// The foreign destinations of routes, where the record has any to distinguish routes by.
struct Foreign<'p> {
    record: &'p Record,
    is_used: bool,
    /// Labels of the destinations that are not foreign.
    ours: HashSet<String>,
}

impl<'p> Foreign<'p> {
    fn of(record: &'p Record, reading: Reading<'_>) -> Self {
        let is_used = record.splits.iter().any(|split| !split.foreign.is_empty());
        let mut ours = HashSet::new();
        if is_used {
            for split in &record.splits {
                ours.extend(split.added.iter().map(|id| id.object().to_string()));
                let original = |it: &Original| Slot::new(&it.1, reading).label();
                ours.extend(split.originals.iter().map(original));
            }
        }
        Self {
            record,
            is_used,
            ours,
        }
    }

    fn recorded(&self, route: &RouteRecord) -> Vec<String> {
        let split = self.record.split_of(route).filter(|_| self.is_used);
        split.map(|split| split.foreign.clone()).unwrap_or_default()
    }

    /// Percent of the traffic that was split; 0 if the record has no foreign destinations.
    fn recorded_share(&self, route: &RouteRecord) -> u32 {
        let split = self.record.split_of(route).filter(|_| self.is_used);
        split.map_or(0, |split| split.share)
    }

    fn live_share(&self, candidate: &Candidate<'_, '_>) -> u32 {
        let list = candidate.list.filter(|_| self.is_used);
        let slots = list.into_iter().flat_map(|list| &list.slots);
        let ours = slots.filter(|slot| self.ours.contains(&slot.label()));
        ours.filter_map(Slot::weight).sum()
    }

    fn live(&self, candidate: &Candidate<'_, '_>) -> Vec<String> {
        let list = candidate.list.filter(|_| self.is_used);
        let slots = list.into_iter().flat_map(|list| &list.slots);
        let foreign = slots.filter(|slot| !self.ours.contains(&slot.label()));
        foreign.map(Slot::place).collect()
    }
}

/// Whether a route holds what only planning can have inserted by `split`.
///
/// Where its owner listed every destination, the owner's own destinations have to do.
pub(crate) fn holds(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut slots = list.slots.iter();
    if split.added.is_empty() {
        return split.originals.iter().any(|original| {
            let wanted = original
                .1
                .pointer("/ref/name")
                .and_then(|name| name.as_str());
            let is = |slot: &Slot<'_>| {
                slot.object()
                    .is_some_and(|object| Some(object.name) == wanted)
            };
            list.slots.iter().any(is)
        });
    }
    // Planning always writes a weight; an owner's own route to the canary and a header route mostly have none.
    slots.any(|slot| slot.weight().is_some() && split.inserted(slot))
}

/// Whether what `split` inserted was removed from a route: the owner's destinations are left with weights whose sum is less
/// than the share that they have at rest. Their owner may have led them to another cluster.
fn has_gap(list: &DestinationList<'_>, split: &Split, may_have_new: bool) -> bool {
    let is_original = |slot: &&Slot<'_>| {
        let mut originals = split.originals.iter();
        originals.any(|original| slot.has_name_of(&original.1))
    };
    let (own, others): (Vec<_>, Vec<_>) = list.slots.iter().partition(is_original);
    let are_known = may_have_new
        || others
            .iter()
            .all(|slot| split.foreign.contains(&slot.place()));
    let weight = own
        .iter()
        .try_fold(0_u32, |sum, slot| sum.checked_add(slot.weight()?));
    !own.is_empty()
        && !split.stable.is_absent()
        && are_known
        && weight.is_some_and(|weight| weight < split.share)
}

/// What a route must show of a split before the two are paired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// What only planning can have inserted.
    Inserted,
    /// The weights that are left after that was removed, and no destination that the record does not know.
    Gap,
    /// The weights that are left after that was removed.
    GapBesideNew,
    /// Nothing: the key says enough.
    None,
}

struct Pairs<'p, 'r, 'a> {
    record: &'p Record,
    candidates: &'p [Candidate<'r, 'a>],
    found: Vec<Option<usize>>,
    /// Indices of the records without route, in the order of the record.
    free: Vec<usize>,
}

impl Pairs<'_, '_, '_> {
    /// Pairs records and routes that are still in the order of the record, as most are in most calls.
    fn pair_in_order(&mut self) {
        let mut next = 0;
        let mut is_paired = vec![false; self.record.routes.len()];
        for (index, candidate) in self.candidates.iter().enumerate() {
            let route = candidate.route;
            let records = self.record.routes.iter().enumerate().skip(next).take(2);
            let mut same = records.filter(|(_, record)| {
                route.is_named && record.0 == route.name && record.2 == *candidate.matchers
            });
            if let Some((record, _)) = same.next()
                && route.protocol.is_http()
                && self.fits(record, index, Sign::Inserted)
                && let (Some(found), Some(paired)) =
                    (self.found.get_mut(index), is_paired.get_mut(record))
            {
                *found = Some(record);
                *paired = true;
                next = record + 1;
            }
        }
        self.free
            .retain(|record| is_paired.get(*record) != Some(&true));
    }

    /// Pairs the free records and routes whose keys are equal, as far as the routes show the `sign`.
    ///
    /// Several with one key are paired in their order; where routes came or went, those at the same position first.
    fn pair<K: Eq + StdHash>(
        &mut self,
        sign: Sign,
        of_record: impl Fn(&RouteRecord) -> Option<K>,
        of_route: impl Fn(&Candidate<'_, '_>) -> Option<K>,
    ) {
        if self.free.is_empty() {
            return;
        }
        let mut routes: HashMap<(Protocol, K), Vec<usize>> = HashMap::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            if self.found.get(index) == Some(&None)
                && let Some(key) = of_route(candidate)
            {
                let key = (candidate.route.protocol, key);
                routes.entry(key).or_default().push(index);
            }
        }
        let mut records: HashMap<(Protocol, K), Vec<usize>> = HashMap::new();
        for free in &self.free {
            let record = self.record.routes.get(*free);
            let Some((record, split)) = record.and_then(|it| Some((it, self.record.split_of(it)?)))
            else {
                continue;
            };
            if let Some(key) = of_record(record) {
                let key = (split.protocol, key);
                records.entry(key).or_default().push(*free);
            }
        }
        let mut is_paired = vec![false; self.record.routes.len()];
        for (key, mut records) in records {
            let Some(mut routes) = routes.remove(&key) else {
                continue;
            };
            routes.retain(|route| {
                // Splits of one key differ rarely, so the first record decides for all.
                let mut first = records.iter().take(1);
                first.any(|record| self.fits(*record, *route, sign))
            });
            let mut pairs: Vec<(usize, usize)> = Vec::new();
            if routes.len() != records.len() {
                let at = |record: usize| self.record.routes.get(record).map(|record| record.1);
                let place = |route: usize| self.candidates.get(route).map(|it| it.route.at);
                let by_place: HashMap<Option<usize>, usize> =
                    routes.iter().map(|route| (place(*route), *route)).collect();
                records.retain(|record| match by_place.get(&at(*record)) {
                    Some(route) => {
                        pairs.push((*record, *route));
                        false
                    }
                    None => true,
                });
                let taken: HashSet<usize> = pairs.iter().map(|(_, route)| *route).collect();
                routes.retain(|route| !taken.contains(route));
            }
            pairs.extend(records.into_iter().zip(routes));
            for (record, route) in pairs {
                if let (Some(found), Some(paired)) =
                    (self.found.get_mut(route), is_paired.get_mut(record))
                {
                    *found = Some(record);
                    *paired = true;
                }
            }
        }
        self.free
            .retain(|record| is_paired.get(*record) != Some(&true));
    }

    fn fits(&self, record: usize, route: usize, sign: Sign) -> bool {
        let split = self.record.routes.get(record);
        let split = split.and_then(|record| self.record.split_of(record));
        let list = self.candidates.get(route).map(|candidate| candidate.list);
        match (split, list) {
            (Some(split), Some(Some(list))) => match sign {
                Sign::Inserted => holds(list, split),
                Sign::Gap => has_gap(list, split, false),
                Sign::GapBesideNew => has_gap(list, split, true),
                Sign::None => true,
            },
            (Some(_), Some(None)) => sign == Sign::None,
            _ => false,
        }
    }
}

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
