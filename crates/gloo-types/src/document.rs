//! An object as it was read, with its typed views, and JSON Patch on such objects.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use json_patch::{Patch, PatchError, PatchOperation, RemoveOperation};
use serde::Deserialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor,
};
use serde_json::{Map, Value};

use crate::resource::{MirrorPolicy, Resource, RetryTimeoutPolicy, RouteTable};
use crate::wrong_type::WrongType;

/// Namespace and name of an object. Its `Display` form is `namespace/name`.
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
/// Only the metadata is decoded when the object is created. `spec` and `status` are decoded by the methods of the same name,
/// so an object with a value of a wrong type does not prevent reading the other objects of a list.
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

/// Why a document cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The object has another kind.
    #[error("expected an object of kind {expected}, found kind {found}")]
    Kind {
        /// The expected kind.
        expected: &'static str,
        /// The kind of the object.
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
    /// The type of a field contradicts the API.
    #[error("{kind} {key}: unexpected value at {path}")]
    Type {
        /// Kind of the object.
        kind: &'static str,
        /// `namespace/name` of the object, or `(unnamed)` if that is not known.
        key: String,
        /// Dotted path of the field, for example `spec.http[2].name`.
        path: String,
        /// The type that the value must have.
        #[source]
        source: WrongType,
    },
}

impl DocumentError {
    /// Returns the dotted path of the field that is wrong or absent.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Kind { .. } => "kind",
            Self::Unnamed { path, .. } => path,
            Self::Type { path, .. } => path,
        }
    }
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
    /// Creates a document from the JSON of an object.
    ///
    /// # Errors
    /// Returns `Err` if `kind` is set and differs, if name or namespace are absent, or if a value of the metadata has a
    /// wrong type.
    pub fn from_value(raw: Value) -> Result<Self, DocumentError> {
        // The items of a list response have no `kind`.
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

    /// `metadata.resourceVersion`; `None` in a document that was not read from a store.
    pub fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    /// `metadata.uid`; empty in a document that was not read from a store.
    pub fn uid(&self) -> &str {
        let uid = self.raw.pointer("/metadata/uid");
        uid.and_then(Value::as_str).unwrap_or_default()
    }

    /// `metadata.generation`, which increases with each change of `spec`.
    pub fn generation(&self) -> Option<i64> {
        self.metadata.generation
    }

    /// `metadata.labels`; empty if the object has none.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// `metadata.annotations`; `None` if the object has no such map.
    pub fn annotations(&self) -> Option<&BTreeMap<String, String>> {
        self.metadata.annotations.as_ref()
    }

    /// Decodes the typed view of `spec`.
    ///
    /// # Errors
    /// Returns `Err` if a field has a type that contradicts the API.
    pub fn spec(&self) -> Result<K::Spec, DocumentError> {
        read::<K, _>(&self.raw, "spec", &self.key)
    }

    /// Decodes the typed view of `status`; the default if it is absent.
    ///
    /// # Errors
    /// Returns `Err` if a field has a type that contradicts the API.
    pub fn status(&self) -> Result<K::Status, DocumentError> {
        read::<K, _>(&self.raw, "status", &self.key)
    }

    /// The JSON of the whole object, as it was read.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// Removes `metadata.managedFields`, which may be larger than the rest. For documents that are only read.
    #[must_use]
    pub fn without_managed_fields(mut self) -> Self {
        let metadata = self.raw.get_mut("metadata");
        if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
        self
    }

    /// Returns the JSON of the whole object, as it was read.
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
                source: WrongType::new(error.inner()),
            }
        }),
    }
}

/// Applies `patch` to `document`, and keeps the order of the remaining fields.
///
/// `json_patch` moves the last field of an object to the place of a removed one. That does not change the JSON value, but it
/// is confusing in a file that a person reads.
///
/// # Errors
/// Returns `Err` if an operation cannot be applied, or if a `test` fails.
pub fn patched(mut document: Value, patch: &Patch) -> Result<Value, PatchError> {
    for operation in &patch.0 {
        let has_removed = match operation {
            PatchOperation::Remove(operation) => remove_field(&mut document, operation).is_some(),
            _ => false,
        };
        if !has_removed {
            json_patch::patch(&mut document, std::slice::from_ref(operation))?;
        }
    }
    Ok(document)
}

/// Removes a field of an object; `None` if there is none at the path.
fn remove_field(document: &mut Value, operation: &RemoveOperation) -> Option<Value> {
    let (object, field) = operation.path.split_back()?;
    let object: &mut Map<String, Value> = document.pointer_mut(object.as_str())?.as_object_mut()?;
    object.shift_remove(field.decoded().as_ref())
}

/// Decodes structs from objects only. A derived `Deserialize` also accepts a list, with the fields in order; but in such a
/// document the paths of edits would not exist. As Go reads them, a field that is null counts as absent, and a text in a map as empty.
#[derive(Clone, Copy)]
struct Strict<'de>(&'de Value);

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, serde_json::Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.iter().map(Strict));
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Value::Object(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(key, value)| (key.as_str(), Strict(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        match self.0 {
            Value::Array(_) => Err(serde_json::Error::invalid_type(Unexpected::Seq, &visitor)),
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(_, value)| !value.is_null());
                let fields = fields.map(|(key, value)| (key.as_str(), Strict(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        match self.0 {
            Value::Null => visitor.visit_str(""),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, serde_json::Error> for Strict<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(patch: Value, expect: Option<&str>) {
        let patch: Patch = serde_json::from_value(patch).unwrap();
        let document = json!({"a/b": 1, "list": [1, 2, 3], "c": {"x": 1, "y": 2, "z": 3}, "d": 4});
        let patched = patched(document, &patch).ok();
        let patched = patched.map(|it| it.to_string());
        assert_eq!(patched.as_deref(), expect, "{patch}");
    }

    #[test]
    fn remaining_fields_keep_their_order() {
        check(
            json!([{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c/x"}]),
            Some(r#"{"list":[1,2,3],"c":{"y":2,"z":3},"d":4}"#),
        );
        check(
            json!([{"op": "remove", "path": "/list/0"}, {"op": "replace", "path": "/c/x", "value": 7}]),
            Some(r#"{"a/b":1,"list":[2,3],"c":{"x":7,"y":2,"z":3},"d":4}"#),
        );
    }

    #[test]
    fn an_operation_that_cannot_be_applied_is_an_error() {
        for operation in [
            json!({"op": "remove", "path": "/none"}),
            json!({"op": "remove", "path": "/list/3"}),
            json!({"op": "remove", "path": "/none/x"}),
            json!({"op": "test", "path": "/d", "value": 5}),
        ] {
            check(json!([{"op": "remove", "path": "/a~1b"}, operation]), None);
        }
    }
}
