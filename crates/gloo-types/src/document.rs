//! An object as it was read, beside its typed view.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::resource::{MirrorPolicy, Resource, RetryTimeoutPolicy, RouteTable};
use crate::strict::Strict;

/// Namespace and name of an object. Displays as `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace of the object; never empty for a RouteTable.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl ObjectKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A whole object.
///
/// Only the metadata is read at once. `spec` and `status` are read when asked for, so that one object with a wrong type
/// inside does not hide its neighbours in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Document<K> {
    raw: Value,
    key: ObjectKey,
    metadata: Metadata,
    kind: PhantomData<K>,
}

/// A whole RouteTable.
pub type RouteTableDoc = Document<RouteTable>;

/// A whole MirrorPolicy.
pub type MirrorPolicyDoc = Document<MirrorPolicy>;

/// A whole RetryTimeoutPolicy.
pub type RetryTimeoutPolicyDoc = Document<RetryTimeoutPolicy>;

/// Why a document is not an object we can read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// An object of another kind.
    #[error("expected an object of kind {expected}, found kind {found}")]
    Kind {
        /// The kind that was asked for.
        expected: &'static str,
        /// The kind that is there.
        found: String,
    },
    /// `metadata.name` or `metadata.namespace` is absent.
    #[error("{kind} without {path}")]
    Unnamed {
        /// Kind of the object.
        kind: &'static str,
        /// Path of the absent field.
        path: &'static str,
    },
    /// A field has another type than the API says.
    #[error("{kind} {key}: unexpected value at {path}")]
    Type {
        /// Kind of the object.
        kind: &'static str,
        /// The object, `namespace/name` as far as known.
        key: String,
        /// Dotted path of the field, for example `spec.http[2].name`.
        path: String,
        /// What was expected there.
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl<K: Resource> Document<K> {
    /// Takes an object as the API server returns it, or as a file holds it.
    ///
    /// # Errors
    /// Returns `Err` if `kind` is given and is another one, if name or namespace are absent, or if the metadata has a
    /// wrong type.
    pub fn from_value(raw: Value) -> Result<Self, DocumentError> {
        // Items of a list may come without `kind`.
        match raw.get("kind") {
            Some(kind) if kind != K::KIND => {
                let found = kind
                    .as_str()
                    .map_or_else(|| kind.to_string(), str::to_owned);
                return Err(DocumentError::Kind {
                    expected: K::KIND,
                    found,
                });
            }
            _ => {}
        }
        let metadata: Metadata = read::<K, _>(&raw, "metadata", "(unnamed)")?;
        if metadata.name.is_empty() {
            return Err(DocumentError::Unnamed {
                kind: K::KIND,
                path: "metadata.name",
            });
        }
        if metadata.namespace.is_empty() {
            return Err(DocumentError::Unnamed {
                kind: K::KIND,
                path: "metadata.namespace",
            });
        }
        let key = ObjectKey::new(&metadata.namespace, &metadata.name);
        Ok(Self {
            raw,
            key,
            metadata,
            kind: PhantomData,
        })
    }

    /// Namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// `metadata.resourceVersion`; absent in a document that no store has seen.
    pub fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    /// `metadata.generation`: counts changes of `spec`.
    pub fn generation(&self) -> Option<i64> {
        self.metadata.generation
    }

    /// `metadata.labels`; empty when the object has no such map.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// `metadata.annotations`; `None` when the object has no such map.
    pub fn annotations(&self) -> Option<&BTreeMap<String, String>> {
        self.metadata.annotations.as_ref()
    }

    /// The typed view of `spec`.
    ///
    /// # Errors
    /// Returns `Err` if a field has a type that contradicts the API.
    pub fn spec(&self) -> Result<K::Spec, DocumentError> {
        read::<K, _>(&self.raw, "spec", &self.key)
    }

    /// The typed view of `status`; the default when there is none.
    ///
    /// # Errors
    /// Returns `Err` if a field has a type that contradicts the API.
    pub fn status(&self) -> Result<K::Status, DocumentError> {
        read::<K, _>(&self.raw, "status", &self.key)
    }

    /// The whole object, untouched.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// The object without `metadata.managedFields`, which may be longer than the rest; for readers only.
    #[must_use]
    pub fn without_managed_fields(mut self) -> Self {
        let metadata = self.raw.get_mut("metadata");
        if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
        self
    }

    /// The whole object, untouched.
    pub fn into_raw(self) -> Value {
        self.raw
    }
}

impl<K: Resource> TryFrom<Value> for Document<K> {
    type Error = DocumentError;

    fn try_from(raw: Value) -> Result<Self, DocumentError> {
        Self::from_value(raw)
    }
}

fn read<K: Resource, T: DeserializeOwned + Default>(
    raw: &Value,
    field: &str,
    key: impl ToString,
) -> Result<T, DocumentError> {
    match raw.get(field) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => serde_path_to_error::deserialize(Strict(value)).map_err(|error| {
            let inner = error.path().to_string();
            DocumentError::Type {
                kind: K::KIND,
                key: key.to_string(),
                path: if inner == "." {
                    field.to_owned()
                } else {
                    format!("{field}.{inner}")
                },
                source: error.into_inner(),
            }
        }),
    }
}
