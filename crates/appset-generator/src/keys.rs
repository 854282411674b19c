//! The keys of the configuration and the parameters of requests, each with what its page says of it.
//!
//! Who reads a block takes the names of its keys from here, and the tables of `docs/appset.md` and `docs/appset-sources.md` are
//! written from here, so a page cannot drift from what is read.

use crate::clusters::ClusterAccess;
use crate::image_digests::ImageDigests;
use crate::profile::Profile;
use crate::query::Output;
use crate::refresh::Refresh;
use crate::source::Kind;
use crate::static_sets::StaticSource;
use crate::tag_from::TagFrom;

/// A key of the configuration, or a parameter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it holds and does, in Markdown.
    pub about: &'static str,
    /// What counts where it is unset, in Markdown; empty if that is nothing.
    pub default: &'static str,
}

/// A table of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What stands in front of the names: the path of the object that has the keys.
    pub path: String,
    /// The rows.
    pub keys: Vec<Key>,
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

/// The names of keys, as [`strict_json::Block`] takes them.
pub(crate) fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
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
