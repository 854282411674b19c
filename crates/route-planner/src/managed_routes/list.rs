//! The new list of HTTP routes: positions and names of managed routes, and the edits that produce the list.
//!
//! The routes are grouped by the owner's route that they precede. In each group the Rollouts have a fixed order, and the
//! managed routes of one Rollout have the order of `managedRoutes`:
//!
//! ```text
//! spec.http           group   entry
//! hdr      (ratings)  0       managed route of another Rollout, sorted by Rollout
//! mir      (reviews)  0       managed routes of this Rollout, sorted by `managedRoutes`
//! hdr-2    (reviews)  0
//! root     (owner)    0       base
//! health   (owner)    1       base
//! ```
//!
//! Each step is one pass over the routes, so the time grows linearly with their number.

use std::collections::hash_map::Entry as HashEntry;
use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use super::set_destinations;
use crate::destinations::DestinationList;
use crate::matcher::includes;
use crate::mirror_policy::{Mirror, is_mirror};
use crate::ownership::{Owner, Ownership, label_value};
use crate::plan::{Edit, Warning};

/// The routes of a table, without the managed routes that are replaced.
pub(super) struct RouteList<'a> {
    http: &'a [Value],
    owner: &'a Owner,
    /// Names of the Rollout's managed routes; the first takes precedence.
    order: &'a [String],
    /// Position in `order`, by label value.
    ranks: HashMap<String, usize>,
    /// Whether header routes precede mirror routes, whatever the `order`.
    pub(super) has_headers_first: bool,
    groups: Vec<RouteGroup>,
    /// The group of each of the owner's routes, by position.
    group_of: HashMap<usize, usize>,
    /// Route names in use.
    taken: HashSet<String>,
    /// For each managed route, the next number to try as a suffix of a route name.
    numbers: HashMap<String, usize>,
}

/// A managed route to insert, made from a source.
pub(super) struct RouteCopy {
    /// Name of the managed route.
    pub(super) managed: String,
    /// Position of the source.
    pub(super) source: usize,
    /// Whether it is inserted before all routes instead of before its source.
    pub(super) is_top: bool,
    pub(super) route: Map<String, Value>,
    pub(super) mirror: Option<Mirror>,
}

/// A route that the table's owner wrote, and the managed routes in front of it.
#[derive(Default)]
struct RouteGroup {
    /// Managed routes of other Rollouts.
    others: Vec<OtherRoute>,
    ours: Vec<OwnRoute>,
    /// Route names of the managed routes that are replaced, by the label value of the managed route.
    replaced: HashMap<String, VecDeque<String>>,
    /// Position of the owner's route; `None` behind the last one.
    base: Option<usize>,
}

/// A managed route of this Rollout.
struct OwnRoute {
    /// Position in the order of `managedRoutes`.
    rank: usize,
    route: Value,
}

/// A managed route of another Rollout.
struct OtherRoute {
    /// Its position before the change.
    index: usize,
    owner: Owner,
    is_mirror: bool,
    /// The whole new route; `None` leaves it unchanged.
    changed: Option<Value>,
}

/// One entry of the new list.
enum Entry {
    /// A route of the owner or of another Rollout, by its position before the change, and the whole new route if it changes.
    Fixed(usize, Option<Value>),
    /// A managed route of this Rollout.
    Own(Value),
}

impl<'a> RouteList<'a> {
    /// Reads `http`, without the managed routes of `owner` that `is_replaced` selects.
    pub(super) fn read(
        http: &'a [Value],
        owner: &'a Owner,
        order: &'a [String],
        is_replaced: impl Fn(&str, Option<usize>) -> bool,
    ) -> Self {
        let ranks = order.iter().enumerate().rev();
        let mut list = Self {
            http,
            owner,
            order,
            ranks: ranks
                .map(|(rank, name)| (label_value(name), rank))
                .collect(),
            has_headers_first: false,
            groups: Vec::new(),
            group_of: HashMap::new(),
            taken: HashSet::new(),
            numbers: HashMap::new(),
        };
        let mut group = RouteGroup::default();
        let mut own = Vec::new();
        for (index, route) in http.iter().enumerate() {
            let name = name_of(route);
            match Ownership::of(route) {
                // The base of the group decides whether it is replaced.
                Some(at) if at.owner == *owner => {
                    own.push((at.managed, route));
                    continue;
                }
                Some(at) => group.others.push(OtherRoute {
                    index,
                    owner: at.owner,
                    is_mirror: is_mirror(route),
                    changed: None,
                }),
                None => {
                    group.base = Some(index);
                    list.take(&mut group, &mut own, &is_replaced);
                    list.group_of.insert(index, list.groups.len());
                    list.groups.push(std::mem::take(&mut group));
                }
            }
            list.taken.insert(name.to_owned());
        }
        list.take(&mut group, &mut own, &is_replaced);
        list.groups.push(group);
        list
    }

    /// Adds the managed routes of the Rollout in front of a base to its group.
    fn take(
        &mut self,
        group: &mut RouteGroup,
        own: &mut Vec<(String, &Value)>,
        is_replaced: &impl Fn(&str, Option<usize>) -> bool,
    ) {
        for (managed, route) in own.drain(..) {
            let name = name_of(route).to_owned();
            if is_replaced(&managed, group.base) {
                group.replaced.entry(managed).or_default().push_back(name);
            } else {
                let rank = self.rank(&managed);
                let route = route.clone();
                group.ours.push(OwnRoute { rank, route });
                self.taken.insert(name);
            }
        }
    }

    /// Gives the mirror routes of all Rollouts the new lists of their sources, by the position of the source. Returns the
    /// positions of mirror routes whose destinations are neither new nor those of their source.
    pub(super) fn follow(
        &mut self,
        lists: &HashMap<usize, &DestinationList<'_>>,
        fold: &dyn Fn(usize) -> Option<Value>,
    ) -> Vec<usize> {
        let http = self.http;
        let bases: Vec<usize> = self.groups.iter().filter_map(|group| group.base).collect();
        let mut strays = Vec::new();
        for group in &mut self.groups {
            for mirror in group.others.iter_mut().filter(|it| it.is_mirror) {
                let Some(route) = http.get(mirror.index) else {
                    continue;
                };
                let source = source_of(route, group.base, &bases, http);
                let list = source.and_then(|source| lists.get(&source));
                let source = source.and_then(|source| http.get(source));
                match list {
                    Some(list) => mirror.changed = following(route, list),
                    None if source.map(destinations) == Some(destinations(route)) => {}
                    None => {
                        mirror.changed = fold(mirror.index);
                        if mirror.changed.is_none() {
                            strays.push(mirror.index);
                        }
                    }
                }
            }
        }
        strays
    }

    /// Inserts each copy before its source, or before all routes, and gives each a unique name. With `only_existing`, a copy is
    /// dropped unless it replaces one. Returns the mirror routes.
    pub(super) fn insert(
        &mut self,
        copies: Vec<RouteCopy>,
        only_existing: bool,
    ) -> Vec<(Mirror, Map<String, Value>)> {
        let mut mirrored = Vec::new();
        let mut named = Vec::new();
        // A managed route keeps its name, since metrics are distinguished by it. If there were more of this managed route in
        // the group, the names of those closest to the source are kept.
        for copy in copies.into_iter().rev() {
            let group = match copy.is_top {
                true => Some(0),
                false => self.group_of.get(&copy.source).copied(),
            };
            let Some(group) = group else { continue };
            let managed = label_value(&copy.managed);
            let held = self.groups.get_mut(group);
            let held = held.and_then(|group| group.replaced.get_mut(&managed));
            let name = held.and_then(VecDeque::pop_back);
            if only_existing && name.is_none() {
                continue;
            }
            let name = name.filter(|name| self.taken.insert(name.clone()));
            named.push((copy, group, managed, name));
        }
        named.reverse();
        for (copy, group, managed, name) in named {
            let name = name.unwrap_or_else(|| self.new_name(&copy.managed));
            let rank = self.rank(&managed);
            let mut route = copy.route;
            route.insert("name".to_owned(), json!(name));
            mirrored.extend(copy.mirror.map(|mirror| (mirror, route.clone())));
            if let Some(group) = self.groups.get_mut(group) {
                let route = Value::Object(route);
                group.ours.push(OwnRoute { rank, route });
            }
        }
        mirrored
    }

    /// Returns a name that no other route of the table has: `hdr`, `hdr-2`, `hdr-3` and so on.
    fn new_name(&mut self, managed: &str) -> String {
        let next = self.numbers.entry(managed.to_owned()).or_insert(1);
        loop {
            let name = match *next {
                1 => managed.to_owned(),
                number => format!("{managed}-{number}"),
            };
            *next += 1;
            let is_reserved = name != managed && self.order.contains(&name);
            if !is_reserved && self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    fn rank(&self, managed: &str) -> usize {
        self.ranks.get(managed).copied().unwrap_or(self.order.len())
    }

    /// Whether the list has managed routes of this Rollout.
    pub(super) fn has_own_routes(&self) -> bool {
        self.groups.iter().any(|group| !group.ours.is_empty())
    }

    /// The edits that produce the list, and its managed routes that get no requests; `None` if the list would become empty.
    pub(super) fn edits(self) -> Option<(Vec<Edit>, Vec<Warning>)> {
        let (http, owner) = (self.http, self.owner);
        let has_others = self.groups.iter().any(|group| !group.others.is_empty());
        let target = self.entries();
        let warnings = match has_others {
            true => unreached(http, owner, &target),
            false => Vec::new(),
        };
        (!target.is_empty() || http.is_empty()).then(|| (difference(http, target), warnings))
    }

    fn entries(self) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.http.len());
        for mut group in self.groups {
            let is_last = |route: &Value| self.has_headers_first && is_mirror(route);
            group
                .ours
                .sort_by_key(|ours| (is_last(&ours.route), ours.rank));
            let places = group.places(self.owner);
            let mut ours = group.ours.into_iter().zip(places).peekable();
            for (place, other) in group.others.into_iter().enumerate() {
                while let Some((ours, _)) = ours.next_if(|(_, at)| *at <= place) {
                    entries.push(Entry::Own(ours.route));
                }
                entries.push(Entry::Fixed(other.index, other.changed));
            }
            entries.extend(ours.map(|(ours, _)| Entry::Own(ours.route)));
            entries.extend(group.base.map(|base| Entry::Fixed(base, None)));
        }
        entries
    }
}

impl RouteGroup {
    /// The place of each of `ours` among the routes of other Rollouts.
    ///
    /// A mirror route must not take the requests that a header route of another Rollout names, so header routes precede the
    /// mirror routes of others, unless a Rollout wants its own mirror route before its header route. Among routes of the same
    /// kind, the Rollouts are sorted.
    fn places(&self, owner: &Owner) -> Vec<usize> {
        let after_last = |is_before: &dyn Fn(&OtherRoute) -> bool| {
            let last = self.others.iter().rposition(is_before);
            last.map_or(0, |last| last + 1)
        };
        let header = after_last(&|it| !it.is_mirror && it.owner < *owner);
        let headers = after_last(&|it| !it.is_mirror);
        let mirrors = self.others.iter().skip(headers);
        let mirror = headers + mirrors.take_while(|it| it.owner < *owner).count();
        let mut place = usize::MAX;
        let places = self.ours.iter().rev().map(|ours| {
            let own = if is_mirror(&ours.route) {
                mirror
            } else {
                header
            };
            // The order of `managedRoutes` stays.
            place = place.min(own);
            place
        });
        let mut places: Vec<usize> = places.collect();
        places.reverse();
        places
    }
}

/// The managed routes with the matchers of another Rollout's in front of them, if one of the two Rollouts is `owner`.
fn unreached(http: &[Value], owner: &Owner, target: &[Entry]) -> Vec<Warning> {
    let mut first: HashMap<String, (Owner, &Value)> = HashMap::new();
    let mut warnings = Vec::new();
    for entry in target {
        let route = match entry {
            Entry::Own(route) | Entry::Fixed(_, Some(route)) => Some(route),
            Entry::Fixed(index, None) => http.get(*index),
        };
        let Some(route) = route else { continue };
        let Some(at) = Ownership::of(route) else {
            // What is behind an owner's route is a copy of another one.
            first.clear();
            continue;
        };
        let matchers = route.get("matchers").map(Value::to_string);
        match first.entry(matchers.unwrap_or_default()) {
            HashEntry::Vacant(entry) => {
                entry.insert((at.owner, route));
            }
            HashEntry::Occupied(entry) => {
                let (before, by) = entry.get();
                if *before != at.owner && [before, &at.owner].contains(&owner) {
                    warnings.push(Warning::Unreached {
                        route: name_of(route).to_owned(),
                        by: name_of(by).to_owned(),
                        rollout: before.key(),
                    });
                }
            }
        }
    }
    warnings
}

/// The position of the route that would serve the requests of a mirror route: the one before which the mirror route stands or,
/// if another client has moved one of them, the first one whose matchers include those of the mirror route.
fn source_of(
    mirror: &Value,
    base: Option<usize>,
    bases: &[usize],
    http: &[Value],
) -> Option<usize> {
    let mut candidates = base.iter().chain(bases).copied();
    candidates.find(|at| http.get(*at).is_some_and(|route| includes(route, mirror)))
}

/// The JSON of a route's destinations.
fn destinations(route: &Value) -> Option<&Value> {
    route.get("forwardTo")?.get("destinations")
}

/// The mirror route with the new list of its source; `None` if it has that list.
pub(super) fn following(route: &Value, list: &DestinationList<'_>) -> Option<Value> {
    let mut new = route.clone();
    set_destinations(new.get_mut("forwardTo")?.as_object_mut()?, list);
    (new != *route).then_some(new)
}

pub(super) fn name_of(route: &Value) -> &str {
    let name = route.get("name").and_then(Value::as_str);
    name.unwrap_or_default()
}

/// The edits that turn `http` into `target`. Fixed entries are in both, in the same order; own routes are paired by name.
///
/// The edits come in an order in which each index counts after the edits before: replacements, removals from the end,
/// insertions from the start.
fn difference(http: &[Value], target: Vec<Entry>) -> Vec<Edit> {
    let change = |index, expect: &Value, value| Edit::Route {
        index,
        name: name_of(expect).to_owned(),
        expect: Some(expect.clone()),
        value,
    };
    let mut is_fixed = vec![false; http.len()];
    for entry in &target {
        if let Entry::Fixed(at, _) = entry
            && let Some(fixed) = is_fixed.get_mut(*at)
        {
            *fixed = true;
        }
    }
    let mut is_kept = is_fixed.clone();
    let mut next = 0;
    let mut replaced = Vec::new();
    let mut inserted = Vec::new();
    // The routes between two fixed ones: positions by name.
    let mut between: HashMap<&str, VecDeque<usize>> = HashMap::new();
    let mut read_to = 0;
    for (index, entry) in target.into_iter().enumerate() {
        let value = match entry {
            Entry::Fixed(at, changed) => {
                next = at + 1;
                read_to = next;
                between.clear();
                if let (Some(value), Some(expect)) = (changed, http.get(at)) {
                    replaced.push(change(at, expect, Some(value)));
                }
                continue;
            }
            Entry::Own(value) => value,
        };
        while is_fixed.get(read_to) == Some(&false) {
            if let Some(route) = http.get(read_to) {
                between
                    .entry(name_of(route))
                    .or_default()
                    .push_back(read_to);
            }
            read_to += 1;
        }
        let name = name_of(&value).to_owned();
        let places = between.get_mut(name.as_str());
        let found = places.and_then(|places| {
            while places.front().is_some_and(|at| *at < next) {
                places.pop_front();
            }
            places.pop_front()
        });
        match found.and_then(|at| Some((at, http.get(at)?))) {
            None => inserted.push(Edit::Route {
                index,
                name,
                expect: None,
                value: Some(value),
            }),
            Some((at, expect)) => {
                next = at + 1;
                if let Some(kept) = is_kept.get_mut(at) {
                    *kept = true;
                }
                if *expect != value {
                    replaced.push(change(at, expect, Some(value)));
                }
            }
        }
    }
    let removed = http.iter().zip(is_kept).enumerate().rev();
    let removed = removed
        .filter(|(_, (_, is_kept))| !is_kept)
        .map(|(index, (expect, _))| change(index, expect, None));
    replaced
        .into_iter()
        .chain(removed)
        .chain(inserted)
        .collect()
}
