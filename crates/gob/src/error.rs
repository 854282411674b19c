//! Errors: a corrupt stream, a value that does not fit its Rust type, and a value that gob cannot represent.

use std::fmt;

use serde::de::Unexpected;

/// The error of [`Decoder::poll_value`](crate::Decoder::poll_value).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The value is valid gob but does not fit the requested Rust type. It is skipped, and the next call returns the next value.
    #[error("gob value does not fit{}{path}: {reason}", if path.is_empty() { "" } else { " at " })]
    Mismatch {
        /// Path in the value, in Go field names (`Rollout.Spec.Steps[2].SetWeight`); empty for the value itself.
        path: String,
        /// What was expected and what arrived. It contains no strings or bytes of the value, except a name that is not a variant of an
        /// enum.
        reason: String,
    },
    /// The bytes are not gob, or exceed a limit. The decoder cannot continue, and every later call returns the same error.
    #[error("gob stream is corrupt at byte {offset}")]
    Corrupt {
        /// Position in the stream, from its first byte.
        offset: u64,
        /// The fault at this position.
        #[source]
        fault: Fault,
    },
}

impl DecodeError {
    /// Returns whether the stream is corrupt, so that the decoder cannot continue.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

/// Why a stream is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A message ends before its value.
    #[error("message ends inside a value")]
    Truncated,
    /// A byte that cannot start an unsigned integer.
    #[error("0x{head:02x} is not the first byte of an integer")]
    BadInteger {
        /// The byte.
        head: u8,
    },
    /// A message of length zero.
    #[error("message is empty")]
    EmptyMessage,
    /// Bytes after a complete value or definition.
    #[error("{count} bytes follow a complete value")]
    TrailingBytes {
        /// Number of bytes.
        count: usize,
    },
    /// An id that is not a basic type and not in the range of user types.
    #[error("type id {id} is reserved or out of range")]
    BadTypeId {
        /// The id as sent.
        id: i64,
    },
    /// A value of a type that the stream did not define.
    #[error("type id {id} is not defined")]
    UndefinedType {
        /// The id as sent.
        id: i64,
    },
    /// A second definition for the same id.
    #[error("type id {id} is defined twice")]
    DuplicateType {
        /// The id as sent.
        id: i64,
    },
    /// A type definition that breaks the rules of Go's `wireType`.
    #[error("type definition {problem}")]
    BadDefinition {
        /// The broken rule.
        problem: &'static str,
    },
    /// A struct value with a field that its definition does not have.
    #[error("struct value has more fields than its type, which has {fields}")]
    FieldOutOfRange {
        /// Fields in the definition.
        fields: usize,
    },
    /// An array value whose length differs from its definition.
    #[error("array value has {found} elements, its type {expected}")]
    ArrayLength {
        /// Length in the definition.
        expected: u64,
        /// Length in the value.
        found: u64,
    },
    /// The zero byte before a top-level value that is not a struct is missing.
    #[error("value is not preceded by a zero byte")]
    BadSingleton,
    /// The decoder lost its position in a message: a bug in this crate.
    #[error("decoder lost its position in a message: report this as a bug")]
    Misplaced,
    /// More than [`Limits`](crate::Limits) allows.
    #[error("more than {limit} {what}")]
    LimitExceeded {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Why a Rust value could not be encoded. The output buffer and the stream are unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// `Serialize` produced another kind of value than `GobType` described.
    #[error("{given} cannot be sent as gob {expected}")]
    Mismatch {
        /// The kind of value that serde produced.
        given: &'static str,
        /// The kind of type that was described.
        expected: &'static str,
    },
    /// A field that is not in the description of its struct.
    #[error("gob struct {go_type} has no field {field}")]
    UnknownField {
        /// Go name of the struct.
        go_type: &'static str,
        /// The field that serde produced.
        field: &'static str,
    },
    /// An enum variant that is not a registered type of its interface.
    #[error("gob interface has no registered type {variant}")]
    UnknownVariant {
        /// The variant that serde produced.
        variant: &'static str,
    },
    /// A slice, array or map whose length was unknown before its elements, or wrong.
    #[error("gob needs the exact length of a slice, array or map before its elements")]
    Length,
    /// A `None` that gob cannot omit: only a struct field or an interface can be nil.
    #[error("gob cannot send nil here: only a struct field or an interface can be nil")]
    Nil,
    /// A [`SchemaRef`](crate::SchemaRef) of another encoder's schema.
    #[error("gob type belongs to another encoder: a GobType must not keep its SchemaRef")]
    ForeignType,
    /// The encoder lost track of nested values: a bug in this crate.
    #[error("gob encoder lost its position in a nested value: report this as a bug")]
    Unbalanced,
    /// An error of a `Serialize` implementation.
    #[error("{0}")]
    Custom(String),
}

impl serde::ser::Error for EncodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

/// An error of serde while it decodes a value. It becomes [`DecodeError::Mismatch`] unless the bytes are corrupt.
#[derive(Debug)]
pub(crate) struct ValueError(Box<Mismatch>);

#[derive(Debug)]
struct Mismatch {
    path: String,
    reason: String,
}

// The peer chooses some of the names in a reason, so its length is limited.
const REASON_CHARS: usize = 300;

impl ValueError {
    fn new(mut reason: String) -> Self {
        if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS) {
            reason.truncate(end);
            reason.push_str("...");
        }
        Self(Box::new(Mismatch {
            path: String::new(),
            reason,
        }))
    }

    /// Adds a field of a struct to the front of the path.
    pub(crate) fn in_field(self, name: &str) -> Self {
        self.inside(name.to_owned())
    }

    /// Adds an element of a slice or array to the front of the path.
    pub(crate) fn in_element(self, index: u64) -> Self {
        self.inside(format!("[{index}]"))
    }

    fn inside(mut self, mut outer: String) -> Self {
        let inner = &self.0.path;
        if !inner.is_empty() && !inner.starts_with('[') {
            outer.push('.');
        }
        outer.push_str(inner);
        self.0.path = outer;
        self
    }
}

impl From<ValueError> for DecodeError {
    fn from(error: ValueError) -> Self {
        Self::Mismatch {
            path: error.0.path,
            reason: error.0.reason,
        }
    }
}

impl From<Fault> for ValueError {
    fn from(fault: Fault) -> Self {
        Self::new(fault.to_string())
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.reason)
    }
}

impl std::error::Error for ValueError {}

impl serde::de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string().replace(char::is_control, " "))
    }

    // serde's own texts contain strings and bytes of the value, which may be secrets, and name Rust's types instead of Go's.
    fn invalid_type(found: Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        let found = match found {
            Unexpected::Bool(_) => "a bool".to_owned(),
            Unexpected::Str(_) => "a string".to_owned(),
            Unexpected::Bytes(_) => "bytes".to_owned(),
            Unexpected::Option => "nil".to_owned(),
            Unexpected::Enum => "an interface value".to_owned(),
            Unexpected::Seq => "a slice or an array".to_owned(),
            Unexpected::Map => "a struct or a map".to_owned(),
            other => other.to_string(),
        };
        let expected = expected.to_string();
        let expected = match expected.as_str() {
            "i8" => "an int8",
            "i16" => "an int16",
            "i32" => "an int32",
            "i64" => "an int64",
            "u8" => "a uint8",
            "u16" => "a uint16",
            "u32" => "a uint32",
            "u64" => "a uint64",
            "f32" => "a float32",
            "f64" => "a float64",
            "a boolean" => "a bool",
            "a sequence" => "a slice",
            other => other,
        };
        Self::new(format!("expected {expected}, found {found}"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::invalid_type(found, expected)
    }
}
