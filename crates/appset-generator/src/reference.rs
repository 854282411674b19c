//! The keys of the configuration and the parameters of requests, as the tables in `docs` show them.
//!
//! The code that reads an object uses the same lists, so the tables cannot differ from it.

use crate::answer::Output;
use crate::clusters::ClusterAccess;
use crate::config::{self, Refresh};
use crate::image_digests::ImageDigests;
use crate::keys::Key;
use crate::profile::Profile;
use crate::source::Kind;
use crate::static_sets::StaticSource;
use crate::tag_from::TagFrom;

/// The keys of one object, as a table of a page shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The path of the object that has the keys. Empty at the top.
    pub path: String,
    /// The keys, one for each row.
    pub keys: Vec<Key>,
}

/// Returns the keys of the configuration, object by object.
#[must_use]
pub fn configuration() -> Vec<Table> {
    let table = |path: &str, keys: Vec<Key>| Table {
        path: path.to_owned(),
        keys,
    };
    let mut tables = vec![
        table("", config::TOP.to_vec()),
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
