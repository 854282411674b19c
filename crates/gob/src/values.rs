//! Go types without a Rust type of the same form in serde: `[]byte` and `time.Time`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Go `[]byte`, also with another name such as `json.RawMessage`.
///
/// It is a basic type in gob, not a slice of numbers. So `Vec<u8>` has no [`GobType`](crate::GobType).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

struct BytesVisitor;

impl de::Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes(bytes.to_vec()))
    }
}

// Seconds from 0001-01-01T00:00:00Z, Go's zero time, to 1970-01-01T00:00:00Z.
const YEAR_ONE_TO_UNIX: i64 = 62_135_596_800;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// An instant, as a Go `time.Time` value.
///
/// The default is Go's zero time, 0001-01-01T00:00:00Z. As in Go, it is omitted as the value of a struct field, but not behind a pointer
/// (`Option<Time>`).
///
/// Source: Go `time` package, `Time.MarshalBinary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Time {
    /// Whole seconds since 1970-01-01T00:00:00Z.
    pub unix_seconds: i64,
    /// Nanoseconds within the second, below 1 000 000 000.
    pub nanos: u32,
    /// The zone of the sender, in seconds east of UTC. `None` is UTC, which Go distinguishes from a zone with offset 0.
    pub offset_seconds: Option<i32>,
}

impl Default for Time {
    fn default() -> Self {
        Self {
            unix_seconds: -YEAR_ONE_TO_UNIX,
            nanos: 0,
            offset_seconds: None,
        }
    }
}

impl Time {
    /// Returns the instant in UTC, `seconds` after 1970-01-01T00:00:00Z.
    pub fn from_unix(seconds: i64) -> Self {
        Self {
            unix_seconds: seconds,
            ..Self::default()
        }
    }

    /// The encoding of Go's zero time.
    pub(crate) const ZERO_BYTES: [u8; 15] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

    // Version 1 has 15 bytes. Version 2 has one more byte for the seconds of the offset.
    fn to_bytes(self) -> Result<([u8; 16], usize), &'static str> {
        let (minutes, seconds) = match self.offset_seconds {
            None => (-1, 0),
            Some(offset) => (offset / 60, offset % 60),
        };
        let minutes = i16::try_from(minutes).map_err(|_| "zone offset is out of range")?;
        if minutes == -1 && self.offset_seconds.is_some() {
            return Err("an offset of minus one minute means UTC to Go");
        }
        if self.nanos >= NANOS_PER_SECOND {
            return Err("nanoseconds exceed one second");
        }
        let since_year_one = self
            .unix_seconds
            .checked_add(YEAR_ONE_TO_UNIX)
            .ok_or("time is later than Go can represent")?;
        let (version, len) = if seconds == 0 { (1, 15) } else { (2, 16) };
        let [s0, s1, s2, s3, s4, s5, s6, s7] = since_year_one.to_be_bytes();
        let [n0, n1, n2, n3] = self.nanos.to_be_bytes();
        let [m0, m1] = minutes.to_be_bytes();
        let [.., extra] = seconds.to_be_bytes();
        Ok((
            [
                version, s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, m0, m1, extra,
            ],
            len,
        ))
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (seconds, rest) = rest.split_first_chunk()?;
        let (nanos, rest) = rest.split_first_chunk()?;
        let (minutes, rest) = rest.split_first_chunk()?;
        let extra = match (version, rest) {
            (1, []) => 0,
            (2, &[extra]) => i32::from(extra.cast_signed()),
            _ => return None,
        };
        let offset = i32::from(i16::from_be_bytes(*minutes)) * 60 + extra;
        Some(Self {
            unix_seconds: i64::from_be_bytes(*seconds).checked_sub(YEAR_ONE_TO_UNIX)?,
            nanos: Some(u32::from_be_bytes(*nanos)).filter(|&nanos| nanos < NANOS_PER_SECOND)?,
            offset_seconds: (offset != -60).then_some(offset),
        })
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (bytes, len) = self.to_bytes().map_err(serde::ser::Error::custom)?;
        let bytes = bytes.get(..len);
        serializer
            .serialize_bytes(bytes.ok_or_else(|| serde::ser::Error::custom("time is too long"))?)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(TimeVisitor)
    }
}

struct TimeVisitor;

impl de::Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Go time.Time")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Time, E> {
        Time::from_bytes(bytes).ok_or_else(|| E::invalid_value(de::Unexpected::Bytes(bytes), &self))
    }
}
