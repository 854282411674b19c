//! Tables in a map: honours `test` operations and counts writes, so tests can assert on both.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use gloo_types::{ObjectKey, RouteTableDoc, RouteTableSelector};
use json_patch::Patch;
use serde_json::{Value, json};

use crate::{RouteStore, StoreError, pick::pick};

/// A store for tests. Every write gives the table a new `metadata.resourceVersion`.
#[derive(Debug, Default)]
pub struct MemoryRouteStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tables: BTreeMap<ObjectKey, Value>,
    version: u64,
    writes: usize,
    failures: Vec<StoreError>,
}

impl MemoryRouteStore {
    /// A store that holds `tables`.
    ///
    /// # Errors
    /// When one of them is not a RouteTable.
    pub fn new(tables: impl IntoIterator<Item = Value>) -> Result<Self, StoreError> {
        let store = Self::default();
        for table in tables {
            store.put(table)?;
        }
        Ok(store)
    }

    /// Stores `table` as another client would, replacing one of the same name.
    ///
    /// # Errors
    /// When it is not a RouteTable.
    pub fn put(&self, table: Value) -> Result<ObjectKey, StoreError> {
        let key = parse(table.clone())?.key().clone();
        let mut state = self.state();
        let table = state.stamp(table);
        state.tables.insert(key.clone(), table);
        Ok(key)
    }

    /// Removes a table as another client would.
    pub fn remove(&self, key: &ObjectKey) {
        self.state().tables.remove(key);
    }

    /// The table as stored, `None` when it is not there.
    #[must_use]
    pub fn table(&self, key: &ObjectKey) -> Option<Value> {
        self.state().tables.get(key).cloned()
    }

    /// How many patches were applied so far.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.state().writes
    }

    /// Makes the next call of [`RouteStore::patch`] fail with `error`; several queue up.
    pub fn fail_next_patch(&self, error: StoreError) {
        self.state().failures.insert(0, error);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn stamp(&mut self, mut table: Value) -> Value {
        self.version += 1;
        if let Some(metadata) = table.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        }
        table
    }
}

impl RouteStore for MemoryRouteStore {
    async fn select(
        &self,
        selector: &RouteTableSelector,
    ) -> Result<Vec<RouteTableDoc>, StoreError> {
        let all: Vec<Value> = self.state().tables.values().cloned().collect();
        let all = all.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        pick(all, selector)
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.table(key)
            .map_or_else(|| Err(StoreError::table_not_found(key)), parse)
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let mut state = self.state();
        if let Some(failure) = state.failures.pop() {
            return Err(failure);
        }
        let mut table = state
            .tables
            .get(key)
            .cloned()
            .ok_or_else(|| StoreError::table_not_found(key))?;
        json_patch::patch(&mut table, patch).map_err(|_| StoreError::Conflict(key.clone()))?;
        let table = state.stamp(table);
        state.tables.insert(key.clone(), table.clone());
        state.writes += 1;
        parse(table)
    }
}

fn parse(table: Value) -> Result<RouteTableDoc, StoreError> {
    RouteTableDoc::from_value(table).map_err(|source| StoreError::Unreadable {
        what: "the table".into(),
        source: source.into(),
    })
}
