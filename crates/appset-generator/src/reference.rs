//! What there is to write, for the pages: the keys of the configuration and the parameters of requests.
//!
//! Whoever reads an object takes the names of its keys from the same lists, so a page cannot differ from what is read.

use crate::clusters::ClusterAccess;
use crate::image_digests::ImageDigests;
use crate::keys::Key;
use crate::output::Output;
use crate::profile::Profile;
use crate::refresh::Refresh;
use crate::source::Kind;
use crate::static_sets::StaticSource;
use crate::tag_from::TagFrom;

/// A table of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What stands in front of the names: the path of the object that has the keys.
    pub path: String,
    /// The rows.
    pub keys: Vec<Key>,
}

/// Keys at the top of the configuration that hold no object.
pub(crate) const TOP: &[Key] = &[Key::new(
    "cluster",
    "Argo CD's name of the cluster whose objects are read, where there is one",
    "`in-cluster`",
)];

/// The keys of the configuration, object by object.
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
        tables.push(table(kind.key(), kind.keys().to_vec()));
        if kind == Kind::ImageDigests {
            let registry = format!("{}.registries.<host>", kind.key());
            tables.push(table(&registry, ImageDigests::REGISTRY_KEYS.to_vec()));
        }
    }
    tables.push(table("profiles.<name>", Profile::KEYS.to_vec()));
    tables.push(table("profiles.<name>.tagFrom", TagFrom::KEYS.to_vec()));
    tables.push(table("refresh", Refresh::KEYS.to_vec()));
    tables
}

/// The parameters of every source.
#[must_use]
pub fn common_parameters() -> Vec<Key> {
    Output::KEYS.to_vec()
}

/// The parameters of each source that has its own, by the source's name.
#[must_use]
pub fn parameters() -> Vec<(&'static str, Vec<Key>)> {
    Kind::ALL
        .map(|kind| (kind.name(), kind.parameters().to_vec()))
        .into()
}
