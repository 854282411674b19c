//! The Rollout as its owner wrote it, for what does not survive the way to a plugin.

use gloo_types::Resource;
use serde_json::Value;

/// `argoproj.io/v1alpha1` Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rollout {}

impl Resource for Rollout {
    const GROUP: &'static str = "argoproj.io";
    const VERSION: &'static str = "v1alpha1";
    const KIND: &'static str = "Rollout";
    const PLURAL: &'static str = "rollouts";

    type Spec = Value;
    type Status = Value;
}
