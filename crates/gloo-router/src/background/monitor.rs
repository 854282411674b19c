//! Reports Rollouts whose last weight has not been in force, or not been accepted by Gloo, for a minute, and those whose drift
//! is not seen.
//!
//! Only Rollouts with a standing intent or with marks in a table are compared, and only after a change of the table, so a
//! cluster at rest costs nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gloo_types::ObjectKey;
use route_store::{Priority, RequestContext, Store, with_context};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::debug;

use super::{Presence, Watched};
use crate::collect::Part;
use crate::report::{Behind, Lack, Report};
use crate::router::GlooRouter;
use crate::standing::Standing;

/// Pause between two comparisons.
const INTERVAL: Duration = Duration::from_secs(15);
/// How long a table may be behind before it is reported. The controller repeats a failed call within seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Deadline of the read of a Rollout.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Compares the tables of Rollouts with their last weights.
pub(crate) struct Monitor<S, W> {
    pub(crate) router: Arc<GlooRouter<S>>,
    pub(crate) watched: Arc<W>,
}

/// Since when a Rollout is behind, and whether that was reported.
struct Since {
    at: Instant,
    is_reported: bool,
}

/// It is not known whether a table is behind: a call is running, or the Rollout could not be read.
struct NotCompared;

/// The last comparison of a table: valid for this version of the table and this intent.
struct Compared {
    version: Option<String>,
    standing: Standing,
    behind: Option<Behind>,
}

impl<S: Store, W: Watched> Monitor<S, W> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut since: BTreeMap<(ObjectKey, Lack), Since> = BTreeMap::new();
        let mut compared = HashMap::new();
        loop {
            ticks.tick().await;
            let (behind, unknown) = self.all_behind(&mut compared).await;
            since.retain(|rollout_and_lack, since| {
                let (rollout, lack) = rollout_and_lack;
                // Of a table it is always known whether its changes are seen.
                let is_unknown = unknown.as_ref().is_none_or(|it| it.contains(rollout));
                let is_unknown = is_unknown && *lack != Lack::Watch;
                let is_left = is_unknown || behind.contains_key(rollout_and_lack);
                if !is_left && since.is_reported {
                    let (rollout, lack) = rollout_and_lack.clone();
                    self.router
                        .observer()
                        .observe(&Report::CaughtUp { rollout, lack });
                }
                is_left
            });
            let now = Instant::now();
            for ((rollout, lack), reason) in behind {
                let key = (rollout.clone(), lack);
                let since = since.entry(key).or_insert(Since {
                    at: now,
                    is_reported: false,
                });
                if !since.is_reported && now >= since.at + PATIENCE {
                    since.is_reported = true;
                    let rollout = self.router.background().standing().about(&rollout);
                    let behind = Behind { lack, reason };
                    self.router
                        .observer()
                        .observe(&Report::Behind { rollout, behind });
                }
            }
            for lack in Lack::ALL {
                let of_this = since.iter().filter(|((_, it), _)| *it == lack);
                let count = of_this.filter(|(_, since)| since.is_reported).count();
                self.router
                    .observer()
                    .observe(&Report::RolloutsBehind(lack, count));
            }
        }
    }

    /// Returns the Rollouts whose tables are behind now, with the first reason of each, and those of which that is not known; `None`
    /// if that may be any Rollout.
    async fn all_behind(
        &self,
        compared: &mut HashMap<Part, Compared>,
    ) -> (
        BTreeMap<(ObjectKey, Lack), String>,
        Option<BTreeSet<ObjectKey>>,
    ) {
        let marked = self.watched.marked();
        let are_all_known = marked.is_some();
        let parts = self.parts(marked.unwrap_or_default());
        compared.retain(|part, _| parts.contains(part));
        let mut unknown = self.router.background().standing().with_calls();
        unknown.retain(|rollout| self.uses_plugin(rollout) != Some(false));
        let mut all = BTreeMap::new();
        for part in parts {
            if let Some(reason) = self.watched.unseen(&part.table) {
                let key = (part.rollout.clone(), Lack::Watch);
                all.entry(key).or_insert(reason);
            }
            match self.behind(&part, compared).await {
                Ok(Some(Behind { lack, reason })) => {
                    all.entry((part.rollout, lack)).or_insert(reason);
                }
                Ok(None) => {}
                Err(NotCompared) => {
                    unknown.insert(part.rollout);
                }
            }
        }
        (all, are_all_known.then_some(unknown))
    }

    /// Returns the tables to compare, with each Rollout that has an intent or marks in them.
    fn parts(&self, marked: BTreeSet<Part>) -> BTreeSet<Part> {
        let mut parts = marked;
        let intents = self.router.background().standing();
        for rollout in intents.rollouts(|_| true) {
            let tables = intents.of(&rollout).into_iter().flat_map(|it| &it.tables);
            parts.extend(tables.map(|table| Part {
                rollout: rollout.clone(),
                table: table.clone(),
            }));
        }
        parts
    }

    async fn behind(
        &self,
        part: &Part,
        compared: &mut HashMap<Part, Compared>,
    ) -> Result<Option<Behind>, NotCompared> {
        let Part { rollout, table } = part;
        let background = self.router.background();
        let (is_settled, standing) = {
            let intents = background.standing();
            (intents.is_settled(rollout), intents.of(rollout).cloned())
        };
        let uses_plugin = self.uses_plugin(rollout);
        // While a promotion is held, another weight than that of the last call is in force.
        if uses_plugin == Some(false) || self.router.holds().is_held(rollout) {
            return Ok(None);
        }
        if uses_plugin.is_none() || !is_settled {
            return Err(NotCompared);
        }
        let Some(standing) = standing else {
            return self.behind_status(part).await;
        };
        let version = self.watched.version(table);
        if let Some(last) = compared.get(part)
            && last.version == version
            && last.standing == standing
        {
            return Ok(last.behind.clone());
        }
        let Some(document) = self.watched.table(table) else {
            return Ok(None);
        };
        let behind = Behind::of(&standing.request, &document);
        let now = Compared {
            version,
            standing,
            behind: behind.clone(),
        };
        compared.insert(part.clone(), now);
        Ok(behind)
    }

    /// Whether a Rollout uses the plugin, if that is known. One that was deleted or does not is for the garbage collector.
    fn uses_plugin(&self, rollout: &ObjectKey) -> Option<bool> {
        match self.watched.presence(rollout) {
            Presence::Unknown => None,
            Presence::Absent => Some(false),
            Presence::Exists { uses_plugin } => Some(uses_plugin),
        }
    }

    async fn behind_status(&self, part: &Part) -> Result<Option<Behind>, NotCompared> {
        let Some(document) = self.watched.table(&part.table) else {
            return Ok(None);
        };
        let context = RequestContext {
            deadline: Some(Instant::now() + TIMEOUT),
            priority: Priority::Collect,
        };
        let behind = self.router.behind_status(&part.rollout, &document);
        with_context(context, behind).await.map_err(|error| {
            debug!(rollout = %part.rollout, "not compared: {error}");
            NotCompared
        })
    }
}
