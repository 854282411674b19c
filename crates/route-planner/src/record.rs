//! The record: one annotation of the table that says what each Rollout changed in it, and what the owner had written there.
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
//! In this example the Rollout `shop/reviews` splits two routes, `list` and `item`, in the same way. In each, `reviews` and
//! `reviews-canary` divide 80 % of the traffic; before, the first destination of the list was `reviews` with weight 80; and
//! `reviews-canary` was inserted.
//!
//! A *split* says what was changed in a route. Most routes of a Rollout share one split, so it is stored once. An entry of
//! `routes` holds the name of a route, its position among the owner's routes, a hash of its matchers, and the index of its
//! split. That keeps an ordinary route below 80 bytes; all annotations of an object share 256 KiB.
//!
//! An annotation that cannot be decoded is never rewritten: a person may still be able to read the originals in it.

use std::collections::HashMap;

use gloo_types::{ObjectKey, RouteTableDoc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::destinations::{Destination, DestinationId, Distinction, ListForm, check_destination};
use crate::error::Refusal;
use crate::ownership::{ANNOTATION, Fnv};
use crate::plan::{Edit, OtherAnnotations};
use crate::route::{Protocol, Route};

// An older plugin, after a rollback of an upgrade, must not read a newer record as its own: it leaves the annotation alone,
// and says so.
const FORMAT: u32 = 2;

/// The decoded annotation: the records of all Rollouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Annotation {
    version: u32,
    // As JSON: a record that this version cannot decode is another Rollout's, and stays in the annotation as it is.
    rollouts: Map<String, Value>,
}

impl Default for Annotation {
    fn default() -> Self {
        Self {
            version: FORMAT,
            rollouts: Map::new(),
        }
    }
}

/// The records of a table: that of one Rollout, and those of the others.
pub(crate) struct RecordSet {
    pub(crate) annotation: Annotation,
    /// The record of the Rollout that is planned.
    pub(crate) own: Record,
    /// The records of other Rollouts that can be decoded, by `namespace/name`.
    pub(crate) others: Vec<(String, Record)>,
    /// Why the Rollout's own record cannot be decoded. `own` is empty then.
    pub(crate) problem: Option<Refusal>,
}

/// What one Rollout changed in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Record {
    pub(crate) splits: Vec<Split>,
    pub(crate) routes: Vec<RouteEntry>,
    /// Hashes of routes that are not split, but have a destination that is inserted in others: their owner forwards them to the
    /// canary, for example. Planning never takes them for copies of split routes.
    #[serde(rename = "owners", skip_serializing_if = "Vec::is_empty")]
    pub(crate) owner_routes: Vec<Hash>,
}

/// The entry of a split route. It is stored as an array of its four fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(expecting = "a list of name, position, matchers and split")]
pub(crate) struct RouteEntry {
    /// Empty if the route has no name, or another route has the same one.
    pub(crate) name: String,
    /// Position among the routes that the owner wrote.
    pub(crate) position: usize,
    /// Hash of the matchers.
    pub(crate) matchers: Hash,
    /// Index in [`Record::splits`].
    pub(crate) split: usize,
}

impl Serialize for RouteEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Without keys: thousands of routes share the 256 KiB of all annotations.
        (&self.name, self.position, self.matchers, self.split).serialize(serializer)
    }
}

/// What was changed in a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Split {
    #[serde(default, rename = "in", skip_serializing_if = "Protocol::is_http")]
    pub(crate) protocol: Protocol,
    /// Percent of the route's traffic that stable, canary and experiments divide.
    pub(crate) share: u32,
    /// The owner's destinations that were changed or removed, the stable one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) originals: Vec<Original>,
    /// Foreign destinations with an explicit weight of 0, which are removed as long as the route is split.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) idle: Vec<Original>,
    /// The foreign destinations in the owner's list, to detect that one of them replaces the stable one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) foreign: Vec<String>,
    /// The destinations that were inserted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) added: Vec<DestinationId>,
    /// Which parts distinguish destinations, beside the object they route to.
    #[serde(default, rename = "by", skip_serializing_if = "Distinction::is_none")]
    pub(crate) distinction: Distinction,
    /// What the owner wrote in place of a list.
    #[serde(default, skip_serializing_if = "ListForm::is_listed")]
    pub(crate) list: ListForm,
    /// What represents the stable destination in the list. If that disappears, the owner removed it.
    #[serde(default, skip_serializing_if = "StableInList::is_absent")]
    pub(crate) stable: StableInList,
}

/// What represents the stable destination in the list of a split route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StableInList {
    /// Nothing: the canary gets the whole share.
    #[default]
    Absent,
    /// The owner's destination.
    Listed,
    /// A destination that was made from it, the first of [`Split::added`]: the subset of its Pods, or the other Service of a
    /// [ping-pong](crate::ServicePair::ping_pong) pair.
    Made,
}

impl StableInList {
    pub(crate) fn is_absent(&self) -> bool {
        *self == Self::Absent
    }
}

/// A destination as the owner wrote it. It is stored as an array of both fields.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "a list of position and destination")]
pub(crate) struct Original {
    /// Position in the owner's list.
    pub(crate) position: usize,
    pub(crate) destination: Value,
}

impl Serialize for Original {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.position, &self.destination).serialize(serializer)
    }
}

/// A 64-bit hash, stored in hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

impl RecordSet {
    /// Reads the annotation of a table for `rollout` (`namespace/name`).
    pub(crate) fn read(table: &RouteTableDoc, rollout: &str) -> Self {
        let mut records = Self {
            annotation: Annotation::default(),
            own: Record::default(),
            others: Vec::new(),
            problem: None,
        };
        let own = Annotation::read(table).and_then(|annotation| {
            let others = annotation.rollouts().filter(|name| *name != rollout);
            // The calls of a Rollout report its own unreadable record, so it does not stop the others.
            let others =
                others.filter_map(|name| Some((name.to_owned(), annotation.record_of(name).ok()?)));
            records.others = others.collect();
            let own = annotation.record_of(rollout);
            records.annotation = annotation;
            own
        });
        match own {
            Ok(own) => records.own = own,
            Err(problem) => records.problem = Some(problem),
        }
        records
    }
}

impl Annotation {
    /// Decodes the annotation of a table; empty if the table has none.
    ///
    /// # Errors
    /// Returns `Err` if the annotation is not JSON of this format and version.
    pub(crate) fn read(table: &RouteTableDoc) -> Result<Self, Refusal> {
        let Some(text) = table
            .annotations()
            .and_then(|annotations| annotations.get(ANNOTATION))
        else {
            return Ok(Self::default());
        };
        let annotation: Self = serde_json::from_str(text).map_err(unreadable)?;
        match annotation.version {
            FORMAT => Ok(annotation),
            other => Err(unreadable(format!("its version is {other}, not {FORMAT}"))),
        }
    }

    /// The Rollouts that have a record, as `namespace/name`.
    pub(crate) fn rollouts(&self) -> impl Iterator<Item = &str> {
        self.rollouts.keys().map(String::as_str)
    }

    /// The record of one Rollout; empty if it changed nothing.
    ///
    /// # Errors
    /// Returns `Err` if the record cannot be decoded or contradicts itself.
    pub(crate) fn record_of(&self, rollout: &str) -> Result<Record, Refusal> {
        let Some(record) = self.rollouts.get(rollout) else {
            return Ok(Record::default());
        };
        let record = Record::deserialize(record).map_err(unreadable)?;
        let is_known = |route: &RouteEntry| route.split < record.splits.len();
        // A person can have edited the annotation. From here on each entry has its split.
        if !record.routes.iter().all(is_known) {
            return Err(unreadable("a route without its split"));
        }
        for split in &record.splits {
            // The stable destination is compared by its object, so an original without one can never be found again.
            let has_ref = |it: &Original| it.destination.get("ref").is_some_and(Value::is_object);
            let have_refs = split.originals.iter().all(has_ref);
            let originals = split.originals.iter().chain(&split.idle);
            for Original { destination, .. } in originals {
                if !have_refs || check_destination(destination).is_err() {
                    return Err(unreadable("an original that is no destination"));
                }
            }
        }
        Ok(record)
    }

    /// Returns the edit that replaces the record of one Rollout (`None` if the record does not change), and whether the
    /// table has a record of any Rollout afterwards.
    ///
    /// # Errors
    /// Returns `Err` if the new record cannot be encoded.
    pub(crate) fn replace(
        &self,
        table: &RouteTableDoc,
        rollout: &ObjectKey,
        old: &Record,
        new: &Record,
    ) -> Result<(Option<Edit>, bool), Refusal> {
        // A write without need wakes every client that watches the table, among them Argo CD.
        if old == new {
            return Ok((None, !self.rollouts.is_empty()));
        }
        let rollout = rollout.to_string();
        let mut annotation = self.clone();
        if new.routes.is_empty() {
            // `remove` would change the order of the other Rollouts.
            annotation.rollouts.shift_remove(&rollout);
        } else {
            let new = serde_json::to_value(new).map_err(unreadable)?;
            annotation.rollouts.insert(rollout, new);
        }
        // The last record takes the annotation with it: at rest the table is what its owner wrote, byte for byte.
        let is_left = !annotation.rollouts.is_empty();
        let value = is_left.then(|| serde_json::to_string(&annotation));
        let annotations = table.annotations();
        let edit = Edit::Annotation {
            expect: annotations.and_then(|annotations| annotations.get(ANNOTATION).cloned()),
            value: value.transpose().map_err(unreadable)?,
            // An empty map of annotations would not be what the owner wrote either.
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
    /// Takes the positions of `before` if nothing else differs: if only other routes moved, the record does not have to change.
    pub(crate) fn keep_positions(&mut self, before: &Self) {
        let same = |(one, other): (&RouteEntry, &RouteEntry)| {
            (&one.name, one.matchers, one.split) == (&other.name, other.matchers, other.split)
        };
        if self.splits == before.splits
            && self.owner_routes == before.owner_routes
            && self.routes.len() == before.routes.len()
            && self.routes.iter().zip(&before.routes).all(same)
        {
            for (route, before) in self.routes.iter_mut().zip(&before.routes) {
                route.position = before.position;
            }
        }
    }

    /// Whether the record says that a route of this name and with these matchers is not split, although it may look so.
    pub(crate) fn has_owner_route(&self, name: &str, matchers: &Hash) -> bool {
        self.owner_routes.contains(&matchers.with_name(name))
    }

    /// The split of one of the record's routes.
    pub(crate) fn split_of(&self, route: &RouteEntry) -> Option<&Split> {
        self.splits.get(route.split)
    }
}

impl Split {
    /// Whether a destination routes to the same place as one that was inserted.
    pub(crate) fn has_inserted(&self, destination: &Destination<'_>) -> bool {
        self.added.iter().any(|id| destination.is(id))
    }

    /// Whether a destination routes to the same place as `original`, compared as when the record was written.
    pub(crate) fn is(&self, destination: &Destination<'_>, original: &Original) -> bool {
        destination.is_recorded_as(&original.destination, self.distinction)
    }

    /// Whether a destination has the name of one of the owner's that were changed. The owner may have moved it to another cluster.
    pub(crate) fn has_name_of_original(&self, destination: &Destination<'_>) -> bool {
        let mut originals = self.originals.iter();
        originals.any(|original| destination.has_name_of(&original.destination))
    }

    /// Whether a destination routes to the same place as one of the owner's that were changed.
    pub(crate) fn has_original(&self, destination: &Destination<'_>) -> bool {
        self.originals.iter().any(|it| self.is(destination, it))
    }
}

impl RouteEntry {
    /// The route's name in messages.
    pub(crate) fn label(&self, protocol: Protocol) -> String {
        match self.name.as_str() {
            "" => format!("route {}[{}]", protocol.key(), self.position),
            name => format!("route {name}"),
        }
    }
}

/// Builds the new record. Equal splits are stored once; an unchanged route keeps its entry.
pub(crate) struct RecordBuilder<'a> {
    old: &'a Record,
    new: Record,
    /// The indices of old splits among the new ones.
    kept: HashMap<usize, usize>,
    /// The index of each new split, by its JSON.
    known: HashMap<String, usize>,
}

impl<'a> RecordBuilder<'a> {
    pub(crate) fn new(old: &'a Record) -> Self {
        Self {
            old,
            new: Record {
                owner_routes: old.owner_routes.clone(),
                ..Record::default()
            },
            kept: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// Adds `entry`, whose `split` is an index in the old record.
    pub(crate) fn keep(&mut self, entry: RouteEntry) {
        let Some(split) = self.old.splits.get(entry.split) else {
            return;
        };
        // Most routes share one split, which is not turned into text again for each of them.
        let split = match self.kept.get(&entry.split) {
            Some(index) => *index,
            None => {
                let index = self.index_of(split);
                self.kept.insert(entry.split, index);
                index
            }
        };
        self.new.routes.push(RouteEntry { split, ..entry });
    }

    /// Adds `entry` with `split` instead of the split that it names.
    pub(crate) fn add(&mut self, entry: RouteEntry, split: &Split) {
        let split = self.index_of(split);
        self.new.routes.push(RouteEntry { split, ..entry });
    }

    /// The index of a split in the new record, to which it is added if it is not there.
    fn index_of(&mut self, split: &Split) -> usize {
        // JSON values have no hash. Comparing each split with all others would take quadratic time in a table whose routes
        // all differ.
        let text = serde_json::to_string(split).unwrap_or_default();
        let splits = &mut self.new.splits;
        *self.known.entry(text).or_insert_with(|| {
            splits.push(split.clone());
            splits.len() - 1
        })
    }

    /// The number of routes that have an entry so far.
    pub(crate) fn len(&self) -> usize {
        self.new.routes.len()
    }

    /// The new record; empty if no route is split.
    pub(crate) fn finish(self) -> Record {
        // Without a split route no copy can exist from which an owner's route has to be told apart.
        if self.new.routes.is_empty() {
            return Record::default();
        }
        self.new
    }
}

impl Hash {
    /// The hash of a route's matchers. The order of keys does not matter, since the API server does not preserve it.
    pub(crate) fn of_matchers(route: &Route<'_>) -> Self {
        let mut hash = Fnv::default();
        if let Some(matchers) = route.matchers() {
            hash.value(matchers);
        }
        Self(hash.finish())
    }

    /// The hash of a route's name and matchers. `self` is the hash of the matchers.
    pub(crate) fn with_name(&self, name: &str) -> Self {
        let mut hash = Fnv::default();
        hash.bytes(&self.0.to_be_bytes());
        hash.bytes(name.as_bytes());
        Self(hash.finish())
    }
}

impl Fnv {
    /// Hashes a JSON value; the keys of objects are sorted first.
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
