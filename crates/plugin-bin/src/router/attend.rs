//! What a router over a cache does beside the calls: it answers for Rollouts at rest while the cache is filled and checks
//! them afterwards, and it forgets Rollouts that are gone.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gloo_types::ObjectKey;
use rollouts_rpc::{DesiredWeight, Rollout, error_chain};
use route_planner::{Plan, PlanError, belongs_to, involved};
use route_store::{
    CachedRouteStore, ChangeKind, PluginBlock, Priority, RolloutKeeper, RolloutReader as _, Store,
    TableKeeper,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{GlooRouter, partial::LivePolicies};
use crate::from_rpc::{self, Policy};
use crate::metrics;

/// How long to wait before the next look whether the cache is filled.
const PAUSE: Duration = Duration::from_secs(1);

/// The Rollouts at rest that were answered for without a look at their tables.
#[derive(Debug, Default)]
pub(super) struct Deferred(Mutex<BTreeSet<ObjectKey>>);

impl Deferred {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a Rollout says of itself that none of its traffic is anywhere else than with its stable version.
fn is_at_rest(rollout: &Rollout) -> bool {
    let weights = rollout.status.canary.weights.as_ref();
    rollout.status.is_promoted()
        && weights.is_some_and(|it| it.canary.weight == 0 && it.additional.is_empty())
}

impl<S: Store> GlooRouter<S> {
    /// Whether a call that asks for nothing but rest is answered before the tables are known. After a change of the leader
    /// thousands of Rollouts are asked about at once.
    pub(super) async fn defer(&self, rollout: &Rollout) -> bool {
        if !is_at_rest(rollout) {
            return false;
        }
        // First, so that the check after the start cannot miss it.
        let key = from_rpc::key(rollout);
        self.deferred.lock().insert(key.clone());
        let defers = self.store.is_starting().await;
        if defers {
            metrics::calls::deferred();
        } else {
            self.deferred.lock().remove(&key);
        }
        defers
    }

    /// The MirrorPolicies as they were heard of last, if none of `plans` changes anything.
    pub(super) fn unchanged_policies(&self, plans: &[Result<Plan, PlanError>]) -> LivePolicies {
        let known = self.store.last_known_policies()?;
        let is_noop = |plan: &Result<Plan, PlanError>| {
            let plan = plan.as_ref().ok().filter(|plan| plan.is_noop());
            plan.is_some_and(|it| it.policy_changes(&known).is_ok_and(|it| it.is_empty()))
        };
        plans.iter().all(is_noop).then_some(known)
    }

    /// Whether a MirrorPolicy with the mark of a Rollout was there when policies were last heard of, or nothing was ever heard of them.
    pub(super) fn has_known_policy(&self, mark: &ObjectKey) -> bool {
        let known = self.store.last_known_policies();
        known.is_none_or(|known| known.iter().any(|it| belongs_to(it, mark)))
    }
}

impl GlooRouter<CachedRouteStore> {
    /// Runs beside the calls. Does not end.
    pub(crate) async fn attend(&self) {
        let mut changes = self.store.rollouts().subscribe();
        self.check_deferred().await;
        loop {
            match changes.recv().await {
                Ok(change) if change.kind == ChangeKind::Deleted => self.memory.forget(&change.key),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => self.forget_deleted(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Forgets Rollouts that are not there, if all that are there are known.
    fn forget_deleted(&self) {
        let rollouts = self.store.rollouts();
        if rollouts.check(None, route_store::FRESH).is_ok() {
            self.memory.retain(|key| rollouts.get(key).is_some());
        }
    }

    /// Restores the tables of those Rollouts that were answered for before the tables were known, where one still has marks.
    async fn check_deferred(&self) {
        let tables = self.store.tables();
        loop {
            tables.settled(None).await;
            if tables.check(None, Duration::MAX).is_ok() {
                break;
            }
            sleep(PAUSE).await;
        }
        let deferred = mem::take(&mut *self.deferred.lock());
        let tables = tables.all();
        let marked: BTreeSet<&ObjectKey> = tables.iter().flat_map(|it| &it.owners).collect();
        for rollout in deferred.iter().filter(|key| marked.contains(key)) {
            info!(%rollout, "tables have marks of this Rollout, which is at rest");
            self.restore_rest(rollout).await;
        }
    }

    async fn restore_rest(&self, key: &ObjectKey) {
        let live = match self.store.rollout(key).await {
            Ok(Some(live)) => live,
            Ok(None) => return,
            Err(error) => {
                warn!(rollout = %key, "left to the next pass: {}", error.chain());
                return;
            }
        };
        let Ok(live) = serde_json::from_value::<Rollout>(live.into_raw()) else {
            return;
        };
        let live = live.with_defaults();
        if !is_at_rest(&live) {
            return;
        }
        let rest = DesiredWeight {
            value: 0,
            max: live.max_traffic_weight(),
        };
        let set = self.call(Priority::Repair, |deadline| {
            self.set_weights(&live, rest, &[], deadline)
        });
        if let Err(error) = set.await {
            warn!(rollout = %key, "left to the next pass: {}", error_chain(&error));
        }
    }
}

/// Keeps of Rollouts what decides about the traffic of those that configure the plugin.
pub(crate) fn rollout_keeper(policy: Policy) -> RolloutKeeper {
    RolloutKeeper::new(Box::new(move |rollout| {
        let plugins = rollout.traffic_routing().map(|routing| &routing.plugins);
        let has_block = |name: &String| plugins.is_some_and(|all| all.contains_key(name));
        if !policy.plugin_names.iter().any(has_block) {
            return PluginBlock::Absent;
        }
        match from_rpc::config(&policy, rollout, &from_rpc::key(rollout)) {
            Ok(config) => PluginBlock::Selects(config.route_tables().clone()),
            Err(_) => PluginBlock::Unusable,
        }
    }))
}

/// Keeps the text of RouteTables, and which Rollouts of this cluster have left marks on them.
pub(crate) fn table_keeper(policy: Policy) -> TableKeeper {
    TableKeeper::new(move |table| {
        let marks = involved(table).map_err(|error| error_chain(&error))?;
        let owners = marks.iter().filter_map(|mark| policy.marked(mark));
        Ok(owners.collect())
    })
}
