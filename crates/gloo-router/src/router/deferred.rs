//! Maintenance of a router over a cache: it answers for Rollouts at rest while the cache is being filled, checks these
//! Rollouts once it is, and forgets deleted Rollouts.

use std::collections::BTreeSet;

use gloo_types::{MirrorPolicyDoc, ObjectKey};
use rollouts_rpc::{DesiredWeight, Rollout, error_chain};
use route_planner::{Planned, belongs_to, involved};
use route_store::{Decision, PluginBlock, Priority, RolloutKeeper, Store, TableKeeper};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Fence, GlooRouter, LONGEST_RETRY, RETRY, outside::TakenOver};
use crate::error::Failure;
use crate::from_rpc::{self, Policy};
use crate::lock;
use crate::report::Report;

/// Whether the status of a Rollout says that all traffic goes to the stable version.
fn is_at_rest(rollout: &Rollout) -> bool {
    let weights = rollout.status.canary.weights.as_ref();
    rollout.status.is_promoted()
        && weights.is_some_and(|it| it.canary.weight == 0 && it.additional.is_empty())
}

impl<S: Store> GlooRouter<S> {
    /// Whether a call for a Rollout at rest is answered before the tables are known. After a change of the leader, the
    /// controller calls for thousands of Rollouts at once.
    pub(super) async fn defer(&self, rollout: &Rollout) -> bool {
        if !is_at_rest(rollout) {
            return false;
        }
        // Inserted before the cache is asked, so that the check after the start cannot miss it.
        let key = from_rpc::key(rollout);
        match &mut *lock(&self.deferred) {
            Some(deferred) => deferred.insert(key.clone()),
            None => return false,
        };
        let defers = self.store.is_starting().await;
        if defers {
            self.observer.observe(&Report::Deferred);
        } else {
            self.settle(&key);
        }
        defers
    }

    fn is_deferred(&self, rollout: &ObjectKey) -> bool {
        let deferred = lock(&self.deferred);
        deferred.as_ref().is_some_and(|it| it.contains(rollout))
    }

    /// Notes that a Rollout is not to be checked after the start.
    fn settle(&self, rollout: &ObjectKey) {
        if let Some(deferred) = &mut *lock(&self.deferred) {
            deferred.remove(rollout);
        }
    }

    /// Takes over from writes outside of calls: a call begins that may ask for something else.
    pub(super) fn take_over(&self, rollout: &Rollout) -> TakenOver {
        self.settle(&from_rpc::key(rollout));
        self.background.suspend(rollout)
    }

    /// Returns the last known MirrorPolicies if no plan changes a table or a policy.
    pub(super) fn unchanged_policies(&self, planned: &[Planned]) -> Option<Vec<MirrorPolicyDoc>> {
        let known = self.store.last_known_policies()?;
        let is_noop = |planned: &Planned| {
            let plan = planned.plan().filter(|plan| plan.is_noop());
            plan.is_some_and(|it| it.policy_changes(&known).is_ok_and(|it| it.is_empty()))
        };
        planned.iter().all(is_noop).then_some(known)
    }

    /// Whether the last known MirrorPolicies include one with the mark of the Rollout. Also `true` if none were ever read.
    pub(super) fn has_known_policy(&self, mark: &ObjectKey) -> bool {
        let known = self.store.last_known_policies();
        known.is_none_or(|known| known.iter().any(|it| belongs_to(it, mark)))
    }

    /// Forgets a deleted Rollout, unless one with another uid was called meanwhile: the controller may know of it before the cache
    /// sees the deletion.
    pub(crate) fn forget(&self, rollout: &ObjectKey, uid: &str) {
        let mut standing = self.background().standing();
        if !standing.is_of_another(rollout, uid) {
            standing.forget(rollout);
            drop(standing);
            self.memory.forget(rollout);
            self.settle(rollout);
        }
    }

    /// Forgets the Rollouts for which `exists` is `false`.
    pub(crate) fn forget_unless(&self, exists: impl Fn(&ObjectKey) -> bool) {
        self.memory.retain(&exists);
        self.background().standing().retain(&exists);
    }

    /// Restores the tables of Rollouts whose calls were deferred. `marked` are those with marks in a table. What gets no answer, or
    /// may not be written, is tried again until a call takes over, because the controller may not call for a long time.
    pub(crate) async fn restore_deferred(&self, marked: &BTreeSet<ObjectKey>, fence: &impl Fence) {
        let mut pause = RETRY;
        loop {
            let deferred = {
                let mut all = lock(&self.deferred);
                let mut deferred = all.take().unwrap_or_default();
                deferred.retain(|rollout| marked.contains(rollout));
                if deferred.is_empty() {
                    // From now on no call is deferred.
                    return;
                }
                all.insert(deferred).clone()
            };
            for rollout in &deferred {
                info!(%rollout, "tables still have marks of this Rollout, which is at rest: restoring them");
                if self.restore_rest(rollout, fence).await {
                    self.settle(rollout);
                }
            }
            sleep(pause).await;
            pause = LONGEST_RETRY.min(pause * 2);
        }
    }

    /// Returns whether nothing is left to restore.
    async fn restore_rest(&self, key: &ObjectKey, fence: &impl Fence) -> bool {
        let not_restored = |error: String| {
            // Otherwise a call has taken over.
            if self.is_deferred(key) {
                warn!(rollout = %key, "not restored: {error}");
            }
        };
        let live = match self.live_rollout(key).await {
            Ok(Some((live, _))) if is_at_rest(&live) => live,
            Ok(_) => return true,
            Err(error) => {
                not_restored(error.chain());
                return !error.is_unavailable();
            }
        };
        if fence.allows().await != Some(true) {
            return false;
        }
        let rest = DesiredWeight {
            value: 0,
            max: live.max_traffic_weight(),
        };
        let write = async {
            // A call that has begun meanwhile has taken over.
            if !self.is_deferred(key) {
                return true;
            }
            let shift = |deadline| self.shift_weights(&live, rest, &[], Decision::Plan, deadline);
            match self.call(Priority::Repair, shift).await {
                Ok(shifted) => {
                    let is_final = !shifted.failures.iter().any(Failure::may_succeed_later);
                    for failure in shifted.failures {
                        not_restored(error_chain(&failure));
                    }
                    is_final
                }
                Err(error) => {
                    not_restored(error_chain(&error));
                    !error.may_succeed_later()
                }
            }
        };
        self.background.outside.run(key, write).await
    }
}

/// Creates the keeper that reduces a Rollout to what decides about its traffic, if it configures the plugin.
pub fn rollout_keeper(policy: Policy) -> RolloutKeeper {
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

/// Creates the keeper that stores the text of a RouteTable and which Rollouts of this cluster have marks on it.
pub fn table_keeper(policy: Policy) -> TableKeeper {
    TableKeeper::new(move |table| {
        let marks = involved(table).map_err(|error| error_chain(&error))?;
        let owners = marks.iter().filter_map(|mark| policy.marked(mark));
        Ok(owners.collect())
    })
}
