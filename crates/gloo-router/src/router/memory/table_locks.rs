//! A lock per table, so that calls of one process do not conflict with each other.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gloo_types::ObjectKey;
use tokio::sync::oneshot;

/// The locked tables, each with the calls that wait for it. A free lock takes no memory.
#[derive(Clone, Debug, Default)]
pub(in crate::router) struct TableLocks(Arc<Mutex<BTreeMap<ObjectKey, Waiters>>>);

/// What a call is about to do to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::router) enum Urgency {
    /// No canary's share grows. Takes precedence over waiting calls of the other kind.
    Less,
    /// A share grows.
    More,
}

/// Waiting calls in the order of their arrival.
#[derive(Debug, Default)]
struct Waiters {
    less: VecDeque<oneshot::Sender<TableGuard>>,
    more: VecDeque<oneshot::Sender<TableGuard>>,
}

/// Unlocks the table when it is dropped.
#[derive(Debug)]
pub(in crate::router) struct TableGuard {
    locks: TableLocks,
    table: ObjectKey,
}

impl TableLocks {
    /// Waits until no other call holds the lock of `table`.
    pub(in crate::router) async fn lock(&self, table: &ObjectKey, urgency: Urgency) -> TableGuard {
        loop {
            if let Ok(guard) = self.queue(table, urgency).await {
                return guard;
            }
        }
    }

    fn queue(&self, table: &ObjectKey, urgency: Urgency) -> oneshot::Receiver<TableGuard> {
        let (turn, waiting) = oneshot::channel();
        match self.held().entry(table.clone()) {
            Entry::Occupied(mut waiters) => match urgency {
                Urgency::Less => waiters.get_mut().less.push_back(turn),
                Urgency::More => waiters.get_mut().more.push_back(turn),
            },
            Entry::Vacant(free) => {
                free.insert(Waiters::default());
                let guard = TableGuard {
                    locks: self.clone(),
                    table: table.clone(),
                };
                // Cannot fail: the receiver is in this function.
                let _ = turn.send(guard);
            }
        }
        waiting
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Waiters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TableGuard {
    fn drop(&mut self) {
        let next = {
            let mut held = self.locks.held();
            let next = held.get_mut(&self.table).and_then(|waiters| {
                let less = waiters.less.pop_front();
                less.or_else(|| waiters.more.pop_front())
            });
            if next.is_none() {
                held.remove(&self.table);
            }
            next
        };
        if let Some(next) = next {
            // A cancelled call returns the guard, whose drop wakes the next one.
            let _ = next.send(Self {
                locks: self.locks.clone(),
                table: self.table.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn web() -> ObjectKey {
        ObjectKey::new("mesh", "web")
    }

    #[tokio::test]
    async fn a_call_that_lowers_shares_goes_first() {
        let locks = TableLocks::default();
        let table = web();
        let holder = locks.lock(&table, Urgency::More).await;
        let other = ObjectKey::new("mesh", "other");
        assert!(locks.lock(&other, Urgency::More).now_or_never().is_some());

        let mut first_up = Box::pin(locks.lock(&table, Urgency::More));
        let mut second_up = Box::pin(locks.lock(&table, Urgency::More));
        let mut down = Box::pin(locks.lock(&table, Urgency::Less));
        for waiting in [&mut first_up, &mut second_up, &mut down] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(holder);
        assert!((&mut first_up).now_or_never().is_none());
        let holder = (&mut down).now_or_never().unwrap();
        assert!((&mut first_up).now_or_never().is_none());
        drop(holder);
        let holder = (&mut first_up).now_or_never().unwrap();
        assert!((&mut second_up).now_or_never().is_none());
        drop(holder);
        assert!(second_up.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_cancelled_call_delays_no_other_and_no_lock_is_left() {
        let locks = TableLocks::default();
        let table = web();
        let holder = locks.lock(&table, Urgency::More).await;
        let mut cancelled_first = Box::pin(locks.lock(&table, Urgency::Less));
        let mut cancelled_later = Box::pin(locks.lock(&table, Urgency::More));
        let mut last = Box::pin(locks.lock(&table, Urgency::More));
        for waiting in [&mut cancelled_first, &mut cancelled_later, &mut last] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(cancelled_first);
        drop(holder);
        // It gets the lock and is dropped before it takes it.
        drop(cancelled_later);
        let holder = last.now_or_never().unwrap();
        assert_eq!(locks.held().len(), 1);
        drop(holder);
        assert!(locks.held().is_empty());
    }
}
