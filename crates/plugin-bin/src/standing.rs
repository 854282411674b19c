//! Standing intents: what the last SetWeight of a Rollout asked for, as long as it holds.
//!
//! A repair asks for the same again. It never computes a weight itself, and it asks for nothing once the Rollout says that
//! the controller is about to ask for something else.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use gloo_types::ObjectKey;
use rollouts_rpc::rollout::RolloutStrategy;
use rollouts_rpc::{DesiredWeight, Rollout, WeightDestination};

use crate::error::Outdated;
use crate::from_rpc::{Request, admissible, key};

/// What the last SetWeight of a Rollout asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standing {
    pub(crate) desired: DesiredWeight,
    pub(crate) additional: Vec<WeightDestination>,
    /// Whether managed routes were removed in the same pass.
    pub(crate) are_removed: bool,
    /// The tables that were selected.
    pub(crate) tables: BTreeSet<ObjectKey>,
    /// The call in the planner's words; `None` if it could not be put so.
    pub(crate) request: Option<Arc<Request>>,
    /// Whether the call was carried out completely. While it was not, a repair moves no traffic to the canary.
    pub(crate) is_complete: bool,
    asked: Asked,
}

/// What the Rollout of the call said that decides about the weight.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    uid: String,
    generation: i64,
    /// Hash of the strategy, as far as gob tells it.
    strategy: u64,
    stable_hash: String,
    current_hash: String,
    is_aborted: bool,
    is_promoted_fully: bool,
    experiment: String,
}

impl Standing {
    /// What a SetWeight for `rollout` asks for.
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
            asked: Asked::of(rollout),
        }
    }

    /// What the last SetWeight before the start of this process asked for, as the status of `live` records it. `None` unless
    /// the record is about the versions and the spec of today, and the controller would still ask for that weight.
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

    /// Whether the call asked for the same as an earlier one: a table that it has to write was changed by another client.
    pub(crate) fn repeats(&self, before: &Self) -> bool {
        before.is_complete
            && (self.desired, &self.additional) == (before.desired, &before.additional)
            && self.are_removed == before.are_removed
            && Asked {
                generation: before.asked.generation,
                ..self.asked.clone()
            } == before.asked
    }

    /// `metadata.uid` of the Rollout.
    pub(crate) fn uid(&self) -> &str {
        &self.asked.uid
    }

    /// Why it no longer holds, judged by the Rollout as it is now.
    pub(crate) fn outdated(&self, live: Option<&Rollout>, is_deleting: bool) -> Option<Outdated> {
        let Some(live) = live else {
            return Some(Outdated::Gone);
        };
        let (asked, now) = (&self.asked, Asked::of(live));
        if asked.uid != now.uid {
            Some(Outdated::Gone)
        } else if is_deleting {
            Some(Outdated::Deleting)
        } else if asked.stable_hash != now.stable_hash {
            Some(Outdated::StableVersion)
        } else if asked.current_hash != now.current_hash {
            Some(Outdated::CurrentVersion)
        } else if asked.is_aborted != now.is_aborted {
            Some(Outdated::Abort)
        } else if asked.is_promoted_fully != now.is_promoted_fully {
            Some(Outdated::FullPromotion)
        } else if asked.experiment != now.experiment {
            Some(Outdated::Experiment)
        } else if asked.generation != now.generation && asked.strategy != now.strategy {
            // The number of replicas changes the generation too, whenever a HorizontalPodAutoscaler likes.
            Some(Outdated::Strategy)
        } else if !admissible(live).contains(self.desired.value) {
            Some(Outdated::Weight)
        } else {
            None
        }
    }
}

impl Asked {
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

/// A hash that is the same for a strategy from a call and for the same one from the API server: gob drops pointers to zeros.
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

/// The standing intents of all Rollouts. One at rest has none.
#[derive(Debug, Default)]
pub(crate) struct StandingIntents {
    rollouts: HashMap<ObjectKey, Standing>,
    /// What stood before the calls that are under way.
    before: HashMap<ObjectKey, Standing>,
    /// The Rollouts that were called for, until the intents from before the start of this process are known.
    called: HashSet<ObjectKey>,
    are_resumed: bool,
}

impl StandingIntents {
    /// A call for a Rollout begins that may ask for something else. Until its SetWeight has ended nothing stands.
    pub(crate) fn suspend(&mut self, rollout: &ObjectKey) {
        if !self.are_resumed {
            self.called.insert(rollout.clone());
        }
        if let Some(standing) = self.rollouts.remove(rollout) {
            self.before.insert(rollout.clone(), standing);
        }
    }

    /// What the last SetWeight for a Rollout asked for.
    pub(crate) fn of(&self, rollout: &ObjectKey) -> Option<&Standing> {
        self.rollouts.get(rollout)
    }

    /// A SetWeight for `rollout` ended. `leaves_marks` tells whether something of the Rollout is left in a table, or could be:
    /// then the intent stands from here on, otherwise none does.
    ///
    /// Returns whether the SetWeight before it asked for the same.
    pub(crate) fn set(
        &mut self,
        rollout: &Rollout,
        standing: Standing,
        leaves_marks: bool,
    ) -> bool {
        let before = self.before.remove(&key(rollout));
        let repeats = before.is_some_and(|before| standing.repeats(&before));
        // A weight that its own Rollout does not admit would never be repaired.
        let is_admissible = admissible(rollout).contains(standing.desired.value);
        if !is_admissible {
            tracing::debug!(
                rollout = %key(rollout),
                "weight {} is not among those that the status admits",
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

    /// An intent from before the start of this process, unless a call has told of a newer one.
    pub(crate) fn resume(&mut self, rollout: &ObjectKey, standing: Standing) {
        if !self.called.contains(rollout) {
            self.rollouts.insert(rollout.clone(), standing);
        }
    }

    /// All intents from before the start of this process are known.
    pub(crate) fn end_resuming(&mut self) {
        self.called = HashSet::new();
        self.are_resumed = true;
    }

    /// The intent of a Rollout no longer holds.
    pub(crate) fn forget(&mut self, rollout: &ObjectKey) {
        self.rollouts.remove(rollout);
        self.before.remove(rollout);
    }

    /// The Rollouts that want something of a table.
    pub(crate) fn of_table(&self, table: &ObjectKey) -> Vec<ObjectKey> {
        let rollouts = self.rollouts.iter();
        let wanting = rollouts.filter(|(_, standing)| standing.tables.contains(table));
        wanting.map(|(rollout, _)| rollout.clone()).collect()
    }

    /// The Rollouts that want something and have mirror steps.
    pub(crate) fn with_mirrors(&self) -> Vec<ObjectKey> {
        let mirrors = self.rollouts.iter().filter(|(_, standing)| {
            let request = standing.request.as_ref();
            request.is_some_and(|request| request.has_mirrors)
        });
        mirrors.map(|(rollout, _)| rollout.clone()).collect()
    }

    /// All Rollouts that want something.
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

    /// What becomes of the intent of 25 % when the Rollout changes.
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
    fn an_intent_holds_until_the_rollout_says_otherwise() {
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
    fn a_strategy_from_a_call_is_the_one_of_the_api_server() {
        let mut told = object();
        for (path, key) in [
            ("/spec/strategy/canary/steps/0", "setWeight"),
            ("/spec/strategy/canary/steps/3/setMirrorRoute", "percentage"),
        ] {
            told.pointer_mut(path)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(key);
        }
        let (told, live) = (rollout(told), rollout(object()));
        assert_ne!(told.spec, live.spec);
        let hash = |rollout: &Rollout| strategy_hash(&rollout.spec.strategy);
        assert_eq!(hash(&told), hash(&live));
    }

    #[test]
    fn it_stands_from_a_call_that_leaves_marks_to_one_that_leaves_none() {
        let (rollout, table) = (rollout(object()), ObjectKey::new("mesh", "web"));
        let owner = key(&rollout);
        let mut intents = StandingIntents::default();
        intents.set(&rollout, standing(), true);
        assert_eq!(intents.of(&owner), Some(&standing()));
        assert_eq!(intents.of_table(&table), std::slice::from_ref(&owner));
        // Nothing stands while the next call is under way, which replaces it.
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

    /// What a new process takes for the last SetWeight when the Rollout's status is as changed.
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
    fn a_new_process_goes_by_what_the_status_records_of_today() {
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
    fn an_intent_from_before_the_start_gives_way_to_a_call() {
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
            asked: Asked {
                generation: 8,
                ..standing().asked
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
