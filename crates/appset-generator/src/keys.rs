//! A key of the configuration or parameter of a request, with its documentation, and how the values of parameters are read.

use serde_json::Value;
use strict_json::{Block, Problem};

/// A key of the configuration, or a parameter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name of the key.
    pub name: &'static str,
    /// What the key holds and does, in Markdown.
    pub about: &'static str,
    /// The default, in Markdown. Empty if there is none.
    pub default: &'static str,
}

impl Key {
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        default: &'static str,
    ) -> Self {
        Self {
            name,
            about,
            default,
        }
    }
}

/// The names of a kind of source, and the keys that it reads.
pub(crate) struct Schema {
    /// The name by which requests choose it.
    pub(crate) name: &'static str,
    /// Its key at the top of the configuration.
    pub(crate) key: &'static str,
    /// The keys of the object under `key`.
    pub(crate) keys: &'static [Key],
    /// The parameters of its requests, besides those of every source.
    pub(crate) parameters: &'static [Key],
    /// Its key at the top of a parameter set. The parameter `outputKey` renames it.
    pub(crate) output_key: &'static str,
}

/// Returns the names of `keys` for [`strict_json::Block`].
pub(crate) fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

/// Reads the name of a cluster. A blank one is a template without a value: as an unknown cluster it would have no sets.
pub(crate) fn cluster<'a>(parameters: &Block<'a>) -> Result<Option<&'a str>, Problem> {
    let name = parameters.string("cluster")?;
    match name {
        Some(text) if text.trim().is_empty() || text.contains(char::is_control) => {
            Err(Problem::Value {
                path: parameters.path("cluster"),
                found: text.to_owned(),
                expected: "the name of a cluster".into(),
            })
        }
        name => Ok(name),
    }
}

/// Reads a count, which may be a number or a string: templates turn every value into a string.
pub(crate) fn count(parameters: &Block<'_>, key: &str) -> Result<Option<usize>, Problem> {
    let read = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|count| count.try_into().ok()),
    };
    typed(parameters, key, read, "a whole number from 0")
}

/// Reads a boolean, which may be a string: templates turn every value into a string.
pub(crate) fn flag(parameters: &Block<'_>, key: &str) -> Result<Option<bool>, Problem> {
    let read = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_bool(),
    };
    typed(parameters, key, read, "true or false")
}

fn typed<T>(
    parameters: &Block<'_>,
    key: &str,
    read: impl Fn(&Value) -> Option<T>,
    expected: &'static str,
) -> Result<Option<T>, Problem> {
    let Some(value) = parameters.value(key) else {
        return Ok(None);
    };
    match read(value) {
        Some(value) => Ok(Some(value)),
        None => Err(Problem::Value {
            path: parameters.path(key),
            found: value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
            expected: expected.into(),
        }),
    }
}
