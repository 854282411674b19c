//! Finds the route that each record entry belongs to, after the owner renamed, moved, copied or edited routes.
//!
//! [`match_records`] proceeds from strong evidence to weak evidence. Each step pairs the entries and the routes that are
//! still free, have equal keys, and show the evidence that the step needs. A step puts the keys into a map, so the work
//! grows linearly with the number of routes.
//!
//! | the route must show | key |
//! |---|---|
//! | what planning inserted | name and matchers, then matchers, then name |
//! | nothing | name and matchers |
//! | a list that cannot be decoded | matchers, then name |
//! | less weight than the recorded share, and no new destination | name, then matchers |
//! | what planning inserted | the foreign destinations and the share, with the name, then without |
//! | less weight than the recorded share | name, then matchers |
//! | what planning inserted | the foreign destinations, then nothing |
//! | nothing | name, then matchers |
//!
//! For example, the owner moved route `two` to the front and renamed `one` to `uno`:
//!
//! ```text
//! recorded                          live                              matched by
//! one  at 0, matchers /a            two  at 0, matchers /b, canary    canary, matchers and name
//! two  at 1, matchers /b            uno  at 1, matchers /a, canary    canary and matchers
//! ```
//!
//! A route from which the inserted destination was removed has no canary to match by. The sum of its weights shows that
//! something is missing. Such a route is matched before other routes with a canary, such as a mirror route that lost its
//! labels:
//!
//! ```text
//! recorded                            live                                matched by
//! -    at 1, matchers /b, share 100   kept at 1, matchers /x, canary 30   not matched: it has no entry
//!                                     -    at 2, matchers /b, stable 70   matchers and the 30 that are missing
//! ```
//!
//! A route without an entry may still be a copy of a split route: see [`Copies`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash as StdHash;

use crate::destinations::{Destination, DestinationId, DestinationList, ReadContext};
use crate::record::{Hash, Original, Record, RouteEntry, Split};
use crate::route::{Protocol, Route};

/// The properties of a route that matching uses.
pub(crate) struct Candidate<'r, 'a> {
    pub(crate) route: &'r Route<'a>,
    /// `None` for a route that does not forward, or cannot be read.
    pub(crate) list: Option<&'r DestinationList<'a>>,
    pub(crate) is_readable: bool,
    pub(crate) matchers: &'r Hash,
}

/// Returns for each candidate the index of its entry in `record.routes`; `None` for a candidate without entry.
///
/// An index is returned at most once, and not at all if the route of the entry is not found.
pub(crate) fn match_records(
    record: &Record,
    candidates: &[Candidate<'_, '_>],
    context: ReadContext<'_>,
    is_stable: &dyn Fn(&Destination<'_>) -> bool,
) -> Vec<Option<usize>> {
    let mut pairs = Pairing {
        record,
        candidates,
        found: vec![None; candidates.len()],
        free: (0..record.routes.len()).collect(),
    };
    if record.routes.is_empty() {
        return pairs.found;
    }
    let name = |it: &RouteEntry| Some(it.name.clone()).filter(|name| !name.is_empty());
    let foreign = Foreign::of(record, context);
    let own_name = |it: &Candidate<'_, '_>| it.route.is_named.then(|| it.route.name.to_owned());
    let matchers = |it: &RouteEntry| Some(it.matchers);

    pairs.pair_in_order();
    pairs.pair(
        Evidence::Inserted,
        |it| Some((name(it), it.matchers, foreign.recorded(it))),
        |it| Some((own_name(it), *it.matchers, foreign.live(it))),
    );
    pairs.pair(
        Evidence::Inserted,
        |it| Some((it.matchers, foreign.recorded(it))),
        |it| Some((*it.matchers, foreign.live(it))),
    );
    pairs.pair(Evidence::Inserted, matchers, |it| Some(*it.matchers));
    pairs.pair(Evidence::Inserted, name, own_name);
    pairs.pair(
        Evidence::None,
        |it| Some((name(it)?, it.matchers)),
        |it| Some((own_name(it)?, *it.matchers)),
    );
    // A route that cannot be decoded shows no evidence.
    let unread = |it: &Candidate<'_, '_>| (!it.is_readable).then_some(*it.matchers);
    pairs.pair(Evidence::None, matchers, unread);
    let unread = |it: &Candidate<'_, '_>| own_name(it).filter(|_| !it.is_readable);
    pairs.pair(Evidence::None, name, unread);
    // A route from which the inserted destination was removed is matched before routes that only have such a destination.
    pairs.pair(Evidence::Gap, name, own_name);
    pairs.pair(Evidence::Gap, matchers, |it| Some(*it.matchers));
    // Without an inserted destination, only name and matchers identify the route.
    let has_added = |it: &RouteEntry| record.split_of(it).is_some_and(|it| !it.added.is_empty());
    pairs.pair(
        Evidence::Inserted,
        |it| has_added(it).then(|| (name(it), foreign.recorded(it), foreign.recorded_share(it))),
        |it| Some((own_name(it), foreign.live(it), foreign.live_share(it))),
    );
    pairs.pair(
        Evidence::Inserted,
        |it| has_added(it).then(|| (foreign.recorded(it), foreign.recorded_share(it))),
        |it| Some((foreign.live(it), foreign.live_share(it))),
    );
    // The owner may also have added destinations to a route from which the inserted destination was removed. But this may be
    // a new route, so a route with the recorded share was matched before.
    pairs.pair(Evidence::GapBesideNew, name, own_name);
    pairs.pair(Evidence::GapBesideNew, matchers, |it| Some(*it.matchers));
    if pairs.free.is_empty() {
        return pairs.found;
    }
    // A copy of a matched route does not match the entry of another route.
    let copies = Copies::of(record, candidates, &pairs.found);
    let is_copy = |it: &Candidate<'_, '_>| {
        let split = |list| copies.split_of(record, it.route.protocol, list, is_stable);
        it.list.and_then(split).is_some()
    };
    pairs.pair(
        Evidence::Inserted,
        |it| has_added(it).then(|| foreign.recorded(it)),
        |it| (!is_copy(it)).then(|| foreign.live(it)),
    );
    pairs.pair(
        Evidence::Inserted,
        |it| has_added(it).then_some(()),
        |it| (!is_copy(it)).then_some(()),
    );
    pairs.pair(Evidence::None, name, own_name);
    pairs.pair(Evidence::None, matchers, |it| Some(*it.matchers));
    pairs.found
}

/// The foreign destinations of routes, as a part of keys. Everything is empty or 0 if the record has no foreign
/// destinations.
struct Foreign<'p> {
    record: &'p Record,
    is_used: bool,
    /// Labels of the Rollout's destinations, which are not foreign.
    ours: HashSet<String>,
}

impl<'p> Foreign<'p> {
    fn of(record: &'p Record, context: ReadContext<'_>) -> Self {
        let is_used = record.splits.iter().any(|split| !split.foreign.is_empty());
        let mut ours = HashSet::new();
        if is_used {
            for split in &record.splits {
                ours.extend(split.added.iter().map(DestinationId::recorded));
                let original =
                    |it: &Original| Destination::new(&it.destination, context).recorded();
                ours.extend(split.originals.iter().map(original));
            }
        }
        Self {
            record,
            is_used,
            ours,
        }
    }

    fn recorded(&self, route: &RouteEntry) -> Vec<String> {
        let split = self.record.split_of(route).filter(|_| self.is_used);
        split.map(|split| split.foreign.clone()).unwrap_or_default()
    }

    /// The recorded share, in percent of the route's traffic.
    fn recorded_share(&self, route: &RouteEntry) -> u32 {
        let split = self.record.split_of(route).filter(|_| self.is_used);
        split.map_or(0, |split| split.share)
    }

    fn live_share(&self, candidate: &Candidate<'_, '_>) -> u32 {
        let list = candidate.list.filter(|_| self.is_used);
        let destinations = list.into_iter().flat_map(|list| &list.destinations);
        let ours = destinations.filter(|it| self.ours.contains(&it.recorded()));
        ours.filter_map(Destination::weight).sum()
    }

    fn live(&self, candidate: &Candidate<'_, '_>) -> Vec<String> {
        let list = candidate.list.filter(|_| self.is_used);
        let destinations = list.into_iter().flat_map(|list| &list.destinations);
        let foreign = destinations.filter(|it| !self.ours.contains(&it.recorded()));
        foreign.map(Destination::place).collect()
    }
}

/// Whether a list has a destination that only planning can have inserted for `split`.
///
/// If planning inserted none, because the owner listed all destinations, one of the owner's destinations is enough.
fn shows_insertion(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut destinations = list.destinations.iter();
    if split.added.is_empty() {
        return split.originals.iter().any(|original| {
            let wanted = original
                .destination
                .pointer("/ref/name")
                .and_then(|name| name.as_str());
            let is = |it: &Destination<'_>| {
                it.object()
                    .is_some_and(|object| Some(object.name) == wanted)
            };
            list.destinations.iter().any(is)
        });
    }
    // Planning always writes a weight. An owner's route to the canary, or a header route, usually has none.
    destinations.any(|it| it.weight().is_some() && split.has_inserted(it))
}

/// Whether the destination that `split` inserted was removed from a route: the owner's destinations are left, and the sum of
/// their weights is less than the recorded share. The owner may have led them to another cluster.
///
/// Unless `may_have_new`, all other destinations must be in the record.
fn has_gap(list: &DestinationList<'_>, split: &Split, may_have_new: bool) -> bool {
    let is_original = |it: &&Destination<'_>| {
        let mut originals = split.originals.iter();
        originals.any(|original| it.has_name_of(&original.destination))
    };
    let (own, others): (Vec<_>, Vec<_>) = list.destinations.iter().partition(is_original);
    let are_known = may_have_new || others.iter().all(|it| split.foreign.contains(&it.place()));
    let weight = own.iter().try_fold(0_u32, |sum, destination| {
        sum.checked_add(destination.weight()?)
    });
    !own.is_empty()
        && !split.stable.is_absent()
        && are_known
        && weight.is_some_and(|weight| weight < split.share)
}

/// The evidence that a route must show before it is paired with an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// A destination that only planning can have inserted.
    Inserted,
    /// Weights that sum to less than the recorded share, and every destination is in the record.
    Gap,
    /// Weights that sum to less than the recorded share.
    GapBesideNew,
    /// None: equal keys are enough.
    None,
}

/// The pairs found so far, of record entries and routes.
struct Pairing<'p, 'r, 'a> {
    record: &'p Record,
    candidates: &'p [Candidate<'r, 'a>],
    found: Vec<Option<usize>>,
    /// Indices of the entries that have no route yet, in the order of the record.
    free: Vec<usize>,
}

impl Pairing<'_, '_, '_> {
    /// Pairs entries and routes with equal names and matchers that have the same order in both. This is the fast path: in
    /// most calls it pairs all.
    fn pair_in_order(&mut self) {
        let mut next = 0;
        let mut is_paired = vec![false; self.record.routes.len()];
        for (index, candidate) in self.candidates.iter().enumerate() {
            let route = candidate.route;
            let records = self.record.routes.iter().enumerate().skip(next).take(2);
            let mut same = records.filter(|(_, record)| {
                route.is_named
                    && record.name == route.name
                    && record.matchers == *candidate.matchers
            });
            if let Some((record, _)) = same.next()
                && route.protocol.is_http()
                && self.fits(record, index, Evidence::Inserted)
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

    /// Pairs the free entries and routes whose keys are equal, if the routes show the `evidence`.
    ///
    /// Several with one key are paired in their order. If there are more entries than routes with one key, or fewer, those
    /// with equal positions are paired first.
    fn pair<K: Eq + StdHash>(
        &mut self,
        evidence: Evidence,
        of_record: impl Fn(&RouteEntry) -> Option<K>,
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
        for (key, records) in records {
            let Some(routes) = routes.remove(&key) else {
                continue;
            };
            for (routes, records) in self.groups(records, &routes, evidence) {
                self.pair_group(routes, records);
            }
        }
        let mut is_free = vec![true; self.record.routes.len()];
        for record in self.found.iter().flatten() {
            if let Some(is_free) = is_free.get_mut(*record) {
                *is_free = false;
            }
        }
        self.free
            .retain(|record| is_free.get(*record) == Some(&true));
    }

    /// Groups entries with one key by the routes that show the evidence for them. Those with the fewest routes come first, since
    /// the others have a choice. Entries of one split, as most are, need the same evidence.
    fn groups(
        &self,
        records: Vec<usize>,
        routes: &[usize],
        evidence: Evidence,
    ) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut of_splits: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for record in records {
            let split = self.record.routes.get(record).map(|it| it.split);
            of_splits.entry(split).or_default().push(record);
        }
        let mut groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for records in of_splits.into_values() {
            let first = records.first();
            let fits =
                |route: &&usize| first.is_some_and(|first| self.fits(*first, **route, evidence));
            let routes = routes.iter().filter(fits).copied().collect();
            groups.entry(routes).or_default().extend(records);
        }
        let mut groups: Vec<(Vec<usize>, Vec<usize>)> = groups.into_iter().collect();
        groups.sort_by_key(|(routes, _)| routes.len());
        groups
    }

    /// Pairs the entries of a group with its routes.
    fn pair_group(&mut self, mut routes: Vec<usize>, mut records: Vec<usize>) {
        routes.retain(|route| self.found.get(*route) == Some(&None));
        records.sort_unstable();
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        if routes.len() != records.len() {
            let recorded =
                |record: usize| self.record.routes.get(record).map(|record| record.position);
            let position = |route: usize| self.candidates.get(route).map(|it| it.route.owner_index);
            let by_position: HashMap<Option<usize>, usize> = routes
                .iter()
                .map(|route| (position(*route), *route))
                .collect();
            records.retain(|record| match by_position.get(&recorded(*record)) {
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
            if let Some(found) = self.found.get_mut(route) {
                *found = Some(record);
            }
        }
    }

    fn fits(&self, record: usize, route: usize, evidence: Evidence) -> bool {
        let split = self.record.routes.get(record);
        let split = split.and_then(|record| self.record.split_of(record));
        let list = self.candidates.get(route).map(|candidate| candidate.list);
        match (split, list) {
            (Some(split), Some(Some(list))) => match evidence {
                Evidence::Inserted => shows_insertion(list, split),
                Evidence::Gap => has_gap(list, split, false),
                Evidence::GapBesideNew => has_gap(list, split, true),
                Evidence::None => true,
            },
            (Some(_), Some(None)) => evidence == Evidence::None,
            _ => false,
        }
    }
}

/// Recognises routes that their owner copied from a split route: they have the inserted destinations with the same weights.
pub(crate) struct Copies {
    /// For each split, by its index: the weights of the inserted destinations in its routes.
    weights: Vec<(usize, BTreeSet<Weights>)>,
}

impl Copies {
    /// `found` is the result of [`match_records`] for these candidates.
    pub(crate) fn of(
        record: &Record,
        candidates: &[Candidate<'_, '_>],
        found: &[Option<usize>],
    ) -> Self {
        let mut weights: Vec<(usize, BTreeSet<Weights>)> = record
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
            list.is_some_and(|list| {
                record
                    .splits
                    .iter()
                    .any(|split| shows_insertion(list, split))
            })
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
                if record.is_some_and(|record| record.split == *index)
                    && let Some(list) = candidate.list
                {
                    seen.insert(weights_of(list, split));
                }
            }
        }
        Self { weights }
    }

    /// The split of the route from which the route with `list` was copied; `None` if it is not a copy.
    pub(crate) fn split_of<'a>(
        &self,
        record: &'a Record,
        protocol: Protocol,
        list: &DestinationList<'_>,
        is_stable: &dyn Fn(&Destination<'_>) -> bool,
    ) -> Option<&'a Split> {
        self.weights.iter().find_map(|(index, seen)| {
            let split = record.splits.get(*index);
            let split = split.filter(|split| split.protocol == protocol)?;
            let has_weights =
                || seen.contains(&weights_of(list, split)) || has_full_weight(list, split);
            let is_split = may_be_split(list, split, is_stable) && shows_insertion(list, split);
            (is_split && has_weights()).then_some(split)
        })
    }
}

/// Whether a list has a destination that was inserted for `split`, whatever the weights.
pub(crate) fn may_be_split(
    list: &DestinationList<'_>,
    split: &Split,
    is_stable: &dyn Fn(&Destination<'_>) -> bool,
) -> bool {
    let stable = list.destinations.iter().filter(|it| is_stable(it));
    // A route to stable that the owner wrote may look the same.
    let is_owners = stable.count() <= 1;
    let mut inserted = list.destinations.iter().filter(|it| split.has_inserted(it));
    inserted.any(|it| !(is_owners && is_stable(it)))
}

/// Whether the canary has the whole share, and the record says the same. The route that was copied may be gone.
fn has_full_weight(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut inserted = list.destinations.iter().filter(|it| split.has_inserted(it));
    let (first, second) = (inserted.next(), inserted.next());
    let has_share = |it: &Destination<'_>| it.weight() == Some(split.share);
    split.stable.is_absent() && second.is_none() && first.is_some_and(has_share)
}

/// Destinations by their labels, and their weights.
type Weights = Vec<(String, Option<u32>)>;

/// The inserted destinations and their weights. The owner may have edited the others in the copy, or later in its source.
fn weights_of(list: &DestinationList<'_>, split: &Split) -> Weights {
    let inserted = list.destinations.iter().filter(|it| split.has_inserted(it));
    inserted.map(|it| (it.recorded(), it.weight())).collect()
}
