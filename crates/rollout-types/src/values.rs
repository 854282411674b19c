//! Field types that JSON and gob represent differently: [`RawJson`], [`Timestamp`] and [`RawRollout`].

use std::fmt;
use std::hash::{Hash, Hasher};

use gob::{Bytes, DecodeError, GobType, Raw, Schema, SchemaRef, Time};
use jiff::Timestamp as Moment;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::Value;

/// A JSON value without a schema, as text (`json.RawMessage` in Go).
///
/// In gob it is a `[]byte` that the controller has compacted and escaped. So parse it, and do not compare it as text.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct RawJson(pub Vec<u8>);

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.escape_ascii().to_string())
    }
}

impl From<Vec<u8>> for RawJson {
    fn from(json: Vec<u8>) -> Self {
        Self(json)
    }
}

impl From<&Value> for RawJson {
    fn from(json: &Value) -> Self {
        Self(json.to_string().into_bytes())
    }
}

impl AsRef<[u8]> for RawJson {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Value::deserialize(deserializer).map(|json| Self::from(&json))
        } else {
            Bytes::deserialize(deserializer).map(|bytes| Self(bytes.0))
        }
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            let json: Value = serde_json::from_slice(&self.0).map_err(ser::Error::custom)?;
            json.serialize(serializer)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl GobType for RawJson {
    fn describe(schema: &mut Schema) -> SchemaRef {
        Bytes::describe(schema)
    }
}

/// A point in time in whole seconds (`metav1.Time` in Go).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub unix_seconds: i64,
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Moment::from_second(self.unix_seconds) {
            Ok(moment) => moment.fmt(f),
            Err(_) => write!(f, "{} s after 1970", self.unix_seconds),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let unix_seconds = if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            let moment: Moment = text.parse().map_err(de::Error::custom)?;
            moment.as_second()
        } else {
            Time::deserialize(deserializer)?.unix_seconds
        };
        Ok(Self { unix_seconds })
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            let moment = Moment::from_second(self.unix_seconds).map_err(ser::Error::custom)?;
            serializer.collect_str(&moment)
        } else {
            Time::from_unix(self.unix_seconds).serialize(serializer)
        }
    }
}

impl GobType for Timestamp {
    fn describe(schema: &mut Schema) -> SchemaRef {
        Time::describe(schema)
    }
}

/// A Rollout in the controller's wire format. It is `None` if the Rollout is from another source, or larger than an API server stores.
///
/// All values are equal, so that the equality of two Rollouts depends only on the typed fields.
#[derive(Clone, Debug, Default)]
pub struct RawRollout(pub Option<Raw>);

impl PartialEq for RawRollout {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RawRollout {}

impl Hash for RawRollout {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl RawRollout {
    /// Decodes any fields, by their names in Go (`pkg/apis/rollouts/v1alpha1/types.go`). Returns `None` if the Rollout is not in wire format.
    ///
    /// # Errors
    ///
    /// The inner result is `Err` if the Rollout does not fit `T`.
    ///
    /// ```
    /// use rollout_types::Rollout;
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct Fields {
    ///     spec: Spec,
    /// }
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct Spec {
    ///     template: Template,
    /// }
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct Template {
    ///     object_meta: rollout_types::ObjectMeta,
    /// }
    ///
    /// fn pod_labels(rollout: &Rollout) -> Option<std::collections::BTreeMap<String, String>> {
    ///     let fields: Fields = rollout.raw.read()?.ok()?;
    ///     Some(fields.spec.template.object_meta.labels)
    /// }
    /// # assert_eq!(pod_labels(&Rollout::default()), None);
    /// ```
    pub fn read<T: DeserializeOwned>(&self) -> Option<Result<T, DecodeError>> {
        self.0.as_ref().map(Raw::decode)
    }
}
