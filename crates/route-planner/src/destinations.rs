//! Destinations of a route: how they are read, what distinguishes them, and the changes from one list to another.
//!
//! A list is read without copying: each [`Slot`] borrows the JSON that is in the table, or owns what planning made. Weights
//! are kept beside the JSON, since they are what changes most.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use gloo_types::{broken_weight_rule, weight_shares};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::plan::DestinationChange;

/// What a destination leads to, with the table's defaults filled in. The record stores these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationId {
    #[serde(default = "service", skip_serializing_if = "is_service")]
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) cluster: String,
    /// Absent when it does not distinguish destinations, or when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<Port>,
    /// Absent when it does not distinguish destinations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subset: Option<BTreeMap<String, String>>,
}

/// Which parts of a destination, beside the object it leads to, distinguish it from others.
///
/// An owner may change the port of a destination in the middle of a rollout, so these count only where they have to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Distinction {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) port: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) subset: bool,
}

/// How the destinations of a table are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// The table's namespace.
    pub(crate) namespace: &'a str,
    pub(crate) by: Distinction,
}

/// The port of a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Port {
    Number(u32),
    Name(String),
}

/// The object that a destination leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object<'s> {
    pub(crate) name: &'s str,
    pub(crate) kind: &'s str,
    pub(crate) namespace: &'s str,
    pub(crate) cluster: &'s str,
}

/// One destination of a route.
#[derive(Clone, Debug)]
pub(crate) struct Slot<'a> {
    /// Position in the live list; `None` for a destination to be inserted.
    live: Option<usize>,
    /// Whether planning made it. Its content follows the stable destination; of the others only the weight is ours.
    made: bool,
    reading: Reading<'a>,
    /// The destination as written. Its weight does not count, `weight` does.
    raw: Raw<'a>,
    /// `None` for a destination that is not an object of a cluster.
    object: Option<Object<'a>>,
    /// The weight as JSON; `None` is an absent key, which a byte-equal restore distinguishes from 0 and null.
    weight: Option<Value>,
}

/// The JSON of a destination, which many routes share once it is made.
#[derive(Clone, Debug)]
enum Raw<'a> {
    Written(&'a Value),
    Made(Rc<Value>),
}

impl Deref for Raw<'_> {
    type Target = Value;

    fn deref(&self) -> &Value {
        match self {
            Self::Written(value) => value,
            Self::Made(value) => value,
        }
    }
}

/// How a route says where it leads. All but `Listed` mean the table's `defaultDestination`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListForm {
    /// A list with at least one destination.
    #[default]
    Listed,
    /// No `destinations` key.
    Absent,
    /// An empty list.
    Empty,
}

/// The destinations of a route: the live ones, those the owner wrote, or those planned.
#[derive(Clone, Debug)]
pub(crate) struct DestinationList<'a> {
    pub(crate) slots: Vec<Slot<'a>>,
    /// Unless `Listed`, the first slot represents what the owner did not write out.
    pub(crate) form: ListForm,
}

/// A value of a type that contradicts the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Path from the route, for example `forwardTo.destinations[1].weight`.
    pub(crate) path: String,
    pub(crate) expected: &'static str,
}

impl Malformed {
    pub(crate) fn new(path: impl Into<String>, expected: &'static str) -> Self {
        Self {
            path: path.into(),
            expected,
        }
    }
}

impl Port {
    fn of(destination: &Value) -> Option<Self> {
        let port = destination.get("port")?;
        let number = port.get("number").and_then(Value::as_u64);
        let number = number.and_then(|number| u32::try_from(number).ok());
        let name = || port.get("name").and_then(Value::as_str);
        let by_number = number.map(Self::Number);
        by_number.or_else(|| Some(Self::Name(name()?.to_owned())))
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "port {number}"),
            Self::Name(name) => write!(f, "port {name}"),
        }
    }
}

impl Distinction {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl ListForm {
    pub(crate) fn is_listed(&self) -> bool {
        *self == Self::Listed
    }
}

impl<'s> Object<'s> {
    /// `None` for a destination that is not an object of a cluster.
    fn of(destination: &'s Value, namespace: &'s str) -> Option<Self> {
        let reference = destination.get("ref")?.as_object()?;
        let text = |key| reference.get(key).and_then(Value::as_str).unwrap_or("");
        Some(Self {
            kind: kind_of(destination),
            namespace: match text("namespace") {
                "" => namespace,
                own => own,
            },
            name: text("name"),
            cluster: text("cluster"),
        })
    }
}

/// `KIND namespace/name`, with the cluster in front of the namespace if there is one.
impl std::fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            namespace,
            name,
            cluster,
        } = self;
        let slash = if cluster.is_empty() { "" } else { "/" };
        write!(f, "{kind} {cluster}{slash}{namespace}/{name}")
    }
}

impl DestinationId {
    pub(crate) fn object(&self) -> Object<'_> {
        Object {
            kind: &self.kind,
            namespace: &self.namespace,
            name: &self.name,
            cluster: &self.cluster,
        }
    }
}

impl<'a> Slot<'a> {
    /// A destination that is not in the live list, with the weight it has as written.
    pub(crate) fn new(raw: &'a Value, reading: Reading<'a>) -> Self {
        Self {
            live: None,
            made: false,
            reading,
            weight: raw.get("weight").cloned(),
            object: Object::of(raw, reading.namespace),
            raw: Raw::Written(raw),
        }
    }

    /// The same destination as if its owner had written no weight.
    #[must_use]
    pub(crate) fn without_weight(mut self) -> Self {
        if self.weight.take().is_some() {
            let mut raw = Value::clone(&self.raw);
            if let Value::Object(fields) = &mut raw {
                fields.shift_remove("weight");
            }
            self.raw = Raw::Made(Rc::new(raw));
        }
        self
    }

    /// The same destination with another weight; `None` removes the key.
    #[must_use]
    pub(crate) fn weighing(self, weight: Option<u32>) -> Self {
        let weight = weight.map(Value::from);
        Self { weight, ..self }
    }

    /// The same destination with the weight of another one, as that is written.
    #[must_use]
    pub(crate) fn weighing_as(self, other: &Self) -> Self {
        let weight = other.weight.clone();
        Self { weight, ..self }
    }

    /// The weight in percent; Gloo reads 0 as unset.
    pub(crate) fn weight(&self) -> Option<u32> {
        u32::try_from(self.weight.as_ref()?.as_u64()?).ok()
    }

    /// The weight, if it is set as far as Gloo can distinguish.
    pub(crate) fn set_weight(&self) -> Option<u32> {
        self.weight().filter(|weight| *weight > 0)
    }

    /// Whether the weight is written as 0, which Gloo's reference and its published examples read differently.
    pub(crate) fn is_explicit_zero(&self) -> bool {
        self.weight() == Some(0)
    }

    /// The JSON to write.
    pub(crate) fn value(&self) -> Value {
        let mut value = Value::clone(&self.raw);
        if value.get("weight") != self.weight.as_ref()
            && let Value::Object(fields) = &mut value
        {
            match &self.weight {
                Some(weight) => fields.insert("weight".to_owned(), weight.clone()),
                None => fields.shift_remove("weight"),
            };
        }
        value
    }

    /// A copy that leads to `object`, made by planning. What is the same, or is not said, stays as written.
    pub(crate) fn leading_to(
        &self,
        object: Object<'a>,
        port: Option<&Port>,
        subset: Option<&BTreeMap<String, String>>,
    ) -> Self {
        let mut raw = Value::clone(&self.raw);
        let old = self.object();
        if let Some(reference) = raw.get_mut("ref").and_then(Value::as_object_mut) {
            reference.insert("name".to_owned(), json!(object.name));
            if old.is_none_or(|old| old.namespace != object.namespace) {
                reference.insert("namespace".to_owned(), json!(object.namespace));
            }
            if old.is_none_or(|old| old.cluster != object.cluster) {
                reference.insert("cluster".to_owned(), json!(object.cluster));
            }
        }
        let has_port = Port::of(&raw).as_ref() == port;
        let has_subset = subset.is_none_or(|subset| has_subset(&raw, subset));
        if let Value::Object(fields) = &mut raw {
            if kind_in(fields) != object.kind {
                fields.insert("kind".to_owned(), json!(object.kind));
            }
            if let Some(port) = port.filter(|_| !has_port) {
                fields.insert("port".to_owned(), json!(port));
            }
            match subset.filter(|_| !has_subset) {
                Some(subset) if subset.is_empty() => {
                    fields.shift_remove("subset");
                }
                Some(subset) => {
                    fields.insert("subset".to_owned(), json!(subset));
                }
                None => {}
            }
        }
        Self {
            live: None,
            made: true,
            reading: self.reading,
            raw: Raw::Made(Rc::new(raw)),
            object: Some(object).filter(|_| old.is_some()),
            weight: self.weight.clone(),
        }
    }

    /// What this leads to; `None` for a destination that is not an object of a cluster.
    pub(crate) fn object(&self) -> Option<Object<'a>> {
        self.object
    }

    pub(crate) fn port(&self) -> Option<Port> {
        Port::of(&self.raw)
    }

    pub(crate) fn subset(&self) -> BTreeMap<String, String> {
        let subset = self.raw.get("subset").and_then(Value::as_object);
        let labels = subset.into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        labels
            .map(|(key, value)| (key.clone(), text(value)))
            .collect()
    }

    pub(crate) fn has_subset(&self, subset: &BTreeMap<String, String>) -> bool {
        has_subset(&self.raw, subset)
    }

    pub(crate) fn subset_label(&self, label: &str) -> Option<&str> {
        self.raw.get("subset")?.get(label)?.as_str()
    }

    /// What the record stores of this; `by` says which parts distinguish destinations.
    pub(crate) fn id(&self, by: Distinction) -> Option<DestinationId> {
        let object = self.object()?;
        Some(DestinationId {
            kind: object.kind.to_owned(),
            namespace: object.namespace.to_owned(),
            name: object.name.to_owned(),
            cluster: object.cluster.to_owned(),
            port: self.port().filter(|_| by.port),
            subset: by.subset.then(|| self.subset()),
        })
    }

    /// Whether this leads where `id` says, as far as that says it.
    pub(crate) fn is(&self, id: &DestinationId) -> bool {
        self.object == Some(id.object())
            && (id.port.is_none() || id.port == self.port())
            && id.subset.as_ref().is_none_or(|it| self.has_subset(it))
    }

    /// Whether both lead to the same place, by what distinguishes destinations now.
    pub(crate) fn is_same(&self, other: &Slot<'_>) -> bool {
        let by = other.reading.by;
        other.object.is_some()
            && self.object == other.object
            && (!by.port || self.port() == other.port())
            && (!by.subset || self.subset() == other.subset())
    }

    /// Whether this leads to an object of the same name and namespace, in the same cluster or another.
    pub(crate) fn is_named_as(&self, other: &Slot<'_>) -> bool {
        match (self.object, other.object) {
            (Some(one), Some(other)) => (one.name, one.namespace) == (other.name, other.namespace),
            _ => false,
        }
    }

    /// The same for a recorded destination.
    pub(crate) fn has_name_of(&self, recorded: &Value) -> bool {
        self.is_named_as(&Slot::new(recorded, self.reading))
    }

    /// Whether this leads where a recorded destination does, by what distinguished destinations then.
    pub(crate) fn is_recorded_as(&self, recorded: &Value, by: Distinction) -> bool {
        let reading = Reading {
            namespace: self.reading.namespace,
            by,
        };
        self.is_same(&Slot::new(recorded, reading))
    }

    /// Whether both are the same JSON but for the weight.
    pub(crate) fn has_content_of(&self, other: &Slot<'_>) -> bool {
        if let (Raw::Made(one), Raw::Made(two)) = (&self.raw, &other.raw)
            && Rc::ptr_eq(one, two)
        {
            return true;
        }
        let (Value::Object(one), Value::Object(two)) = (&*self.raw, &*other.raw) else {
            return *self.raw == *other.raw;
        };
        let rest =
            |fields: &Map<String, Value>| fields.len() - usize::from(fields.contains_key("weight"));
        rest(one) == rest(two)
            && one
                .iter()
                .filter(|(key, _)| *key != "weight")
                .all(|(key, value)| two.get(key) == Some(value))
    }

    /// Whether this is `value` as JSON.
    pub(crate) fn is_value(&self, value: &Value) -> bool {
        value.get("weight") == self.weight.as_ref()
            && self.has_content_of(&Slot::new(value, self.reading))
    }

    /// The destination in messages.
    pub(crate) fn label(&self) -> String {
        if let Some(object) = self.object() {
            return object.to_string();
        }
        let lambda = self.raw.get("awsLambda");
        match lambda.and_then(|lambda| lambda.get("function")?.as_str()) {
            Some(function) => format!("AWS Lambda {function}"),
            None => "a destination without ref".to_owned(),
        }
    }

    /// The destination in messages, with its port.
    pub(crate) fn place(&self) -> String {
        match self.port() {
            Some(port) => format!("{} {port}", self.label()),
            None => self.label(),
        }
    }
}

impl<'a> DestinationList<'a> {
    /// The destinations of a `forwardTo` as written.
    pub(crate) fn live(forward: &'a Value, reading: Reading<'a>) -> Result<Self, Malformed> {
        let at = |path: String| format!("forwardTo.{path}");
        let fields = forward.as_object();
        let fields = fields.ok_or_else(|| Malformed::new("forwardTo", "an object"))?;
        let list = match fields.get("destinations") {
            None | Some(Value::Null) => None,
            Some(Value::Array(list)) => Some(list),
            Some(_) => return Err(Malformed::new(at("destinations".to_owned()), "a list")),
        };
        let form = match list.map(Vec::len) {
            None => ListForm::Absent,
            Some(0) => ListForm::Empty,
            Some(_) => ListForm::Listed,
        };
        let mut slots = Vec::with_capacity(list.map_or(0, Vec::len));
        for (index, raw) in list.into_iter().flatten().enumerate() {
            check_destination(raw).map_err(|Malformed { path, expected }| {
                Malformed::new(at(format!("destinations[{index}]{path}")), expected)
            })?;
            slots.push(Slot {
                live: Some(index),
                ..Slot::new(raw, reading)
            });
        }
        Ok(Self { slots, form })
    }

    /// Writes out the table's default destination, in front of what the owner may have added to a list of ours.
    #[must_use]
    pub(crate) fn materialised(mut self, default: Option<&Slot<'a>>) -> Self {
        if !self.form.is_listed() {
            self.slots.splice(..0, default.cloned());
        }
        self
    }

    /// The list to leave at rest: as the owner wrote it, unless the default now has company.
    #[must_use]
    pub(crate) fn resting(self) -> Self {
        let form = if self.slots.len() > 1 {
            ListForm::Listed
        } else {
            self.form
        };
        Self { form, ..self }
    }

    pub(crate) fn holds(&self, slot: &Slot<'_>) -> bool {
        self.slots.iter().any(|here| here.is_same(slot))
    }

    /// Whether both lists are the same JSON.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.form == other.form
            && self.slots.len() == other.slots.len()
            && self
                .slots
                .iter()
                .zip(&other.slots)
                .all(|(one, two)| one.weight == two.weight && one.has_content_of(two))
    }

    /// Effective weight of each slot, as Gloo reads the list.
    pub(crate) fn effective_weights(&self) -> Vec<u32> {
        weight_shares(&self.weights())
    }

    /// The rule of Gloo that the weights break, if any.
    pub(crate) fn broken_rule(&self) -> Option<gloo_types::Rule> {
        broken_weight_rule(&self.weights())
    }

    fn weights(&self) -> Vec<Option<u32>> {
        self.slots.iter().map(Slot::weight).collect()
    }

    /// The list as JSON.
    pub(crate) fn value(&self) -> Value {
        self.slots.iter().map(Slot::value).collect()
    }

    /// The changes that turn this list, which is live, into `target`.
    pub(crate) fn changes_to(&self, target: &Self) -> Vec<DestinationChange> {
        match (self.form, target.form) {
            (ListForm::Absent, ListForm::Listed) => {
                let list = target.slots.iter().map(Slot::value).collect();
                return vec![DestinationChange::CreateList(list)];
            }
            (ListForm::Listed, ListForm::Absent) => return vec![DestinationChange::RemoveList],
            (_, ListForm::Listed) | (ListForm::Listed, _) => {}
            (_, _) => return Vec::new(),
        }
        let target = if target.form.is_listed() {
            self.linked(&target.slots)
        } else {
            Vec::new()
        };

        let mut changes = Vec::new();
        for (index, here) in self.slots.iter().enumerate() {
            let Some(slot) = target.iter().find(|slot| slot.live == Some(index)) else {
                continue;
            };
            if slot.made && !slot.has_content_of(here) {
                changes.push(DestinationChange::Replace {
                    index,
                    destination: slot.label(),
                    value: slot.value(),
                });
            } else if slot.weight != here.weight {
                changes.push(DestinationChange::SetWeight {
                    index,
                    destination: slot.label(),
                    from: here.weight.clone(),
                    to: slot.weight.clone(),
                });
            }
        }
        for (index, slot) in self.slots.iter().enumerate().rev() {
            if !target.iter().any(|kept| kept.live == Some(index)) {
                changes.push(DestinationChange::Remove {
                    index,
                    destination: slot.label(),
                });
            }
        }
        let missing = target
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.live.is_none());
        for (index, slot) in missing {
            changes.push(DestinationChange::Insert {
                index,
                destination: slot.label(),
                value: slot.value(),
            });
        }
        changes
    }

    /// Finds for each target slot the live one, as long as that keeps the order of both lists.
    fn linked(&self, target: &[Slot<'a>]) -> Vec<Slot<'a>> {
        let mut next = 0;
        let is_free = |here: &Slot<'a>| target.iter().all(|slot| slot.live != here.live);
        let link = |slot: &Slot<'a>| {
            let same = |here: &&Slot<'a>| here.is_same(slot) && is_free(here);
            let index = slot
                .live
                .or_else(|| self.slots.iter().find(same).and_then(|here| here.live));
            let here = index.and_then(|index| self.slots.get(index));
            match here.filter(|here| here.live >= Some(next)) {
                Some(here) => {
                    next = here.live.map_or(next, |index| index + 1);
                    Slot {
                        live: here.live,
                        // What the owner changed in a destination stays; a destination of ours follows its source.
                        made: slot.live.is_none(),
                        ..slot.clone()
                    }
                }
                None => Slot {
                    live: None,
                    ..slot.clone()
                },
            }
        };
        target.iter().map(link).collect()
    }
}

/// Checks the types of what is read of a destination.
pub(crate) fn check_destination(raw: &Value) -> Result<(), Malformed> {
    let wrong = |path: &str, expected| Err(Malformed::new(path, expected));
    let Some(fields) = raw.as_object() else {
        return wrong("", "an object");
    };
    let is_text = |value: Option<&Value>| value.is_none_or(Value::is_string);
    match fields.get("ref") {
        None | Some(Value::Null) => {}
        Some(Value::Object(reference)) => {
            for (key, path) in [
                ("name", ".ref.name"),
                ("namespace", ".ref.namespace"),
                ("cluster", ".ref.cluster"),
            ] {
                if !is_text(reference.get(key)) {
                    return wrong(path, "a text");
                }
            }
        }
        Some(_) => return wrong(".ref", "an object"),
    }
    if !is_text(fields.get("kind")) {
        return wrong(".kind", "a text");
    }
    match fields.get("port") {
        None | Some(Value::Null) => {}
        Some(Value::Object(port)) => {
            let number = port.get("number").filter(|number| !number.is_null());
            if !number.is_none_or(is_u32) {
                return wrong(".port.number", "a port number");
            }
            let name = port.get("name").filter(|name| !name.is_null());
            if !is_text(name) {
                return wrong(".port.name", "a text");
            }
        }
        Some(_) => return wrong(".port", "an object"),
    }
    match fields.get("subset") {
        None => {}
        Some(Value::Object(labels)) if labels.values().all(Value::is_string) => {}
        Some(_) => return wrong(".subset", "an object of texts"),
    }
    match fields.get("weight") {
        None | Some(Value::Null) => Ok(()),
        Some(weight) if is_u32(weight) => Ok(()),
        Some(_) => wrong(".weight", "a whole number that is not negative"),
    }
}

fn is_u32(value: &Value) -> bool {
    value.as_u64().is_some_and(|it| u32::try_from(it).is_ok())
}

fn kind_of(destination: &Value) -> &str {
    destination.as_object().map_or("SERVICE", kind_in)
}

fn kind_in(destination: &Map<String, Value>) -> &str {
    // proto3 cannot distinguish the default from an empty text.
    match destination.get("kind").and_then(Value::as_str) {
        None | Some("") => "SERVICE",
        Some(kind) => kind,
    }
}

fn has_subset(destination: &Value, subset: &BTreeMap<String, String>) -> bool {
    let labels = destination.get("subset").and_then(Value::as_object);
    labels.map_or(0, Map::len) == subset.len()
        && subset.iter().all(|(key, value)| {
            let own = labels.and_then(|labels| labels.get(key)?.as_str());
            own == Some(value)
        })
}

fn service() -> String {
    "SERVICE".to_owned()
}

fn is_service(kind: &str) -> bool {
    kind == "SERVICE"
}
