//! A point in time, as Kubernetes stores it.

use std::fmt;

use gob::{GobType, Schema, SchemaRef, Time};
use jiff::Timestamp as Moment;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

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
