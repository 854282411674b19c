//! A value of an object together with its place, for rules that say where an object is wrong.

use std::collections::BTreeMap;
use std::fmt;

use jsonptr::PointerBuf;
use serde_json::Value;

/// A value of an object. An absent one is `null`, because the API server treats both alike.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<'v> {
    pub(crate) at: PointerBuf,
    pub(crate) value: &'v Value,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) at: PointerBuf,
    /// The rule and the remedy.
    pub(crate) text: String,
}

impl<'v> Node<'v> {
    /// Returns a whole object.
    pub(crate) fn root(value: &'v Value) -> Self {
        let at = PointerBuf::root();
        Self { at, value }
    }

    /// Returns the value under keys with `.` between them.
    pub(crate) fn get(&self, keys: &str) -> Self {
        keys.split('.').fold(self.clone(), |node, key| Self {
            at: node.at.with_trailing_token(key),
            value: node.value.get(key).unwrap_or(&Value::Null),
        })
    }

    /// Returns the last key of its place.
    pub(crate) fn key(&self) -> String {
        let last = self.at.last();
        last.map(|key| key.decoded().into_owned())
            .unwrap_or_default()
    }

    /// Returns one item of a list.
    pub(crate) fn item(&self, index: usize) -> Self {
        Self {
            at: self.at.with_trailing_token(index),
            value: self.value.get(index).unwrap_or(&Value::Null),
        }
    }

    /// Returns the items of a list.
    pub(crate) fn items(&self) -> Vec<Self> {
        let count = self.value.as_array().map_or(0, Vec::len);
        (0..count).map(|index| self.item(index)).collect()
    }

    pub(crate) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    pub(crate) fn has(&self, keys: &str) -> bool {
        self.get(keys).is_set()
    }

    pub(crate) fn is_true(&self) -> bool {
        *self.value == Value::Bool(true)
    }

    /// Returns a text; empty for another value.
    pub(crate) fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    /// Returns a number that has 32 bits.
    pub(crate) fn int(&self) -> Option<i32> {
        self.number()?.try_into().ok()
    }

    /// Returns the fields that are texts.
    pub(crate) fn texts(&self) -> BTreeMap<String, String> {
        let fields = self.value.as_object().into_iter().flatten();
        let texts = fields.filter_map(|(key, it)| Some((key.clone(), it.as_str()?.to_owned())));
        texts.collect()
    }

    pub(crate) fn refused(&self, text: impl Into<String>) -> Refusal {
        let (at, text) = (self.at.clone(), text.into());
        Refusal { at, text }
    }
}

/// The dotted path, such as `spec.http[0].name`.
impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, token) in self.at.tokens().enumerate() {
            let key = token.decoded();
            match key.parse::<usize>() {
                Ok(item) => write!(f, "[{item}]")?,
                Err(_) if index == 0 => f.write_str(&key)?,
                Err(_) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}
