//! What the router remembers from one call to the next. A new process knows nothing of it, and every rule holds without it
//! in the next pass.

mod table_locks;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gloo_types::ObjectKey;
use rollouts_rpc::{PodHashes as ReceivedHashes, Rollout};
use route_planner::{IntentKind, PodHashes};
use tokio::time::Instant;

pub(super) use table_locks::{TableLocks, Urgency};

use crate::from_rpc::key;

/// A Rollout that the controller has not asked about for this long is gone: it asks about each every 15 minutes. It may be
/// remembered for twice as long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Facts about Rollouts that the calls themselves do not carry. A Rollout at rest takes no memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    rollouts: Mutex<Rollouts>,
    /// The tables that are being written.
    pub(super) locks: TableLocks,
}

#[derive(Debug, Default)]
struct Facts {
    pass: Option<Pass>,
    hashes: Option<Hashes>,
    /// The tables that the Rollout selected, so that one it selects no longer can be restored.
    selected: BTreeSet<ObjectKey>,
    /// The ports of an experiment's Services, by name.
    ports: BTreeMap<String, u32>,
    /// The weight for which a call has waited until Gloo accepts it.
    awaited: Option<IntentKind>,
    full: Option<Full>,
}

/// Since when a canary has had all traffic.
#[derive(Debug)]
struct Full {
    /// Of the Rollout.
    uid: String,
    /// Of the canary's Pods.
    hash: String,
    since: Instant,
}

/// What the calls of a pass say to SetWeight, which comes after them. A pass ends with VerifyWeight, and a Rollout of another
/// version belongs to another pass.
#[derive(Debug)]
struct Pass {
    /// `metadata.resourceVersion` of the Rollout.
    version: String,
    /// Whether RemoveManagedRoutes was called.
    ///
    /// The controller removes managed routes when they must not be there, and goes on with SetWeight, or even with
    /// SetHeaderRoute, in the same pass (upstream `rollout/trafficrouting.go`). Only the removal says so: later calls must
    /// not bring the routes back.
    has_removed: bool,
    /// Calls about managed routes that SetWeight has to try again.
    unfinished: Vec<IntentKind>,
}

/// What UpdateHash said last. It holds as long as the status names the same versions: the controller may call SetWeight
/// before UpdateHash when they have changed.
#[derive(Debug)]
struct Hashes {
    /// Of the Rollout, which another one of the same name does not share.
    uid: String,
    status_stable: String,
    status_canary: String,
    stable: String,
    canary: String,
}

#[derive(Debug, Default)]
struct Rollouts {
    by_key: BTreeMap<ObjectKey, Remembered>,
    /// When those that are gone were last removed.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Remembered {
    facts: Facts,
    used: Instant,
}

impl Memory {
    /// The managed routes of `rollout` are being removed.
    pub(super) fn begin_removal(&self, rollout: &Rollout) {
        let pass = Pass {
            version: rollout.metadata.resource_version.clone(),
            has_removed: true,
            unfinished: Vec::new(),
        };
        self.change(&key(rollout), |facts| facts.pass = Some(pass));
    }

    /// Whether the managed routes of `rollout` were removed in the pass under way.
    pub(super) fn has_removed(&self, rollout: &Rollout) -> bool {
        self.change(&key(rollout), |facts| {
            facts.pass_of(rollout).is_some_and(|pass| pass.has_removed)
        })
    }

    /// Remembers whether SetWeight of the pass under way has to try `call` again.
    pub(super) fn leave_unfinished(
        &self,
        rollout: &Rollout,
        call: &IntentKind,
        is_unfinished: bool,
    ) {
        self.change(&key(rollout), |facts| {
            if let Some(pass) = facts.pass_of(rollout) {
                pass.unfinished.retain(|other| other != call);
                pass.unfinished.extend(is_unfinished.then(|| call.clone()));
            } else if is_unfinished {
                facts.pass = Some(Pass {
                    version: rollout.metadata.resource_version.clone(),
                    has_removed: false,
                    unfinished: vec![call.clone()],
                });
            }
        });
    }

    /// The calls of the pass under way that have to be tried again.
    pub(super) fn unfinished(&self, rollout: &Rollout) -> Vec<IntentKind> {
        self.change(&key(rollout), |facts| {
            let pass = facts.pass_of(rollout);
            pass.map(|pass| pass.unfinished.clone()).unwrap_or_default()
        })
    }

    /// VerifyWeight was called, the last call of a pass.
    pub(super) fn end_pass(&self, rollout: &Rollout) {
        self.change(&key(rollout), |facts| facts.pass = None);
    }

    /// Remembers what UpdateHash said. At rest it says no more than the Rollout's status.
    pub(super) fn record_hashes(&self, rollout: &Rollout, told: &ReceivedHashes) {
        let status = &rollout.status;
        let is_rest = told.stable == told.canary
            && told.stable == status.stable_rs
            && told.canary == status.current_pod_hash;
        let hashes = (!is_rest).then(|| Hashes {
            uid: rollout.metadata.uid.clone(),
            status_stable: status.stable_rs.clone(),
            status_canary: status.current_pod_hash.clone(),
            stable: told.stable.clone(),
            canary: told.canary.clone(),
        });
        self.change(&key(rollout), |facts| facts.hashes = hashes);
    }

    /// The hashes to go by now.
    pub(super) fn hashes(&self, rollout: &Rollout) -> PodHashes {
        let status = &rollout.status;
        let (mut stable, mut canary) = (status.stable_rs.clone(), status.current_pod_hash.clone());
        self.change(&key(rollout), |facts| {
            let is_current = |told: &&Hashes| {
                told.uid == rollout.metadata.uid
                    && told.status_stable == status.stable_rs
                    && told.status_canary == status.current_pod_hash
            };
            if let Some(told) = facts.hashes.as_ref().filter(is_current) {
                stable.clone_from(&told.stable);
                canary.clone_from(&told.canary);
            }
        });
        let others = if status.abort && status.updated_replicas == 0 {
            // The aborted canary has no Pods left that stable would have to be kept apart from. The status does not count
            // the stable Pods, but there cannot be more than the Rollout asks for.
            canary.clone_from(&stable);
            status.replicas > rollout.replicas()
        } else {
            // After a promotion or rollback the current version is the stable one.
            stable == canary && status.replicas > status.updated_replicas
        };
        PodHashes {
            stable,
            canary,
            others,
        }
    }

    /// The tables that were selected before and are not among those selected `now`. They are told until they are
    /// [restored](Self::restored).
    pub(super) fn left_behind(
        &self,
        rollout: &ObjectKey,
        now: &BTreeSet<ObjectKey>,
    ) -> Vec<ObjectKey> {
        self.change(rollout, |facts| {
            let left = facts.selected.difference(now).cloned().collect();
            facts.selected.extend(now.iter().cloned());
            left
        })
    }

    /// A table that was left behind is as its owner wrote it.
    pub(super) fn restored(&self, rollout: &ObjectKey, table: &ObjectKey) {
        self.change(rollout, |facts| facts.selected.remove(table));
    }

    /// Every table that was selected is as its owner wrote it.
    pub(super) fn all_restored(&self, rollout: &ObjectKey) {
        self.change(rollout, |facts| {
            facts.selected = BTreeSet::new();
            facts.ports = BTreeMap::new();
        });
    }

    /// Rollouts that are gone need no memory.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectKey) -> bool) {
        self.lock().by_key.retain(|key, _| exists(key));
    }

    /// A Rollout is gone.
    pub(super) fn forget(&self, rollout: &ObjectKey) {
        self.lock().by_key.remove(rollout);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().by_key.is_empty()
    }

    /// The port of a Service of a running experiment.
    pub(super) fn port(&self, rollout: &ObjectKey, service: &str) -> Option<u32> {
        self.change(rollout, |facts| facts.ports.get(service).copied())
    }

    pub(super) fn remember_port(&self, rollout: &ObjectKey, service: &str, port: u32) {
        self.change(rollout, |facts| {
            facts.ports.insert(service.to_owned(), port)
        });
    }

    /// Whether this call is the first that waits until Gloo accepts `weight`.
    pub(super) fn wait_first(&self, rollout: &ObjectKey, weight: &IntentKind) -> bool {
        self.change(rollout, |facts| {
            facts.awaited.replace(weight.clone()).as_ref() != Some(weight)
        })
    }

    /// No call has to wait until Gloo accepts a weight.
    pub(super) fn stop_waiting(&self, rollout: &ObjectKey) {
        self.change(rollout, |facts| facts.awaited = None);
    }

    /// How long the canary with that hash has had all traffic. The time begins with the first call.
    pub(super) fn full_for(&self, rollout: &ObjectKey, uid: &str, hash: &str) -> Duration {
        self.change(rollout, |facts| {
            let is_same = |full: &Full| full.uid == uid && full.hash == hash;
            let full = facts.full.take().filter(is_same).unwrap_or_else(|| Full {
                uid: uid.to_owned(),
                hash: hash.to_owned(),
                since: Instant::now(),
            });
            let lasts = full.since.elapsed();
            facts.full = Some(full);
            lasts
        })
    }

    /// The canary does not have all traffic.
    pub(super) fn end_full(&self, rollout: &ObjectKey) {
        self.change(rollout, |facts| facts.full = None);
    }

    fn change<T>(&self, rollout: &ObjectKey, change: impl FnOnce(&mut Facts) -> T) -> T {
        let mut rollouts = self.lock();
        let used = Instant::now();
        rollouts.sweep(used);
        let known = rollouts.by_key.get_mut(rollout);
        let mut facts = known.map(|it| mem::take(&mut it.facts)).unwrap_or_default();
        let changed = change(&mut facts);
        if facts.is_empty() {
            rollouts.by_key.remove(rollout);
        } else {
            let remembered = Remembered { facts, used };
            rollouts.by_key.insert(rollout.clone(), remembered);
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Rollouts> {
        self.rollouts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rollouts {
    /// Removes Rollouts that are gone, once in [`FORGOTTEN_AFTER`].
    fn sweep(&mut self, now: Instant) {
        let is_recent = |then: Instant| now.duration_since(then) < FORGOTTEN_AFTER;
        if !is_recent(*self.swept.get_or_insert(now)) {
            self.by_key.retain(|_, it| is_recent(it.used));
            self.swept = Some(now);
        }
    }
}

impl Facts {
    fn pass_of(&mut self, rollout: &Rollout) -> Option<&mut Pass> {
        let pass = self.pass.as_mut();
        pass.filter(|pass| pass.version == rollout.metadata.resource_version)
    }

    fn is_empty(&self) -> bool {
        self.pass.is_none()
            && self.hashes.is_none()
            && self.selected.is_empty()
            && self.ports.is_empty()
            && self.awaited.is_none()
            && self.full.is_none()
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

    fn told(stable: &str, canary: &str) -> ReceivedHashes {
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
    fn what_the_controller_told_counts_before_the_status() {
        let memory = Memory::default();
        check(&memory, &rollout("a", false, 1), "s1", "c1");
        memory.record_hashes(&rollout("a", false, 1), &told("s1", "c0"));
        check(&memory, &rollout("a", false, 1), "s1", "c0");
        // Another Rollout of that name.
        check(&memory, &rollout("b", false, 1), "s1", "c1");
        let mut promoted = rollout("a", false, 1);
        promoted.status.stable_rs = "c1".into();
        promoted.status.current_pod_hash = "n1".into();
        check(&memory, &promoted, "c1", "n1");
    }

    #[test]
    fn an_aborted_canary_counts_as_long_as_it_has_pods() {
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
    fn pods_of_another_version_may_be_there_until_the_replicas_agree() {
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
        memory.lock().by_key.len()
    }

    #[test]
    fn a_rollout_at_rest_takes_no_memory() {
        let memory = Memory::default();
        let rollout = rollout("a", false, 1);
        let tables = [ObjectKey::new("mesh", "web")].into();
        memory.begin_removal(&rollout);
        memory.record_hashes(&rollout, &told("s1", "c1"));
        memory.left_behind(&key(&rollout), &tables);
        assert_eq!(known(&memory), 1);
        let mut promoted = rollout.clone();
        promoted.status.stable_rs = "c1".into();
        memory.record_hashes(&promoted, &told("c1", "c1"));
        memory.all_restored(&key(&rollout));
        assert_eq!(known(&memory), 1);
        memory.end_pass(&rollout);
        assert_eq!(known(&memory), 0);
        memory.has_removed(&rollout);
        memory.hashes(&rollout);
        assert_eq!(known(&memory), 0);
    }

    #[test]
    fn d_10_what_is_remembered_goes_with_its_rollout() {
        let memory = Memory::default();
        for number in 0..100_000 {
            let mut rollout = rollout("a", false, 1);
            rollout.metadata.name = number.to_string();
            memory.begin_removal(&rollout);
            memory.record_hashes(&rollout, &told("s1", "c0"));
            memory.left_behind(&key(&rollout), &[ObjectKey::new("mesh", "web")].into());
            memory.forget(&key(&rollout));
        }
        assert_eq!(known(&memory), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rollout_that_is_gone_is_forgotten() {
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
