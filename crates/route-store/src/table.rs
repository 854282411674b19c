//! The cached form of a RouteTable: its JSON text, and the fields that lookups need.
//!
//! A tree of values takes four times the memory of the text, and 12 KiB of text are parsed in some ten microseconds.

use std::collections::BTreeMap;
use std::error::Error;

use gloo_types::{ObjectKey, RouteTable, RouteTableDoc};

use crate::error::label;
use crate::{Keep, Kept, StoreError};

/// A RouteTable as compact JSON, without `metadata.managedFields`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CompactTable {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: Box<str>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// The Rollouts of this cluster that have records in our annotation or labels on routes of the table.
    pub owners: Box<[ObjectKey]>,
    /// Why records or labels cannot be read; `owners` is empty then.
    pub unreadable: Option<Box<str>>,
    json: Box<str>,
}

/// Reads which Rollouts have records or labels in a table.
type ReadOwners = dyn Fn(&RouteTableDoc) -> Result<Vec<ObjectKey>, String> + Send + Sync;

/// The [`Keep`] of RouteTables, which decodes them to [`CompactTable`]s.
pub struct TableKeeper {
    read_owners: Box<ReadOwners>,
}

impl CompactTable {
    /// Parses the whole table.
    ///
    /// # Errors
    /// Returns `Err` if the text is not a RouteTable, which [`TableKeeper`] has already excluded.
    pub fn document(&self) -> Result<RouteTableDoc, StoreError> {
        let table = parse(&self.json);
        table.map_err(|it| StoreError::unreadable::<RouteTable>(label::<RouteTable>(&self.key), it))
    }
}

impl TableKeeper {
    /// A keeper that reads the owners of a table with `read_owners`. Its error is one line.
    #[must_use]
    pub fn new(
        read_owners: impl Fn(&RouteTableDoc) -> Result<Vec<ObjectKey>, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            read_owners: Box::new(read_owners),
        }
    }

    /// Returns the cached form of a table.
    #[must_use]
    pub fn compact(&self, table: RouteTableDoc) -> CompactTable {
        let table = table.without_managed_fields();
        let (owners, unreadable) = match (self.read_owners)(&table) {
            Ok(owners) => (owners, None),
            Err(error) => (Vec::new(), Some(error.into())),
        };
        CompactTable {
            key: table.key().clone(),
            uid: table.uid().into(),
            version: table.resource_version().unwrap_or_default().into(),
            labels: table.labels().clone(),
            owners: owners.into(),
            unreadable,
            json: table.raw().to_string().into(),
        }
    }
}

impl Keep for TableKeeper {
    type Kind = RouteTable;
    type Kept = CompactTable;
    const PAGE: u32 = 50;

    fn keep(&self, object: &str) -> Result<CompactTable, Box<dyn Error + Send + Sync>> {
        // The tree of values is dropped before the next table is parsed, so only one is in memory at a time.
        Ok(self.compact(parse(object)?))
    }
}

fn parse(text: &str) -> Result<RouteTableDoc, Box<dyn Error + Send + Sync>> {
    Ok(RouteTableDoc::from_value(serde_json::from_str(text)?)?)
}

impl Kept for CompactTable {
    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn size(&self) -> usize {
        let labels = self.labels.iter();
        let labels: usize = labels
            .map(|(key, value)| key.len() + value.len() + 48)
            .sum();
        let owners = size_of_val::<[ObjectKey]>(&self.owners);
        let owners = owners + self.unreadable.as_ref().map_or(0, |it| it.len());
        size_of::<Self>() + self.json.len() + self.uid.len() + self.version.len() + labels + owners
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owners(table: &RouteTableDoc) -> Result<Vec<ObjectKey>, String> {
        let annotations = table.annotations().into_iter().flatten();
        let owner = |name: &str| match name {
            "" => Err("no name".to_owned()),
            name => Ok(ObjectKey::new("shop", name)),
        };
        annotations.map(|(_, name)| owner(name)).collect()
    }

    #[test]
    fn a_compact_table_keeps_everything_but_managed_fields() {
        let table = json!({
            "kind": "RouteTable",
            "metadata": {
                "name": "web", "managedFields": [{"manager": "kubectl"}], "namespace": "mesh", "uid": "u1",
                "resourceVersion": "7", "generation": 2, "labels": {"app": "shop"}, "annotations": {"marks": "reviews"},
            },
            "spec": {"http": [{"z": 1, "a": {"future": [1.5, null]}}]},
        });
        let kept = TableKeeper::new(owners).keep(&table.to_string()).unwrap();
        assert_eq!(kept.key, ObjectKey::new("mesh", "web"));
        assert_eq!((&*kept.uid, &*kept.version), ("u1", "7"));
        assert_eq!(kept.labels["app"], "shop");
        assert_eq!(*kept.owners, [ObjectKey::new("shop", "reviews")]);
        assert!(kept.size() < table.to_string().len() + 300);
        let mut expect = table;
        expect["metadata"]
            .as_object_mut()
            .unwrap()
            .shift_remove("managedFields");
        let document = kept.document().unwrap();
        assert_eq!(document.raw().to_string(), expect.to_string());
    }

    #[test]
    fn a_table_with_unreadable_owners_is_kept() {
        let table =
            r#"{"metadata": {"name": "web", "namespace": "mesh", "annotations": {"marks": ""}}}"#;
        let kept = TableKeeper::new(owners).keep(table).unwrap();
        assert_eq!(kept.unreadable.as_deref(), Some("no name"));
        assert!(kept.owners.is_empty());
    }

    #[test]
    fn an_object_that_is_not_a_table_is_an_error() {
        let keeper = TableKeeper::new(owners);
        for object in [
            "7",
            r#"{"kind": "RouteTable", "metadata": {"name": "web"}}"#,
        ] {
            assert!(keeper.keep(object).is_err(), "{object}");
        }
    }
}
