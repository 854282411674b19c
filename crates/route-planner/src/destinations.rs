//! The destinations of a route: how they are decoded and compared, and the changes that turn one list into another.
//!
//! A list is read without copying: a [`Destination`] borrows the JSON of the table, or owns JSON that planning made. The
//! weight is stored beside the JSON, since it changes most often.
//!
//! Two destinations are the same if they route to the same object, whatever their weights are. Ports and subsets are compared
//! only if the configuration names one ([`Distinction`]). These two are the same unless the plugin block sets
//! `stableDestination.port`:
//!
//! ```text
//! {ref: {name: reviews}, weight: 80}
//! {ref: {name: reviews}, port: {number: 9080}}
//! ```

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use gloo_types::{DestinationKind, broken_weight_rule, weight_shares};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::plan::DestinationChange;

/// Identifies a destination: what it routes to, with the table's defaults filled in. The record stores these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationId {
    #[serde(default = "service", skip_serializing_if = "is_service")]
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) cluster: String,
    /// Absent if ports do not distinguish destinations, or if the destination has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<Port>,
    /// Absent if subsets do not distinguish destinations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subset: Option<BTreeMap<String, String>>,
}

/// Which parts of a destination, beside the object it routes to, distinguish it from others.
///
/// An owner may change the port of a destination during a rollout, so a part is compared only if the configuration names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Distinction {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) port: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) subset: bool,
}

/// What is needed to interpret a destination: the defaults, and the parts to compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadContext<'a> {
    /// The table's namespace.
    pub(crate) namespace: &'a str,
    pub(crate) distinction: Distinction,
}

/// The port of a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Port {
    Number(u32),
    Name(String),
}

/// The object that a destination routes to, with defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object<'s> {
    pub(crate) name: &'s str,
    pub(crate) kind: &'s str,
    pub(crate) namespace: &'s str,
    pub(crate) cluster: &'s str,
}

/// One destination of a route.
#[derive(Clone, Debug)]
pub(crate) struct Destination<'a> {
    /// Position in the live list; `None` for a destination that planning made or restored from the record.
    live: Option<usize>,
    context: ReadContext<'a>,
    /// The destination as JSON. Its weight is ignored: `weight` is used instead.
    raw: Raw<'a>,
    /// `None` for a destination that is not an object of a cluster, such as a Lambda function.
    object: Option<Object<'a>>,
    /// The weight as JSON. `None` is an absent key, which differs from 0 and `null` when the owner's JSON is restored.
    weight: Option<Value>,
}

/// The JSON of a destination. What planning made is shared by many routes.
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

/// The form of a route's `destinations`. All forms but `Listed` mean the table's `defaultDestination`.
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

/// The destinations of a route: those in the table now (live), those that the owner wrote, or those planned.
#[derive(Clone, Debug)]
pub(crate) struct DestinationList<'a> {
    pub(crate) destinations: Vec<Destination<'a>>,
    /// Unless `Listed`, the first destination represents the default destination, which the owner did not write into the
    /// list.
    pub(crate) form: ListForm,
}

/// A value whose type contradicts the API.
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
            kind: destination.as_object().map_or("SERVICE", kind_in),
            namespace: match text("namespace") {
                "" => namespace,
                own => own,
            },
            name: text("name"),
            cluster: text("cluster"),
        })
    }
}

/// `Kind namespace/name`, with the cluster in front of the namespace if there is one.
impl std::fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write(DestinationKind::word_of(self.kind), f)
    }
}

impl Object<'_> {
    /// As records have it.
    pub(crate) fn recorded(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(self.kind, &mut text);
        text
    }

    fn write(&self, kind: &str, to: &mut impl std::fmt::Write) -> std::fmt::Result {
        let Self {
            namespace,
            name,
            cluster,
            ..
        } = self;
        let slash = if cluster.is_empty() { "" } else { "/" };
        write!(to, "{kind} {cluster}{slash}{namespace}/{name}")
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

impl<'a> Destination<'a> {
    /// Decodes a destination that is not in the live list.
    pub(crate) fn new(raw: &'a Value, context: ReadContext<'a>) -> Self {
        Self {
            live: None,
            context,
            weight: raw.get("weight").cloned(),
            object: Object::of(raw, context.namespace),
            raw: Raw::Written(raw),
        }
    }

    /// The same destination with another weight; `None` removes the key.
    #[must_use]
    pub(crate) fn with_weight(self, weight: Option<u32>) -> Self {
        let weight = weight.map(Value::from);
        Self { weight, ..self }
    }

    /// The same destination with the weight of `other`, in the JSON form that it has there.
    #[must_use]
    pub(crate) fn with_weight_of(self, other: &Self) -> Self {
        let weight = other.weight.clone();
        Self { weight, ..self }
    }

    /// The weight in percent; Gloo reads 0 as unset.
    pub(crate) fn weight(&self) -> Option<u32> {
        u32::try_from(self.weight.as_ref()?.as_u64()?).ok()
    }

    /// The weight, unless it is absent or 0, which Gloo cannot distinguish.
    pub(crate) fn nonzero_weight(&self) -> Option<u32> {
        self.weight().filter(|weight| *weight > 0)
    }

    /// Whether the weight is written as 0. Gloo's API reference and its published examples differ in what that means.
    pub(crate) fn is_explicit_zero(&self) -> bool {
        self.weight() == Some(0)
    }

    /// The destination as JSON, with its weight.
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

    /// A copy that routes to `object`, and to `port` and `subset` if these are given. All other fields are copied.
    pub(crate) fn routing_to(
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
        if let Value::Object(fields) = &mut raw {
            if kind_in(fields) != object.kind {
                fields.insert("kind".to_owned(), json!(object.kind));
            }
            // The owner's port may have fields of a newer Gloo.
            if let Some(port) = port.filter(|_| !has_port) {
                fields.insert("port".to_owned(), json!(port));
            }
            match subset {
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
            context: self.context,
            raw: Raw::Made(Rc::new(raw)),
            object: Some(object).filter(|_| old.is_some()),
            weight: self.weight.clone(),
        }
    }

    /// The object that this routes to; `None` for a destination that is not an object of a cluster.
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

    /// The identity that the record stores.
    pub(crate) fn id(&self, distinction: Distinction) -> Option<DestinationId> {
        let object = self.object()?;
        Some(DestinationId {
            kind: object.kind.to_owned(),
            namespace: object.namespace.to_owned(),
            name: object.name.to_owned(),
            cluster: object.cluster.to_owned(),
            port: self.port().filter(|_| distinction.port),
            subset: distinction.subset.then(|| self.subset()),
        })
    }

    /// Whether this routes to the place that `id` identifies. A port or subset that `id` does not have is not compared.
    pub(crate) fn is(&self, id: &DestinationId) -> bool {
        self.object == Some(id.object())
            && (id.port.is_none() || id.port == self.port())
            && id.subset.as_ref().is_none_or(|it| self.has_subset(it))
    }

    /// Whether both route to the same place, compared as the configuration says now.
    pub(crate) fn is_same(&self, other: &Destination<'_>) -> bool {
        let distinction = other.context.distinction;
        other.object.is_some()
            && self.object == other.object
            && (!distinction.port || self.port() == other.port())
            && (!distinction.subset || self.subset() == other.subset())
    }

    /// Whether this routes to an object of the same name and namespace, in the same cluster or another.
    pub(crate) fn is_named_as(&self, other: &Destination<'_>) -> bool {
        match (self.object, other.object) {
            (Some(one), Some(other)) => (one.name, one.namespace) == (other.name, other.namespace),
            _ => false,
        }
    }

    /// As [`Self::is_named_as`], for a destination of the record.
    pub(crate) fn has_name_of(&self, recorded: &Value) -> bool {
        self.is_named_as(&Destination::new(recorded, self.context))
    }

    /// Whether this routes to the same place as a destination of the record, compared with the `distinction` of the record.
    pub(crate) fn is_recorded_as(&self, recorded: &Value, distinction: Distinction) -> bool {
        let context = ReadContext {
            namespace: self.context.namespace,
            distinction,
        };
        self.is_same(&Destination::new(recorded, context))
    }

    /// Whether both are the same JSON, apart from the weight.
    pub(crate) fn has_content_of(&self, other: &Destination<'_>) -> bool {
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

    /// Whether this and `value` are the same JSON.
    pub(crate) fn equals_json(&self, value: &Value) -> bool {
        value.get("weight") == self.weight.as_ref()
            && self.has_content_of(&Destination::new(value, self.context))
    }

    /// The destination in messages, without its port.
    pub(crate) fn label(&self) -> String {
        match self.object() {
            Some(object) => object.to_string() + &self.shown_subset(),
            None => self.without_object(),
        }
    }

    /// The destination in messages, with its port.
    pub(crate) fn label_with_port(&self) -> String {
        match (self.object(), self.port()) {
            (Some(object), Some(port)) => format!("{object} {port}{}", self.shown_subset()),
            _ => self.label(),
        }
    }

    fn shown_subset(&self) -> String {
        let subset = self.subset();
        let labels = subset.iter().map(|(key, value)| format!(" {key}={value}"));
        labels.collect()
    }

    /// What it routes to, without port and subset, as records have it.
    pub(crate) fn recorded(&self) -> String {
        match self.object() {
            Some(object) => object.recorded(),
            None => self.without_object(),
        }
    }

    /// Identifies a foreign destination in records, whose form must not change.
    pub(crate) fn place(&self) -> String {
        match self.port() {
            Some(port) => format!("{} {port}", self.recorded()),
            None => self.recorded(),
        }
    }

    fn without_object(&self) -> String {
        let lambda = self.raw.get("awsLambda");
        match lambda.and_then(|lambda| lambda.get("function")?.as_str()) {
            Some(function) => format!("AWS Lambda {function}"),
            None => "a destination without ref".to_owned(),
        }
    }
}

impl<'a> DestinationList<'a> {
    /// Decodes the destinations of a `forwardTo` of the table.
    ///
    /// # Errors
    /// Returns `Err` if a value that planning reads has the wrong type.
    pub(crate) fn live(forward: &'a Value, context: ReadContext<'a>) -> Result<Self, Malformed> {
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
        let mut destinations = Vec::with_capacity(list.map_or(0, Vec::len));
        for (index, raw) in list.into_iter().flatten().enumerate() {
            check_destination(raw).map_err(|Malformed { path, expected }| {
                Malformed::new(at(format!("destinations[{index}]{path}")), expected)
            })?;
            destinations.push(Destination {
                live: Some(index),
                ..Destination::new(raw, context)
            });
        }
        Ok(Self { destinations, form })
    }

    /// Inserts the table's default destination at the front of a list that the owner did not write. The owner may have added
    /// destinations to such a list after planning had written it.
    #[must_use]
    pub(crate) fn with_default(mut self, default: Option<&Destination<'a>>) -> Self {
        if !self.form.is_listed() {
            self.destinations.splice(..0, default.cloned());
        }
        self
    }

    /// The list for a table at rest: in the owner's form, unless it has more than the default destination.
    #[must_use]
    pub(crate) fn at_rest(self) -> Self {
        let form = if self.destinations.len() > 1 {
            ListForm::Listed
        } else {
            self.form
        };
        Self { form, ..self }
    }

    /// Whether a destination of the list routes to the same place.
    pub(crate) fn contains(&self, destination: &Destination<'_>) -> bool {
        self.destinations
            .iter()
            .any(|here| here.is_same(destination))
    }

    /// Whether both lists are the same JSON.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.form == other.form
            && self.destinations.len() == other.destinations.len()
            && self
                .destinations
                .iter()
                .zip(&other.destinations)
                .all(|(one, two)| one.weight == two.weight && one.has_content_of(two))
    }

    /// The effective weight of each destination, in percent, as Gloo computes it.
    pub(crate) fn effective_weights(&self) -> Vec<u32> {
        weight_shares(&self.weights())
    }

    /// The rule of Gloo that the weights violate, if any.
    pub(crate) fn broken_rule(&self) -> Option<gloo_types::Rule> {
        broken_weight_rule(&self.weights(), |index| {
            self.destinations.get(index).map(Destination::label)
        })
    }

    /// Whether Gloo accepts the weights, apart from destinations with weight 0.
    pub(crate) fn is_valid_without_idle(&self) -> bool {
        let active = self.destinations.iter().filter(|it| !it.is_explicit_zero());
        let weights: Vec<Option<u32>> = active.map(Destination::weight).collect();
        broken_weight_rule(&weights, |_| None).is_none()
    }

    fn weights(&self) -> Vec<Option<u32>> {
        self.destinations.iter().map(Destination::weight).collect()
    }

    /// The labels of all destinations, with their ports if these distinguish them.
    pub(crate) fn labels(&self) -> Vec<String> {
        let label = |it: &Destination<'_>| match it.context.distinction.port {
            true => it.label_with_port(),
            false => it.label(),
        };
        self.destinations.iter().map(label).collect()
    }

    /// The list as JSON.
    pub(crate) fn value(&self) -> Value {
        self.destinations.iter().map(Destination::value).collect()
    }

    /// The changes that turn this list, the live one, into `target`: weights in place, then removals from the end, then
    /// insertions from the start.
    pub(crate) fn changes_to(&self, target: &Self) -> Vec<DestinationChange> {
        match (self.form, target.form) {
            (ListForm::Absent, ListForm::Listed) => {
                let list = target.destinations.iter().map(Destination::value).collect();
                return vec![DestinationChange::CreateList(list)];
            }
            (ListForm::Listed, ListForm::Absent) => return vec![DestinationChange::RemoveList],
            (_, ListForm::Listed) | (ListForm::Listed, _) => {}
            (_, _) => return Vec::new(),
        }
        let target = if target.form.is_listed() {
            self.paired_with_live(&target.destinations)
        } else {
            Vec::new()
        };

        let mut changes = Vec::new();
        for (index, here) in self.destinations.iter().enumerate() {
            let Some((destination, _)) = target.iter().find(|(_, at)| *at == Some(index)) else {
                continue;
            };
            // What the owner wrote keeps the owner's edits; what planning made follows its source.
            if destination.live.is_none() && !destination.has_content_of(here) {
                changes.push(DestinationChange::Replace {
                    index,
                    destination: destination.label(),
                    value: destination.value(),
                });
            } else if destination.weight != here.weight {
                changes.push(DestinationChange::SetWeight {
                    index,
                    destination: destination.label(),
                    from: here.weight.clone(),
                    to: destination.weight.clone(),
                });
            }
        }
        for (index, destination) in self.destinations.iter().enumerate().rev() {
            if !target.iter().any(|(_, at)| *at == Some(index)) {
                changes.push(DestinationChange::Remove {
                    index,
                    destination: destination.label(),
                });
            }
        }
        for (index, (destination, at)) in target.iter().enumerate() {
            if at.is_none() {
                changes.push(DestinationChange::Insert {
                    index,
                    destination: destination.label(),
                    value: destination.value(),
                });
            }
        }
        changes
    }

    /// Pairs each destination of `target` with the index of the live one for the same place, as long as both lists keep their
    /// order.
    fn paired_with_live<'t>(
        &self,
        target: &'t [Destination<'a>],
    ) -> Vec<(&'t Destination<'a>, Option<usize>)> {
        let mut next = 0;
        // The owner's list may have one place twice, of which planning removed one.
        let is_free = |here: &Destination<'a>| target.iter().all(|it| it.live != here.live);
        let pair = |it: &'t Destination<'a>| {
            let mut live = self.destinations.iter();
            let same = || live.position(|here| here.is_same(it) && is_free(here));
            let index = it.live.or_else(same).filter(|index| *index >= next);
            next = index.map_or(next, |index| index + 1);
            (it, index)
        };
        target.iter().map(pair).collect()
    }
}

type Field = (&'static str, &'static str, &'static str, fn(&Value) -> bool);

/// The fields that planning reads in a destination: the object that has the field (empty for the destination itself), its key,
/// and what it must be.
const FIELDS: [Field; 10] = [
    ("", "ref", "an object", Value::is_object),
    ("ref", "name", "a string", Value::is_string),
    ("ref", "namespace", "a string", Value::is_string),
    ("ref", "cluster", "a string", Value::is_string),
    ("", "kind", "a string", Value::is_string),
    ("", "port", "an object", Value::is_object),
    ("port", "number", "a port number", is_u32),
    ("port", "name", "a string", Value::is_string),
    ("", "subset", "an object of strings", is_labels),
    ("", "weight", "a whole number from 0 to 100", is_u32),
];

/// Checks the types of the fields that planning reads in a destination. `null` counts as absent.
///
/// # Errors
/// Returns `Err` with the path of the first value of a wrong type, relative to the destination.
pub(crate) fn check_destination(raw: &Value) -> Result<(), Malformed> {
    if !raw.is_object() {
        return Err(Malformed::new("", "an object"));
    }
    for (parent, key, expected, is_valid) in FIELDS {
        let (object, dot) = match parent {
            "" => (Some(raw), ""),
            parent => (raw.get(parent), "."),
        };
        let value = object.and_then(|object| object.get(key));
        if value.is_some_and(|value| !value.is_null() && !is_valid(value)) {
            return Err(Malformed::new(format!("{dot}{parent}.{key}"), expected));
        }
    }
    Ok(())
}

/// Whether a value is an object of strings.
pub(crate) fn is_labels(value: &Value) -> bool {
    let labels = value.as_object();
    labels.is_some_and(|labels| labels.values().all(Value::is_string))
}

fn is_u32(value: &Value) -> bool {
    value.as_u64().is_some_and(|it| u32::try_from(it).is_ok())
}

fn kind_in(destination: &Map<String, Value>) -> &str {
    // proto3 cannot distinguish an absent text from an empty one.
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
