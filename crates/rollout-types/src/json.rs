//! What JSON has and gob has not: null, and values without a schema.

use std::fmt;

use gob::{Bytes, GobType, Schema, SchemaRef};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::Value;

/// A JSON value without a schema (`json.RawMessage` in Go), as text.
///
/// In gob it is a byte slice, which the controller has compacted and escaped: parse it, never compare it as text.
#[derive(Clone, Default, PartialEq, Eq)]
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
