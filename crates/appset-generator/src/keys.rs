//! The keys of the configuration and the parameters of requests, with their documentation.
//!
//! The code that reads an object and the tables in `docs` take the names of keys from the same lists, so they cannot differ.

use serde_json::Value;
use strict_json::{Block, Problem};

use crate::answer::Output;
use crate::clusters::ClusterAccess;
use crate::config::Refresh;
use crate::image_digests::ImageDigests;
use crate::profile::Profile;
use crate::source::Kind;
use crate::static_sets::StaticSource;
use crate::tag_from::TagFrom;

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

/// Returns the names of `keys` for [`strict_json::Block`].
pub(crate) fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
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

/// The keys of one object, as a table of a page shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The path of the object that has the keys. Empty at the top.
    pub path: String,
    /// The keys, one for each row.
    pub keys: Vec<Key>,
}

/// Keys at the top of the configuration that do not hold an object.
pub(crate) const TOP: &[Key] = &[Key::new(
    "cluster",
    "Argo CD's name of the cluster whose objects are read, if there is only one cluster",
    "`in-cluster`",
)];

/// Returns the keys of the configuration, object by object.
#[must_use]
pub fn configuration() -> Vec<Table> {
    let table = |path: &str, keys: Vec<Key>| Table {
        path: path.to_owned(),
        keys,
    };
    let mut tables = vec![
        table("", TOP.to_vec()),
        table("clusters.<name>", ClusterAccess::KEYS.to_vec()),
        table("static.<name>", StaticSource::KEYS.to_vec()),
    ];
    for kind in Kind::ALL {
        let schema = kind.schema();
        tables.push(table(schema.key, schema.keys.to_vec()));
        if kind == Kind::ImageDigests {
            let registry = format!("{}.registries.<host>", schema.key);
            tables.push(table(&registry, ImageDigests::REGISTRY_KEYS.to_vec()));
        }
    }
    tables.push(table("profiles.<name>", Profile::KEYS.to_vec()));
    tables.push(table("profiles.<name>.tagFrom", TagFrom::KEYS.to_vec()));
    tables.push(table("refresh", Refresh::KEYS.to_vec()));
    tables
}

/// Returns the parameters of every source.
#[must_use]
pub fn common_parameters() -> Vec<Key> {
    Output::KEYS.to_vec()
}

/// Returns the parameters that only one source has, by the source's name.
#[must_use]
pub fn parameters() -> Vec<(&'static str, Vec<Key>)> {
    Kind::ALL
        .map(|kind| (kind.schema().name, kind.schema().parameters.to_vec()))
        .into()
}
