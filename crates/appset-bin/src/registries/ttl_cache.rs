//! A cache with an expiry for each entry. It uses the clock of tokio, which tests can advance.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The maximum number of entries, which is more than the images of a cluster. If the cache is full, it is cleared.
const CAPACITY: usize = 10_000;

/// Values with an expiry for each.
pub(super) struct TtlCache<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Returns the value, unless it has expired.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let all = self.lock();
        let (until, value) = all.get(key)?;
        (*until > Instant::now()).then(|| value.clone())
    }

    /// Sets the value, which expires after `time`.
    pub(super) fn put(&self, key: K, value: V, time: Duration) {
        let now = Instant::now();
        let mut all = self.lock();
        if all.len() >= CAPACITY {
            all.retain(|_, (until, _)| *until > now);
        }
        if all.len() >= CAPACITY {
            all.clear();
        }
        all.insert(key, (now + time, value));
    }

    /// Returns the value or a new one. Either expires after `time` from now.
    pub(super) fn get_or_put(&self, key: K, time: Duration, new: impl FnOnce() -> V) -> V {
        let mut all = self.lock();
        let now = Instant::now();
        let entry = all.entry(key).or_insert_with(|| (now, new()));
        entry.0 = now + time;
        entry.1.clone()
    }

    pub(super) fn remove(&self, key: &K) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, (Instant, V)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_expires() {
        let cache = TtlCache::new();
        cache.put("a", 1, Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(cache.get(&"a"), Some(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cache.get(&"a"), None);
        let put = |new| cache.get_or_put("b", Duration::from_secs(9), || new);
        assert_eq!((put(2), put(3)), (2, 2));
        cache.remove(&"b");
        assert_eq!(cache.get(&"b"), None);
    }

    #[tokio::test]
    async fn the_size_is_bounded() {
        let cache = TtlCache::new();
        for key in 0..=CAPACITY {
            cache.put(key, (), Duration::from_secs(9));
        }
        assert!(cache.lock().len() <= CAPACITY);
        assert_eq!(cache.get(&CAPACITY), Some(()));
    }
}
