//! The labels that identify managed routes: they name the Rollout for which a route was inserted, and the managed route.
//!
//! In a management cluster the Rollouts of several clusters share the tables, and may have equal names. There the mark of a
//! Rollout contains its cluster: `shop/reviews@east` in records and messages, `reviews_east` in the label with its name.
//! Kubernetes names contain neither character, so a plugin that is not configured for several clusters sees another Rollout,
//! and does not change its routes and records.

use gloo_types::ObjectKey;
use serde_json::{Map, Value, json};

/// Key of the annotation with the record of all changes. A table at rest does not have it.
pub const ANNOTATION: &str = "rollouts-plugin-trafficrouter-glooplatform/changes";

/// Prefix of the keys of all labels that the plugin sets.
pub(crate) const PREFIX: &str = "rollouts-plugin-trafficrouter-glooplatform";
const NAMESPACE: &str = "namespace";
const ROLLOUT: &str = "rollout";
const MANAGED_ROUTE: &str = "managed-route";

/// Most characters of a label value.
const LABEL_LENGTH: usize = 63;

/// The name under which a Rollout is recorded in tables: `namespace/name`, or `namespace/name@cluster`.
#[must_use]
pub fn mark(rollout: &ObjectKey, cluster: Option<&str>) -> ObjectKey {
    let ObjectKey { namespace, name } = rollout;
    match cluster {
        Some(cluster) => ObjectKey::new(namespace, format!("{name}@{cluster}")),
        None => rollout.clone(),
    }
}

/// Splits a mark into the Rollout and its cluster.
#[must_use]
pub fn marked(mark: &ObjectKey) -> (ObjectKey, Option<&str>) {
    match mark.name.split_once('@') {
        Some((name, cluster)) => (ObjectKey::new(&mark.namespace, name), Some(cluster)),
        None => (mark.clone(), None),
    }
}

/// The Rollout for which a route was inserted, by its labels. The order of owners is the order of their routes before one
/// source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    namespace: String,
    rollout: String,
}

/// The content of the labels of a managed route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ownership {
    pub(crate) owner: Owner,
    /// The label value with the name of the managed route.
    pub(crate) managed: String,
}

/// The managed routes of the Rollout that a plan may change, by their label values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Named(Vec<String>),
    Except(Vec<String>),
}

impl Scope {
    pub(crate) fn includes(&self, managed: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| name == managed),
            Self::Except(names) => names.iter().all(|name| name != managed),
        }
    }
}

impl Owner {
    /// Creates the owner from its [`mark`].
    pub(crate) fn new(rollout: &ObjectKey) -> Self {
        Self {
            namespace: label_value(&rollout.namespace),
            rollout: label_value(&rollout.name.replacen('@', "_", 1)),
        }
    }

    /// The [`mark`], as the labels contain it: a name that is too long for a label is shortened and ends with a hash.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, self.rollout.replacen('_', "@", 1))
    }

    /// The labels with the Rollout.
    pub(crate) fn own_labels(&self) -> [(String, String); 2] {
        [(NAMESPACE, &self.namespace), (ROLLOUT, &self.rollout)]
            .map(|(key, value)| (format!("{PREFIX}/{key}"), value.clone()))
    }

    /// The labels of the managed route `name` of this Rollout.
    pub(crate) fn labels(&self, name: &str) -> Map<String, Value> {
        let managed = (format!("{PREFIX}/{MANAGED_ROUTE}"), label_value(name));
        let labels = self.own_labels().into_iter().chain([managed]);
        labels.map(|(key, value)| (key, json!(value))).collect()
    }
}

impl Ownership {
    /// Reads the labels of a route; `None` for a route that the table's owner wrote. Also `None` if a label has a value
    /// that the plugin never writes, such as an empty one.
    pub(crate) fn of(route: &Value) -> Option<Self> {
        let labels = route.get("labels")?;
        let label = |key| {
            let value = labels.get(format!("{PREFIX}/{key}"))?.as_str()?;
            (label_value(value) == value).then(|| value.to_owned())
        };
        Some(Self {
            owner: Owner {
                namespace: label(NAMESPACE)?,
                rollout: label(ROLLOUT)?,
            },
            managed: label(MANAGED_ROUTE)?,
        })
    }
}

/// Returns `text` if it is a valid label value, and a shortened text with a hash otherwise.
pub(crate) fn label_value(text: &str) -> String {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    let legal = |c: char| alphanumeric(c) || matches!(c, '-' | '_' | '.');
    if text.len() <= LABEL_LENGTH
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(legal)
    {
        return text.to_owned();
    }
    let start: String = text.chars().filter(|c| alphanumeric(*c)).take(40).collect();
    format!("x{start}-{:016x}", fnv1a(text))
}

/// The 64-bit FNV-1a hash of a text. It must never change, since labels in tables contain it.
pub(crate) fn fnv1a(text: &str) -> u64 {
    let mut hash = Fnv::default();
    hash.bytes(text.as_bytes());
    hash.finish()
}

/// The state of a 64-bit FNV-1a hash. Records in tables contain such hashes, too.
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_used_as_label_values() {
        for name in ["hdr", "a.b_c-d", &"x".repeat(63)] {
            assert_eq!(label_value(name), name);
        }
        for name in ["", "héader route", "-a", "a-", &"x".repeat(64)] {
            let value = label_value(name);
            assert_eq!(label_value(&value), value, "{name}");
            assert!(value.len() <= LABEL_LENGTH);
        }
        // The first hash is a test vector of the hash's authors.
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(label_value("a b"), "xab-e63f991904833892");
    }

    #[test]
    fn a_mark_contains_the_cluster_if_there_is_one() {
        let reviews = ObjectKey::new("shop", "reviews");
        let east = mark(&reviews, Some("east"));
        assert_eq!(east.to_string(), "shop/reviews@east");
        assert_eq!(marked(&east), (reviews.clone(), Some("east")));
        assert_eq!(mark(&reviews, None), reviews);
        assert_eq!(marked(&reviews), (reviews.clone(), None));
        // The labels contain the same.
        for mark in [&east, &reviews] {
            assert_eq!(Owner::new(mark).key(), *mark);
        }
        let label = |mark| Owner::new(mark).own_labels()[1].1.clone();
        assert_eq!(
            (label(&east), label(&reviews)),
            ("reviews_east".into(), "reviews".into())
        );
        let long = mark(&ObjectKey::new("shop", "x".repeat(60)), Some("east"));
        assert_eq!(label(&long).len(), 58);
    }

    #[test]
    fn all_three_labels_are_needed_to_identify_the_owner() {
        let owner = Owner::new(&ObjectKey::new("shop", "reviews"));
        let mut labels = owner.labels("hdr");
        labels.insert("route".to_owned(), json!("api"));
        let route = json!({ "labels": labels });
        let ownership = Ownership::of(&route).unwrap();
        assert_eq!((ownership.owner, &*ownership.managed), (owner, "hdr"));
        let rollout = format!("{PREFIX}/{ROLLOUT}");
        for invalid in ["", "-a", "a b"] {
            labels.insert(rollout.clone(), json!(invalid));
            assert_eq!(Ownership::of(&json!({ "labels": labels })), None);
        }
        labels.shift_remove(&rollout);
        assert_eq!(Ownership::of(&json!({ "labels": labels })), None);
    }
}
