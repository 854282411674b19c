//! Strict reading of a JSON block: every complaint names the path of the key.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::{Key, Shape};
use crate::error::ConfigProblem;

/// A JSON object whose keys are all known. `null` counts as absent.
pub(crate) struct Block<'a> {
    path: String,
    keys: Option<&'a Map<String, Value>>,
    known: &'static [Key],
}

/// Parses the text of a whole block.
pub(crate) fn root(raw: &[u8]) -> Result<Value, ConfigProblem> {
    serde_json::from_slice(raw).map_err(|error| ConfigProblem::Json(error.to_string()))
}

impl<'a> Block<'a> {
    pub(crate) fn root(value: &'a Value, known: &'static [Key]) -> Result<Self, ConfigProblem> {
        Self::new(String::new(), Some(value), known)
    }

    fn new(
        path: String,
        value: Option<&'a Value>,
        known: &'static [Key],
    ) -> Result<Self, ConfigProblem> {
        let keys = match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(keys)) => Some(keys),
            Some(other) => return Err(wrong_type(path, "an object", other)),
        };
        let block = Self { path, keys, known };
        let unknown = keys
            .into_iter()
            .flatten()
            .find(|(key, _)| !known.iter().any(|known| known.name == *key));
        match unknown {
            None => Ok(block),
            Some((key, _)) => Err(ConfigProblem::UnknownKey {
                path: block.path(key),
                nearest: nearest(key, known),
            }),
        }
    }

    /// Path of `key` from the top.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Complains that none of the `needed` keys is set.
    pub(crate) fn empty(&self, needed: &'static str) -> ConfigProblem {
        ConfigProblem::Empty {
            path: self.path.clone(),
            needed,
        }
    }

    pub(crate) fn one_of(&self, key: &str) -> Result<Option<&'a str>, ConfigProblem> {
        let choices = match self.shape(key) {
            Some(Shape::OneOf(choices)) => *choices,
            _ => &[],
        };
        match self.string(key)? {
            Some(value) if !choices.contains(&value) => Err(ConfigProblem::Value {
                path: self.path(key),
                found: value.to_owned(),
                expected: alternatives(choices).into(),
            }),
            value => Ok(value),
        }
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>, ConfigProblem> {
        self.value(key)
            .map(|value| as_string(value, || self.path(key)))
            .transpose()
    }

    pub(crate) fn strings(&self, key: &str) -> Result<Vec<String>, ConfigProblem> {
        let strings = self.array(key)?.iter().enumerate().map(|(index, value)| {
            as_string(value, || format!("{}[{index}]", self.path(key))).map(str::to_owned)
        });
        strings.collect()
    }

    pub(crate) fn array(&self, key: &str) -> Result<&'a [Value], ConfigProblem> {
        match self.value(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong_type(self.path(key), "a list", other)),
        }
    }

    pub(crate) fn object(
        &self,
        key: &str,
    ) -> Result<Option<&'a Map<String, Value>>, ConfigProblem> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(wrong_type(self.path(key), "an object", other)),
        }
    }

    /// The object under `key`; one without keys when absent.
    pub(crate) fn block(&self, key: &str) -> Result<Self, ConfigProblem> {
        Self::new(self.path(key), self.value(key), self.known_in(key))
    }

    /// The objects in the list under `key`.
    pub(crate) fn blocks(&self, key: &str) -> Result<Vec<Self>, ConfigProblem> {
        let known = self.known_in(key);
        let blocks = self.array(key)?.iter().enumerate().map(|(index, value)| {
            Self::new(format!("{}[{index}]", self.path(key)), Some(value), known)
        });
        blocks.collect()
    }

    /// The name of a Kubernetes object; an empty one counts as absent.
    pub(crate) fn object_name(&self, key: &str) -> Result<Option<String>, ConfigProblem> {
        match self.string(key)? {
            None | Some("") => Ok(None),
            Some(name) => checked_name(name, self.path(key)).map(Some),
        }
    }

    pub(crate) fn object_names(&self, key: &str) -> Result<Vec<String>, ConfigProblem> {
        let names = self.strings(key)?.into_iter().enumerate();
        names
            .map(|(index, name)| checked_name(&name, format!("{}[{index}]", self.path(key))))
            .collect()
    }

    /// The number of a port.
    pub(crate) fn port(&self, key: &str) -> Result<Option<u32>, ConfigProblem> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        if !value.is_number() {
            return Err(wrong_type(self.path(key), "a number", value));
        }
        match value.as_u64().map(u16::try_from) {
            Some(Ok(port)) if port > 0 => Ok(Some(port.into())),
            _ => Err(ConfigProblem::Value {
                path: self.path(key),
                found: value.to_string(),
                expected: "a port, 1 to 65535".into(),
            }),
        }
    }

    pub(crate) fn label_text(&self, key: &str) -> Result<Option<String>, ConfigProblem> {
        self.string(key)?
            .map(|text| checked_label(text, self.path(key)))
            .transpose()
    }

    pub(crate) fn label_texts(&self, key: &str) -> Result<Vec<String>, ConfigProblem> {
        let texts = self.strings(key)?.into_iter().enumerate();
        texts
            .map(|(index, text)| checked_label(&text, format!("{}[{index}]", self.path(key))))
            .collect()
    }

    pub(crate) fn labels(&self, key: &str) -> Result<BTreeMap<String, String>, ConfigProblem> {
        let pairs = self
            .object(key)?
            .into_iter()
            .flatten()
            .map(|(label, value)| {
                let path = format!("{}.{label}", self.path(key));
                let label = checked_label(label, path.clone())?;
                let value = checked_label(as_string(value, || path.clone())?, path)?;
                Ok((label, value))
            });
        pairs.collect()
    }

    fn shape(&self, key: &str) -> Option<&'static Shape> {
        let known = self.known.iter().find(|known| known.name == key);
        known.map(|known| &known.value)
    }

    /// The keys of the objects under `key`.
    fn known_in(&self, key: &str) -> &'static [Key] {
        match self.shape(key) {
            Some(Shape::Object(keys) | Shape::Objects(keys)) => keys,
            _ => &[],
        }
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.keys?.get(key).filter(|value| !value.is_null())
    }
}

fn as_string(value: &Value, path: impl Fn() -> String) -> Result<&str, ConfigProblem> {
    value
        .as_str()
        .ok_or_else(|| wrong_type(path(), "a string", value))
}

/// Names go into request paths, so only what Kubernetes allows in a name may pass (RFC 1123 subdomain).
/// Names go into paths of the API, where a slash would lead elsewhere.
pub(crate) fn checked_name(name: &str, path: String) -> Result<String, ConfigProblem> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edges = name.starts_with(['-', '.']) || name.ends_with(['-', '.']);
    if name.is_empty() || name.len() > 253 || edges || !name.chars().all(legal) {
        let expected = "the name of a Kubernetes object";
        return Err(ConfigProblem::Value {
            path,
            found: name.to_owned(),
            expected: expected.into(),
        });
    }
    Ok(name.to_owned())
}

/// Labels go into a selector string, where a comma or a bracket would change its meaning.
fn checked_label(text: &str, path: String) -> Result<String, ConfigProblem> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if !text.chars().all(legal) {
        let expected = "made of letters, digits, '-', '_', '.' and '/'";
        return Err(ConfigProblem::Value {
            path,
            found: text.to_owned(),
            expected: expected.into(),
        });
    }
    Ok(text.to_owned())
}

/// `a, b or c`.
fn alternatives(choices: &[&str]) -> String {
    match choices {
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => String::new(),
    }
}

fn nearest(key: &str, known: &[Key]) -> String {
    let closeness = |candidate: &&Key| {
        let name = candidate.name.to_lowercase();
        strsim::normalized_damerau_levenshtein(&key.to_lowercase(), &name)
    };
    let nearest = known
        .iter()
        .max_by(|a, b| closeness(a).total_cmp(&closeness(b)));
    nearest.map_or_else(String::new, |nearest| nearest.name.to_owned())
}

fn wrong_type(path: String, expected: &'static str, found: &Value) -> ConfigProblem {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let path = if path.is_empty() {
        "the plugin block".to_owned()
    } else {
        path
    };
    ConfigProblem::Type {
        path,
        expected,
        found,
    }
}
