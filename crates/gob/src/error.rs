//! What can go wrong: a corrupt stream, a value that does not fit its Rust type, a value gob cannot carry.

use std::fmt;

/// Why [`Decoder::poll_value`](crate::Decoder::poll_value) gave no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The value is sound gob but does not fit the requested Rust type. It has been skipped and the
    /// stream is in step: the next call yields the next value.
    #[error("gob value does not fit{}{path}: {reason}", if path.is_empty() { "" } else { " at " })]
    Mismatch {
        /// Where in the value, in Go field names (`Rollout.Spec.Steps[2].SetWeight`); empty for the value itself.
        path: String,
        /// What was expected and what arrived. Strings and bytes of the value are not quoted, but a name that is no
        /// variant of an enum is.
        reason: String,
    },
    /// The bytes are not gob, or exceed a limit. Nothing after them can be trusted: every later call
    /// returns this same error.
    #[error("gob stream is corrupt at byte {offset}")]
    Corrupt {
        /// Position in the stream, counted from the first byte given to the decoder.
        offset: u64,
        /// What was found there.
        #[source]
        fault: Fault,
    },
}

impl DecodeError {
    /// True when the stream cannot be used any more.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

/// What makes a stream corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A message ends before its value.
    #[error("message ends inside a value")]
    Truncated,
    /// A byte that cannot begin an unsigned integer.
    #[error("0x{head:02x} does not begin an integer")]
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
        /// How many.
        count: usize,
    },
    /// An id that is neither of a basic type nor in the range of user types.
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
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A struct value with a field its definition does not have.
    #[error("struct value has a field beyond the {fields} of its definition")]
    FieldOutOfRange {
        /// Fields in the definition.
        fields: usize,
    },
    /// An array value whose length differs from its definition.
    #[error("array of {expected} elements arrives with {found}")]
    ArrayLength {
        /// Length in the definition.
        expected: u64,
        /// Length in the value.
        found: u64,
    },
    /// The zero byte in front of a top-level value that is not a struct is missing.
    #[error("value is not preceded by a zero byte")]
    BadSingleton,
    /// The decoder has lost its place in a message: a mistake in this crate.
    #[error("decoder has lost its place in a message: please report this")]
    Misplaced,
    /// More than [`Limits`](crate::Limits) allows.
    #[error("more than {limit} {what}")]
    LimitExceeded {
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: usize,
    },
}

/// Why a Rust value could not be encoded. The output buffer and the stream are as before the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// `Serialize` produced something else than `GobType` described.
    #[error("{given} cannot be sent as gob {expected}")]
    Mismatch {
        /// The kind of value serde produced.
        given: &'static str,
        /// The kind of type described.
        expected: &'static str,
    },
    /// A field that is not in the description of its struct.
    #[error("gob struct {go_type} has no field {field}")]
    UnknownField {
        /// Go name of the struct.
        go_type: &'static str,
        /// The field serde produced.
        field: &'static str,
    },
    /// An enum variant that is no registered type of its interface.
    #[error("gob interface has no registered type {variant}")]
    UnknownVariant {
        /// The variant serde produced.
        variant: &'static str,
    },
    /// A slice, array or map whose length was not known before its elements, or was wrong.
    #[error("gob needs the exact length of a slice, array or map before its elements")]
    Length,
    /// A `None` where gob has no way to leave a value out: only struct fields and interfaces can be nil.
    #[error("gob cannot send None here: only a struct field or an interface can be nil")]
    Nil,
    /// A [`SchemaRef`](crate::SchemaRef) that another encoder's schema made.
    #[error("gob type belongs to another encoder: a GobType must not keep its SchemaRef")]
    ForeignType,
    /// The encoder has lost track of the values inside one another: a mistake in this crate.
    #[error("gob encoder has lost its place in a nested value: please report this")]
    Unbalanced,
    /// Reported by a `Serialize` implementation.
    #[error("{0}")]
    Custom(String),
}

impl serde::ser::Error for EncodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

/// What serde reports while a value is decoded: becomes [`DecodeError::Mismatch`] unless the bytes
/// themselves turn out to be corrupt.
#[derive(Debug)]
pub(crate) struct ValueError(Box<Mismatch>);

#[derive(Debug)]
struct Mismatch {
    path: String,
    reason: String,
}

// A peer chooses some of the names in a reason; this keeps a log line readable.
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

    /// The error, seen from the struct that holds the field.
    pub(crate) fn in_field(self, name: &str) -> Self {
        self.inside(name.to_owned())
    }

    /// The error, seen from the slice or array that holds the element.
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

    // serde's own texts quote strings and bytes, which may be secrets of the sender.
    fn invalid_type(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::new(format!(
            "expected {expected}, found {}",
            without_content(found)
        ))
    }

    fn invalid_value(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::new(format!(
            "expected {expected}, found {}",
            without_content(found)
        ))
    }
}

fn without_content(found: serde::de::Unexpected<'_>) -> String {
    match found {
        serde::de::Unexpected::Str(_) => "a string".to_owned(),
        serde::de::Unexpected::Bytes(_) => "bytes".to_owned(),
        other => other.to_string(),
    }
}
