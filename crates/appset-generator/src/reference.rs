//! The keys of the configuration and the parameters of requests. The tables in `docs` have a row for each of them.
//!
//! The code that reads an object uses the same lists, so a test of the tables finds what is missing in them.

use crate::answer::Output;
use crate::clusters::ClusterAccess;
use crate::config::{Refresh, TOP};
use crate::image_digests::ImageDigests;
use crate::profile::Profile;
use crate::source::KINDS;
use crate::static_sets::StaticSource;
use crate::tag_from::TagFrom;

/// The name of an object or a source, and the names of its keys.
pub type Table = (String, &'static [&'static str]);

/// Returns the keys of the configuration, object by object. At the top level the path of the object is empty.
#[must_use]
pub fn configuration() -> Vec<Table> {
    let mut tables: Vec<(String, &[&str])> = vec![
        (String::new(), TOP),
        ("clusters.<name>".to_owned(), ClusterAccess::KEYS),
        ("static.<name>".to_owned(), StaticSource::KEYS),
    ];
    for (schema, _) in KINDS {
        tables.push((schema.key.to_owned(), schema.keys));
        if schema.key == ImageDigests::SCHEMA.key {
            let registry = format!("{}.registries.<host>", schema.key);
            tables.push((registry, ImageDigests::REGISTRY_KEYS));
        }
    }
    tables.extend([
        ("profiles.<name>".to_owned(), Profile::KEYS),
        ("profiles.<name>.tagFrom".to_owned(), TagFrom::KEYS),
        ("refresh".to_owned(), Refresh::KEYS),
    ]);
    tables
}

/// Returns the parameters of every source.
#[must_use]
pub const fn common_parameters() -> &'static [&'static str] {
    &Output::KEYS
}

/// Returns the parameters that only one source has, by the source's name.
pub fn parameters() -> impl Iterator<Item = Table> {
    KINDS
        .into_iter()
        .map(|(schema, _)| (schema.name.to_owned(), schema.parameters))
}
