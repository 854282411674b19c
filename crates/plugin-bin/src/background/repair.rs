//! Repairs: a table that another client changed gets the weights of the last SetWeight again.
//!
//! ```text
//! a table changed --> plan on it --> nothing moves: done
//!                          |
//!                          v
//!        wait 100 ms, 500 ms if a canary's share would grow, longer in a fight
//!                          |
//!                          v
//!        fences: the Rollout as it is now, the controller's Lease, no call under way
//!                          |
//!                          v
//!                one guarded PATCH, no second try
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, FusedFuture as _},
    stream::FuturesUnordered,
};
use gloo_types::ObjectKey;
use route_store::{Change, ChangeKind, Priority, RequestContext, Store, with_context};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, interval, sleep, sleep_until};
use tracing::debug;

use super::Watched;
use super::garbage::Part;
use crate::fights::FieldManager;
use crate::report::{About, Observer, RepairOutcome, Report};
use crate::router::{Drift, Fence, GlooRouter, Repaired};

/// How long to wait before a repair: the other client may not be done yet.
const WAIT: Duration = Duration::from_millis(100);
/// The same before one that sends more traffic to a canary: the change may be an emergency.
const GROWING_WAIT: Duration = Duration::from_millis(500);
/// The longest time of a repair.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before the next look whether tables and Rollouts are known.
const LOOK: Duration = Duration::from_secs(1);
/// How often fights are counted.
const COUNT: Duration = Duration::from_secs(60);

/// Repairs the tables of standing intents.
pub(crate) struct Repairer<S, W, F> {
    pub(crate) router: Arc<GlooRouter<S>>,
    pub(crate) watched: Arc<W>,
    pub(crate) fence: Arc<F>,
    pub(crate) observer: Arc<dyn Observer>,
}

/// A repair, or the report of a fight, that ended.
struct Ended {
    part: Part,
    /// When the change was seen.
    since: Instant,
    repaired: Option<Repaired>,
    /// Who had changed the table, if it was read before the repair.
    with: Option<FieldManager>,
}

impl<S: Store, W: Watched, F: Fence> Repairer<S, W, F> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut changes = self.watched.table_changes();
        let mut policy_changes = self.watched.policy_changes();
        let mut waiting = Waiting::default();
        let mut running: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
        let mut under_way = HashSet::new();
        let mut count = interval(COUNT);
        let resuming = self.resume().fuse();
        tokio::pin!(resuming);
        loop {
            let due = async {
                match waiting.next() {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(Change { key, kind: ChangeKind::Applied }) => self.look(&mut waiting, &key),
                    // The plan that was carried out needs no other one, and what is deleted none at all.
                    Ok(Change { kind: ChangeKind::Written | ChangeKind::Deleted, .. }) => {}
                    Err(RecvError::Lagged(_)) => {
                        for rollout in self.router.background().standing().rollouts() {
                            self.look_at_all(&mut waiting, &rollout);
                        }
                    }
                    Err(RecvError::Closed) => return,
                },
                change = policy_changes.recv() => match change {
                    Ok(Change { kind: ChangeKind::Written, .. }) => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => self.look_at_mirrors(&mut waiting),
                    Err(RecvError::Closed) => return,
                },
                (set, fought) = self.router.background().news() => {
                    for rollout in set {
                        self.look_at_all(&mut waiting, &rollout);
                    }
                    for (table, rollout) in fought {
                        running.push(self.report_fight(table, rollout, None).boxed());
                    }
                }
                () = due => for (part, since) in waiting.take(Instant::now(), &under_way) {
                    under_way.insert(part.clone());
                    running.push(self.repair(part, since).boxed());
                },
                Some(Ended { part, since, repaired, with }) = running.next() => {
                    under_way.remove(&part);
                    if let Some(repaired) = repaired
                        && self.ended(repaired, since)
                    {
                        let rollout = About { key: part.rollout.clone(), uid: String::new() };
                        running.push(self.report_fight(part.table, rollout, with).boxed());
                    }
                }
                _ = count.tick() => self.count_fights(),
                () = &mut resuming, if !resuming.is_terminated() => {}
            }
        }
    }

    /// Finds out what the Rollouts with marks had asked for when this process started. The controller may not ask again for
    /// 15 minutes.
    async fn resume(&self) {
        let marked = loop {
            match self.watched.marked() {
                Some(marked) => break marked,
                None => sleep(LOOK).await,
            }
        };
        let rollouts: BTreeSet<ObjectKey> = marked.into_iter().flat_map(|it| it.rollouts).collect();
        for rollout in rollouts {
            let context = RequestContext {
                deadline: Some(Instant::now() + TIMEOUT),
                priority: Priority::Repair,
            };
            if let Err(error) = with_context(context, self.router.resume(&rollout)).await {
                debug!(%rollout, "no repairs before the next call: {error}");
            }
        }
        self.router.background().standing().end_resuming();
    }

    /// A MirrorPolicy has changed: it may be that of any mirror route.
    fn look_at_mirrors(&self, waiting: &mut Waiting) {
        let rollouts = self.router.background().standing().with_mirrors();
        for rollout in rollouts {
            self.look_at_all(waiting, &rollout);
        }
    }

    fn look_at_all(&self, waiting: &mut Waiting, rollout: &ObjectKey) {
        let tables = {
            let intents = self.router.background().standing();
            intents.of(rollout).map(|standing| standing.tables.clone())
        };
        for table in tables.unwrap_or_default() {
            self.look(waiting, &table);
        }
    }

    /// Plans a repair if a table needs one.
    fn look(&self, waiting: &mut Waiting, table: &ObjectKey) {
        let between = self.router.background();
        let rollouts = between.standing().of_table(table);
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
                    waiting.forget(&part);
                    continue;
                }
                Drift::Steady => WAIT,
                Drift::Growing => GROWING_WAIT,
            };
            let not_before = between.fights().changed(table, now);
            debug!(rollout = %part.rollout, route_table = %table, "changed by another client");
            let due = (now + wait).max(not_before);
            waiting.changed(part, document.generation(), now, due);
        }
    }

    async fn repair(&self, part: Part, since: Instant) -> Ended {
        let context = RequestContext {
            deadline: Some(Instant::now() + TIMEOUT),
            priority: Priority::Repair,
        };
        let begins_fight = self
            .router
            .background()
            .fights()
            .would_begin(&part.table, Instant::now());
        with_context(context, async {
            // The repair takes the routes over, and with them what tells of the other manager.
            let with = match begins_fight {
                true => self.last_writer(&part.table).await.1,
                false => None,
            };
            let repaired = self
                .router
                .repair(&part.rollout, &part.table, self.fence.as_ref())
                .await;
            Ended {
                part,
                since,
                repaired,
                with,
            }
        })
        .await
    }

    /// The uid of a table, and who wrote its `spec` last beside this plugin.
    async fn last_writer(&self, table: &ObjectKey) -> (String, Option<FieldManager>) {
        let Ok(table) = self.router.live_table(table).await else {
            return (String::new(), None);
        };
        let uid = table.raw().pointer("/metadata/uid");
        let uid = uid.and_then(serde_json::Value::as_str).unwrap_or_default();
        (uid.to_owned(), FieldManager::last_of_spec(table.raw()))
    }

    /// Reports a repair. Returns whether a fight began with it.
    fn ended(&self, repaired: Repaired, since: Instant) -> bool {
        let Repaired {
            rollout,
            table,
            outcome,
        } = repaired;
        let now = Instant::now();
        let is_written = outcome == RepairOutcome::Written;
        let begins = is_written && {
            let mut fights = self.router.background().fights();
            fights.written(&table.key, now)
        };
        self.observer.observe(&Report::Repair {
            rollout,
            table,
            outcome,
            delay: now.duration_since(since),
        });
        begins
    }

    /// Reports who undoes the weights of a table, and counts the fight. `with` is known if it was read before the repair.
    async fn report_fight(
        &self,
        table: ObjectKey,
        mut rollout: About,
        with: Option<FieldManager>,
    ) -> Ended {
        let part = Part {
            rollout: rollout.key.clone(),
            table,
        };
        if let Some(standing) = self.router.background().standing().of(&rollout.key) {
            standing.uid().clone_into(&mut rollout.uid);
        }
        let (uid, last) = self.last_writer(&part.table).await;
        let key = part.table.clone();
        self.observer.observe(&Report::Fight {
            rollout,
            table: About { key, uid },
            with: with.or(last),
        });
        self.count_fights();
        Ended {
            part,
            since: Instant::now(),
            repaired: None,
            with: None,
        }
    }

    fn count_fights(&self) {
        let count = self.router.background().fights().count(Instant::now());
        self.observer.observe(&Report::Fights(count));
    }
}

/// Tables that wait for their repair.
#[derive(Debug, Default)]
struct Waiting(HashMap<Part, Pending>);

#[derive(Debug)]
struct Pending {
    /// When the first change was seen.
    since: Instant,
    due: Instant,
    /// `metadata.generation` of the table.
    generation: Option<i64>,
    /// Whether a later change has restarted the wait, which happens once.
    is_restarted: bool,
}

impl Waiting {
    /// Waits with the repair until `due`. A later change of the table's `spec` restarts the wait once. The status that Gloo
    /// writes after every change does not.
    fn changed(&mut self, part: Part, generation: Option<i64>, now: Instant, due: Instant) {
        match self.0.get_mut(&part) {
            None => {
                let pending = Pending {
                    since: now,
                    due,
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

    /// The table is as it should be again.
    fn forget(&mut self, part: &Part) {
        self.0.remove(part);
    }

    /// When the next one is due.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|pending| pending.due).min()
    }

    /// Those that are due, except for those that are `under_way`, which wait once more.
    fn take(&mut self, now: Instant, under_way: &HashSet<Part>) -> Vec<(Part, Instant)> {
        let mut due = Vec::new();
        self.0.retain(|part, pending| {
            if pending.due > now {
                return true;
            }
            if under_way.contains(part) {
                pending.due = now + WAIT;
                return true;
            }
            due.push((part.clone(), pending.since));
            false
        });
        due
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
        let mut waiting = Waiting::default();
        waiting.changed(part(), Some(1), at(0), at(100));
        assert_eq!(waiting.next(), Some(at(100)));
        // Gloo's status.
        waiting.changed(part(), Some(1), at(20), at(120));
        assert_eq!(waiting.next(), Some(at(100)));
        waiting.changed(part(), Some(2), at(50), at(150));
        waiting.changed(part(), Some(3), at(120), at(220));
        assert_eq!(waiting.next(), Some(at(150)));
        let under_way = HashSet::from([part()]);
        assert_eq!(waiting.take(at(149), &HashSet::new()), []);
        assert_eq!(waiting.take(at(150), &under_way), []);
        assert_eq!(waiting.next(), Some(at(250)));
        assert_eq!(waiting.take(at(250), &HashSet::new()), [(part(), at(0))]);
        assert_eq!(waiting.next(), None);
        waiting.changed(part(), None, at(300), at(400));
        waiting.changed(part(), None, at(350), at(450));
        assert_eq!(waiting.next(), Some(at(450)));
        waiting.forget(&part());
        assert_eq!(waiting.next(), None);
    }
}
