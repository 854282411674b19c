//! A cache with an expiry for each entry. It uses the clock of tokio, which tests can advance.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::by_key::ByKey;

/// The maximum number of entries, which is more than the images of a cluster. If the cache is full, the entry that expires next is
/// removed.
const CAPACITY: usize = 10_000;

/// Values with an expiry for each.
pub(super) struct TtlCache<K, V> {
    values: Mutex<HashMap<K, (Instant, V)>>,
    /// Locks for the values that are being asked for.
    turns: ByKey<K, tokio::sync::Mutex<()>>,
}

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        Self {
            values: Mutex::default(),
            turns: ByKey::default(),
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> TtlCache<K, V> {
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
        // Also whenever the map would grow: keys have credentials, and those of each pull request are new.
        if all.len() >= all.capacity().min(CAPACITY) {
            all.retain(|_, (until, _)| *until > now);
        }
        if all.len() >= CAPACITY && !all.contains_key(&key) {
            let next = all.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(next) = next.map(|(key, _)| key.clone()) {
                all.remove(&next);
            }
        }
        all.insert(key, (now + time, value));
    }

    /// Returns the value. If there is none, one of several concurrent calls asks for it, and for the time until it expires.
    pub(super) async fn get_or_ask<E>(
        &self,
        key: &K,
        ask: impl Future<Output = Result<(V, Duration), E>>,
    ) -> Result<V, E> {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let turn = self.turns.get(key, Default::default);
        let _turn = turn.lock().await;
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let (value, time) = ask.await?;
        self.put(key.clone(), value.clone(), time);
        Ok(value)
    }

    pub(super) fn remove(&self, key: &K) {
        self.lock().remove(key);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<K, (Instant, V)>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_expires() {
        let cache = TtlCache::default();
        cache.put("a", 1, Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(cache.get(&"a"), Some(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cache.get(&"a"), None);
        cache.put("b", 2, Duration::from_secs(9));
        cache.remove(&"b");
        assert_eq!(cache.get(&"b"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_several_calls_asks() {
        let cache = TtlCache::default();
        let ask = async |value: Result<i32, ()>| {
            let asked = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok((value?, Duration::from_secs(9)))
            };
            cache.get_or_ask(&"a", asked).await
        };
        let asked = tokio::join!(ask(Err(())), ask(Ok(1)), ask(Ok(2)));
        assert_eq!(asked, (Err(()), Ok(1), Ok(1)));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(ask(Ok(3)).await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn expired_values_take_little_memory() {
        let cache = TtlCache::default();
        for key in 0..1000 {
            cache.put(key, (), Duration::from_secs(9));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let kept = cache.lock().len();
        assert!(kept < 50, "{kept}");
    }

    #[tokio::test]
    async fn the_size_is_bounded() {
        let cache = TtlCache::default();
        cache.put(CAPACITY + 1, (), Duration::from_secs(99));
        for key in 0..=CAPACITY {
            cache.put(key, (), Duration::from_secs(9));
        }
        assert!(cache.lock().len() <= CAPACITY);
        for kept in [CAPACITY, CAPACITY + 1] {
            assert_eq!(cache.get(&kept), Some(()));
        }
    }
}
