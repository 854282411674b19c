//! The list of routes that is to be: where managed routes stand, what they are called, and the edits that lead there.

use std::collections::BTreeSet;

use gloo_types::ObjectKey;
use serde_json::{Map, Value, json};

use super::Copy;
use crate::edit::Edit;
use crate::mirror_policy::Mirror;
use crate::ownership::{Owner, Ownership, label_value};

/// The routes of a table, without those managed routes that are made anew.
pub(super) struct List<'a> {
    http: &'a [Value],
    owner: Owner,
    /// Names of the Rollout's managed routes, the first takes precedence.
    order: &'a [String],
    groups: Vec<Group>,
    /// Names that are in use.
    taken: BTreeSet<String>,
}

/// A route that the table's owner wrote, and the managed routes in front of it.
#[derive(Default)]
struct Group {
    /// Positions of managed routes of other Rollouts.
    others: Vec<(usize, Owner)>,
    ours: Vec<Ours>,
    /// Managed routes that are made anew: what they are, and their name.
    replaced: Vec<(String, String)>,
    /// Position of the owner's route; `None` behind the last one.
    base: Option<usize>,
}

/// A managed route of the Rollout that is to be there.
struct Ours {
    /// Position in the order of precedence.
    rank: usize,
    route: Value,
}

/// One entry of the list that is to be.
enum Entry {
    /// A route that is not ours, by its position now.
    Fixed(usize),
    Ours(Value),
}

impl<'a> List<'a> {
    /// Reads `http` but for those managed routes of `rollout` that `is_replaced` is about.
    pub(super) fn read(
        http: &'a [Value],
        rollout: &ObjectKey,
        order: &'a [String],
        is_replaced: impl Fn(&str) -> bool,
    ) -> Self {
        let mut list = Self {
            http,
            owner: Owner::new(rollout),
            order,
            groups: Vec::new(),
            taken: BTreeSet::new(),
        };
        let mut group = Group::default();
        for (index, route) in http.iter().enumerate() {
            match Ownership::of(route) {
                Some(at) if at.owner == list.owner && is_replaced(&at.managed) => {
                    group.replaced.push((at.managed, name_of(route).to_owned()));
                    continue;
                }
                Some(at) if at.owner == list.owner => group.ours.push(Ours {
                    rank: list.rank(&at.managed),
                    route: route.clone(),
                }),
                Some(at) => group.others.push((index, at.owner)),
                None => {
                    group.base = Some(index);
                    list.groups.push(std::mem::take(&mut group));
                }
            }
            list.taken.insert(name_of(route).to_owned());
        }
        list.groups.push(group);
        list
    }

    /// Puts each copy in front of its source, or all of them in front of everything, under a name of its own. Gives back the
    /// mirror routes.
    pub(super) fn put_in(
        &mut self,
        copies: Vec<Copy>,
        is_top: bool,
    ) -> Vec<(Mirror, Map<String, Value>)> {
        let mut mirrored = Vec::new();
        let mut unnamed = Vec::new();
        for copy in copies {
            let mut groups = self.groups.iter_mut();
            let Some(group) = groups.find(|group| is_top || group.base == Some(copy.source)) else {
                continue;
            };
            // A route that was there keeps its name, which is what metrics are told apart by. Of two in front of one
            // source the farther one has lost its own.
            let managed = label_value(&copy.managed);
            let is_copy = |(other, _): &(String, String)| *other == managed;
            let held = match is_top {
                true => group.replaced.iter().position(is_copy),
                false => group.replaced.iter().rposition(is_copy),
            };
            let name = held.map(|at| group.replaced.remove(at).1);
            let name = name.filter(|name| self.taken.insert(name.clone()));
            unnamed.push((copy, name));
        }
        for (copy, name) in unnamed {
            let name = name.unwrap_or_else(|| self.new_name(&copy.managed));
            let rank = self.rank(&label_value(&copy.managed));
            let mut route = copy.route;
            route.insert("name".to_owned(), json!(name));
            mirrored.extend(copy.mirror.map(|mirror| (mirror, route.clone())));
            let mut groups = self.groups.iter_mut();
            if let Some(group) = groups.find(|group| is_top || group.base == Some(copy.source)) {
                group.ours.push(Ours {
                    rank,
                    route: Value::Object(route),
                });
            }
        }
        mirrored
    }

    /// A name that no other route of the table has: `hdr`, `hdr-2`, `hdr-3`.
    fn new_name(&mut self, managed: &str) -> String {
        let numbered = (2_usize..).map(|number| format!("{managed}-{number}"));
        let numbered = numbered.filter(|name| !self.order.contains(name));
        let mut names = std::iter::once(managed.to_owned()).chain(numbered);
        let name = names.find(|name| !self.taken.contains(name));
        let name = name.unwrap_or_default();
        self.taken.insert(name.clone());
        name
    }

    fn rank(&self, managed: &str) -> usize {
        let mut order = self.order.iter();
        let position = order.position(|name| label_value(name) == managed);
        position.unwrap_or(self.order.len())
    }

    /// The edits that lead to the list; `None` when nothing would be left in it.
    pub(super) fn edits(self) -> Option<Vec<Edit>> {
        let http = self.http;
        let target = self.entries();
        (!target.is_empty() || http.is_empty()).then(|| difference(http, target))
    }

    fn entries(self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for mut group in self.groups {
            // Each Rollout has its place among those that manage routes in front of the same one.
            let (before, after): (Vec<_>, Vec<_>) = {
                let split = group
                    .others
                    .iter()
                    .take_while(|(_, other)| *other < self.owner);
                let split = split.count();
                let others = group.others.iter().map(|(index, _)| *index).enumerate();
                others.partition(|(at, _)| *at < split)
            };
            let fixed = |(_, index)| Entry::Fixed(index);
            group.ours.sort_by_key(|ours| ours.rank);
            entries.extend(before.into_iter().map(fixed));
            entries.extend(group.ours.into_iter().map(|ours| Entry::Ours(ours.route)));
            entries.extend(after.into_iter().map(fixed));
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
    let fixed: BTreeSet<usize> = target
        .iter()
        .filter_map(|entry| match entry {
            Entry::Fixed(index) => Some(*index),
            Entry::Ours(_) => None,
        })
        .collect();
    let mut next = 0;
    let mut kept = BTreeSet::new();
    let mut replaced = Vec::new();
    let mut inserted = Vec::new();
    for (index, entry) in target.into_iter().enumerate() {
        let value = match entry {
            Entry::Fixed(at) => {
                next = at + 1;
                kept.insert(at);
                continue;
            }
            Entry::Ours(value) => value,
        };
        let name = name_of(&value).to_owned();
        let mut free = http.iter().enumerate().skip(next);
        let mut free = free.by_ref().take_while(|(at, _)| !fixed.contains(at));
        match free.find(|(_, route)| name_of(route) == name) {
            None => inserted.push(Edit::InsertRoute { index, name, value }),
            Some((at, expect)) => {
                next = at + 1;
                kept.insert(at);
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
    let removed = http.iter().enumerate().rev();
    let removed = removed
        .filter(|(index, _)| !kept.contains(index))
        .map(|(index, expect)| Edit::RemoveRoute {
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
