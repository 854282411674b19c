//! The keys of a kind of source, and how the values of its parameters are read.

use std::ops::RangeInclusive;

use serde_json::Value;
use strict_json::{Block, Problem};

/// The names of a kind of source, and the keys that it reads. The tables in `docs` have a row for each key.
pub(crate) struct Schema {
    /// The name by which requests choose it.
    pub(crate) name: &'static str,
    /// Its top-level key in the configuration.
    pub(crate) key: &'static str,
    /// The keys of the object under `key`.
    pub(crate) keys: &'static [&'static str],
    /// The parameters of its requests, besides those of every source.
    pub(crate) parameters: &'static [&'static str],
    /// Its top-level key in a parameter set. The parameter `outputKey` renames it.
    pub(crate) output_key: &'static str,
}

/// Reads a text that has no [blanks](has_blanks) where none can be.
pub(crate) fn text<'a>(block: &Block<'a>, key: &str) -> Result<Option<&'a str>, Problem> {
    match block.string(key)? {
        Some(text) if has_blanks(text) => Err(blank(block.path(key), text)),
        text => Ok(text),
    }
}

/// Returns the problem that the `text` at `path` has [blanks](has_blanks).
pub(crate) fn blank(path: String, text: &str) -> Problem {
    Problem::value(path, text, "a text without blanks at its ends")
}

/// Whether `text` is blank, begins or ends with a blank, or has a control character.
pub(crate) fn has_blanks(text: &str) -> bool {
    is_blank(text) || text.trim() != text || text.contains(char::is_control)
}

/// Whether nothing in `text` can be seen: blanks, control characters, and [`INVISIBLE`].
pub(crate) fn is_blank(text: &str) -> bool {
    let is_invisible = |c: char| {
        c.is_whitespace() || c.is_control() || INVISIBLE.iter().any(|range| range.contains(&c))
    };
    text.chars().all(is_invisible)
}

/// Invisible characters of Unicode: those without width, fillers, and the blank Braille pattern.
const INVISIBLE: [RangeInclusive<char>; 16] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fff8}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Reads a count, which may be a number or a string: templates turn every value into a string.
pub(crate) fn count(parameters: &Block<'_>, key: &str) -> Result<Option<usize>, Problem> {
    typed(parameters, key, as_count, "a whole number from 0")
}

/// Returns the count that `value` is, if it is one.
pub(crate) fn as_count(value: &Value) -> Option<usize> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64()?.try_into().ok(),
    }
}

/// Reads a boolean, which may be a string: templates turn every value into a string.
pub(crate) fn flag(parameters: &Block<'_>, key: &str) -> Result<Option<bool>, Problem> {
    let read = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_bool(),
    };
    typed(parameters, key, read, "true or false")
}

/// Whether `key` has the second of two words. The first one is the default.
pub(crate) fn is_second(
    parameters: &Block<'_>,
    key: &str,
    [first, second]: [&str; 2],
) -> Result<bool, Problem> {
    Ok(parameters.one_of(key, &[first, second])? == Some(second))
}

fn typed<T>(
    parameters: &Block<'_>,
    key: &str,
    read: impl Fn(&Value) -> Option<T>,
    expected: &'static str,
) -> Result<Option<T>, Problem> {
    let value = parameters.value(key);
    let read = |value| read(value).ok_or_else(|| parameters.wrong(key, written(value), expected));
    value.map(read).transpose()
}

/// Returns a value as messages show it.
pub(crate) fn written(value: &Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string())
}
