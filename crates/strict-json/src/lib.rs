//! Reads JSON that a person wrote, strictly. Every error names the path of the key; for an unknown key it also names the most
//! similar known key.
//!
//! ```
//! use serde_json::json;
//! use strict_json::Block;
//!
//! let document = json!({"selector": {"nmae": "web"}});
//! let block = Block::root(&document, "the configuration", &["selector"])?;
//! let problem = block.block("selector", &["name", "labels"]).err().map(|problem| problem.to_string());
//! assert_eq!(problem.as_deref(), Some("unknown key selector.nmae, did you mean name?"));
//! # Ok::<(), strict_json::Problem>(())
//! ```

mod block;

use std::borrow::Cow;

use serde_json::Value;

pub use block::{Block, object_name, resembles};

/// What is wrong with a document. Paths are dotted, from the top.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A key holds another type of value.
    #[error("{path} must be {expected}, found {found}")]
    Type {
        /// Path of the key.
        path: String,
        /// What is expected there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A key that does not exist.
    #[error("unknown key {path}, did you mean {nearest}?")]
    UnknownKey {
        /// Path of the key.
        path: String,
        /// The known key that looks most like it.
        nearest: String,
    },
    /// A value outside of its range.
    #[error("{path} is {found:?}, it must be {expected}")]
    Value {
        /// Path of the key.
        path: String,
        /// What is there.
        found: String,
        /// What may be there.
        expected: Cow<'static, str>,
    },
    /// An object without any of the keys it needs.
    #[error("{path} is empty: set {needed} in it")]
    Empty {
        /// Path of the object.
        path: String,
        /// The keys, one of which is needed.
        needed: &'static str,
    },
    /// Two keys exclude each other.
    #[error("{path} contradicts {other}: remove one of them")]
    Conflict {
        /// Path of the one key.
        path: String,
        /// The other key.
        other: &'static str,
    },
}

impl Problem {
    /// Path of the key it is about.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Type { path, .. }
            | Self::UnknownKey { path, .. }
            | Self::Value { path, .. }
            | Self::Empty { path, .. }
            | Self::Conflict { path, .. } => path,
        }
    }
}

/// The type of a value in messages.
#[must_use]
pub const fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
