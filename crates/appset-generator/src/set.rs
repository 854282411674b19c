//! A parameter set, from which the controller renders one Application: its fields and its identity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

/// The parameters from which the controller renders one Application.
///
/// Keys are sorted, so that equal answers have equal bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ParameterSet(BTreeMap<String, Field>);

impl ParameterSet {
    /// Inserts `field` under a top-level key of the set.
    ///
    /// # Errors
    /// Returns `Err` if the set has `key` already, if another generator owns it, or if a template cannot name it.
    pub fn insert(&mut self, key: &str, field: Field) -> Result<(), FieldError> {
        check_top_level(key)?;
        self.add(key, field)
    }

    /// Makes the set of the object that `parts` name together, with `fields` and its identity under `top`. Returns it with its key.
    ///
    /// The identity is a unique key, and the same as a unique part of a DNS name: `["c1", "shop", "web"]` has the key `c1/shop/web`
    /// and the slug `c1-shop-web`.
    pub(crate) fn of(
        top: &str,
        parts: &[&str],
        fields: impl IntoIterator<Item = (&'static str, Field)>,
    ) -> Result<(String, Self), FieldError> {
        let key = parts.join("/");
        let identity = [("key", (&key).into()), ("slug", slug(parts).into())];
        let mut set = Self::default();
        set.insert(top, fields.into_iter().chain(identity).collect())?;
        Ok((key, set))
    }

    /// Whether the set has the top-level key `key`.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Returns the dotted paths of all keys that a template can name, without those inside lists.
    pub(crate) fn paths(&self) -> BTreeSet<String> {
        fn add(fields: &BTreeMap<String, Field>, above: &str, paths: &mut BTreeSet<String>) {
            for (key, field) in fields {
                match field {
                    Field::Map(fields) => add(fields, &format!("{above}{key}."), paths),
                    _ => drop(paths.insert(format!("{above}{key}"))),
                }
            }
        }
        let mut paths = BTreeSet::new();
        add(&self.0, "", &mut paths);
        paths
    }

    /// Returns the field at a dotted path.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Field> {
        let (top, rest) = match path.split_once('.') {
            Some((top, rest)) => (top, Some(rest)),
            None => (path, None),
        };
        let steps = rest.into_iter().flat_map(|rest| rest.split('.'));
        steps.fold(self.0.get(top), |field, step| match field? {
            Field::Map(fields) => fields.get(step),
            Field::Text(_) | Field::Flag(_) | Field::List(_) => None,
        })
    }

    /// Inserts `field` under a top-level key that the request chose.
    ///
    /// Unlike [`insert`](Self::insert) it accepts keys that [`check_alias`] accepts, such as the key of a merge.
    pub(crate) fn alias(&mut self, key: &str, field: Field) -> Result<(), FieldError> {
        check_alias(key)?;
        self.add(key, field)
    }

    fn add(&mut self, key: &str, field: Field) -> Result<(), FieldError> {
        // `outputKey` or `digestPrefix` could otherwise replace a digest by something else.
        match self.0.insert(key.to_owned(), field) {
            None => Ok(()),
            Some(_) => Err(FieldError::Taken(key.to_owned())),
        }
    }

    /// Renames the key `from`, if the set has it.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), FieldError> {
        match self.0.remove(from) {
            Some(field) => self.insert(to, field),
            None => Ok(()),
        }
    }
}

/// One value in a parameter set.
///
/// Numbers are strings, because Go templates print a large number as `1e+06`. Null does not exist, because it prints as
/// `<no value>`. Keys are sorted.
///
/// A clone shares the value: every set of an answer may have the same input, and an alias may repeat it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Field {
    /// A string.
    Text(Arc<str>),
    /// A boolean. Templates in the default language see the text `true` or `false`.
    Flag(bool),
    /// A list. Templates in the default language see its items by index, and nothing if it is empty.
    List(Arc<[Self]>),
    /// A map.
    Map(Arc<BTreeMap<String, Self>>),
}

/// A value that templates cannot print as it was written, or a key that a set cannot have. Paths are dotted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// Null, at this path.
    #[error("{0} is null, which templates print as <no value>: leave it out")]
    Null(String),
    /// A fraction, whose text may differ from what was written: `1.10` is read as `1.1`. The path, and the number.
    #[error("{0} is {1}, not a whole number of at most 64 bits: quote it")]
    Fraction(String, String),
    /// A key that templates cannot name.
    #[error("the key \"{}\" must consist of at most 253 letters, digits, '_' and '-': rename it", .0.escape_debug())]
    Key(String),
    /// A key that other generators or the controller use.
    #[error("the key {0} is used by other generators or by the controller: rename it")]
    Foreign(String),
    /// A key that the set has already.
    #[error("the key {0} is in the set twice: choose another name")]
    Taken(String),
}

/// Top-level keys that other generators, or the controller itself, add.
///
/// In a matrix the other generator's value would win, or the controller would report an error
/// (`applicationset/generators/matrix.go`). `tests/go/argocd` asks Argo CD's own generators for their keys.
const FOREIGN: &[&str] = &[
    "author",
    "branch",
    "branchNormalized",
    "branch_slug",
    "clusters",
    "generator",
    "head_sha",
    "head_short_sha",
    "head_short_sha_7",
    "labels",
    "metadata",
    "name",
    "nameNormalized",
    "namespace",
    "number",
    "organization",
    "path",
    "project",
    "repository",
    "repository_id",
    "server",
    "sha",
    "short_sha",
    "short_sha_7",
    "target_branch",
    "target_branch_slug",
    "title",
    "url",
    "values",
];

/// Keys that the controller writes into each set of a plugin, whatever the plugin answers (`applicationset/generators/plugin.go`).
const CONTROLLERS: [&str; 2] = ["generator", "values"];

impl Field {
    /// Makes a map of strings, such as labels.
    pub(crate) fn texts(texts: &BTreeMap<String, String>) -> Self {
        texts.iter().map(|(key, text)| (key, text.into())).collect()
    }

    /// Reads the value at `path` of a document. A null in a map counts as absent.
    ///
    /// # Errors
    /// Returns `Err` for a fraction, and for a null that is not in a map.
    pub fn from_json(value: Value, path: &str) -> Result<Self, FieldError> {
        Self::read(value).map_err(|error| error.at(path))
    }

    /// Reads a value. The path of an error is made on the way back: made on the way down, paths would cost more than the values,
    /// since a key may be long and have many values below it.
    fn read(value: Value) -> Result<Self, FieldError> {
        let path = String::new();
        Ok(match value {
            Value::Null => return Err(FieldError::Null(path)),
            Value::Bool(flag) => Self::Flag(flag),
            Value::Number(number) if number.is_f64() => {
                return Err(FieldError::Fraction(path, number.to_string()));
            }
            Value::Number(number) => Self::Text(number.to_string().into()),
            Value::String(text) => Self::Text(text.into()),
            Value::Array(items) => {
                let items = items.into_iter().enumerate().map(|(index, item)| {
                    Self::read(item).map_err(|error| error.at(&format!("[{index}]")))
                });
                Self::List(items.collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
                let fields = fields.map(|(key, value)| match Self::read(value) {
                    Ok(field) => Ok((key, field)),
                    Err(error) => Err(error.at(&format!(".{key}"))),
                });
                Self::Map(Arc::new(fields.collect::<Result<_, _>>()?))
            }
        })
    }
}

impl FieldError {
    /// Puts `outer` before the path, or the key.
    pub(crate) fn at(mut self, outer: &str) -> Self {
        let (Self::Null(path)
        | Self::Fraction(path, _)
        | Self::Key(path)
        | Self::Foreign(path)
        | Self::Taken(path)) = &mut self;
        path.insert_str(0, outer);
        self
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<&String> for Field {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(text.into())
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
        let fields = fields.map(|(key, field)| (key.into(), field));
        Self::Map(Arc::new(fields.collect()))
    }
}

/// Returns the three fields of a set that hold the hosts of RouteTables.
pub(crate) fn hosts(all: &[String]) -> [(&'static str, Field); 3] {
    let list = all.iter().map(Into::into).collect();
    [
        ("hosts", Field::List(list)),
        ("hostsCsv", all.join(",").into()),
        ("host", all.first().cloned().unwrap_or_default().into()),
    ]
}

/// Checks that a set may have `key` at the top level.
pub(crate) fn check_top_level(key: &str) -> Result<(), FieldError> {
    check_key(key, FOREIGN)
}

/// Checks that an alias may have the name `key`.
///
/// A key of another generator is allowed, since a merge needs the same key on both sides. The controller's own keys are not: it
/// would replace the alias.
pub(crate) fn check_alias(key: &str) -> Result<(), FieldError> {
    check_key(key, &CONTROLLERS)
}

/// The longest top-level key, in bytes. Each set has it.
const MAX_KEY: usize = 253;

/// Checks that a template can name the top-level key `key`, and that it is not one of the `foreign` keys. In the default language a dot
/// would select a key of a map.
fn check_key(key: &str, foreign: &[&str]) -> Result<(), FieldError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if key.is_empty() || key.len() > MAX_KEY || !key.chars().all(legal) {
        return Err(FieldError::Key(key.to_owned()));
    }
    match foreign.contains(&key) {
        true => Err(FieldError::Foreign(key.to_owned())),
        false => Ok(()),
    }
}

/// The fields of a map, by their keys.
pub(crate) type Fields = Vec<(&'static str, Field)>;

/// The longest slug. A template makes the name of an Application from the slug and more text.
const MAX_SLUG: usize = 40;

/// Returns the 64-bit FNV-1a hash of `text`.
///
/// It must never change: names of Applications contain it. The traffic router has the same function for names in RouteTables.
/// The two are apart because neither program may change its names with the other.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Joins `parts` to a part of a DNS name.
///
/// A hash is appended if other parts could have the same slug: `["a", "b-c"]` and `["a-b", "c"]` would both be `a-b-c`.
fn slug(parts: &[&str]) -> String {
    let plain = |part: &&str| {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        !part.is_empty() && part.chars().all(legal)
    };
    let text = parts.join("-");
    if text.len() <= MAX_SLUG && parts.iter().all(plain) {
        return text;
    }
    let hash = format!("-{:016x}", fnv1a(&parts.join("/")));
    let words = dashed_runs(&text.to_lowercase(), |c| c.is_ascii_alphanumeric());
    let words = words.trim_matches('-').chars().take(MAX_SLUG - hash.len());
    let words: String = words.collect();
    let slug = format!("{}{hash}", words.trim_end_matches('-'));
    slug.trim_start_matches('-').to_owned()
}

/// Replaces each run of characters that `keep` refuses with one dash. A dash of `text` itself is not part of a run: `a/-b`
/// becomes `a--b`.
pub(crate) fn dashed_runs(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut slug = String::with_capacity(text.len());
    let mut in_run = false;
    for c in text.chars() {
        let kept = keep(c);
        if kept {
            slug.push(c);
        } else if !in_run {
            slug.push('-');
        }
        in_run = !kept;
    }
    slug
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(value: Value, expect: Result<&str, &str>) {
        let read = Field::from_json(value.clone(), "p").map_err(|error| error.to_string());
        let shown = read.map(|field| serde_json::to_string(&field).unwrap());
        assert_eq!(shown.as_deref().map_err(String::as_str), expect, "{value}");
    }

    #[test]
    fn scalars_become_strings_or_booleans() {
        check(json!("8080"), Ok(r#""8080""#));
        check(json!(1_000_000), Ok(r#""1000000""#));
        check(
            json!(-9_007_199_254_740_993_i64),
            Ok(r#""-9007199254740993""#),
        );
        check(json!(false), Ok("false"));
        check(
            json!(1.1),
            Err("p is 1.1, not a whole number of at most 64 bits: quote it"),
        );
    }

    #[test]
    fn maps_are_sorted_and_drop_null() {
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
    fn keys_of_other_generators_are_refused_at_the_top() {
        for key in ["key1", "digestFront", "image_2", "a-b"] {
            check_top_level(key).unwrap();
        }
        for key in FOREIGN.iter().copied().chain(["", "a.b", "{{x}}"]) {
            check_top_level(key).unwrap_err();
            let is_merge_key = FOREIGN.contains(&key) && !CONTROLLERS.contains(&key);
            assert_eq!(check_alias(key).is_ok(), is_merge_key, "{key}");
        }
        check_top_level(&"a".repeat(254)).unwrap_err();
    }

    #[test]
    fn no_key_is_replaced() {
        let mut set = ParameterSet::default();
        set.insert("image", "i".into()).unwrap();
        set.insert("digestFront", "d".into()).unwrap();
        for error in [
            set.clone().insert("image", "x".into()),
            set.clone().alias("image", "x".into()),
            set.clone().rename("image", "digestFront"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("is in the set twice"), "{error}");
        }
        set.alias("name", "x".into()).unwrap();
        set.rename("image", "image").unwrap();
    }

    #[test]
    fn slugs_are_short_unique_and_legal() {
        assert_eq!(slug(&["c1", "shop", "web", "demo"]), "c1-shop-web-demo");
        let long = ["in-cluster", "shop", "demo"];
        assert_eq!(slug(&long), "in-cluster-shop-demo-fd72150e1529ba38");
        // The test vector that the authors of FNV publish.
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        let a = slug(&["c1", "shop", "web-demo"]);
        let b = slug(&["c1", "shop-web", "demo"]);
        assert!(a.starts_with("c1-shop-web-demo-") && b.starts_with("c1-shop-web-demo-") && a != b);
        for parts in [&["x"; 60][..], &["Ä", "/"], &["", ""], &["a.b_c"]] {
            let slug = slug(parts);
            assert!(slug.len() <= MAX_SLUG, "{slug}");
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(
                slug.chars().all(legal) && !slug.starts_with('-') && !slug.ends_with('-'),
                "{slug}"
            );
        }
    }
}
