//! Locks and semaphores by key, each of which exists while it is in use.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// A value for each key that is in use. Keys come from requests, so none is kept longer.
pub(crate) struct ByKey<K, T>(Mutex<HashMap<K, Arc<T>>>);

impl<K, T> Default for ByKey<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, T> ByKey<K, T> {
    /// Returns the value that others use for the key, or a new one.
    pub(crate) fn get(&self, key: &K, new: impl FnOnce() -> T) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = all.get(key) {
            return Arc::clone(value);
        }
        all.retain(|_, value| Arc::strong_count(value) > 1);
        let value = Arc::new(new());
        all.insert(key.clone(), Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_in_use() {
        let all = ByKey::default();
        let one = all.get(&"a", || 1);
        assert_eq!(*all.get(&"a", || 2), 1);
        drop(one);
        assert_eq!(*all.get(&"b", || 3), 3);
        assert_eq!(*all.get(&"a", || 4), 4);
        let held = all.0.lock().unwrap();
        assert_eq!(held.len(), 1);
    }
}
