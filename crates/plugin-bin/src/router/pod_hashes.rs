//! The hashes of each Rollout's pods, as the controller told them last.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use gloo_types::ObjectKey;
use rollouts_rpc::{PodHashes as Told, Rollout};
use route_planner::PodHashes;

/// What UpdateHash said. It is lost with the process; the Rollout's status says nearly the same.
#[derive(Debug, Default)]
pub(super) struct PodHashMemory(Mutex<HashMap<ObjectKey, (String, PodHashes)>>);

impl PodHashMemory {
    pub(super) fn remember(&self, rollout: &Rollout, told: &Told) {
        let hashes = PodHashes {
            stable: told.stable.clone(),
            canary: told.canary.clone(),
            others: false,
        };
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.insert(key(rollout), (rollout.uid.clone(), hashes));
    }

    /// The hashes to go by now.
    pub(super) fn of(&self, rollout: &Rollout) -> PodHashes {
        let status = &rollout.status;
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = memory
            .get(&key(rollout))
            .filter(|(uid, _)| *uid == rollout.uid);
        let mut hashes = told.map_or_else(
            || PodHashes {
                stable: status.stable_rs.clone(),
                canary: status.current_pod_hash.clone(),
                others: false,
            },
            |(_, hashes)| hashes.clone(),
        );
        if status.abort && status.updated_replicas == 0 {
            // The aborted canary has no pods left that stable would have to be kept apart from.
            hashes.canary.clone_from(&hashes.stable);
        }
        hashes
    }
}

fn key(rollout: &Rollout) -> ObjectKey {
    ObjectKey::new(&rollout.namespace, &rollout.name)
}

#[cfg(test)]
mod tests {
    use rollouts_rpc::rollout::RolloutStatus;

    use super::*;

    fn rollout(uid: &str, abort: bool, updated_replicas: i32) -> Rollout {
        Rollout {
            uid: uid.into(),
            status: RolloutStatus {
                stable_rs: "s1".into(),
                current_pod_hash: "c1".into(),
                abort,
                updated_replicas,
                ..RolloutStatus::default()
            },
            ..Rollout::default()
        }
    }

    #[track_caller]
    fn check(memory: &PodHashMemory, rollout: &Rollout, stable: &str, canary: &str) {
        let hashes = memory.of(rollout);
        assert_eq!((&*hashes.stable, &*hashes.canary), (stable, canary));
    }

    #[test]
    fn what_the_controller_told_counts_before_the_status() {
        let memory = PodHashMemory::default();
        check(&memory, &rollout("a", false, 1), "s1", "c1");
        let told = Told {
            stable: "s1".into(),
            canary: "c0".into(),
        };
        memory.remember(&rollout("a", false, 1), &told);
        check(&memory, &rollout("a", false, 1), "s1", "c0");
        // Another Rollout of that name.
        check(&memory, &rollout("b", false, 1), "s1", "c1");
    }

    #[test]
    fn an_aborted_canary_counts_as_long_as_it_has_pods() {
        let memory = PodHashMemory::default();
        check(&memory, &rollout("a", true, 1), "s1", "c1");
        check(&memory, &rollout("a", true, 0), "s1", "s1");
        check(&memory, &rollout("a", false, 0), "s1", "c1");
    }
}
