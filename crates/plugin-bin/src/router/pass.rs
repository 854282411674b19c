//! What has to be remembered from one call of a reconcile pass to the next.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use gloo_types::ObjectKey;
use rollouts_rpc::Rollout;

/// The Rollouts whose managed routes were removed in the pass that is under way.
///
/// The controller removes managed routes when they must not be there, and goes on with SetWeight, or even with
/// SetHeaderRoute, in the same pass (upstream `rollout/trafficrouting.go`). Only the removal says so: later calls must not
/// bring the routes back. A pass ends with VerifyWeight, and a Rollout of another version belongs to another pass.
#[derive(Debug, Default)]
pub(super) struct Removals(Mutex<HashMap<ObjectKey, String>>);

impl Removals {
    pub(super) fn begin(&self, rollout: &Rollout) {
        self.versions()
            .insert(key(rollout), rollout.resource_version.clone());
    }

    pub(super) fn include(&self, rollout: &Rollout) -> bool {
        self.versions().get(&key(rollout)) == Some(&rollout.resource_version)
    }

    pub(super) fn end(&self, rollout: &Rollout) {
        self.versions().remove(&key(rollout));
    }

    fn versions(&self) -> MutexGuard<'_, HashMap<ObjectKey, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(rollout: &Rollout) -> ObjectKey {
    ObjectKey::new(&rollout.namespace, &rollout.name)
}
