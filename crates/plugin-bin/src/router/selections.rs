//! The tables each Rollout selected, so that one it selects no longer can be put back.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use gloo_types::ObjectKey;

/// Tables by Rollout. A new process knows none: what was left behind before it started stays until somebody restores it.
#[derive(Debug, Default)]
pub(super) struct Selections(Mutex<HashMap<ObjectKey, BTreeSet<ObjectKey>>>);

impl Selections {
    /// The tables that were selected before and are not among those selected `now`. They are told until they are
    /// [released](Self::released).
    pub(super) fn left_behind(
        &self,
        rollout: &ObjectKey,
        now: BTreeSet<ObjectKey>,
    ) -> Vec<ObjectKey> {
        let mut tables = self.tables();
        let known = tables.entry(rollout.clone()).or_default();
        let left = known.difference(&now).cloned().collect();
        known.extend(now);
        left
    }

    pub(super) fn released(&self, rollout: &ObjectKey, table: &ObjectKey) {
        if let Some(known) = self.tables().get_mut(rollout) {
            known.remove(table);
        }
    }

    fn tables(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeSet<ObjectKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
