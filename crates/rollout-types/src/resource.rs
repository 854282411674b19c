//! A Rollout as one of the kinds that a store reads.

use gloo_types::Resource;

use crate::{Rollout, RolloutSpec, RolloutStatus};

impl Resource for Rollout {
    const GROUP: &'static str = "argoproj.io";
    const VERSION: &'static str = "v1alpha1";
    const KIND: &'static str = "Rollout";
    const PLURAL: &'static str = "rollouts";

    type Spec = RolloutSpec;
    type Status = RolloutStatus;
}
