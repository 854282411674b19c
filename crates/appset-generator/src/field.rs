//! Values that both template languages of Argo CD print as they were written.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// One value in a parameter set.
///
/// Numbers are texts, since Go templates print a large one as `1e+06`; null prints as `<no value>`, so there is none. Keys
/// are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Field {
    /// Text.
    Text(String),
    /// A boolean: real in Go templates, `true` or `false` in the others.
    Flag(bool),
    /// A list. Templates in the default language see its items by index, and nothing at all when it is empty.
    List(Vec<Self>),
    /// A map.
    Map(BTreeMap<String, Self>),
}

/// A value that templates would not see as it was written. Paths are dotted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// Null.
    #[error("{path} is null, which templates print as <no value>: leave it out")]
    Null {
        /// Path of the value.
        path: String,
    },
    /// A number whose text may not be what was written: `1.10` arrives as `1.1`.
    #[error("{path} is {number}, not a whole number: quote it")]
    Fraction {
        /// Path of the value.
        path: String,
        /// The number.
        number: String,
    },
    /// A key that templates cannot name.
    #[error("the key {0:?} is not made of letters, digits, '_' and '-'")]
    Key(String),
    /// A key that another generator of a matrix owns.
    #[error("the key {0} belongs to other generators or to the controller: take another")]
    Foreign(String),
}

/// Keys that other generators, or the controller itself, put at the top. In a matrix the other generator's value would win,
/// or the call fail (`applicationset/generators/matrix.go`).
const FOREIGN: &[&str] = &[
    "author",
    "branch",
    "generator",
    "labels",
    "metadata",
    "name",
    "nameNormalized",
    "namespace",
    "number",
    "path",
    "project",
    "server",
    "title",
    "url",
    "values",
];

impl Field {
    /// A map of texts, such as labels.
    pub(crate) fn texts(texts: &BTreeMap<String, String>) -> Self {
        texts
            .iter()
            .map(|(key, text)| (key.as_str(), text.as_str().into()))
            .collect()
    }

    /// Reads the value at `path` of a document. In a map, null is the same as absent.
    ///
    /// # Errors
    /// When a template would not see it as it was written.
    pub fn from_json(value: &Value, path: &str) -> Result<Self, FieldError> {
        Ok(match value {
            Value::Null => {
                return Err(FieldError::Null {
                    path: path.to_owned(),
                });
            }
            Value::Bool(flag) => Self::Flag(*flag),
            Value::Number(number) if number.is_f64() => {
                return Err(FieldError::Fraction {
                    path: path.to_owned(),
                    number: number.to_string(),
                });
            }
            Value::Number(number) => Self::Text(number.to_string()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => {
                let items = items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| Self::from_json(item, &format!("{path}[{index}]")));
                Self::List(items.collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let fields =
                    fields
                        .iter()
                        .filter(|(_, value)| !value.is_null())
                        .map(|(key, value)| {
                            let field = Self::from_json(value, &format!("{path}.{key}"))?;
                            Ok((key.clone(), field))
                        });
                Self::Map(fields.collect::<Result<_, _>>()?)
            }
        })
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Field {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl<const N: usize> From<[(&str, Self); N]> for Field {
    fn from(fields: [(&str, Self); N]) -> Self {
        fields.into_iter().collect()
    }
}

impl<K: Into<String>> FromIterator<(K, Self)> for Field {
    fn from_iter<I: IntoIterator<Item = (K, Self)>>(fields: I) -> Self {
        let fields = fields.into_iter();
        Self::Map(fields.map(|(key, field)| (key.into(), field)).collect())
    }
}

/// The hosts of a table, as every source has them.
pub(crate) fn hosts(all: &[String]) -> [(&'static str, Field); 3] {
    let list = all.iter().map(|host| host.as_str().into()).collect();
    [
        ("hosts", Field::List(list)),
        ("hostsCsv", all.join(",").into()),
        ("host", all.first().cloned().unwrap_or_default().into()),
    ]
}

/// Whether a set may have `key` at its top.
///
/// # Errors
/// When another generator owns it, or a template cannot name it.
pub(crate) fn check_top_level(key: &str) -> Result<(), FieldError> {
    check_key(key)?;
    if FOREIGN.contains(&key) {
        return Err(FieldError::Foreign(key.to_owned()));
    }
    Ok(())
}

/// Whether a template can name `key` at the top. In the default language a dot leads into a map.
pub(crate) fn check_key(key: &str) -> Result<(), FieldError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if key.is_empty() || !key.chars().all(legal) {
        return Err(FieldError::Key(key.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(value: Value, expect: Result<&str, &str>) {
        let read = Field::from_json(&value, "p").map_err(|error| error.to_string());
        let shown = read.map(|field| serde_json::to_string(&field).unwrap());
        assert_eq!(shown.as_deref().map_err(String::as_str), expect, "{value}");
    }

    #[test]
    fn scalars_are_texts_or_booleans() {
        check(json!("8080"), Ok(r#""8080""#));
        check(json!(1_000_000), Ok(r#""1000000""#));
        check(
            json!(-9_007_199_254_740_993_i64),
            Ok(r#""-9007199254740993""#),
        );
        check(json!(false), Ok("false"));
        check(json!(1.1), Err("p is 1.1, not a whole number: quote it"));
    }

    #[test]
    fn maps_are_sorted_and_hold_no_null() {
        check(
            json!({"b": [1, {"z": "<>&"}], "a": true, "n": null}),
            Ok(r#"{"a":true,"b":["1",{"z":"<>&"}]}"#),
        );
        check(
            json!({"l": ["a", null]}),
            Err("p.l[1] is null, which templates print as <no value>: leave it out"),
        );
    }

    #[test]
    fn keys_at_the_top_are_our_own() {
        for key in ["key1", "digestFront", "image_2", "a-b"] {
            check_top_level(key).unwrap();
        }
        for key in FOREIGN.iter().copied().chain(["", "a.b", "{{x}}"]) {
            check_top_level(key).unwrap_err();
        }
    }
}
