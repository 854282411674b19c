//! A lock per table, so that calls of one process do not conflict with each other. A call that waits offers its write, so that the
//! holder of the lock may carry it in its own patch.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    mem,
    sync::{Arc, Mutex},
};

use gloo_types::{ObjectKey, RouteTableDoc};
use route_planner::{Plan, PlanError, TableWrite};
use tokio::sync::oneshot;

use crate::{error::Failure, from_rpc::Request, lock};

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

impl Urgency {
    pub(in crate::router) fn of(write: &TableWrite) -> Self {
        match write.grows {
            true => Self::More,
            false => Self::Less,
        }
    }
}

/// The plan that was written, and what a later plan could not do.
pub(in crate::router) type Written = Result<(Plan, Vec<PlanError>), Failure>;

/// What a call that waited does now.
#[derive(Debug)]
pub(in crate::router) enum Turn {
    /// It holds the lock.
    Lead(TableGuard),
    /// The holder has carried its write.
    Carried(Box<Written>),
}

/// A call that waits.
#[derive(Debug)]
struct Waiting {
    turn: oneshot::Sender<Turn>,
    /// What it is about to write, if another call may carry it.
    offer: Option<Offer>,
}

/// A write that another call may carry.
#[derive(Clone, Debug)]
pub(in crate::router) struct Offer {
    pub(in crate::router) request: Request,
    pub(in crate::router) write: TableWrite,
}

/// An offer that the holder of the lock has accepted. If it is dropped without an answer, the call writes by itself.
#[derive(Debug)]
pub(in crate::router) struct Accepted {
    pub(in crate::router) offer: Offer,
    turn: oneshot::Sender<Turn>,
}

/// Waiting calls in the order of their arrival.
#[derive(Debug, Default)]
struct Waiters {
    less: VecDeque<Waiting>,
    more: VecDeque<Waiting>,
}

/// Unlocks the table when it is dropped.
#[derive(Debug)]
pub(in crate::router) struct TableGuard {
    locks: TableLocks,
    table: ObjectKey,
    /// The newest version of the table that a holder has seen, if the last one has.
    pub(in crate::router) newest: Option<Box<RouteTableDoc>>,
}

impl TableLocks {
    /// Waits until no other call holds the lock of `table`.
    pub(in crate::router) async fn lock(&self, table: &ObjectKey, urgency: Urgency) -> TableGuard {
        loop {
            if let Ok(Turn::Lead(guard)) = self.queue(table, urgency, || None).await {
                return guard;
            }
        }
    }

    /// As [`lock`](Self::lock), unless the holder carries `write`.
    pub(in crate::router) async fn lock_or_ride(
        &self,
        request: &Request,
        write: &TableWrite,
    ) -> Turn {
        // An offer that was accepted and not carried is not made again: the patch may have failed because of it.
        let mut may_ride = true;
        loop {
            let offer = || {
                mem::take(&mut may_ride).then(|| Offer {
                    request: request.clone(),
                    write: write.clone(),
                })
            };
            let queued = self.queue(&write.plan.table, Urgency::of(write), offer);
            if let Ok(turn) = queued.await {
                return turn;
            }
        }
    }

    fn queue(
        &self,
        table: &ObjectKey,
        urgency: Urgency,
        offer: impl FnOnce() -> Option<Offer>,
    ) -> oneshot::Receiver<Turn> {
        let (turn, waiting) = oneshot::channel();
        match lock(&self.0).entry(table.clone()) {
            Entry::Occupied(mut waiters) => {
                let waiters = waiters.get_mut();
                let offer = offer();
                match urgency {
                    Urgency::Less => waiters.less.push_back(Waiting { turn, offer }),
                    Urgency::More => waiters.more.push_back(Waiting { turn, offer }),
                }
            }
            Entry::Vacant(free) => {
                free.insert(Waiters::default());
                let guard = TableGuard {
                    locks: self.clone(),
                    table: table.clone(),
                    newest: None,
                };
                // Cannot fail: the receiver is in this function.
                let _ = turn.send(Turn::Lead(guard));
            }
        }
        waiting
    }
}

impl TableGuard {
    /// Accepts the offered writes that are at most as urgent: they get the priority of the holder's requests.
    pub(in crate::router) fn accept(&self, urgency: Urgency) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        let mut held = lock(&self.locks.0);
        let Some(waiters) = held.get_mut(&self.table) else {
            return accepted;
        };
        let queues = match urgency {
            Urgency::Less => vec![&mut waiters.less, &mut waiters.more],
            Urgency::More => vec![&mut waiters.more],
        };
        for queue in queues {
            for Waiting { turn, offer } in mem::take(queue) {
                match offer {
                    Some(offer) if !turn.is_closed() => accepted.push(Accepted { offer, turn }),
                    offer => queue.push_back(Waiting { turn, offer }),
                }
            }
        }
        accepted
    }
}

impl Accepted {
    /// Answers the call whose write was carried, or cannot be.
    pub(in crate::router) fn answer(self, written: Written) {
        // The call may have been cancelled.
        let _ = self.turn.send(Turn::Carried(Box::new(written)));
    }
}

impl Drop for TableGuard {
    fn drop(&mut self) {
        let next = {
            let mut held = lock(&self.locks.0);
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
            let _ = next.turn.send(Turn::Lead(Self {
                locks: self.locks.clone(),
                table: self.table.clone(),
                newest: self.newest.take(),
            }));
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
        assert_eq!(lock(&locks.0).len(), 1);
        drop(holder);
        assert!(lock(&locks.0).is_empty());
    }
}
