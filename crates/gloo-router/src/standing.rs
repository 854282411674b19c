//! Standing intents: what the last SetWeight of a Rollout asked for, while it is still valid.
//!
//! A repair carries out the standing intent again. It never computes a weight, and does nothing once the Rollout shows that
//! the controller is about to ask for something else.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use gloo_types::ObjectKey;
use rollouts_rpc::rollout::RolloutStrategy;
use rollouts_rpc::{DesiredWeight, Rollout, WeightDestination};
use route_planner::PodHashes;

use crate::error::{Outdated, ShiftError};
use crate::from_rpc::{Policy, Request, admissible, key, weight};

/// What the last SetWeight of a Rollout asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standing {
    pub(crate) desired: DesiredWeight,
    pub(crate) additional: Vec<WeightDestination>,
    /// Whether managed routes were removed in the same pass.
    pub(crate) are_removed: bool,
    /// The selected tables.
    pub(crate) tables: BTreeSet<ObjectKey>,
    /// The planner's request for the call; `None` if there is none.
    pub(crate) request: Option<Arc<Request>>,
    /// Whether the call was carried out completely. If not, a repair moves no traffic to the canary.
    pub(crate) is_complete: bool,
    at_call: RolloutState,
}

/// The fields of the Rollout that decided about the weight at the call.
#[derive(Clone, Debug, PartialEq)]
struct RolloutState {
    uid: String,
    generation: i64,
    /// Hash of the strategy, without the zeros that gob drops.
    strategy: u64,
    stable_hash: String,
    current_hash: String,
    is_aborted: bool,
    is_promoted_fully: bool,
    experiment: String,
}

impl Standing {
    /// Creates the intent of a SetWeight for `rollout`.
    pub(crate) fn new(
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Self {
        Self {
            desired,
            additional: additional.to_vec(),
            are_removed: false,
            tables: BTreeSet::new(),
            request: None,
            is_complete: false,
            at_call: RolloutState::of(rollout),
        }
    }

    /// Returns the intent of the last SetWeight before this process started, as the status of `live` records it. `None`
    /// unless the record belongs to the current versions and the current spec, and the controller would still ask for that
    /// weight.
    pub(crate) fn recorded(live: &Rollout) -> Option<Self> {
        let (status, metadata) = (&live.status, &live.metadata);
        let weights = status.canary.weights.as_ref()?;
        let is_of_today = weights.canary.pod_template_hash == status.current_pod_hash
            && weights.stable.pod_template_hash == status.stable_rs
            && status.has_observed(metadata.generation);
        let desired = DesiredWeight {
            value: weights.canary.weight,
            max: live.max_traffic_weight(),
        };
        let recorded = Self {
            is_complete: true,
            ..Self::new(live, desired, &weights.additional)
        };
        (is_of_today && recorded.outdated(Some(live), false).is_none()).then_some(recorded)
    }

    /// Returns the planner's request for this intent and the current Rollout.
    ///
    /// # Errors
    /// See [`Request::new`].
    pub(crate) fn request_for(
        &self,
        policy: &Policy,
        live: &Rollout,
        hashes: PodHashes,
    ) -> Result<Request, ShiftError> {
        let weight = weight(self.desired, &self.additional);
        Request::new(policy, live, hashes, self.are_removed, weight)
    }

    /// Whether the call asked for the same as an earlier one. Then another client has changed each table that it has to
    /// write.
    pub(crate) fn repeats(&self, before: &Self) -> bool {
        before.is_complete
            && (self.desired, &self.additional) == (before.desired, &before.additional)
            && self.are_removed == before.are_removed
            && RolloutState {
                generation: before.at_call.generation,
                ..self.at_call.clone()
            } == before.at_call
    }

    /// `metadata.uid` of the Rollout.
    pub(crate) fn uid(&self) -> &str {
        &self.at_call.uid
    }

    /// Returns why the intent is outdated for the current Rollout; `None` if it is still valid.
    pub(crate) fn outdated(&self, live: Option<&Rollout>, is_deleting: bool) -> Option<Outdated> {
        let Some(live) = live else {
            return Some(Outdated::Gone);
        };
        let (at_call, now) = (&self.at_call, RolloutState::of(live));
        if at_call.uid != now.uid {
            Some(Outdated::Gone)
        } else if is_deleting {
            Some(Outdated::Deleting)
        } else if at_call.stable_hash != now.stable_hash {
            Some(Outdated::StableVersion)
        } else if at_call.current_hash != now.current_hash {
            Some(Outdated::CurrentVersion)
        } else if at_call.is_aborted != now.is_aborted {
            Some(Outdated::Abort)
        } else if at_call.is_promoted_fully != now.is_promoted_fully {
            Some(Outdated::FullPromotion)
        } else if at_call.experiment != now.experiment {
            Some(Outdated::Experiment)
        } else if at_call.generation != now.generation && at_call.strategy != now.strategy {
            // A HorizontalPodAutoscaler changes the number of replicas, and with it the generation, at any time.
            Some(Outdated::Strategy)
        } else if !admissible(live).contains(self.desired.value) {
            Some(Outdated::Weight)
        } else {
            None
        }
    }
}

impl RolloutState {
    fn of(rollout: &Rollout) -> Self {
        let status = &rollout.status;
        Self {
            uid: rollout.metadata.uid.clone(),
            generation: rollout.metadata.generation,
            strategy: strategy_hash(&rollout.spec.strategy),
            stable_hash: status.stable_rs.clone(),
            current_hash: status.current_pod_hash.clone(),
            is_aborted: status.abort,
            is_promoted_fully: status.promote_full,
            experiment: status.canary.current_experiment.clone(),
        }
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
    format!("{strategy:?}").hash(&mut hasher);
    hasher.finish()
}

/// The standing intents of all Rollouts. A Rollout at rest has none.
#[derive(Debug, Default)]
pub(crate) struct StandingIntents {
    rollouts: HashMap<ObjectKey, Standing>,
    /// Intents from before the calls that are running.
    before: HashMap<ObjectKey, Standing>,
    /// Rollouts with a call, until the intents from before the start of this process are restored.
    called: HashSet<ObjectKey>,
    are_resumed: bool,
}

impl StandingIntents {
    /// Suspends the intent of a Rollout: a call begins that may ask for something else. There is no intent until its
    /// SetWeight ends.
    pub(crate) fn suspend(&mut self, rollout: &ObjectKey) {
        if !self.are_resumed {
            self.called.insert(rollout.clone());
        }
        if let Some(standing) = self.rollouts.remove(rollout) {
            self.before.insert(rollout.clone(), standing);
        }
    }

    /// Whether the intents from before the start of this process are restored, and no call for the Rollout is running.
    pub(crate) fn is_settled(&self, rollout: &ObjectKey) -> bool {
        self.are_resumed && !self.before.contains_key(rollout)
    }

    /// Returns the intent of a Rollout.
    pub(crate) fn of(&self, rollout: &ObjectKey) -> Option<&Standing> {
        self.rollouts.get(rollout)
    }

    /// Records the intent of a finished SetWeight. `leaves_marks` tells whether something of the Rollout is left in a table,
    /// or could be. Otherwise the Rollout has no intent from here on.
    ///
    /// Returns whether the previous SetWeight asked for the same.
    pub(crate) fn set(
        &mut self,
        rollout: &Rollout,
        standing: Standing,
        leaves_marks: bool,
    ) -> bool {
        let before = self.before.remove(&key(rollout));
        let repeats = before.is_some_and(|before| standing.repeats(&before));
        // A weight that the Rollout does not admit would never be repaired.
        let is_admissible = admissible(rollout).contains(standing.desired.value);
        if !is_admissible {
            tracing::debug!(
                rollout = %key(rollout),
                "the status does not admit weight {}",
                standing.desired.value
            );
        }
        if leaves_marks && is_admissible {
            self.rollouts.insert(key(rollout), standing);
        } else {
            self.rollouts.remove(&key(rollout));
        }
        repeats
    }

    /// Restores an intent from before the start of this process, unless a call has replaced it.
    pub(crate) fn resume(&mut self, rollout: &ObjectKey, standing: Standing) {
        if !self.called.contains(rollout) {
            self.rollouts.insert(rollout.clone(), standing);
        }
    }

    /// Notes that all intents from before the start of this process are restored.
    pub(crate) fn end_resuming(&mut self) {
        self.called = HashSet::new();
        self.are_resumed = true;
    }

    /// Drops the intent of a Rollout.
    pub(crate) fn forget(&mut self, rollout: &ObjectKey) {
        self.rollouts.remove(rollout);
        self.before.remove(rollout);
    }

    /// Drops the intents of all Rollouts but those for which `exists` returns true.
    pub(crate) fn retain(&mut self, exists: impl Fn(&ObjectKey) -> bool) {
        self.rollouts.retain(|rollout, _| exists(rollout));
        self.before.retain(|rollout, _| exists(rollout));
    }

    /// Returns the Rollouts whose intents include a table.
    pub(crate) fn of_table(&self, table: &ObjectKey) -> Vec<ObjectKey> {
        let rollouts = self.rollouts.iter();
        let wanting = rollouts.filter(|(_, standing)| standing.tables.contains(table));
        wanting.map(|(rollout, _)| rollout.clone()).collect()
    }

    /// Returns the Rollouts with an intent and mirror steps.
    pub(crate) fn with_mirrors(&self) -> Vec<ObjectKey> {
        let mirrors = self.rollouts.iter().filter(|(_, standing)| {
            let request = standing.request.as_ref();
            request.is_some_and(|request| request.has_mirrors)
        });
        mirrors.map(|(rollout, _)| rollout.clone()).collect()
    }

    /// Returns all Rollouts with an intent.
    pub(crate) fn rollouts(&self) -> Vec<ObjectKey> {
        self.rollouts.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object() -> Value {
        let steps = json!([
            {"setWeight": 0, "setHeaderRoute": {"name": "h"}},
            {"setWeight": 25},
            {"pause": {}},
            {"setMirrorRoute": {"name": "m", "percentage": 0}},
            {"setWeight": 50},
        ]);
        json!({
            "metadata": {"namespace": "shop", "name": "reviews", "uid": "u1", "generation": 7},
            "spec": {"replicas": 4, "strategy": {"canary": {"steps": steps, "trafficRouting": {"plugins": {"p": {"a": 1}}}}}},
            "status": {"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 2, "canary": {"currentExperiment": "e1"}},
        })
    }

    fn rollout(object: Value) -> Rollout {
        serde_json::from_value(object).unwrap()
    }

    fn desired(value: i32) -> DesiredWeight {
        DesiredWeight { value, max: 100 }
    }

    fn standing() -> Standing {
        Standing {
            is_complete: true,
            tables: [ObjectKey::new("mesh", "web")].into(),
            ..Standing::new(&rollout(object()), desired(25), &[])
        }
    }

    /// Checks whether the intent of 25 % is outdated after changes of the Rollout.
    #[track_caller]
    fn check(changes: &[(&str, Value)], expect: Option<Outdated>) {
        let mut live = object();
        for (path, value) in changes {
            *live.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
        }
        let outdated = standing().outdated(Some(&rollout(live)), false);
        assert_eq!(outdated, expect, "{changes:?}");
    }

    #[test]
    fn an_intent_is_valid_until_the_rollout_changes() {
        let generation = || ("/metadata/generation", json!(8));
        check(&[], None);
        check(&[generation(), ("/spec/replicas", json!(9))], None);
        check(&[("/status/currentStepIndex", json!(3))], None);
        check(&[("/metadata/uid", json!("u2"))], Some(Outdated::Gone));
        check(
            &[("/status/stableRS", json!("c1"))],
            Some(Outdated::StableVersion),
        );
        check(
            &[("/status/currentPodHash", json!("c2"))],
            Some(Outdated::CurrentVersion),
        );
        check(
            &[(
                "/status",
                json!({"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 2, "abort": true, "canary": {"currentExperiment": "e1"}}),
            )],
            Some(Outdated::Abort),
        );
        check(
            &[(
                "/status",
                json!({"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 2, "promoteFull": true, "canary": {"currentExperiment": "e1"}}),
            )],
            Some(Outdated::FullPromotion),
        );
        check(
            &[("/status/canary/currentExperiment", json!(""))],
            Some(Outdated::Experiment),
        );
        let another_step = ("/spec/strategy/canary/steps/4/setWeight", json!(60));
        check(
            &[generation(), another_step.clone()],
            Some(Outdated::Strategy),
        );
        let another_table = (
            "/spec/strategy/canary/trafficRouting/plugins/p",
            json!({"a": 2}),
        );
        check(&[generation(), another_table], Some(Outdated::Strategy));
        check(
            &[("/status/currentStepIndex", json!(5))],
            Some(Outdated::Weight),
        );
        check(
            &[("/status/currentStepIndex", json!(0))],
            Some(Outdated::Weight),
        );
        assert_eq!(standing().outdated(None, false), Some(Outdated::Gone));
        let live = rollout(object());
        assert_eq!(
            standing().outdated(Some(&live), true),
            Some(Outdated::Deleting)
        );
    }

    /// Gob drops the zeros of `setWeight` and `percentage`.
    #[test]
    fn a_strategy_from_a_call_has_the_hash_of_the_one_from_the_api_server() {
        let mut received = object();
        for (path, key) in [
            ("/spec/strategy/canary/steps/0", "setWeight"),
            ("/spec/strategy/canary/steps/3/setMirrorRoute", "percentage"),
        ] {
            received
                .pointer_mut(path)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(key);
        }
        let (received, live) = (rollout(received), rollout(object()));
        assert_ne!(received.spec, live.spec);
        let hash = |rollout: &Rollout| strategy_hash(&rollout.spec.strategy);
        assert_eq!(hash(&received), hash(&live));
    }

    #[test]
    fn an_intent_lasts_from_a_call_that_leaves_marks_to_one_that_leaves_none() {
        let (rollout, table) = (rollout(object()), ObjectKey::new("mesh", "web"));
        let owner = key(&rollout);
        let mut intents = StandingIntents::default();
        intents.set(&rollout, standing(), true);
        assert_eq!(intents.of(&owner), Some(&standing()));
        assert_eq!(intents.of_table(&table), std::slice::from_ref(&owner));
        // There is no intent while the next call is running.
        intents.suspend(&owner);
        assert_eq!(intents.of(&owner), None);
        let next = Standing {
            desired: desired(0),
            ..standing()
        };
        intents.set(&rollout, next.clone(), true);
        assert_eq!(intents.of(&owner), Some(&next));
        intents.set(&rollout, next, false);
        assert_eq!(intents.of(&owner), None);
        assert!(intents.of_table(&table).is_empty());
        // The status of this Rollout admits 0 and 25.
        let strange = Standing {
            desired: desired(40),
            ..standing()
        };
        intents.set(&rollout, strange, true);
        assert_eq!(intents.of(&owner), None);
        intents.set(&rollout, standing(), true);
        intents.forget(&owner);
        assert_eq!(intents.of(&owner), None);
    }

    /// Checks the intent that a new process restores from a changed status.
    #[track_caller]
    fn check_recorded(changes: &[(&str, Value)], expect: Option<i32>) {
        let mut live = object();
        live["status"]["observedGeneration"] = json!("7");
        live["status"]["canary"]["weights"] = json!({
            "canary": {"weight": 25, "podTemplateHash": "c1"},
            "stable": {"weight": 75, "podTemplateHash": "s1"},
        });
        for (path, value) in changes {
            *live.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
        }
        let recorded = Standing::recorded(&rollout(live));
        let weight = recorded.map(|it| it.desired.value);
        assert_eq!(weight, expect, "{changes:?}");
    }

    #[test]
    fn a_new_process_restores_a_current_record_of_the_status() {
        check_recorded(&[], Some(25));
        check_recorded(&[("/status/canary/weights", Value::Null)], None);
        let canary = "/status/canary/weights/canary";
        check_recorded(&[(&format!("{canary}/podTemplateHash"), json!("c0"))], None);
        check_recorded(&[(&format!("{canary}/weight"), json!(40))], None);
        check_recorded(&[(&format!("{canary}/weight"), json!(0))], Some(0));
        let stable = "/status/canary/weights/stable/podTemplateHash";
        check_recorded(&[(stable, json!("s0"))], None);
        check_recorded(&[("/metadata/generation", json!(8))], None);
        check_recorded(&[("/status/currentStepIndex", json!(5))], None);
    }

    #[test]
    fn a_call_replaces_an_intent_from_before_the_start() {
        let (other, owner) = (ObjectKey::new("shop", "other"), key(&rollout(object())));
        let mut intents = StandingIntents::default();
        intents.suspend(&owner);
        for rollout in [&owner, &other] {
            intents.resume(rollout, standing());
        }
        assert_eq!(intents.rollouts(), [other]);
        intents.end_resuming();
        intents.suspend(&owner);
        assert!(intents.called.is_empty());
    }

    #[test]
    fn a_call_repeats_the_one_before_if_it_asks_for_the_same() {
        let again = Standing {
            at_call: RolloutState {
                generation: 8,
                ..standing().at_call
            },
            ..standing()
        };
        assert!(again.repeats(&standing()));
        let failed = Standing {
            is_complete: false,
            ..standing()
        };
        assert!(!again.repeats(&failed));
        let more = Standing {
            desired: desired(50),
            ..standing()
        };
        assert!(!more.repeats(&standing()));

        let (rollout, mut intents) = (rollout(object()), StandingIntents::default());
        assert!(!intents.set(&rollout, standing(), true));
        for (next, expect) in [(standing(), true), (more, false)] {
            intents.suspend(&key(&rollout));
            assert_eq!(intents.set(&rollout, next, true), expect);
        }
        assert!(intents.before.is_empty());
    }
}
