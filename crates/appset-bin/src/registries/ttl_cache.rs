//! What is remembered for a while, by tokio's clock, which a test can turn.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Most entries. More than there are images in a cluster; what is forgotten is asked again.
const MOST: usize = 10_000;

/// Values, each for some time.
pub(super) struct TtlCache<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// The value, if its time is not over.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let all = self.lock();
        let (until, value) = all.get(key)?;
        (*until > Instant::now()).then(|| value.clone())
    }

    /// Remembers `value` for `time`.
    pub(super) fn put(&self, key: K, value: V, time: Duration) {
        let now = Instant::now();
        let mut all = self.lock();
        if all.len() >= MOST {
            all.retain(|_, (until, _)| *until > now);
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(key, (now + time, value));
    }

    /// The value, or a new one that is remembered for `time`.
    pub(super) fn get_or_put(&self, key: K, time: Duration, new: impl FnOnce() -> V) -> V {
        let mut all = self.lock();
        let now = Instant::now();
        let entry = all.entry(key).or_insert_with(|| (now, new()));
        entry.0 = now + time;
        entry.1.clone()
    }

    pub(super) fn forget(&self, key: &K) {
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
    async fn a_value_is_there_for_its_time_and_no_longer() {
        let remembered = TtlCache::new();
        remembered.put("a", 1, Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(remembered.get(&"a"), Some(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(remembered.get(&"a"), None);
        let put = |new| remembered.get_or_put("b", Duration::from_secs(9), || new);
        assert_eq!((put(2), put(3)), (2, 2));
        remembered.forget(&"b");
        assert_eq!(remembered.get(&"b"), None);
    }

    #[tokio::test]
    async fn it_does_not_grow_without_end() {
        let remembered = TtlCache::new();
        for key in 0..=MOST {
            remembered.put(key, (), Duration::from_secs(9));
        }
        assert!(remembered.lock().len() <= MOST);
        assert_eq!(remembered.get(&MOST), Some(()));
    }
}
