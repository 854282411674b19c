//! Garbage collection: executes the decisions of the [`Collector`], which restores tables that have marks of Rollouts that
//! were deleted or no longer use the plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gloo_types::{Document, ObjectKey};
use route_store::{Change, ChangeKind, Priority, RequestContext, Store, with_context};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::{Presence, Watched};
use crate::collect::{Collector, Part, PluginUse, Review, SafetyStop};
use crate::report::{About, OrphanCause, Report};
use crate::router::{Collected, Fence, GlooRouter};

/// Longest interval between two comparisons of marks and Rollouts.
const REVIEW: Duration = Duration::from_secs(5);
/// Shortest interval, for short delays in tests.
const SOONEST: Duration = Duration::from_millis(100);
/// Deadline of a restore.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Restores tables of Rollouts that were deleted or no longer use the plugin.
pub(crate) struct GarbageCollector<S, W, F> {
    pub(crate) router: Arc<GlooRouter<S>>,
    pub(crate) watched: Arc<W>,
    pub(crate) fence: Arc<F>,
    /// How long after the deletion of its Rollout a table is restored.
    pub(crate) after: Duration,
}

impl<S: Store, W: Watched, F: Fence> GarbageCollector<S, W, F> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut changes = self.watched.rollout_changes();
        let mut collector = Collector::new(self.after);
        let mut reviews = interval((self.after / 4).clamp(SOONEST, REVIEW));
        reviews.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut orphans, mut stop) = (None, None);
        let mut unreadable = BTreeSet::new();
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(Change { key, kind: ChangeKind::Deleted, .. }) => collector.deleted(&key),
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = reviews.tick() => {
                    unreadable = self.report_unreadable(&unreadable);
                    let Some(review) = self.review(&mut collector).await else {
                        continue;
                    };
                    if orphans.replace(review.orphans) != Some(review.orphans) {
                        self.router.observer().observe(&Report::Orphans(review.orphans));
                    }
                    if review.stop != stop {
                        stop = review.stop;
                        warn_of(stop);
                    }
                    self.carry_out(&mut collector, review).await;
                }
            }
        }
    }

    /// Reports tables with unreadable marks that are not among those `reported`. Returns all of them.
    fn report_unreadable(&self, reported: &BTreeSet<ObjectKey>) -> BTreeSet<ObjectKey> {
        let mut unreadable = BTreeSet::new();
        for (table, error) in self.watched.unreadable() {
            unreadable.insert(table.key.clone());
            if !reported.contains(&table.key) {
                self.router
                    .observer()
                    .observe(&Report::Unreadable { table, error });
            }
        }
        unreadable
    }

    /// Compares marks and Rollouts. Returns `None` while not all tables and Rollouts are known.
    async fn review(&self, collector: &mut Collector) -> Option<Review> {
        let marked = self.watched.marked()?;
        let mut rollouts: BTreeMap<&ObjectKey, Option<PluginUse>> = BTreeMap::new();
        for Part { rollout, .. } in &marked {
            if rollouts.contains_key(rollout) {
                continue;
            }
            let known = match self.watched.presence(rollout) {
                Presence::Unknown => Some(PluginUse::UnsettledWithout),
                Presence::Absent => None,
                Presence::Exists { uses_plugin: true } => Some(PluginUse::Uses),
                // The cache does not keep whether it is settled.
                Presence::Exists { uses_plugin: false } => {
                    match self.router.plugin_use_of(rollout).await {
                        Ok(known) => known,
                        Err(error) => {
                            debug!(%rollout, "the Rollout cannot be read: {error}");
                            Some(PluginUse::UnsettledWithout)
                        }
                    }
                }
            };
            rollouts.insert(rollout, known);
        }
        let known = |part: &Part| {
            let Part { rollout, table } = part;
            match rollouts.get(rollout).copied().flatten() {
                Some(PluginUse::Uses)
                    if self.watched.deselects(rollout, table) && self.is_in_force(part) =>
                {
                    Some(PluginUse::Deselects)
                }
                known => known,
            }
        };
        Some(collector.review(Instant::now(), &marked, self.watched.rollouts(), known))
    }

    /// Whether the Rollout's last SetWeight is in force and does not select this table.
    fn is_in_force(&self, part: &Part) -> bool {
        let intents = self.router.background().standing();
        let standing = intents.of(&part.rollout);
        standing.is_some_and(|it| it.is_complete && !it.tables.contains(&part.table))
    }

    async fn carry_out(&self, collector: &mut Collector, review: Review) {
        for (part, why, after) in review.found {
            let Part { rollout, table } = part;
            let document = self.watched.table(&table);
            let uid = document.as_ref().map(Document::uid);
            self.router.observer().observe(&Report::Orphaned {
                rollout,
                table: About {
                    key: table,
                    uid: uid.unwrap_or_default().to_owned(),
                },
                why,
                after,
            });
        }
        for (part, why) in review.due {
            self.restore(collector, part, why).await;
        }
    }

    async fn restore(&self, collector: &mut Collector, part: Part, why: OrphanCause) {
        let context = RequestContext {
            deadline: Some(Instant::now() + TIMEOUT),
            priority: Priority::Collect,
        };
        let collected = self.router.collect(&part, why, self.fence.as_ref());
        match with_context(context, collected).await {
            Collected::Restored(table) => self.router.observer().observe(&Report::Restored {
                rollout: part.rollout,
                table,
                why,
            }),
            Collected::Skipped | Collected::Failed => {
                collector.failed(&part, false, Instant::now());
            }
            Collected::RolloutsUnknown => collector.failed(&part, true, Instant::now()),
        }
    }
}

fn warn_of(stop: Option<SafetyStop>) {
    match stop {
        Some(SafetyStop::Many) => warn!(
            "tables of deleted Rollouts are not restored: so many at once may mean that the Rollouts were lost; see \
             `status`, and run `restore` for each Rollout that was deleted on purpose"
        ),
        Some(SafetyStop::NoRollouts) => warn!(
            "tables of deleted Rollouts are not restored: no Rollout exists; run `restore` for each Rollout that was \
             deleted on purpose"
        ),
        Some(SafetyStop::NoSuchKind) => warn!(
            "tables of deleted Rollouts are not restored: the API server does not know the kind Rollout; install its \
             CustomResourceDefinition again, or run `restore` for each Rollout that was deleted on purpose"
        ),
        None => {}
    }
}
