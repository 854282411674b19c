//! An object of a document, and methods that read its keys.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::Problem;

/// A JSON object whose keys are all known. `null` counts as absent.
#[derive(Debug)]
pub struct Block<'a> {
    /// The name of the document, for messages about a value without a path.
    whole: &'static str,
    path: String,
    keys: Option<&'a Map<String, Value>>,
}

impl<'a> Block<'a> {
    /// Reads a whole document, which messages call `whole`.
    ///
    /// # Errors
    /// Returns `Err` if it is not an object, or has a key that is not `known`.
    pub fn root(value: &'a Value, whole: &'static str, known: &[&str]) -> Result<Self, Problem> {
        Self::new(whole, String::new(), Some(value), known)
    }

    fn new(
        whole: &'static str,
        path: String,
        value: Option<&'a Value>,
        known: &[&str],
    ) -> Result<Self, Problem> {
        let keys = match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(keys)) => Some(keys),
            Some(other) => {
                let path = if path.is_empty() {
                    whole.to_owned()
                } else {
                    path
                };
                return Err(Problem::wrong_type(path, "an object", other));
            }
        };
        let block = Self { whole, path, keys };
        let unknown = keys
            .into_iter()
            .flatten()
            .find(|(key, _)| !known.contains(&key.as_str()));
        match unknown {
            None => Ok(block),
            Some((key, _)) => Err(Problem::UnknownKey {
                path: block.path(key),
                hint: hint(key, known),
            }),
        }
    }

    /// The path of `key` from the top of the document.
    #[must_use]
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Returns the problem that none of the `needed` keys is set.
    #[must_use]
    pub fn empty(&self, needed: &'static str) -> Problem {
        Problem::Empty {
            path: self.path.clone(),
            needed,
        }
    }

    /// Returns the problem that the value `found` of `key` is not `expected`.
    pub fn wrong(
        &self,
        key: &str,
        found: impl Into<String>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Problem {
        Problem::value(self.path(key), found, expected)
    }

    /// Returns the problem that `key` and `other` exclude each other.
    #[must_use]
    pub fn conflict(&self, key: &str, other: &'static str) -> Problem {
        let path = self.path(key);
        Problem::Conflict { path, other }
    }

    /// Reads one of the `allowed` words.
    ///
    /// # Errors
    /// Returns `Err` if the value is not one of these words.
    pub fn one_of(&self, key: &str, allowed: &[&str]) -> Result<Option<&'a str>, Problem> {
        match self.string(key)? {
            Some(value) if !allowed.contains(&value) => {
                Err(self.wrong(key, value, alternatives(allowed)))
            }
            value => Ok(value),
        }
    }

    /// Reads a list of the `allowed` words; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list, or if an item is not one of these words.
    pub fn words(&self, key: &str, allowed: &[&str]) -> Result<Vec<&'a str>, Problem> {
        self.items(key, |value, path| match as_string(value, path)? {
            word if allowed.contains(&word) => Ok(word),
            other => Err(Problem::value(path(), other, alternatives(allowed))),
        })
    }

    /// Reads a string.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a string.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        self.value(key)
            .map(|value| as_string(value, &|| self.path(key)))
            .transpose()
    }

    /// Reads a list of strings; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list of strings.
    pub fn strings(&self, key: &str) -> Result<Vec<String>, Problem> {
        self.items(key, |value, path| Ok(as_string(value, path)?.to_owned()))
    }

    /// Reads a list of strings, which may be absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list of strings.
    pub fn optional_strings(&self, key: &str) -> Result<Option<Vec<String>>, Problem> {
        self.value(key).map(|_| self.strings(key)).transpose()
    }

    /// Reads an object with strings as values; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not an object with strings as values.
    pub fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, Problem> {
        let texts = self.entries(key, |name, value, path| {
            let text = as_string(value, &|| path.clone())?;
            Ok((name.to_owned(), text.to_owned()))
        });
        Ok(texts?.into_iter().collect())
    }

    /// Reads a list of any values; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list.
    pub fn array(&self, key: &str) -> Result<&'a [Value], Problem> {
        match self.value(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(Problem::wrong_type(self.path(key), "a list", other)),
        }
    }

    /// Reads an object without checking its keys.
    ///
    /// # Errors
    /// Returns `Err` if the value is not an object.
    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, Problem> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(Problem::wrong_type(self.path(key), "an object", other)),
        }
    }

    /// Reads an object; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not an object, or has a key that is not `known`.
    pub fn block(&self, key: &str, known: &[&str]) -> Result<Self, Problem> {
        Self::new(self.whole, self.path(key), self.value(key), known)
    }

    /// Reads an object, which may be absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not an object, or has a key that is not `known`.
    pub fn optional_block(&self, key: &str, known: &[&str]) -> Result<Option<Self>, Problem> {
        self.value(key).map(|_| self.block(key, known)).transpose()
    }

    /// Reads the object `value` at `path`. This is for keys that also allow other types, which the caller has excluded.
    ///
    /// # Errors
    /// Returns `Err` if it is not an object, or has a key that is not `known`.
    pub fn nested(&self, path: String, value: &'a Value, known: &[&str]) -> Result<Self, Problem> {
        Self::new(self.whole, path, Some(value), known)
    }

    /// Reads a list of objects; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list of objects, or if one has a key that is not `known`.
    pub fn blocks(&self, key: &str, known: &[&str]) -> Result<Vec<Self>, Problem> {
        self.items(key, |value, path| {
            Self::new(self.whole, path(), Some(value), known)
        })
    }

    /// Reads an object with objects as values, and returns them with their names; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not an object with objects as values, or if one has a key that is not `known`.
    pub fn named_blocks(&self, key: &str, known: &[&str]) -> Result<Vec<(&'a str, Self)>, Problem> {
        self.entries(key, |name, value, path| {
            Ok((name, Self::new(self.whole, path, Some(value), known)?))
        })
    }

    /// Reads the name of a Kubernetes object. An empty name counts as absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not the name of a Kubernetes object.
    pub fn object_name(&self, key: &str) -> Result<Option<String>, Problem> {
        match self.string(key)? {
            None | Some("") => Ok(None),
            Some(name) => object_name(name, self.path(key)).map(Some),
        }
    }

    /// Reads a list of names of Kubernetes objects; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list of such names.
    pub fn object_names(&self, key: &str) -> Result<Vec<String>, Problem> {
        self.items(key, |value, path| {
            object_name(as_string(value, path)?, path())
        })
    }

    /// Reads a port number.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a number between 1 and 65535.
    pub fn port(&self, key: &str) -> Result<Option<u32>, Problem> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        if !value.is_number() {
            return Err(Problem::wrong_type(self.path(key), "a number", value));
        }
        match value.as_u64().map(u16::try_from) {
            Some(Ok(port)) if port > 0 => Ok(Some(port.into())),
            _ => Err(self.wrong(key, value.to_string(), "a port, 1 to 65535")),
        }
    }

    /// Reads a duration in Go's form: whole numbers with the units `h`, `m`, `s` and `ms`, for example `1m30s`.
    ///
    /// # Errors
    /// Returns `Err` if the value is not such a duration.
    pub fn duration(&self, key: &str) -> Result<Option<Duration>, Problem> {
        let expected = "a duration such as 5s, 500ms or 1m30s";
        let text = self.string(key)?;
        text.map(|text| parse_duration(text).ok_or_else(|| self.wrong(key, text, expected)))
            .transpose()
    }

    /// Reads the key or the value of a label.
    ///
    /// # Errors
    /// Returns `Err` if the value has a character that a label cannot have.
    pub fn label_text(&self, key: &str) -> Result<Option<String>, Problem> {
        self.string(key)?
            .map(|text| checked_label(text, self.path(key)))
            .transpose()
    }

    /// Reads a list of keys or values of labels; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not a list of such texts.
    pub fn label_texts(&self, key: &str) -> Result<Vec<String>, Problem> {
        self.items(key, |value, path| {
            checked_label(as_string(value, path)?, path())
        })
    }

    /// Reads labels with their values; empty if absent.
    ///
    /// # Errors
    /// Returns `Err` if the value is not an object of labels.
    pub fn labels(&self, key: &str) -> Result<BTreeMap<String, String>, Problem> {
        let labels = self.entries(key, |label, value, path| {
            let label = checked_label(label, path.clone())?;
            let value = checked_label(as_string(value, &|| path.clone())?, path)?;
            Ok((label, value))
        });
        Ok(labels?.into_iter().collect())
    }

    /// Reads a list, whose items `read` gets with their paths.
    fn items<T>(
        &self,
        key: &str,
        read: impl Fn(&'a Value, &dyn Fn() -> String) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        let items = self.array(key)?.iter().enumerate();
        items
            .map(|(index, item)| read(item, &|| format!("{}[{index}]", self.path(key))))
            .collect()
    }

    /// Reads an object, whose values `read` gets with their names and paths.
    fn entries<T>(
        &self,
        key: &str,
        read: impl Fn(&'a str, &'a Value, String) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        let entries = self.object(key)?.into_iter().flatten();
        entries
            .map(|(name, value)| read(name, value, format!("{}.{name}", self.path(key))))
            .collect()
    }

    /// The value under `key`, of any type.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.keys?.get(key).filter(|value| !value.is_null())
    }
}

fn as_string<'v>(value: &'v Value, path: &dyn Fn() -> String) -> Result<&'v str, Problem> {
    value
        .as_str()
        .ok_or_else(|| Problem::wrong_type(path(), "a string", value))
}

/// Checks that `name`, the value at `path`, is the name of a Kubernetes object (an RFC 1123 subdomain).
///
/// Names become parts of API paths, where a slash would lead to another resource.
///
/// # Errors
/// Returns `Err` if it is not.
pub fn object_name(name: &str, path: String) -> Result<String, Problem> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edges = name.starts_with(['-', '.']) || name.ends_with(['-', '.']);
    if name.is_empty() || name.len() > 253 || edges || !name.chars().all(legal) {
        return Err(Problem::value(
            path,
            name,
            "the name of a Kubernetes object",
        ));
    }
    Ok(name.to_owned())
}

fn parse_duration(mut text: &str) -> Option<Duration> {
    if text.is_empty() {
        return None;
    }
    let mut sum = Duration::ZERO;
    while !text.is_empty() {
        let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let unit_ends = rest.find(|c: char| c.is_ascii_digit());
        let (unit, rest) = rest.split_at(unit_ends.unwrap_or(rest.len()));
        let milliseconds = match unit {
            "h" => 3_600_000_u64,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return None,
        };
        let milliseconds = number.parse::<u64>().ok()?.checked_mul(milliseconds)?;
        sum = sum.checked_add(Duration::from_millis(milliseconds))?;
        text = rest;
    }
    Some(sum)
}

/// Checks the characters of a label. Labels become parts of a selector string, where a comma or a bracket would change the
/// meaning.
fn checked_label(text: &str, path: String) -> Result<String, Problem> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if !text.chars().all(legal) {
        let expected = "made of letters, digits, '-', '_', '.' and '/'";
        return Err(Problem::value(path, text, expected));
    }
    Ok(text.to_owned())
}

/// Joins words for messages: `a, b or c`.
fn alternatives(words: &[&str]) -> String {
    match words {
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => String::new(),
    }
}

/// Asks for the known key that is most similar to `key`, or lists all if none is similar.
#[must_use]
pub fn hint(key: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(nearest) if is_near(key, nearest) => format!(", did you mean {nearest}?"),
        Some(_) => {
            let mut seen = BTreeSet::new();
            let known: Vec<_> = known
                .iter()
                .filter(|key| seen.insert(**key))
                .copied()
                .collect();
            format!(": use one of {}", known.join(", "))
        }
        None => String::new(),
    }
}

fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let known = known.iter().copied();
    known.max_by(|a, b| closeness(key, a).total_cmp(&closeness(key, b)))
}

/// Whether a person may have meant `known` by `key`: half of the letters are the same, or one begins with the other.
#[must_use]
pub fn is_near(key: &str, known: &str) -> bool {
    closeness(key, known) >= 0.5 || known.starts_with(key) || key.starts_with(known)
}

/// Whether `key` is one of the `known` keys, or may be a misspelt one: at most one letter in five differs, or the plural.
#[must_use]
pub fn resembles(key: &str, known: &[&str]) -> bool {
    let singular = |key: &str| key.trim_end_matches('s').to_owned();
    let mut known = known.iter();
    known.any(|known| closeness(key, known) >= 0.8 || singular(key) == singular(known))
}

/// The similarity of two keys from 0 to 1, ignoring case.
fn closeness(a: &str, b: &str) -> f64 {
    // The comparison needs memory for the product of both lengths, and whoever sends a key chooses its length.
    if a.len() > 64 && a.len() > 2 * b.len() {
        return 0.0;
    }
    strsim::normalized_damerau_levenshtein(&a.to_lowercase(), &b.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_key_is_asked_for() {
        let known = ["maxItems", "team", "repository"];
        for (key, expect) in [
            ("maxItem", ", did you mean maxItems?"),
            ("tema", ", did you mean team?"),
            ("repo", ", did you mean repository?"),
            ("teams", ", did you mean team?"),
            ("cart", ": use one of maxItems, team, repository"),
            ("x", ": use one of maxItems, team, repository"),
        ] {
            assert_eq!(hint(key, &known), expect);
        }
        assert_eq!(hint("x", &[]), "");
    }

    #[track_caller]
    fn check(text: &str, milliseconds: Option<u64>) {
        let expect = milliseconds.map(Duration::from_millis);
        assert_eq!(parse_duration(text), expect, "{text}");
    }

    #[test]
    fn durations_have_the_form_of_go() {
        check("5s", Some(5000));
        check("0s", Some(0));
        check("500ms", Some(500));
        check("1m30s", Some(90_000));
        check("2h1m", Some(7_260_000));
        for wrong in [
            "",
            "5",
            "s",
            "-5s",
            "5 s",
            "1.5s",
            "5d",
            "5sm",
            "5s3",
            "99999999999999999h",
        ] {
            check(wrong, None);
        }
    }
}
