//! What is kept of the objects that are listed and watched.

use std::marker::PhantomData;

use gloo_types::{Document, ObjectKey, Resource};
use serde_json::Value;

/// What an [`Informer`](super::Informer) keeps of the objects of a kind.
pub trait Keep: Send + Sync + 'static {
    /// The kind.
    type Kind: Resource;
    /// What is kept of one object.
    type Kept: Kept;
    /// How many objects one list request asks for.
    const PAGE: u32;

    /// Decodes an object as the API server writes it.
    ///
    /// # Errors
    /// If it is no object of the kind. The whole list fails then: which objects there are would not be known.
    fn keep(&self, object: &str) -> Result<Self::Kept, Box<dyn std::error::Error + Send + Sync>>;
}

/// What is kept of one object.
pub trait Kept: Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> &ObjectKey;

    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;

    /// Takes over from the state before what only the sequence of states tells.
    fn follows(&mut self, _before: &Self) {}

    /// Memory that it takes, in bytes, as far as it is known without looking at each part.
    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// Keeps whole documents, without `metadata.managedFields`.
#[derive(Debug)]
pub struct WholeDocuments<K>(PhantomData<K>);

impl<K> Default for WholeDocuments<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K: Resource> Keep for WholeDocuments<K> {
    type Kind = K;
    type Kept = Document<K>;
    const PAGE: u32 = super::PAGE;

    fn keep(&self, object: &str) -> Result<Document<K>, Box<dyn std::error::Error + Send + Sync>> {
        let object: Value = serde_json::from_str(object)?;
        Ok(Document::from_value(object)?.without_managed_fields())
    }
}

impl<K: Resource> Kept for Document<K> {
    fn key(&self) -> &ObjectKey {
        self.key()
    }

    fn version(&self) -> &str {
        self.resource_version().unwrap_or_default()
    }
}
