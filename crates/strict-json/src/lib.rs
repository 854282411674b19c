//! Reads JSON that a person wrote, and refuses everything that is not expected. Every error names the path of the key; the
//! error for an unknown key also names the most similar known key, or all if none is similar.
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
mod unique;

use std::borrow::Cow;

use serde_json::Value;

pub use block::{Block, hint, is_near, object_name, resembles};
pub use unique::from_slice;

/// What is wrong with a document. Paths are dotted, from the top.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The value of a key has the wrong type.
    #[error("{path} must be {expected}, found {found}")]
    Type {
        /// Path of the key.
        path: String,
        /// The expected type.
        expected: &'static str,
        /// The type of the value.
        found: &'static str,
    },
    /// A key is not known.
    #[error("unknown key {path}{hint}")]
    UnknownKey {
        /// Path of the key.
        path: String,
        /// A question for the most similar known key, or all of them if none is similar.
        hint: String,
    },
    /// A value is not allowed.
    #[error("{path} is \"{}\", it must be {expected}", found.escape_debug())]
    Value {
        /// Path of the key.
        path: String,
        /// The value.
        found: String,
        /// The allowed values.
        expected: Cow<'static, str>,
    },
    /// An object has none of the keys of which it needs one.
    #[error("{path} is empty: set {needed} in it")]
    Empty {
        /// Path of the object.
        path: String,
        /// The keys of which one is needed.
        needed: &'static str,
    },
    /// Two keys exclude each other.
    #[error("{path} contradicts {other}: remove one of them")]
    Conflict {
        /// Path of one of the keys.
        path: String,
        /// The other key.
        other: &'static str,
    },
}

impl Problem {
    /// The value `found` at `path` is not `expected`.
    pub fn value(
        path: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (path, found, expected) = (path.into(), found.into(), expected.into());
        Self::Value {
            path,
            found,
            expected,
        }
    }

    /// The value `found` at `path` has another type than the `expected` one.
    #[must_use]
    pub fn wrong_type(path: String, expected: &'static str, found: &Value) -> Self {
        Self::Type {
            path,
            expected,
            found: type_name(found),
        }
    }

    /// Changes the path and the value, for example to shorten what a caller sent.
    #[must_use]
    pub fn map(mut self, change: impl Fn(&str) -> String) -> Self {
        if let Self::Value { found, .. } = &mut self {
            *found = change(found);
        }
        let (Self::Type { path, .. }
        | Self::UnknownKey { path, .. }
        | Self::Value { path, .. }
        | Self::Empty { path, .. }
        | Self::Conflict { path, .. }) = &mut self;
        *path = change(path);
        self
    }

    /// Path of the key that the problem is in.
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

/// The name of a value's type in messages.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// [`Problem::path`] matches all variants: list a new one here, too.
    #[test]
    fn every_message() {
        let path = || "routeSelector.names".to_owned();
        let problems = [
            Problem::wrong_type(path(), "a list", &Value::Null),
            Problem::UnknownKey {
                path: "routeSelector.nmaes".to_owned(),
                hint: ", did you mean names?".to_owned(),
            },
            Problem::value("verify", "soon\n", "auto, weights or accepted"),
            Problem::Empty {
                path: path(),
                needed: "a name",
            },
            Problem::Conflict {
                path: path(),
                other: "routeName",
            },
        ];
        assert_eq!(
            problems.map(|problem| problem.to_string()),
            [
                "routeSelector.names must be a list, found null",
                "unknown key routeSelector.nmaes, did you mean names?",
                r#"verify is "soon\n", it must be auto, weights or accepted"#,
                "routeSelector.names is empty: set a name in it",
                "routeSelector.names contradicts routeName: remove one of them",
            ]
        );
    }
}
