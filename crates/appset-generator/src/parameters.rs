//! Reading parameters. They may have been templated, which makes texts of numbers and booleans.

use serde_json::Value;
use strict_json::{Block, Problem};

/// A count, as a number or as its text.
pub(crate) fn count(parameters: &Block<'_>, key: &str) -> Result<Option<usize>, Problem> {
    let read = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|count| count.try_into().ok()),
    };
    typed(parameters, key, read, "a whole number from 0")
}

/// A boolean, as such or as its text.
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
