//! Repairs: a table that another client changed gets the weights of the last SetWeight again.
//!
//! ```text
//! a table changed --> plan on it --> nothing moves: done
//!                          |
//!                          v
//!        wait 100 ms, 500 ms if a canary's share would grow, longer in a fight
//!                          |
//!                          v
//!        fences: the live Rollout, the controller's Lease, no running call
//!                          |
//!                          v
//!                one guarded PATCH, made again if a request gets no answer, or something else has to be read or planned first
//! ```

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, FusedFuture as _},
    stream::FuturesUnordered,
};
use gloo_types::{Document, ObjectKey};
use route_store::{Change, ChangeKind, Priority, RequestContext, Store, with_context};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, interval, sleep, sleep_until};
use tracing::debug;

use super::Watched;
use crate::collect::Part;
use crate::fights::FieldManager;
use crate::report::{About, RepairOutcome, Report};
use crate::router::{Drift, Fence, GlooRouter, LONGEST_RETRY, RETRY};
use crate::standing::Standing;

/// Pause before a repair, since the other client may write again.
const WAIT: Duration = Duration::from_millis(100);
/// Pause before a repair that sends more traffic to a canary, since the change may be an emergency measure.
const GROWING_WAIT: Duration = Duration::from_millis(500);
/// Deadline of a repair.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks whether all tables and Rollouts are known.
const RECHECK: Duration = Duration::from_secs(1);
/// Interval between two counts of the fights.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);

/// Repairs drift in the tables of standing intents.
pub(crate) struct Repairer<S, W, F> {
    pub(crate) router: Arc<GlooRouter<S>>,
    pub(crate) watched: Arc<W>,
    pub(crate) fence: Arc<F>,
}

/// A finished repair.
struct Ended {
    part: Part,
    /// When the change was seen.
    since: Instant,
    /// The pause before the next try.
    pause: Duration,
    rollout: About,
    /// `None` if nothing had to be repaired.
    outcome: Option<RepairOutcome>,
    /// Whether it is tried again.
    is_open: bool,
    /// The manager that had changed the table, if that was read before the repair.
    with: Option<FieldManager>,
}

impl<S: Store, W: Watched, F: Fence> Repairer<S, W, F> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut changes = self.watched.table_changes();
        let mut policy_changes = self.watched.policy_changes();
        let mut scheduled = Scheduled::default();
        let mut running: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
        let mut reporting: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        let mut under_way = HashSet::new();
        let mut count = interval(COUNT_INTERVAL);
        // After a panic, changes in the meantime were not seen.
        self.check_all(&mut scheduled, |_| true);
        let resuming = self.resume().fuse();
        tokio::pin!(resuming);
        loop {
            let due = async {
                match scheduled.next() {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                change = changes.recv() => match change {
                    // A write of this process is right for its own Rollout, but a repair for another one conflicts with it.
                    Ok(Change { key, kind: ChangeKind::Applied | ChangeKind::Written, .. }) => {
                        self.check_table(&mut scheduled, &key);
                    }
                    // A deleted table cannot be repaired.
                    Ok(Change { kind: ChangeKind::Deleted, .. }) => {}
                    Err(RecvError::Lagged(_)) => self.check_all(&mut scheduled, |_| true),
                    Err(RecvError::Closed) => return,
                },
                change = policy_changes.recv() => match change {
                    Ok(Change { kind: ChangeKind::Written, .. }) => {}
                    // A changed MirrorPolicy may belong to any mirror route.
                    Ok(_) | Err(RecvError::Lagged(_)) => {
                        self.check_all(&mut scheduled, |it| it.request.has_mirrors);
                    }
                    Err(RecvError::Closed) => return,
                },
                (set, fought) = self.router.background().news() => {
                    for rollout in set {
                        self.check_tables_of(&mut scheduled, &rollout);
                    }
                    for (table, rollout) in fought {
                        reporting.push(self.report_fight(table, rollout, None).boxed());
                    }
                }
                () = due => for (part, pending) in scheduled.take(Instant::now(), &under_way) {
                    under_way.insert(part.clone());
                    running.push(self.repair(part, pending).boxed());
                },
                Some(mut ended) = running.next() => {
                    under_way.remove(&ended.part);
                    if ended.is_open {
                        scheduled.again(ended.part.clone(), ended.since, ended.pause, Instant::now());
                    }
                    if self.begins_fight(&ended) {
                        let with = ended.with.take();
                        reporting.push(self.report_fight(ended.part.table, ended.rollout, with).boxed());
                    }
                }
                Some(()) = reporting.next() => {}
                _ = count.tick() => self.count_fights(),
                () = &mut resuming, if !resuming.is_terminated() => {}
            }
        }
    }

    /// Restores the standing intents of Rollouts with marks after a start. The controller may not call again for 15 minutes.
    async fn resume(&self) {
        let marked = loop {
            match self.watched.marked() {
                Some(marked) => break marked,
                None => sleep(RECHECK).await,
            }
        };
        let rollouts = marked.into_iter().map(|it| it.rollout).collect();
        let background = self.router.background();
        background.standing().begin_resuming(rollouts);
        let mut pause = RETRY;
        loop {
            let rollouts = background.standing().to_resume();
            for rollout in rollouts {
                let resume = with_context(self.context(), self.router.resume(&rollout));
                if let Err(failure) = resume.await {
                    debug!(%rollout, "no repairs yet: {failure}");
                }
            }
            if background.standing().to_resume().is_empty() {
                return;
            }
            sleep(pause).await;
            pause = LONGEST_RETRY.min(pause * 2);
        }
    }

    /// Returns the context of the requests of one Rollout or table.
    fn context(&self) -> RequestContext {
        RequestContext {
            deadline: Some(Instant::now() + TIMEOUT),
            priority: Priority::Repair,
        }
    }

    /// Checks the tables of the Rollouts whose intents fit.
    fn check_all(&self, scheduled: &mut Scheduled, fits: impl Fn(&Standing) -> bool) {
        // Not in the head of the loop, which would keep the lock.
        let rollouts = self.router.background().standing().rollouts(fits);
        for rollout in rollouts {
            self.check_tables_of(scheduled, &rollout);
        }
    }

    fn check_tables_of(&self, scheduled: &mut Scheduled, rollout: &ObjectKey) {
        let tables = {
            let intents = self.router.background().standing();
            intents.of(rollout).map(|standing| standing.tables.clone())
        };
        for table in tables.unwrap_or_default() {
            self.check_table(scheduled, &table);
        }
    }

    /// Schedules a repair if a table needs one.
    fn check_table(&self, scheduled: &mut Scheduled, table: &ObjectKey) {
        let background = self.router.background();
        let rollouts = background
            .standing()
            .rollouts(|it| it.tables.contains(table));
        if rollouts.is_empty() {
            return;
        }
        let Some(document) = self.watched.table(table) else {
            return;
        };
        for rollout in rollouts {
            let drift = self.router.drift(&rollout, &document);
            let part = Part {
                rollout,
                table: table.clone(),
            };
            let now = Instant::now();
            let wait = match drift {
                Drift::None => {
                    scheduled.forget(&part);
                    continue;
                }
                Drift::Steady => WAIT,
                Drift::Growing => GROWING_WAIT,
            };
            let not_before = background.fights().changed(table, now);
            debug!(rollout = %part.rollout, route_table = %table, "changed by another client");
            let due = (now + wait).max(not_before);
            scheduled.changed(part, document.generation(), now, due);
        }
    }

    async fn repair(&self, part: Part, pending: Pending) -> Ended {
        let background = self.router.background();
        let begins_fight = background.fights().would_begin(&part.table, Instant::now());
        with_context(self.context(), async {
            // The repair becomes the manager of the routes, so the other manager is read first.
            let with = match begins_fight {
                true => self.last_writer(&part.table).await.1,
                false => None,
            };
            // A repair that finds the Rollout changed drops the intent.
            let rollout = background.standing().about(&part.rollout);
            let repaired = self.router.repair(&part, self.fence.as_ref()).await;
            Ended {
                part,
                since: pending.since,
                pause: pending.pause,
                rollout,
                outcome: repaired.outcome,
                is_open: repaired.is_open,
                with,
            }
        })
        .await
    }

    /// Returns the uid of a table, and the last other manager of its `spec`.
    async fn last_writer(&self, table: &ObjectKey) -> (String, Option<FieldManager>) {
        let Ok(table) = self.router.store().read(table).await else {
            return (String::new(), None);
        };
        let ours = self.router.store().field_manager();
        let manager = FieldManager::last_of_spec(table.raw(), ours);
        (table.uid().to_owned(), manager)
    }

    /// Reports a repair. Returns whether a fight begins with it.
    fn begins_fight(&self, ended: &Ended) -> bool {
        let Some(outcome) = ended.outcome else {
            return false;
        };
        let (now, table) = (Instant::now(), &ended.part.table);
        let document = self.watched.table(table);
        self.router.observer().observe(&Report::Repair {
            rollout: ended.rollout.clone(),
            table: About {
                key: table.clone(),
                uid: document.as_ref().map_or("", Document::uid).to_owned(),
            },
            outcome,
            delay: now.duration_since(ended.since),
        });
        let mut fights = self.router.background().fights();
        outcome == RepairOutcome::Written && fights.written(table, now)
    }

    /// Reports a fight with the manager that reverts the weights of a table, and counts the fights. `with` is known if it was
    /// read before the repair.
    async fn report_fight(&self, table: ObjectKey, rollout: About, with: Option<FieldManager>) {
        let (uid, last) = self.last_writer(&table).await;
        self.router.observer().observe(&Report::Fight {
            rollout,
            table: About { key: table, uid },
            with: with.or(last),
        });
        self.count_fights();
    }

    fn count_fights(&self) {
        let count = self.router.background().fights().count(Instant::now());
        self.router.observer().observe(&Report::Fights(count));
    }
}

/// Scheduled repairs.
#[derive(Debug, Default)]
struct Scheduled(HashMap<Part, Pending>);

#[derive(Debug)]
struct Pending {
    /// When the first change was observed.
    since: Instant,
    due: Instant,
    /// The pause before the next try, if the repair stays open.
    pause: Duration,
    /// `metadata.generation` of the table.
    generation: Option<i64>,
    /// Whether a later change has already restarted the wait.
    is_restarted: bool,
}

impl Scheduled {
    /// Schedules a repair for `due`. A later change of the table's `spec` restarts the wait once. The status that Gloo writes
    /// after every change does not.
    fn changed(&mut self, part: Part, generation: Option<i64>, now: Instant, due: Instant) {
        match self.0.get_mut(&part) {
            None => {
                let pending = Pending {
                    since: now,
                    due,
                    pause: RETRY,
                    generation,
                    is_restarted: false,
                };
                self.0.insert(part, pending);
            }
            Some(pending) => {
                let is_same = generation.is_some() && generation == pending.generation;
                if !is_same && !pending.is_restarted {
                    pending.is_restarted = true;
                    pending.generation = generation;
                    pending.due = due;
                }
            }
        }
    }

    /// Schedules a repair again that is open, unless a later change has scheduled one.
    fn again(&mut self, part: Part, since: Instant, pause: Duration, now: Instant) {
        self.0.entry(part).or_insert(Pending {
            since,
            due: now + pause,
            pause: LONGEST_RETRY.min(pause * 2),
            generation: None,
            is_restarted: false,
        });
    }

    /// Cancels a repair, because the table needs none.
    fn forget(&mut self, part: &Part) {
        self.0.remove(part);
    }

    /// Returns when the next repair is due.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|pending| pending.due).min()
    }

    /// Removes and returns the repairs that are due. Those whose predecessor is `under_way` wait once more.
    fn take(&mut self, now: Instant, under_way: &HashSet<Part>) -> Vec<(Part, Pending)> {
        let parts = self.0.extract_if(|part, pending| {
            let is_due = pending.due <= now;
            if is_due && under_way.contains(part) {
                pending.due = now + WAIT;
                return false;
            }
            is_due
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        Part {
            rollout: ObjectKey::new("shop", "reviews"),
            table: ObjectKey::new("mesh", "web"),
        }
    }

    #[test]
    fn a_later_change_of_the_spec_restarts_the_wait_once() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut scheduled = Scheduled::default();
        scheduled.changed(part(), Some(1), at(0), at(100));
        assert_eq!(scheduled.next(), Some(at(100)));
        // Gloo's status.
        scheduled.changed(part(), Some(1), at(20), at(120));
        assert_eq!(scheduled.next(), Some(at(100)));
        scheduled.changed(part(), Some(2), at(50), at(150));
        scheduled.changed(part(), Some(3), at(120), at(220));
        assert_eq!(scheduled.next(), Some(at(150)));
        let under_way = HashSet::from([part()]);
        assert!(scheduled.take(at(149), &HashSet::new()).is_empty());
        assert!(scheduled.take(at(150), &under_way).is_empty());
        assert_eq!(scheduled.next(), Some(at(250)));
        let taken = scheduled.take(at(250), &HashSet::new()).into_iter();
        let taken: Vec<_> = taken.map(|(part, it)| (part, it.since)).collect();
        assert_eq!(taken, [(part(), at(0))]);
        assert_eq!(scheduled.next(), None);
        scheduled.changed(part(), None, at(300), at(400));
        scheduled.changed(part(), None, at(350), at(450));
        assert_eq!(scheduled.next(), Some(at(450)));
        scheduled.forget(&part());
        assert_eq!(scheduled.next(), None);
    }

    #[test]
    fn the_pause_before_an_unanswered_repair_doubles() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut scheduled = Scheduled::default();
        // In a fight the first try comes late.
        scheduled.changed(part(), Some(1), begin, at(300));
        let mut now = at(300);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let taken = scheduled.take(now, &HashSet::new()).pop();
            let pending = taken.expect("due").1;
            // A request that hangs does not make the pause longer.
            now += Duration::from_secs(3);
            scheduled.again(part(), pending.since, pending.pause, now);
            now += Duration::from_secs(pause);
            assert_eq!(scheduled.next(), Some(now), "{pause}");
        }
        // A change that was seen after its predecessor had planned comes first.
        let mut scheduled = Scheduled::default();
        scheduled.changed(part(), Some(1), begin, begin + WAIT);
        scheduled.again(part(), begin, RETRY, begin);
        assert_eq!(scheduled.next(), Some(begin + WAIT));
    }
}
