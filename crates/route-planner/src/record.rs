//! What planning remembers: one annotation of the table with what each Rollout changed and what was there before.
//!
//! ```json
//! {"version":2,"rollouts":{"shop/reviews":{
//!   "splits":[{
//!     "share":80,
//!     "originals":[[0,{"ref":{"name":"reviews"},"weight":80}]],
//!     "added":[{"namespace":"shop","name":"reviews-canary"}]
//!   }],
//!   "routes":[["list",0,"5f0c3a91d2b7e644",0],["item",1,"77ab20c4e9d15f38",0]]
//! }}}
//! ```
//!
//! A split is what was changed in a route: most routes of a Rollout share one, so it is stored once. A route is its name,
//! its position among the owner's routes, a hash of its matchers, and the index of its split. That keeps an ordinary route
//! below 80 bytes; all annotations of an object share 256 KiB.
//!
//! Version 1 stored the whole split with each route. It is still read.
//!
//! An annotation that cannot be read is never rewritten: the originals in it may be readable to a person.

use std::collections::HashMap;

use gloo_types::{ObjectKey, RouteTableDoc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::destinations::{DestinationId, Distinction, ListForm, Slot};
use crate::error::Refusal;
use crate::ownership::{ANNOTATION, Fnv};
use crate::plan::{Edit, OtherAnnotations};
use crate::route::{Protocol, Route};

const FORMAT: u32 = 2;

/// The annotation: the records of all Rollouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Records {
    version: u32,
    rollouts: Map<String, Value>,
}

impl Default for Records {
    fn default() -> Self {
        Self {
            version: FORMAT,
            rollouts: Map::new(),
        }
    }
}

/// What one Rollout changed in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Record {
    pub(crate) splits: Vec<Split>,
    pub(crate) routes: Vec<RouteRecord>,
    /// Hashes of routes that their owner had pointed to the canary alone before the first split. They are not ours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) owners: Vec<Hash>,
}

/// A route that is split: its name (empty when it has none of its own), position among the owner's routes, hash of its
/// matchers and the index of its split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RouteRecord(
    pub(crate) String,
    pub(crate) usize,
    pub(crate) Hash,
    pub(crate) usize,
);

/// What was changed in a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Split {
    #[serde(default, rename = "in", skip_serializing_if = "Protocol::is_http")]
    pub(crate) protocol: Protocol,
    /// Percent of the route's traffic that was ours to split.
    pub(crate) share: u32,
    /// The owner's destinations that were changed or removed, the stable one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) originals: Vec<Original>,
    /// Foreign destinations with an explicit weight of 0, which were removed for the time of the split.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) idle: Vec<Original>,
    /// The other destinations in the owner's list, to notice when one replaces the stable one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) foreign: Vec<String>,
    /// The destinations that were inserted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) added: Vec<DestinationId>,
    /// Which parts distinguish destinations, beside the object they lead to.
    #[serde(default, skip_serializing_if = "Distinction::is_none")]
    pub(crate) by: Distinction,
    /// What the owner wrote in place of a list.
    #[serde(default, skip_serializing_if = "ListForm::is_listed")]
    pub(crate) list: ListForm,
    /// What of the stable destination is in the list. When that disappears, its owner removed it.
    #[serde(default, skip_serializing_if = "StableIs::is_absent")]
    pub(crate) stable: StableIs,
}

/// What a split leaves of the stable destination in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StableIs {
    /// Nothing: the canary gets its share.
    #[default]
    Absent,
    /// The owner's own.
    Listed,
    /// One that was made from it, the first of `added`: the subset of its Pods, or the other Service of a ping-pong pair.
    Made,
}

impl StableIs {
    pub(crate) fn is_absent(&self) -> bool {
        *self == Self::Absent
    }
}

/// A destination as the owner wrote it, and its position in the owner's list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Original(pub(crate) usize, pub(crate) Value);

/// A hash, stored in hexadecimal digits; 0 where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Hash(u64);

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        format!("{:016x}", hash.0)
    }
}

impl TryFrom<String> for Hash {
    type Error = std::num::ParseIntError;

    fn try_from(digits: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&digits, 16).map(Self)
    }
}

impl Records {
    /// Reads the annotation of a table.
    pub(crate) fn read(table: &RouteTableDoc) -> Result<Self, Refusal> {
        let Some(text) = table
            .annotations()
            .and_then(|annotations| annotations.get(ANNOTATION))
        else {
            return Ok(Self::default());
        };
        let mut records: Self = serde_json::from_str(text).map_err(unreadable)?;
        if records.version != version_1::FORMAT && records.version != FORMAT {
            return Err(unreadable(format!(
                "version {} is newer than {FORMAT}",
                records.version
            )));
        }
        records.version = FORMAT;
        Ok(records)
    }

    /// The Rollouts that changed something, as `namespace/name`.
    pub(crate) fn rollouts(&self) -> impl Iterator<Item = &str> {
        self.rollouts.keys().map(String::as_str)
    }

    /// The record of one Rollout; empty when it changed nothing.
    pub(crate) fn of(&self, rollout: &str) -> Result<Record, Refusal> {
        let Some(record) = self.rollouts.get(rollout) else {
            return Ok(Record::default());
        };
        let record = if record.get("splits").is_some() {
            Record::deserialize(record).map_err(unreadable)?
        } else {
            version_1::read(record).map_err(unreadable)?
        };
        let is_known = |route: &RouteRecord| route.3 < record.splits.len();
        if !record.routes.iter().all(is_known) {
            return Err(unreadable("a route without its split"));
        }
        for split in &record.splits {
            let has_ref = |it: &Original| it.1.get("ref").is_some_and(Value::is_object);
            let have_refs = split.originals.iter().all(has_ref);
            let originals = split.originals.iter().chain(&split.idle);
            for Original(_, destination) in originals {
                if !have_refs || crate::destinations::check_destination(destination).is_err() {
                    return Err(unreadable("an original that is no destination"));
                }
            }
        }
        Ok(record)
    }

    /// The edit that replaces the record of one Rollout, `None` if the record stays as it is, and whether the table has a
    /// record of any Rollout afterwards.
    pub(crate) fn replace(
        &self,
        table: &RouteTableDoc,
        rollout: &ObjectKey,
        old: &Record,
        new: &Record,
    ) -> Result<(Option<Edit>, bool), Refusal> {
        if old == new {
            return Ok((None, !self.rollouts.is_empty()));
        }
        let rollout = rollout.to_string();
        let mut records = self.clone();
        if new.routes.is_empty() {
            // Keep the order of the other Rollouts: `remove` would swap.
            records.rollouts.shift_remove(&rollout);
        } else {
            let new = serde_json::to_value(new).map_err(unreadable)?;
            records.rollouts.insert(rollout, new);
        }
        let is_left = !records.rollouts.is_empty();
        let value = is_left.then(|| serde_json::to_string(&records));
        let annotations = table.annotations();
        let edit = Edit::Annotation {
            expect: annotations.and_then(|annotations| annotations.get(ANNOTATION).cloned()),
            value: value.transpose().map_err(unreadable)?,
            others: match annotations {
                None => OtherAnnotations::NoMap,
                Some(map) if map.keys().all(|key| key == ANNOTATION) => OtherAnnotations::None,
                Some(_) => OtherAnnotations::Some,
            },
        };
        Ok((Some(edit), is_left))
    }
}

impl Record {
    /// The split of a route.
    pub(crate) fn split_of(&self, route: &RouteRecord) -> Option<&Split> {
        self.splits.get(route.3)
    }
}

impl Split {
    /// Whether a destination leads where one that was inserted does.
    pub(crate) fn inserted(&self, slot: &Slot<'_>) -> bool {
        self.added.iter().any(|id| slot.is(id))
    }

    /// The destination that was made in place of the owner's stable one.
    pub(crate) fn made_stable(&self) -> Option<&DestinationId> {
        let is_made = self.stable == StableIs::Made;
        self.added.first().filter(|_| is_made)
    }
}

impl RouteRecord {
    /// The route in messages.
    pub(crate) fn label(&self, protocol: Protocol) -> String {
        match self.0.as_str() {
            "" => format!("route {}[{}]", protocol.key(), self.1),
            name => format!("route {name}"),
        }
    }
}

/// A record under construction. Equal splits are stored once; an unchanged route keeps its entry.
pub(crate) struct RecordBuilder<'a> {
    old: &'a Record,
    new: Record,
    /// For each old split, its index among the new ones.
    kept: Vec<Option<usize>>,
    /// The index of each new split, by its JSON.
    known: HashMap<String, usize>,
}

impl<'a> RecordBuilder<'a> {
    pub(crate) fn new(old: &'a Record) -> Self {
        Self {
            old,
            new: Record {
                owners: old.owners.clone(),
                ..Record::default()
            },
            kept: vec![None; old.splits.len()],
            known: HashMap::new(),
        }
    }

    /// Keeps the entry of a route with its split.
    pub(crate) fn keep(&mut self, route: &RouteRecord) {
        if let Some(index) = self.kept(route.3) {
            let RouteRecord(name, at, matchers, _) = route.clone();
            self.new.routes.push(RouteRecord(name, at, matchers, index));
        }
    }

    /// Adds a route with the split that it has, by the index of that in the old record.
    pub(crate) fn add_kept(&mut self, name: String, at: usize, matchers: Hash, old: usize) {
        if let Some(index) = self.kept(old) {
            self.new.routes.push(RouteRecord(name, at, matchers, index));
        }
    }

    /// Adds a route with a new split.
    pub(crate) fn add(&mut self, name: String, at: usize, matchers: Hash, split: Split) {
        let text = serde_json::to_string(&split).unwrap_or_default();
        let splits = &mut self.new.splits;
        let index = *self.known.entry(text).or_insert_with(|| {
            splits.push(split);
            splits.len() - 1
        });
        self.new.routes.push(RouteRecord(name, at, matchers, index));
    }

    /// The index of an old split among the new ones.
    fn kept(&mut self, old: usize) -> Option<usize> {
        if let Some(Some(index)) = self.kept.get(old) {
            return Some(*index);
        }
        let split = self.old.splits.get(old)?;
        let text = serde_json::to_string(split).unwrap_or_default();
        let splits = &mut self.new.splits;
        let index = *self.known.entry(text).or_insert_with(|| {
            splits.push(split.clone());
            splits.len() - 1
        });
        if let Some(place) = self.kept.get_mut(old) {
            *place = Some(index);
        }
        Some(index)
    }

    /// Notes that a route is split, so it no longer is one that its owner pointed to the canary.
    pub(crate) fn is_split(&mut self, route: impl FnOnce() -> Hash) {
        if !self.new.owners.is_empty() {
            let route = route();
            self.new.owners.retain(|owner| *owner != route);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.new.routes.is_empty()
    }

    pub(crate) fn set_owners(&mut self, owners: Vec<Hash>) {
        self.new.owners = owners;
    }

    /// The new record; empty when no route is split.
    pub(crate) fn finish(self) -> Record {
        if self.new.routes.is_empty() {
            return Record::default();
        }
        self.new
    }
}

impl Hash {
    /// The hash of a route's matchers. The order of keys does not count, since the API server does not keep it.
    pub(crate) fn of_matchers(route: &Route<'_>) -> Self {
        let mut hash = Fnv::default();
        if let Some(matchers) = route.matchers() {
            hash.value(matchers);
        }
        Self(hash.finish())
    }

    /// The hash of a route's name and matchers, of which `self` is the latter's.
    pub(crate) fn with_name(&self, name: &str) -> Self {
        let mut hash = Fnv::default();
        hash.bytes(&self.0.to_be_bytes());
        hash.bytes(name.as_bytes());
        Self(hash.finish())
    }
}

impl Fnv {
    /// Adds JSON with the keys of objects in order.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                let mut sorted: Vec<_> = fields.iter().collect();
                sorted.sort_by_key(|(key, _)| *key);
                self.bytes(b"{");
                for (key, value) in sorted {
                    self.bytes(key.as_bytes());
                    self.bytes(b":");
                    self.value(value);
                }
                self.bytes(b"}");
            }
            Value::Array(items) => {
                self.bytes(b"[");
                for item in items {
                    self.value(item);
                    self.bytes(b",");
                }
                self.bytes(b"]");
            }
            Value::String(text) => {
                self.bytes(b"\"");
                self.bytes(text.as_bytes());
                self.bytes(b"\"");
            }
            Value::Null => self.bytes(b"null"),
            Value::Bool(is) => self.bytes(if *is { b"true" } else { b"false" }),
            Value::Number(number) => self.bytes(number.to_string().as_bytes()),
        }
    }
}

fn unreadable(reason: impl ToString) -> Refusal {
    Refusal::Record {
        annotation: ANNOTATION,
        reason: reason.to_string(),
    }
}

/// The first form of the annotation.
mod version_1 {
    use super::{
        Deserialize, DestinationId, Distinction, Hash, ListForm, Original, Protocol, Record,
        RouteRecord, Split, StableIs, Value,
    };

    pub(super) const FORMAT: u32 = 1;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rollout {
        #[serde(default)]
        routes: Vec<Route>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Route {
        route: Key,
        share: u32,
        #[serde(default)]
        originals: Vec<Destination>,
        #[serde(default)]
        added: Vec<DestinationId>,
        #[serde(default)]
        by: Distinction,
        #[serde(default)]
        list: ListForm,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Destination {
        at: usize,
        destination: Value,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Key {
        #[serde(default, rename = "in")]
        protocol: Protocol,
        #[serde(default)]
        name: Option<String>,
        /// Not compared: version 2 compares a hash that covers more.
        #[serde(default, rename = "matchers")]
        _matchers: Option<Value>,
        at: usize,
    }

    pub(super) fn read(record: &Value) -> Result<Record, serde_json::Error> {
        let mut read = Record::default();
        for Route {
            route,
            share,
            originals,
            added,
            by,
            list,
        } in Rollout::deserialize(record)?.routes
        {
            let originals = originals.into_iter();
            let split = Split {
                protocol: route.protocol,
                share,
                originals: originals
                    .map(|it| Original(it.at, it.destination))
                    .collect(),
                idle: Vec::new(),
                foreign: Vec::new(),
                added,
                by,
                list,
                stable: StableIs::Absent,
            };
            let known = read.splits.iter().position(|other| *other == split);
            let index = known.unwrap_or(read.splits.len());
            if known.is_none() {
                read.splits.push(split);
            }
            let name = route.name.unwrap_or_default();
            let route = RouteRecord(name, route.at, Hash::default(), index);
            read.routes.push(route);
        }
        Ok(read)
    }
}
