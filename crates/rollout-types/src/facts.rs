//! The facts of a Rollout that decide about its weight, and whether a later state still agrees with them.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::{Rollout, RolloutStrategy};

/// The fields of a Rollout that decide what the controller asks for. They are equal for a Rollout that the controller sent and for
/// the same Rollout from the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RolloutFacts {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: Box<str>,
    /// `metadata.generation`.
    pub generation: i64,
    /// Hash of the strategy, without the zeros that gob drops.
    strategy: u64,
    /// `status.stableRS`.
    pub stable_hash: Box<str>,
    /// `status.currentPodHash`.
    pub current_hash: Box<str>,
    /// `status.abort`.
    pub is_aborted: bool,
    /// `status.promoteFull`.
    pub is_promoted_fully: bool,
    /// `status.canary.currentExperiment`; empty without one.
    pub experiment: Box<str>,
}

/// Why facts are outdated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outdated {
    /// The Rollout does not exist, or has another uid.
    Gone,
    /// `metadata.deletionTimestamp` is set.
    Deleting,
    /// Another version is stable.
    StableVersion,
    /// Another version is rolled out.
    CurrentVersion,
    /// The Rollout was aborted, or an abort was retried.
    Abort,
    /// A full promotion was requested, or has ended.
    FullPromotion,
    /// Another experiment is running, or none.
    Experiment,
    /// `spec.strategy` was changed.
    Strategy,
    /// The controller would now ask for another weight.
    Weight,
}

impl RolloutFacts {
    /// Returns the facts of a Rollout.
    #[must_use]
    pub fn of(rollout: &Rollout) -> Self {
        let (metadata, status) = (&rollout.metadata, &rollout.status);
        Self {
            uid: metadata.uid.as_str().into(),
            version: metadata.resource_version.as_str().into(),
            generation: metadata.generation,
            strategy: strategy_hash(&rollout.spec.strategy),
            stable_hash: status.stable_rs.as_str().into(),
            current_hash: status.current_pod_hash.as_str().into(),
            is_aborted: status.abort,
            is_promoted_fully: status.promote_full,
            experiment: status.canary.current_experiment.as_str().into(),
        }
    }

    /// Returns what has changed in `newer` that decides about the weight; `None` if nothing has. If several facts have, it is the
    /// one that comes first in [`Outdated`].
    #[must_use]
    pub fn outdated(&self, newer: &Self) -> Option<Outdated> {
        // A HorizontalPodAutoscaler changes the number of replicas, and with it the generation, at any time.
        let has_same_strategy =
            self.generation == newer.generation || self.strategy == newer.strategy;
        let facts = [
            (self.uid == newer.uid, Outdated::Gone),
            (
                self.stable_hash == newer.stable_hash,
                Outdated::StableVersion,
            ),
            (
                self.current_hash == newer.current_hash,
                Outdated::CurrentVersion,
            ),
            (self.is_aborted == newer.is_aborted, Outdated::Abort),
            (
                self.is_promoted_fully == newer.is_promoted_fully,
                Outdated::FullPromotion,
            ),
            (self.experiment == newer.experiment, Outdated::Experiment),
            (has_same_strategy, Outdated::Strategy),
        ];
        let changed = facts.into_iter().find(|(is_same, _)| !is_same);
        changed.map(|(_, why)| why)
    }

    /// Returns the number of bytes on the heap.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        let texts = [
            &self.uid,
            &self.version,
            &self.stable_hash,
            &self.current_hash,
            &self.experiment,
        ];
        texts.iter().map(|text| text.len()).sum()
    }
}

impl fmt::Display for Outdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "it was deleted",
            Self::Deleting => "it is being deleted",
            Self::StableVersion => "its stable version changed",
            Self::CurrentVersion => "its version changed",
            Self::Abort => "it was aborted or retried",
            Self::FullPromotion => "a full promotion began or ended",
            Self::Experiment => "an experiment began or ended",
            Self::Strategy => "its strategy changed",
            Self::Weight => "its status asks for another weight",
        })
    }
}

/// Returns a hash that is equal for a strategy from a call and the same strategy from the API server. Gob drops pointers to
/// zeros, so zeros are removed first.
fn strategy_hash(strategy: &RolloutStrategy) -> u64 {
    let mut strategy = strategy.clone();
    if let Some(canary) = &mut strategy.canary {
        let not_zero = |number: Option<i32>| number.filter(|number| *number != 0);
        for step in &mut canary.steps {
            step.set_weight = not_zero(step.set_weight);
            if let Some(mirror) = &mut step.set_mirror_route {
                mirror.percentage = not_zero(mirror.percentage);
            }
        }
        if let Some(routing) = &mut canary.traffic_routing {
            routing.max_traffic_weight = not_zero(routing.max_traffic_weight);
        }
    }
    // The hash is compared within this process only, so its algorithm may change with the toolchain.
    let mut hasher = DefaultHasher::new();
    strategy.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(steps: Value) -> RolloutFacts {
        let rollout = json!({"spec": {"strategy": {"canary": {"steps": steps}}}});
        RolloutFacts::of(&serde_json::from_value(rollout).unwrap())
    }

    #[test]
    fn a_rollout_from_a_call_has_the_facts_of_the_one_from_the_api_server() {
        let live = facts(json!([
            {"setWeight": 0, "setHeaderRoute": {"name": "h"}},
            {"setMirrorRoute": {"name": "m", "percentage": 0}},
        ]));
        let received =
            facts(json!([{"setHeaderRoute": {"name": "h"}}, {"setMirrorRoute": {"name": "m"}}]));
        assert_eq!(received, live);
        assert_ne!(facts(json!([])), live);
    }

    #[test]
    fn a_strategy_has_changed_only_with_the_generation() {
        let of = |generation, steps| RolloutFacts {
            generation,
            ..facts(steps)
        };
        let before = of(1, json!([{"setWeight": 10}]));
        for (after, expect) in [
            (of(1, json!([{"setWeight": 20}])), None),
            (of(2, json!([{"setWeight": 10}])), None),
            (of(2, json!([{"setWeight": 20}])), Some(Outdated::Strategy)),
        ] {
            assert_eq!(before.outdated(&after), expect);
        }
    }
}
