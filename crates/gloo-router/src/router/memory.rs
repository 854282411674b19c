//! State that the router keeps from one call to the next. It is an optimisation of one pass: a new process starts without it,
//! and every rule holds again from the next pass on.

mod table_locks;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Mutex,
    time::Duration,
};

use gloo_types::{ObjectKey, ServicePort};
use rollouts_rpc::{PodHashes as ReceivedHashes, Rollout};
use route_planner::{IntentKind, PodHashes};
use tokio::time::Instant;

pub(super) use table_locks::{Accepted, Offer, TableGuard, TableLocks, Turn, Urgency, Written};

use crate::{from_rpc::key, lock};

/// State of a Rollout is dropped if the controller has not called for it for this long: it calls for each Rollout every 15
/// minutes. The state may be kept for twice as long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// State of Rollouts that the calls do not carry. A Rollout at rest takes no memory, unless entries of its block select no route or
/// its last update was rolled back.
#[derive(Debug, Default)]
pub(super) struct Memory {
    rollouts: Mutex<Rollouts>,
    /// Locks of the tables that are being written.
    pub(super) locks: TableLocks,
}

#[derive(Debug, Default, PartialEq)]
struct RolloutMemory {
    pass: Option<Pass>,
    hashes: Option<Hashes>,
    /// The tables that the Rollout selected, so that a table which it no longer selects can be restored.
    selected: BTreeSet<ObjectKey>,
    /// Ports of the Services of a running experiment and of the stable Service.
    ports: BTreeMap<ObjectKey, Vec<ServicePort>>,
    /// The weight for which a call has already waited until Gloo accepts it.
    awaited: Option<IntentKind>,
    full: Option<Full>,
    /// Hash of the stable version to which the last update was rolled back.
    rolled_back: Option<String>,
    /// Entries of the plugin block that select no route, as far as reported.
    unmatched: Vec<String>,
}

/// When a canary got all traffic.
#[derive(Debug, PartialEq)]
struct Full {
    /// `metadata.uid` of the Rollout.
    uid: String,
    /// Hash of the canary's Pods.
    hash: String,
    since: Instant,
}

/// What SetWeight has to know of the earlier calls of a pass. A pass ends with SetWeight and VerifyWeight. A Rollout with
/// another resource version belongs to another pass.
#[derive(Debug, PartialEq)]
struct Pass {
    /// `metadata.resourceVersion` of the Rollout.
    version: String,
    /// Whether RemoveManagedRoutes was called.
    ///
    /// The controller removes managed routes when they must not exist, and continues with SetWeight, or even SetHeaderRoute,
    /// in the same pass (upstream `rollout/trafficrouting.go`). Only RemoveManagedRoutes shows this: later calls must not
    /// restore the routes.
    has_removed: bool,
    /// Calls about managed routes that SetWeight has to retry.
    unfinished: Vec<IntentKind>,
}

/// The hashes of the last UpdateHash. They are valid as long as the status names the same versions: the controller may call
/// SetWeight before UpdateHash after the versions have changed.
#[derive(Debug, PartialEq)]
struct Hashes {
    /// `metadata.uid` of the Rollout. Another Rollout of the same name must not use the hashes.
    uid: String,
    status_stable: String,
    status_canary: String,
    stable: String,
    canary: String,
}

#[derive(Debug, Default)]
struct Rollouts {
    by_key: BTreeMap<ObjectKey, Remembered>,
    /// When state of deleted Rollouts was last dropped.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Remembered {
    state: RolloutMemory,
    used: Instant,
}

impl Memory {
    /// Notes that the managed routes of `rollout` are removed in this pass.
    pub(super) fn begin_removal(&self, rollout: &Rollout) {
        let pass = Pass {
            version: rollout.metadata.resource_version.clone(),
            has_removed: true,
            unfinished: Vec::new(),
        };
        // What an earlier call of the pass could not do was about routes that are removed now.
        self.change(&key(rollout), |state| state.pass = Some(pass));
    }

    /// Whether the managed routes of `rollout` were removed in the current pass.
    pub(super) fn has_removed(&self, rollout: &Rollout) -> bool {
        self.change(&key(rollout), |state| {
            state.pass_of(rollout).is_some_and(|pass| pass.has_removed)
        })
    }

    /// Remembers whether SetWeight of the pass under way has to try `call` again.
    pub(super) fn leave_unfinished(
        &self,
        rollout: &Rollout,
        call: &IntentKind,
        is_unfinished: bool,
    ) {
        self.change(&key(rollout), |state| {
            if let Some(pass) = state.pass_of(rollout) {
                // A retry of the same call replaces the result of the first try.
                pass.unfinished.retain(|other| other != call);
                pass.unfinished.extend(is_unfinished.then(|| call.clone()));
            } else if is_unfinished {
                state.pass = Some(Pass {
                    version: rollout.metadata.resource_version.clone(),
                    has_removed: false,
                    unfinished: vec![call.clone()],
                });
            }
        });
    }

    /// Returns the calls of the current pass that have to be retried.
    pub(super) fn unfinished(&self, rollout: &Rollout) -> Vec<IntentKind> {
        self.change(&key(rollout), |state| {
            let pass = state.pass_of(rollout);
            pass.map(|pass| pass.unfinished.clone()).unwrap_or_default()
        })
    }

    /// Ends the pass: VerifyWeight, its last call, was made.
    pub(super) fn end_pass(&self, rollout: &Rollout) {
        self.change(&key(rollout), |state| state.pass = None);
    }

    /// Records the hashes of UpdateHash. At rest they say no more than the Rollout's status, so nothing is kept.
    pub(super) fn record_hashes(&self, rollout: &Rollout, received: &ReceivedHashes) {
        let status = &rollout.status;
        let is_rest = received.stable == received.canary
            && received.stable == status.stable_rs
            && received.canary == status.current_pod_hash;
        let hashes = (!is_rest).then(|| Hashes {
            uid: rollout.metadata.uid.clone(),
            status_stable: status.stable_rs.clone(),
            status_canary: status.current_pod_hash.clone(),
            stable: received.stable.clone(),
            canary: received.canary.clone(),
        });
        self.change(&key(rollout), |state| state.hashes = hashes);
    }

    /// Returns the hashes that are valid now.
    pub(super) fn hashes(&self, rollout: &Rollout) -> PodHashes {
        let status = &rollout.status;
        let (mut stable, mut canary) = (status.stable_rs.clone(), status.current_pod_hash.clone());
        self.change(&key(rollout), |state| {
            // After a promotion or a new version the status is newer than the last UpdateHash.
            let is_current = |received: &&Hashes| {
                received.uid == rollout.metadata.uid
                    && received.status_stable == status.stable_rs
                    && received.status_canary == status.current_pod_hash
            };
            if let Some(received) = state.hashes.as_ref().filter(is_current) {
                stable.clone_from(&received.stable);
                canary.clone_from(&received.canary);
            }
        });
        let others = if status.abort && status.updated_replicas == 0 {
            // The aborted canary has no Pods, so nothing has to be distinguished from stable. The status does not count the
            // stable Pods, but there cannot be more than `spec.replicas`.
            canary.clone_from(&stable);
            status.replicas > rollout.replicas()
        } else {
            // After a promotion or a rollback, the current version is the stable one.
            stable == canary && status.replicas > status.updated_replicas
        };
        PodHashes {
            stable,
            canary,
            others,
        }
    }

    /// Returns the tables that were selected before and are not in `now`. They are returned again until they are
    /// [restored](Self::restored).
    pub(super) fn left_behind(
        &self,
        rollout: &ObjectKey,
        now: &BTreeSet<ObjectKey>,
    ) -> Vec<ObjectKey> {
        self.change(rollout, |state| {
            let left = state.selected.difference(now).cloned().collect();
            // A table leaves this list only when it was restored, however many calls fail before.
            state.selected.extend(now.iter().cloned());
            left
        })
    }

    /// Remembers the entries of the plugin block that select no route. Returns whether there are some, and others than before.
    pub(super) fn is_news(&self, rollout: &ObjectKey, unmatched: &[String]) -> bool {
        self.change(rollout, |state| {
            // An Event for each call would hide the others.
            let is_news = state.unmatched != unmatched;
            state.unmatched = unmatched.to_vec();
            is_news && !unmatched.is_empty()
        })
    }

    /// Notes that a table which is no longer selected was restored.
    pub(super) fn restored(&self, rollout: &ObjectKey, table: &ObjectKey) {
        self.change(rollout, |state| state.selected.remove(table));
    }

    /// Notes that every selected table was restored.
    pub(super) fn all_restored(&self, rollout: &ObjectKey) {
        self.change(rollout, |state| {
            // A new set instead of an emptied one, which would keep its memory for each Rollout that was ever updated.
            state.selected = BTreeSet::new();
            state.ports = BTreeMap::new();
        });
    }

    /// Drops the state of Rollouts that do not exist.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectKey) -> bool) {
        lock(&self.rollouts).by_key.retain(|key, _| exists(key));
    }

    /// Drops the state of a deleted Rollout.
    pub(super) fn forget(&self, rollout: &ObjectKey) {
        lock(&self.rollouts).by_key.remove(rollout);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.rollouts).by_key.is_empty()
    }

    /// Returns the recorded ports of a Service that a running experiment needs.
    pub(super) fn ports(
        &self,
        rollout: &ObjectKey,
        service: &ObjectKey,
    ) -> Option<Vec<ServicePort>> {
        self.change(rollout, |state| state.ports.get(service).cloned())
    }

    pub(super) fn remember_ports(
        &self,
        rollout: &ObjectKey,
        service: ObjectKey,
        ports: Vec<ServicePort>,
    ) {
        self.change(rollout, |state| state.ports.insert(service, ports));
    }

    /// Drops the ports when an experiment has ended: the next one may create a Service of the same name.
    pub(super) fn forget_ports(&self, rollout: &ObjectKey) {
        self.change(rollout, |state| state.ports = BTreeMap::new());
    }

    /// Whether this is the first call that waits until Gloo accepts `weight`.
    pub(super) fn wait_first(&self, rollout: &ObjectKey, weight: &IntentKind) -> bool {
        self.change(rollout, |state| {
            state.awaited.replace(weight.clone()).as_ref() != Some(weight)
        })
    }

    /// Notes that no call has to wait for Gloo.
    pub(super) fn stop_waiting(&self, rollout: &ObjectKey) {
        self.change(rollout, |state| state.awaited = None);
    }

    /// Returns how long the canary with that hash has had all traffic. The time starts with the first call.
    pub(super) fn full_for(&self, rollout: &ObjectKey, uid: &str, hash: &str) -> Duration {
        self.change(rollout, |state| {
            // A Rollout that was created anew, and another version, begin their own time.
            let is_same = |full: &Full| full.uid == uid && full.hash == hash;
            let full = state.full.take().filter(is_same).unwrap_or_else(|| Full {
                uid: uid.to_owned(),
                hash: hash.to_owned(),
                since: Instant::now(),
            });
            let lasts = full.since.elapsed();
            state.full = Some(full);
            lasts
        })
    }

    /// Notes that the canary no longer has all traffic.
    pub(super) fn end_full(&self, rollout: &ObjectKey) {
        self.change(rollout, |state| state.full = None);
    }

    /// Whether the last update was rolled back. Only in its first pass the status shows that; later it is that of a promotion.
    pub(super) fn is_rolled_back(&self, rollout: &Rollout) -> bool {
        let status = &rollout.status;
        self.change(&key(rollout), |state| {
            if status.is_updating() {
                state.rolled_back = None;
            } else if status.is_rolling_back() {
                state.rolled_back = Some(status.stable_rs.clone());
            }
            state.rolled_back.as_ref() == Some(&status.stable_rs)
        })
    }

    fn change<T>(&self, rollout: &ObjectKey, change: impl FnOnce(&mut RolloutMemory) -> T) -> T {
        let mut rollouts = lock(&self.rollouts);
        let used = Instant::now();
        rollouts.sweep(used);
        let known = rollouts.by_key.get_mut(rollout);
        let mut state = known.map(|it| mem::take(&mut it.state)).unwrap_or_default();
        let changed = change(&mut state);
        // Most Rollouts are at rest, and a controller may have thousands.
        if state == RolloutMemory::default() {
            rollouts.by_key.remove(rollout);
        } else {
            let remembered = Remembered { state, used };
            rollouts.by_key.insert(rollout.clone(), remembered);
        }
        changed
    }
}

impl Rollouts {
    /// Drops state that was not used lately, once in [`FORGOTTEN_AFTER`].
    fn sweep(&mut self, now: Instant) {
        let is_recent = |then: Instant| now.duration_since(then) < FORGOTTEN_AFTER;
        if !is_recent(*self.swept.get_or_insert(now)) {
            self.by_key.retain(|_, it| is_recent(it.used));
            self.swept = Some(now);
        }
    }
}

impl RolloutMemory {
    fn pass_of(&mut self, rollout: &Rollout) -> Option<&mut Pass> {
        let pass = self.pass.as_mut();
        pass.filter(|pass| pass.version == rollout.metadata.resource_version)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rollout(uid: &str, abort: bool, updated_replicas: i32) -> Rollout {
        let rollout = json!({
            "metadata": {"uid": uid},
            "spec": {"replicas": 4},
            "status": {
                "stableRS": "s1", "currentPodHash": "c1", "abort": abort,
                "replicas": 4, "updatedReplicas": updated_replicas,
            },
        });
        serde_json::from_value(rollout).unwrap()
    }

    fn received(stable: &str, canary: &str) -> ReceivedHashes {
        ReceivedHashes {
            stable: stable.into(),
            canary: canary.into(),
        }
    }

    #[track_caller]
    fn check(memory: &Memory, rollout: &Rollout, stable: &str, canary: &str) {
        let hashes = memory.hashes(rollout);
        assert_eq!((&*hashes.stable, &*hashes.canary), (stable, canary));
    }

    #[test]
    fn hashes_of_update_hash_take_precedence_over_the_status() {
        let memory = Memory::default();
        check(&memory, &rollout("a", false, 1), "s1", "c1");
        memory.record_hashes(&rollout("a", false, 1), &received("s1", "c0"));
        check(&memory, &rollout("a", false, 1), "s1", "c0");
        // Another Rollout of the same name.
        check(&memory, &rollout("b", false, 1), "s1", "c1");
        let mut promoted = rollout("a", false, 1);
        promoted.status.stable_rs = "c1".into();
        promoted.status.current_pod_hash = "n1".into();
        check(&memory, &promoted, "c1", "n1");
    }

    #[test]
    fn an_aborted_canary_is_distinguished_while_it_has_pods() {
        let memory = Memory::default();
        check(&memory, &rollout("a", true, 1), "s1", "c1");
        check(&memory, &rollout("a", true, 0), "s1", "s1");
        check(&memory, &rollout("a", false, 0), "s1", "c1");
    }

    #[track_caller]
    fn check_others(change: impl FnOnce(&mut Rollout), expect: bool) {
        let mut rollout = rollout("a", false, 4);
        change(&mut rollout);
        assert_eq!(Memory::default().hashes(&rollout).others, expect);
    }

    #[test]
    fn other_pods_are_expected_until_the_replica_counts_agree() {
        check_others(|_| {}, false);
        let promoted = |rollout: &mut Rollout| rollout.status.current_pod_hash = "s1".into();
        check_others(promoted, false);
        check_others(
            |rollout| {
                promoted(rollout);
                rollout.status.replicas = 5;
            },
            true,
        );
        let aborted = |rollout: &mut Rollout| {
            rollout.status.abort = true;
            rollout.status.updated_replicas = 0;
        };
        check_others(aborted, false);
        check_others(
            |rollout| {
                aborted(rollout);
                rollout.status.replicas = 5;
            },
            true,
        );
    }

    fn known(memory: &Memory) -> usize {
        lock(&memory.rollouts).by_key.len()
    }

    #[test]
    fn a_rollout_at_rest_takes_no_memory() {
        let memory = Memory::default();
        let rollout = rollout("a", false, 1);
        let tables = [ObjectKey::new("mesh", "web")].into();
        memory.begin_removal(&rollout);
        memory.record_hashes(&rollout, &received("s1", "c1"));
        memory.left_behind(&key(&rollout), &tables);
        assert_eq!(known(&memory), 1);
        let mut promoted = rollout.clone();
        promoted.status.stable_rs = "c1".into();
        memory.record_hashes(&promoted, &received("c1", "c1"));
        memory.all_restored(&key(&rollout));
        assert_eq!(known(&memory), 1);
        memory.end_pass(&rollout);
        assert_eq!(known(&memory), 0);
        memory.has_removed(&rollout);
        memory.hashes(&rollout);
        assert_eq!(known(&memory), 0);
    }

    #[test]
    fn a_table_is_left_behind_until_it_is_restored() {
        let memory = Memory::default();
        let rollout = key(&rollout("a", false, 1));
        let [web, shop] = ["web", "shop"].map(|name| ObjectKey::new("mesh", name));
        let both = [web.clone(), shop.clone()].into();
        assert!(memory.left_behind(&rollout, &both).is_empty());
        let now = [web].into();
        for _ in 0..2 {
            assert_eq!(
                memory.left_behind(&rollout, &now),
                std::slice::from_ref(&shop)
            );
        }
        memory.restored(&rollout, &shop);
        assert!(memory.left_behind(&rollout, &now).is_empty());
    }

    #[test]
    fn d_10_state_is_dropped_with_its_rollout() {
        let memory = Memory::default();
        for number in 0..100_000 {
            let mut rollout = rollout("a", false, 1);
            rollout.metadata.name = number.to_string();
            memory.begin_removal(&rollout);
            memory.record_hashes(&rollout, &received("s1", "c0"));
            memory.left_behind(&key(&rollout), &[ObjectKey::new("mesh", "web")].into());
            memory.forget(&key(&rollout));
        }
        assert_eq!(known(&memory), 0);
    }

    #[test]
    fn the_state_of_rollouts_that_do_not_exist_is_dropped() {
        let memory = Memory::default();
        memory.begin_removal(&rollout("a", false, 1));
        memory.retain(|_| true);
        assert_eq!(known(&memory), 1);
        memory.retain(|_| false);
        assert_eq!(known(&memory), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn state_that_is_not_used_is_dropped() {
        let memory = Memory::default();
        memory.begin_removal(&rollout("a", false, 1));
        tokio::time::advance(FORGOTTEN_AFTER / 2).await;
        let mut second = rollout("b", false, 1);
        second.metadata.name = "second".into();
        memory.begin_removal(&second);
        assert_eq!(known(&memory), 2);
        tokio::time::advance(FORGOTTEN_AFTER / 2).await;
        let mut third = rollout("c", false, 1);
        third.metadata.name = "third".into();
        memory.begin_removal(&third);
        assert_eq!(known(&memory), 2);
        tokio::time::advance(FORGOTTEN_AFTER).await;
        memory.begin_removal(&second);
        assert_eq!(known(&memory), 1);
        assert!(!memory.has_removed(&rollout("a", false, 1)));
    }
}
