//! The Rollout as its owner wrote it, for what does not survive the way to a plugin.

use gloo_types::Resource;
use serde_json::Value;

/// A Rollout as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRollout(Value);

impl LiveRollout {
    pub(crate) const fn new(raw: Value) -> Self {
        Self(raw)
    }

    /// The whole object.
    #[must_use]
    pub const fn raw(&self) -> &Value {
        &self.0
    }

    /// Percentage of the mirror route `name` that the step at `index` sets, counted from 0. `None` when that step does
    /// not set it, or gives no percentage.
    #[must_use]
    pub fn mirror_percentage(&self, index: usize, name: &str) -> Option<i64> {
        let path = format!("/spec/strategy/canary/steps/{index}/setMirrorRoute");
        let route = self.0.pointer(&path)?;
        let is_meant = route.get("name").and_then(Value::as_str) == Some(name);
        route
            .get("percentage")
            .and_then(Value::as_i64)
            .filter(|_| is_meant)
    }
}

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
