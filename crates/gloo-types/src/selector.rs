//! The selector of a Rollout's RouteTables.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::document::{ObjectKey, RouteTableDoc};

/// Selects RouteTables by name, by label, or both.
///
/// A table in one of `namespaces` is selected if its name is in `names`, or if labels or expressions are given and all of
/// them match. A table in `names` must exist; labels may select any number of tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RouteTableSelector {
    /// Names of tables.
    pub names: Vec<String>,
    /// Labels that must all be present and equal.
    pub labels: BTreeMap<String, String>,
    /// Requirements that must all match.
    pub match_expressions: Vec<LabelRequirement>,
    /// Namespaces of the tables; never empty.
    pub namespaces: Vec<String>,
}

impl RouteTableSelector {
    /// Selects one table.
    pub fn of_name(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            names: vec![name.into()],
            namespaces: vec![namespace.into()],
            ..Self::default()
        }
    }

    /// Whether tables are also selected by label, so that a list request is needed.
    pub fn by_label(&self) -> bool {
        !self.labels.is_empty() || !self.match_expressions.is_empty()
    }

    /// Whether the table `key` with `labels` is selected.
    pub fn matches(&self, key: &ObjectKey, labels: &BTreeMap<String, String>) -> bool {
        self.namespaces.contains(&key.namespace)
            && (self.names.contains(&key.name) || self.matches_labels(labels))
    }

    /// Returns the selected tables.
    ///
    /// # Errors
    /// Returns `Err` if `tables` does not contain a table that is selected by name. It is not an error if labels match no
    /// table.
    pub fn pick<T: Borrow<RouteTableDoc>>(
        &self,
        tables: impl IntoIterator<Item = T>,
    ) -> Result<Vec<T>, NoSuchTable> {
        // Both lists may be as long as that of the tables.
        let namespaces: BTreeSet<&String> = self.namespaces.iter().collect();
        let mut names: BTreeSet<&String> = self.names.iter().collect();
        let selected = tables.into_iter().filter(|table| {
            let (key, labels) = (table.borrow().key(), table.borrow().labels());
            namespaces.contains(&key.namespace)
                && (names.contains(&key.name) || self.matches_labels(labels))
        });
        let selected: Vec<T> = selected.collect();
        for table in &selected {
            names.remove(&table.borrow().key().name);
        }
        match self.names.iter().find(|name| names.contains(name)) {
            Some(name) => Err(self.absent(name)),
            None => Ok(selected),
        }
    }

    /// The error that no namespace has a table `name`.
    pub fn absent(&self, name: &str) -> NoSuchTable {
        let namespaces = self.namespaces.iter();
        let keys = namespaces.map(|namespace| format!("{namespace}/{name}"));
        NoSuchTable {
            what: format!("RouteTable {}", keys.collect::<Vec<_>>().join(" or ")),
        }
    }

    /// The labels in the form of the Kubernetes API (`labelSelector` of a list request); `None` without labels.
    pub fn label_selector_string(&self) -> Option<String> {
        let equalities = self
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        let expressions = self.match_expressions.iter().map(ToString::to_string);
        self.by_label()
            .then(|| equalities.chain(expressions).collect::<Vec<_>>().join(","))
    }

    /// Whether a table with `labels` is selected by them.
    pub fn matches_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        self.by_label()
            && self
                .labels
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }
}

/// The form for messages: `names shop, cart; labels app=shop; namespaces edge`.
impl fmt::Display for RouteTableSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.names.is_empty() {
            write!(f, "names {}; ", self.names.join(", "))?;
        }
        if let Some(labels) = self.label_selector_string() {
            write!(f, "labels {labels}; ")?;
        }
        write!(f, "namespaces {}", self.namespaces.join(", "))
    }
}

/// No namespace has a table that is selected by name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} not found: create it or correct routeTableSelector")]
pub struct NoSuchTable {
    /// The tables that were looked up: `RouteTable edge/web or shop/web`.
    pub what: String,
}

/// One requirement on a label, as in a Kubernetes label selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    /// Key of the label.
    pub key: String,
    /// Comparison of its value.
    pub operator: LabelOperator,
}

/// An expression of a label selector that Kubernetes would reject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidRequirement {
    /// The key that is wrong: `key`, `operator` or `values`.
    pub key: &'static str,
    /// What the key holds.
    pub found: String,
    /// What it must hold.
    pub expected: &'static str,
}

/// Whether Kubernetes accepts `text` as the key of a label: a name, after a DNS name and a slash if it has a prefix.
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').unwrap_or(("a", text));
    is_object_name(prefix) && is_word(name, 63, in_label)
}

/// Whether Kubernetes accepts `text` as the name of an object of most kinds: lower case letters, digits, `-` and `.`. Each part between
/// dots has a letter or digit at both ends.
#[must_use]
pub fn is_object_name(text: &str) -> bool {
    let in_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 253 && text.split('.').all(|part| is_word(part, 253, in_name))
}

/// Whether Kubernetes accepts `text` as the value of a label. It may be empty.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_word(text, 63, in_label)
}

const fn in_label(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Whether `text` has at most this number of characters, all of them `legal`, with a letter or digit at both ends.
fn is_word(text: &str, most: usize, legal: fn(char) -> bool) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_framed = text.starts_with(is_end) && text.ends_with(is_end);
    is_framed && text.len() <= most && text.chars().all(legal)
}

impl LabelRequirement {
    /// Makes a requirement of the three keys of an entry of `matchExpressions`.
    ///
    /// # Errors
    /// Returns `Err` if `key` is empty, `operator` is unknown, or `values` is empty with `In` and `NotIn` or set with
    /// `Exists` and `DoesNotExist`.
    pub fn new(
        key: String,
        operator: &str,
        values: Vec<String>,
    ) -> Result<Self, InvalidRequirement> {
        let invalid = |key, found, expected| {
            Err(InvalidRequirement {
                key,
                found,
                expected,
            })
        };
        if !is_label_key(&key) {
            return invalid("key", key, "the key of a label");
        }
        if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
            return invalid(
                "values",
                value.clone(),
                "a list of values that a label can have",
            );
        }
        let operator = match (operator, values.is_empty()) {
            ("In", false) => LabelOperator::In(values),
            ("NotIn", false) => LabelOperator::NotIn(values),
            ("Exists", true) => LabelOperator::Exists,
            ("DoesNotExist", true) => LabelOperator::DoesNotExist,
            ("In" | "NotIn", true) => {
                let expected = "a list of at least one label value";
                return invalid("values", String::new(), expected);
            }
            ("Exists" | "DoesNotExist", false) => {
                let expected = "absent with Exists and DoesNotExist";
                return invalid("values", values.join(","), expected);
            }
            (other, _) => {
                let expected = "In, NotIn, Exists or DoesNotExist";
                return invalid("operator", other.to_owned(), expected);
            }
        };
        Ok(Self { key, operator })
    }

    /// Whether `labels` match. As in Kubernetes, an absent label matches `NotIn`.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            LabelOperator::In(values) => value.is_some_and(|value| values.contains(value)),
            LabelOperator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

/// The form of the Kubernetes API: `tier in (edge,mesh)`.
impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.operator {
            LabelOperator::In(values) => write!(f, "{key} in ({})", values.join(",")),
            LabelOperator::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            LabelOperator::Exists => f.write_str(key),
            LabelOperator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

/// Comparison of a [`LabelRequirement`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelOperator {
    /// The label has one of the values.
    In(Vec<String>),
    /// The label is absent or has none of the values.
    NotIn(Vec<String>),
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}
