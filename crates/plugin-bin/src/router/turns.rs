//! Turns of the calls of one process at a table, so that they do not conflict with each other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use gloo_types::ObjectKey;
use tokio::sync::Mutex as AsyncMutex;

/// One lock per table. There are as many as there are tables, so none is ever taken away.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<ObjectKey, Arc<AsyncMutex<()>>>>);

impl Turns {
    pub(super) fn of(&self, table: &ObjectKey) -> Arc<AsyncMutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(table.clone()).or_default())
    }
}
