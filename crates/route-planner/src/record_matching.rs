//! Finds the route that each record entry belongs to, after the owner renamed, moved, copied or edited routes.
//!
//! [`match_records`] proceeds from strong evidence to weak evidence. Each step pairs the entries and the routes that are
//! still free, have equal keys, and show the evidence that the step needs. A step puts the keys into a map, so the work
//! grows linearly with the number of routes.
//!
//! | the route must show | key |
//! |---|---|
//! | what the split left | name and matchers, in the recorded order |
//! | what the split left | name, matchers and foreign destinations |
//! | what the split left | matchers and foreign destinations |
//! | what the split left | matchers |
//! | a list that cannot be decoded | matchers |
//! | nothing | name and matchers |
//! | one of the owner's destinations that were changed | name |
//! | what planning inserted | name and foreign destinations |
//! | one of the owner's destinations that were changed | matchers |
//! | what planning inserted | nothing |
//! | nothing | name, then matchers |
//!
//! A split leaves what planning inserted or, if it inserted nothing because the owner lists all destinations, one of these.
//!
//! For example, the owner moved route `two` to the front and renamed `one` to `uno`:
//!
//! ```text
//! recorded                          live                              matched by
//! one  at 0, matchers /a            two  at 0, matchers /b, canary    canary and matchers
//! two  at 1, matchers /b            uno  at 1, matchers /a, canary    canary and matchers
//! ```
//!
//! A route from which the inserted destination was removed has no canary to match by, but the owner's destination. Such a route
//! is matched before routes of other names with a canary, such as a mirror route that lost its labels:
//!
//! ```text
//! recorded                            live                                matched by
//! -    at 1, matchers /b, share 100   kept at 1, matchers /x, canary 30   not matched: it has no entry
//!                                     -    at 2, matchers /b, stable 70   stable and matchers
//! ```
//!
//! A route without an entry may still be a copy of a split route: see [`Copies`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::destinations::{Destination, DestinationList, ReadContext};
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
    let own_name = |it: &Candidate<'_, '_>| it.route.is_named.then(|| it.route.name.to_owned());
    let matchers = |it: &RouteEntry| Some(it.matchers);
    let own_matchers = |it: &Candidate<'_, '_>| Some(*it.matchers);

    pairs.pair_in_order();
    if pairs.free.is_empty() {
        return pairs.found;
    }
    // Without foreign destinations in the record, those of the routes tell nothing, and need not be read.
    let are_foreign = record.splits.iter().any(|split| !split.foreign.is_empty());
    let ours = are_foreign.then(|| labels_of_ours(record, context));
    let foreign = |it: &Candidate<'_, '_>| -> Vec<String> {
        let (Some(list), Some(ours)) = (it.list, &ours) else {
            return Vec::new();
        };
        let destinations = list.destinations.iter();
        let foreign = destinations.filter(|it| !ours.contains(&it.recorded()));
        foreign.map(Destination::place).collect()
    };
    // Routes may have equal matchers.
    pairs.pair(
        Evidence::Split,
        |it| Some((name(it), it.matchers, record.split_of(it)?.foreign.clone())),
        |it| Some((own_name(it), *it.matchers, foreign(it))),
    );
    pairs.pair(
        Evidence::Split,
        |it| Some((it.matchers, record.split_of(it)?.foreign.clone())),
        |it| Some((*it.matchers, foreign(it))),
    );
    // Matchers before names: Gloo routes by matchers, so they say more about a route than its name does.
    pairs.pair(Evidence::Split, matchers, own_matchers);
    // A route that cannot be decoded shows no evidence.
    let unread = |it: &Candidate<'_, '_>| (!it.is_readable).then_some(*it.matchers);
    pairs.pair(Evidence::None, matchers, unread);
    pairs.pair(
        Evidence::None,
        |it| Some((name(it)?, it.matchers)),
        |it| Some((own_name(it)?, *it.matchers)),
    );
    // A route from which the inserted destination was removed is matched before routes that only have such a destination.
    pairs.pair(Evidence::Original, name, own_name);
    // The owner's own route to the canary shows what planning inserts, too. So it is matched only if its matchers say so.
    let is_owners = |it: &Candidate<'_, '_>| record.has_owner_route(it.route.name, it.matchers);
    // The owner may have given the matchers of a split route to a new route. Services that are exchanged are inserted in one route
    // and the owner's in another, so a route with the matchers of a free entry is not matched yet.
    let free = pairs.free.iter().filter_map(|it| record.routes.get(*it));
    let free: BTreeSet<Hash> = free.map(|it| it.matchers).collect();
    pairs.pair(
        Evidence::Inserted,
        |it| Some((name(it), record.split_of(it)?.foreign.clone())),
        |it| {
            let is_new = !free.contains(it.matchers) && !is_owners(it);
            is_new.then(|| (own_name(it), foreign(it)))
        },
    );
    pairs.pair(Evidence::Original, matchers, own_matchers);
    if pairs.free.is_empty() {
        return pairs.found;
    }
    // A copy of a matched route does not match the entry of another route.
    let copies = Copies::of(record, candidates, &pairs.found);
    let is_copy = |it: &Candidate<'_, '_>| {
        let split = |list| copies.split_of(record, it.route.protocol, list);
        it.list.and_then(split).is_some()
    };
    pairs.pair(
        Evidence::Inserted,
        |_| Some(()),
        |it| (!is_copy(it) && !is_owners(it)).then_some(()),
    );
    // The owner may have replaced all destinations. Recovery decides whether the route still belongs to the Rollout.
    pairs.pair(Evidence::None, name, own_name);
    pairs.pair(Evidence::None, matchers, own_matchers);
    pairs.found
}

/// The labels of the Rollout's destinations in all splits. Destinations with other labels are foreign.
fn labels_of_ours(record: &Record, context: ReadContext<'_>) -> HashSet<String> {
    let mut ours = HashSet::new();
    for split in &record.splits {
        ours.extend(split.added.iter().map(|id| id.object().recorded()));
        let original = |it: &Original| Destination::new(&it.destination, context).recorded();
        ours.extend(split.originals.iter().map(original));
    }
    ours
}

/// Whether a list has a destination that only planning can have inserted for `split`.
fn shows_insertion(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut destinations = list.destinations.iter();
    // Planning gives it a weight. An owner's route to the canary, or a header route, usually has none.
    destinations.any(|it| it.nonzero_weight().is_some() && split.has_inserted(it))
}

/// The evidence that a route must show before it is paired with an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// A destination that only planning can have inserted or, if it inserted none, stable with a weight; at full weight, another
    /// one of the owner's.
    Split,
    /// A destination that only planning can have inserted.
    Inserted,
    /// One of the owner's destinations that were changed.
    Original,
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
        for (index, candidate) in self.candidates.iter().enumerate() {
            let route = candidate.route;
            // Two: the route of one entry may be gone.
            let mut records = self.record.routes.iter().enumerate().skip(next).take(2);
            let same = records.find(|(_, record)| {
                route.is_named
                    && record.name == route.name
                    && record.matchers == *candidate.matchers
            });
            if let Some((index_of_record, record)) = same
                // TCP and TLS routes have no names.
                && route.protocol.is_http()
                && self.fits(record.split, index, Evidence::Split)
                && let Some(found) = self.found.get_mut(index)
            {
                *found = Some(index_of_record);
                next = index_of_record + 1;
            }
        }
        self.drop_paired();
    }

    /// Pairs the free entries and routes whose keys are equal, if the routes show the `evidence`.
    ///
    /// Several with one key are paired in their order. If there are more entries than routes with one key, or fewer, those
    /// with equal positions are paired first.
    fn pair<K: Ord>(
        &mut self,
        evidence: Evidence,
        of_record: impl Fn(&RouteEntry) -> Option<K>,
        of_route: impl Fn(&Candidate<'_, '_>) -> Option<K>,
    ) {
        if self.free.is_empty() {
            return;
        }
        let mut routes: BTreeMap<(Protocol, K), Vec<usize>> = BTreeMap::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            if self.found.get(index) == Some(&None)
                && let Some(key) = of_route(candidate)
            {
                let key = (candidate.route.protocol, key);
                routes.entry(key).or_default().push(index);
            }
        }
        let mut records: BTreeMap<(Protocol, K), Vec<(usize, &RouteEntry)>> = BTreeMap::new();
        for free in &self.free {
            if let Some(record) = self.record.routes.get(*free)
                && let Some(split) = self.record.split_of(record)
                && let Some(key) = of_record(record)
            {
                let key = (split.protocol, key);
                records.entry(key).or_default().push((*free, record));
            }
        }
        for (key, records) in records {
            let Some(routes) = routes.get(&key) else {
                continue;
            };
            let splits: BTreeSet<usize> = records.iter().map(|(_, record)| record.split).collect();
            let fits_any = |route: &&usize| {
                let mut splits = splits.iter();
                splits.any(|split| self.fits(*split, **route, evidence))
            };
            let routes = routes.iter().filter(fits_any).copied().collect();
            self.pair_group(evidence, routes, records);
        }
        self.drop_paired();
    }

    fn drop_paired(&mut self) {
        let paired: HashSet<usize> = self.found.iter().flatten().copied().collect();
        self.free.retain(|record| !paired.contains(record));
    }

    /// Pairs the entries of a group with its routes.
    fn pair_group(
        &mut self,
        evidence: Evidence,
        routes: Vec<usize>,
        records: Vec<(usize, &RouteEntry)>,
    ) {
        let position = |route: usize| self.candidates.get(route).map(|it| it.route.owner_index);
        let by_position: HashMap<Option<usize>, usize> = match routes.len() == records.len() {
            // With as many routes as entries their order says more than positions, which a new route in front of them shifts.
            true => HashMap::new(),
            false => routes.iter().map(|it| (position(*it), *it)).collect(),
        };
        // Entries of one split need the same evidence, so the rest of them is compared with each route once.
        let mut rest: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut taken: HashSet<usize> = HashSet::new();
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        let mut in_order = routes.iter().filter(|_| by_position.is_empty());
        for (index, record) in records {
            let there = in_order.next();
            let there = there.or_else(|| by_position.get(&Some(record.position)));
            match there.filter(|route| self.fits(record.split, **route, evidence)) {
                Some(route) => {
                    taken.insert(*route);
                    pairs.push((index, *route));
                }
                None => rest.entry(record.split).or_default().push(index),
            }
        }
        for (split, records) in rest {
            let is_free =
                |route: &&usize| !taken.contains(*route) && self.fits(split, **route, evidence);
            let free: Vec<usize> = routes.iter().filter(is_free).copied().collect();
            for (record, route) in records.into_iter().zip(free) {
                taken.insert(route);
                pairs.push((record, route));
            }
        }
        for (record, route) in pairs {
            if let Some(found) = self.found.get_mut(route) {
                *found = Some(record);
            }
        }
    }

    /// Whether a route shows the `evidence` that an entry with this split needs.
    fn fits(&self, split: usize, route: usize, evidence: Evidence) -> bool {
        if evidence == Evidence::None {
            return true;
        }
        let list = self.candidates.get(route).and_then(|it| it.list);
        let (Some(split), Some(list)) = (self.record.splits.get(split), list) else {
            return false;
        };
        let mut destinations = list.destinations.iter();
        match evidence {
            Evidence::Original => destinations.any(|it| split.has_name_of_original(it)),
            Evidence::Split if split.added.is_empty() => destinations.any(|it| {
                let mut stable = split.originals.iter().take(1);
                let is_listed = split.stable.is_absent() && split.has_original(it);
                it.weight().is_some() && (is_listed || stable.any(|of| split.is(it, of)))
            }),
            _ => shows_insertion(list, split),
        }
    }
}

/// Recognises routes that their owner copied from a split route: they have the inserted destinations with the same weights.
pub(crate) struct Copies {
    /// The weights of the inserted destinations in the routes of each split, by its index.
    weights: BTreeMap<usize, BTreeSet<Weights>>,
}

impl Copies {
    /// `found` is the result of [`match_records`] for these candidates.
    pub(crate) fn of(
        record: &Record,
        candidates: &[Candidate<'_, '_>],
        found: &[Option<usize>],
    ) -> Self {
        let lists = || candidates.iter().map(|it| it.list).zip(found);
        let mut unmatched = lists().filter_map(|(list, found)| list.filter(|_| found.is_none()));
        let shows_any = |list| {
            let mut splits = record.splits.iter();
            splits.any(|split| shows_insertion(list, split))
        };
        let mut weights: BTreeMap<usize, BTreeSet<Weights>> = BTreeMap::new();
        // In most calls no route can be a copy, and the weights of the others need not be read.
        if !unmatched.any(shows_any) {
            return Self { weights };
        }
        for (list, found) in lists() {
            let entry = found.and_then(|found| record.routes.get(found));
            if let (Some(list), Some(entry)) = (list, entry)
                && let Some(split) = record.split_of(entry)
            {
                let seen = weights.entry(entry.split).or_default();
                seen.insert(weights_of(list, split));
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
    ) -> Option<&'a Split> {
        self.weights.iter().find_map(|(index, seen)| {
            let split = record.splits.get(*index);
            let split = split.filter(|split| split.protocol == protocol)?;
            let has_weights =
                || seen.contains(&weights_of(list, split)) || has_full_weight(list, split);
            (shows_insertion(list, split) && has_weights()).then_some(split)
        })
    }
}

/// Whether the canary has the whole share, as the record says. The owner may have replaced the destinations of the route that was
/// copied.
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
