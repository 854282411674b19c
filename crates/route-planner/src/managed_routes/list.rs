//! The list of routes after a change: positions and names of managed routes, and the edits that lead to the list.
//!
//! Everything is done in one pass over the routes with maps beside it, so that a header step of ten thousand routes takes
//! ten times as long as one of a thousand.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use crate::mirror_policy::Mirror;
use crate::ownership::{Owner, Ownership, label_value};
use crate::plan::Edit;

/// The routes of a table, without those managed routes that are replaced.
pub(super) struct List<'a> {
    http: &'a [Value],
    owner: &'a Owner,
    /// Names of the Rollout's managed routes, the first takes precedence.
    order: &'a [String],
    /// Position in `order`, by label value.
    ranks: HashMap<String, usize>,
    groups: Vec<Group>,
    /// The group of each of the owner's routes, by position.
    group_of: HashMap<usize, usize>,
    /// Names in use.
    taken: HashSet<String>,
    /// For each managed route, the next number to try in a name.
    numbers: HashMap<String, usize>,
}

/// A route to be in the table, made from a source.
pub(super) struct Copy {
    /// Name of the managed route.
    pub(super) managed: String,
    /// Position of the source.
    pub(super) source: usize,
    pub(super) route: Map<String, Value>,
    pub(super) mirror: Option<Mirror>,
}

/// A route that the table's owner wrote, and the managed routes in front of it.
#[derive(Default)]
struct Group {
    /// Positions of managed routes of other Rollouts.
    others: Vec<(usize, Owner)>,
    ours: Vec<Ours>,
    /// Names of the managed routes that are replaced, by what they are.
    replaced: HashMap<String, VecDeque<String>>,
    /// Position of the owner's route; `None` behind the last one.
    base: Option<usize>,
}

/// A managed route of the Rollout.
struct Ours {
    /// Position in the order of precedence.
    rank: usize,
    route: Value,
}

/// One entry of the list after the change.
enum Entry {
    /// A route that is not ours, by its position before the change.
    Fixed(usize),
    Ours(Value),
}

impl<'a> List<'a> {
    /// Reads `http` without those managed routes of `owner` that `is_replaced` names.
    pub(super) fn read(
        http: &'a [Value],
        owner: &'a Owner,
        order: &'a [String],
        is_replaced: impl Fn(&str) -> bool,
    ) -> Self {
        let ranks = order.iter().enumerate().rev();
        let mut list = Self {
            http,
            owner,
            order,
            ranks: ranks
                .map(|(rank, name)| (label_value(name), rank))
                .collect(),
            groups: Vec::new(),
            group_of: HashMap::new(),
            taken: HashSet::new(),
            numbers: HashMap::new(),
        };
        let mut group = Group::default();
        for (index, route) in http.iter().enumerate() {
            match Ownership::of(route) {
                Some(at) if at.owner == *owner && is_replaced(&at.managed) => {
                    let names = group.replaced.entry(at.managed).or_default();
                    names.push_back(name_of(route).to_owned());
                    continue;
                }
                Some(at) if at.owner == *owner => group.ours.push(Ours {
                    rank: list.rank(&at.managed),
                    route: route.clone(),
                }),
                Some(at) => group.others.push((index, at.owner)),
                None => {
                    group.base = Some(index);
                    list.group_of.insert(index, list.groups.len());
                    list.groups.push(std::mem::take(&mut group));
                }
            }
            list.taken.insert(name_of(route).to_owned());
        }
        list.groups.push(group);
        list
    }

    /// Inserts each copy in front of its source, or all of them in front of everything, under a name of its own. Returns the
    /// mirror routes.
    pub(super) fn insert(
        &mut self,
        copies: Vec<Copy>,
        is_top: bool,
    ) -> Vec<(Mirror, Map<String, Value>)> {
        let mut mirrored = Vec::new();
        let mut named = Vec::new();
        for copy in copies {
            let group = if is_top {
                Some(0)
            } else {
                self.group_of.get(&copy.source).copied()
            };
            let Some(group) = group else { continue };
            let managed = label_value(&copy.managed);
            // A route that was there keeps its name, by which metrics are distinguished. Of two in front of one source the
            // record closer to the source wins.
            let held = self.groups.get_mut(group);
            let held = held.and_then(|group| group.replaced.get_mut(&managed));
            let name = held.and_then(|names| match is_top {
                true => names.pop_front(),
                false => names.pop_back(),
            });
            let name = name.filter(|name| self.taken.insert(name.clone()));
            named.push((copy, group, managed, name));
        }
        for (copy, group, managed, name) in named {
            let name = name.unwrap_or_else(|| self.new_name(&copy.managed));
            let rank = self.rank(&managed);
            let mut route = copy.route;
            route.insert("name".to_owned(), json!(name));
            mirrored.extend(copy.mirror.map(|mirror| (mirror, route.clone())));
            if let Some(group) = self.groups.get_mut(group) {
                let route = Value::Object(route);
                group.ours.push(Ours { rank, route });
            }
        }
        mirrored
    }

    /// A name that no other route of the table has: `hdr`, `hdr-2`, `hdr-3`.
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

    /// Whether managed routes of the Rollout are in the list.
    pub(super) fn has_ours(&self) -> bool {
        self.groups.iter().any(|group| !group.ours.is_empty())
    }

    /// The edits that lead to the list; `None` if it would be empty.
    pub(super) fn edits(self) -> Option<Vec<Edit>> {
        let http = self.http;
        let target = self.entries();
        (!target.is_empty() || http.is_empty()).then(|| difference(http, target))
    }

    fn entries(self) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.http.len());
        for mut group in self.groups {
            // Each Rollout has its place among those that manage routes in front of the same one.
            let is_before = |(_, other): &&(usize, Owner)| other < self.owner;
            let split = group.others.iter().take_while(is_before).count();
            let (before, after) = group.others.split_at(split);
            let fixed = |(index, _): &(usize, Owner)| Entry::Fixed(*index);
            group.ours.sort_by_key(|ours| ours.rank);
            entries.extend(before.iter().map(fixed));
            entries.extend(group.ours.into_iter().map(|ours| Entry::Ours(ours.route)));
            entries.extend(after.iter().map(fixed));
            entries.extend(group.base.map(Entry::Fixed));
        }
        entries
    }
}

fn name_of(route: &Value) -> &str {
    let name = route.get("name").and_then(Value::as_str);
    name.unwrap_or_default()
}

/// The edits that turn `http` into `target`. Fixed entries are in both, in the same order; ours are recognised by name.
fn difference(http: &[Value], target: Vec<Entry>) -> Vec<Edit> {
    let mut is_fixed = vec![false; http.len()];
    for entry in &target {
        if let Entry::Fixed(at) = entry
            && let Some(fixed) = is_fixed.get_mut(*at)
        {
            *fixed = true;
        }
    }
    let mut is_kept = is_fixed.clone();
    let mut next = 0;
    let mut replaced = Vec::new();
    let mut inserted = Vec::new();
    // Positions by name of the routes between two fixed ones, from `next` on.
    let mut between: HashMap<&str, VecDeque<usize>> = HashMap::new();
    let mut read_to = 0;
    for (index, entry) in target.into_iter().enumerate() {
        let value = match entry {
            Entry::Fixed(at) => {
                next = at + 1;
                read_to = next;
                between.clear();
                continue;
            }
            Entry::Ours(value) => value,
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
            None => inserted.push(Edit::InsertRoute { index, name, value }),
            Some((at, expect)) => {
                next = at + 1;
                if let Some(kept) = is_kept.get_mut(at) {
                    *kept = true;
                }
                if *expect != value {
                    replaced.push(Edit::ReplaceRoute {
                        index: at,
                        name,
                        expect: expect.clone(),
                        value,
                    });
                }
            }
        }
    }
    let removed = http.iter().zip(is_kept).enumerate().rev();
    let removed = removed
        .filter(|(_, (_, is_kept))| !is_kept)
        .map(|(index, (expect, _))| Edit::RemoveRoute {
            index,
            name: name_of(expect).to_owned(),
            expect: expect.clone(),
        });
    replaced
        .into_iter()
        .chain(removed)
        .chain(inserted)
        .collect()
}
