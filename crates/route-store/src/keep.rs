//! What a cache keeps of the objects of a kind, and how it reports their changes.

use std::error::Error;

use gloo_types::{ObjectKey, Resource};

/// Decodes the objects of a kind to the form in which a cache keeps them.
pub trait Keep: Send + Sync + 'static {
    /// The kind.
    type Kind: Resource;
    /// The cached form of one object.
    type Kept: Kept;
    /// Maximum number of objects in one page of a list.
    const PAGE: u32 = 250;

    /// Decodes the JSON text of an object.
    ///
    /// # Errors
    /// Returns `Err` if it is not an object of the kind. The whole list fails then, because the set of objects would be
    /// incomplete.
    fn keep(&self, object: &str) -> Result<Self::Kept, Box<dyn Error + Send + Sync>>;
}

/// The cached form of one object.
pub trait Kept: Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> &ObjectKey;

    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;

    /// `metadata.uid`; empty if the cache does not need it.
    fn uid(&self) -> &str {
        ""
    }

    /// Returns an estimate of its memory, in bytes.
    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// A change of a cached object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub key: ObjectKey,
    /// Its uid: an object of this name may have been created anew meanwhile.
    pub uid: Box<str>,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was added or changed, by any client.
    Applied,
    /// This process wrote it. The watch does not report the same version again.
    Written,
    /// It was deleted.
    Deleted,
}
