//! Standing intents: what the last SetWeight of a Rollout asked for, while it is still valid.
//!
//! A repair carries out the standing intent again. It never computes a weight, and does nothing once the Rollout shows that
//! the controller is about to ask for something else.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use gloo_types::ObjectKey;
use rollouts_rpc::rollout::{Outdated, RolloutFacts};
use rollouts_rpc::{DesiredWeight, Rollout};
use route_planner::{IntentKind, ManagedRouteUpdate, PodHashes};

use crate::error::ShiftError;
use crate::from_rpc::{Policy, Request, admissible, key, weight};
use crate::report::About;

/// What the last SetWeight of a Rollout asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standing {
    /// The planner's request for the call.
    pub(crate) request: Arc<Request>,
    /// The selected tables.
    pub(crate) tables: BTreeSet<ObjectKey>,
    /// Whether the call was carried out completely. If not, a repair moves no traffic to the canary.
    pub(crate) is_complete: bool,
}

impl Standing {
    /// Returns the intent of the last SetWeight before this process started, as the status of `live` records it. `None`
    /// unless the record belongs to the current versions and the current spec, and the controller would still ask for that
    /// weight.
    pub(crate) fn recorded(policy: &Policy, live: &Rollout, hashes: PodHashes) -> Option<Self> {
        let (status, metadata) = (&live.status, &live.metadata);
        let weights = status.canary.weights.as_ref()?;
        let is_current = weights.canary.pod_template_hash == status.current_pod_hash
            && weights.stable.pod_template_hash == status.stable_rs
            // A spec that the controller has not seen may have other steps.
            && status.has_observed(metadata.generation)
            && admissible(live).contains(weights.canary.weight);
        if !is_current {
            return None;
        }
        let desired = DesiredWeight {
            value: weights.canary.weight,
            max: live.max_traffic_weight(),
        };
        let weight = weight(desired, &weights.additional);
        let request = Request::new(policy, live, hashes, false, weight).ok()?;
        Some(Self {
            request: Arc::new(request),
            tables: BTreeSet::new(),
            is_complete: true,
        })
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
        let kind = self.request.intent.kind.clone();
        Request::new(policy, live, hashes, self.are_removed(), kind)
    }

    /// Whether the call asked for the same as an earlier one. Then another client has changed each table that it has to
    /// write.
    fn repeats(&self, before: &Self) -> bool {
        // The controller repeats a call that has failed, and then the tables are as that call left them.
        before.is_complete
            && self.request.intent.kind == before.request.intent.kind
            && self.are_removed() == before.are_removed()
            && self.change_since(before.request.facts.as_ref()).is_none()
    }

    fn are_removed(&self) -> bool {
        self.request.intent.managed.update == ManagedRouteUpdate::RemoveAll
    }

    /// `metadata.uid` of the Rollout.
    pub(crate) fn uid(&self) -> &str {
        let facts = self.request.facts.as_ref();
        facts.map_or("", |facts| &facts.uid)
    }

    /// Returns why the intent is outdated for the current Rollout; `None` if it is still valid.
    pub(crate) fn outdated(&self, live: Option<&Rollout>, is_deleting: bool) -> Option<Outdated> {
        let Some(live) = live else {
            return Some(Outdated::Gone);
        };
        match self.change_since(Some(&RolloutFacts::of(live))) {
            // A Rollout of the same name is another one. Whether it is being deleted does not matter.
            Some(Outdated::Gone) => Some(Outdated::Gone),
            _ if is_deleting => Some(Outdated::Deleting),
            None if !self.is_admissible(live) => Some(Outdated::Weight),
            outdated => outdated,
        }
    }

    fn change_since(&self, facts: Option<&RolloutFacts>) -> Option<Outdated> {
        self.request.facts.as_ref()?.outdated(facts?)
    }

    /// Whether the controller may ask for this weight with the status of a Rollout.
    fn is_admissible(&self, rollout: &Rollout) -> bool {
        match &self.request.intent.kind {
            IntentKind::SetWeight(split) => admissible(rollout).contains(split.desired),
            IntentKind::SetManagedRoute(_) | IntentKind::RemoveManagedRoutes => false,
        }
    }
}

/// The standing intents of all Rollouts. A Rollout at rest has none.
#[derive(Debug, Default)]
pub(crate) struct StandingIntents {
    rollouts: HashMap<ObjectKey, Standing>,
    /// Intents from before the calls that are running.
    before: HashMap<ObjectKey, Standing>,
    start: Start,
}

/// What becomes of intents from before the start of this process.
#[derive(Debug)]
enum Start {
    /// It is not known yet which Rollouts have marks. These have had a call since.
    Called(HashSet<ObjectKey>),
    /// The intents of these Rollouts are not restored yet. After that, and after a call, each intent is from this process.
    Resuming(BTreeSet<ObjectKey>),
}

impl Default for Start {
    fn default() -> Self {
        Self::Called(HashSet::new())
    }
}

impl StandingIntents {
    /// Suspends the intent of a Rollout: a call begins that may ask for something else. There is no intent until its
    /// SetWeight ends.
    pub(crate) fn suspend(&mut self, rollout: &ObjectKey) {
        self.note_call(rollout);
        if let Some(standing) = self.rollouts.remove(rollout) {
            self.before.insert(rollout.clone(), standing);
        }
    }

    /// Ends a call that sets no intent.
    pub(crate) fn end_call(&mut self, rollout: &ObjectKey) {
        self.before.remove(rollout);
    }

    /// From now on no intent from before the start of this process is restored for the Rollout.
    fn note_call(&mut self, rollout: &ObjectKey) {
        match &mut self.start {
            Start::Called(called) => {
                called.insert(rollout.clone());
            }
            Start::Resuming(rollouts) => {
                rollouts.remove(rollout);
            }
        }
    }

    /// Whether an intent of the Rollout from before the start of this process is restored, and no call for it is running.
    pub(crate) fn is_settled(&self, rollout: &ObjectKey) -> bool {
        let is_resumed = match &self.start {
            Start::Called(called) => called.contains(rollout),
            Start::Resuming(rollouts) => !rollouts.contains(rollout),
        };
        is_resumed && !self.before.contains_key(rollout)
    }

    /// Returns the Rollouts with a call that is running.
    pub(crate) fn with_calls(&self) -> BTreeSet<ObjectKey> {
        self.before.keys().cloned().collect()
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
        // A deletion of an older Rollout of this name may have been seen since the call began.
        self.note_call(&key(rollout));
        let before = self.before.remove(&key(rollout));
        let repeats = before.is_some_and(|before| standing.repeats(&before));
        // A weight that the Rollout does not admit would never be repaired.
        let is_admissible = standing.is_admissible(rollout);
        if !is_admissible {
            tracing::debug!(rollout = %key(rollout), "the status does not admit the weight of the call");
        }
        // A table at rest belongs to its owner: every edit is meant.
        if leaves_marks && is_admissible {
            self.rollouts.insert(key(rollout), standing);
        } else {
            self.rollouts.remove(&key(rollout));
        }
        repeats
    }

    /// Notes the Rollouts whose intents from before the start of this process are to be restored, apart from those with a call.
    pub(crate) fn begin_resuming(&mut self, mut rollouts: BTreeSet<ObjectKey>) {
        if let Start::Called(called) = &self.start {
            rollouts.retain(|rollout| !called.contains(rollout));
            self.start = Start::Resuming(rollouts);
        }
    }

    /// Returns the Rollouts whose intents are still to be restored.
    pub(crate) fn to_resume(&self) -> BTreeSet<ObjectKey> {
        match &self.start {
            Start::Called(_) => BTreeSet::new(),
            Start::Resuming(rollouts) => rollouts.clone(),
        }
    }

    /// Restores an intent from before the start of this process, if there is one, unless a call has replaced it.
    pub(crate) fn resume(&mut self, rollout: &ObjectKey, standing: Option<Standing>) {
        let is_open = match &mut self.start {
            Start::Called(_) => false,
            Start::Resuming(rollouts) => rollouts.remove(rollout),
        };
        if let Some(standing) = standing.filter(|_| is_open) {
            self.rollouts.insert(rollout.clone(), standing);
        }
    }

    /// Whether there is an intent of a Rollout of this name with another uid.
    pub(crate) fn is_of_another(&self, rollout: &ObjectKey, uid: &str) -> bool {
        let intents = self.rollouts.get(rollout).into_iter();
        let mut intents = intents.chain(self.before.get(rollout));
        intents.any(|it| !it.uid().is_empty() && it.uid() != uid)
    }

    /// Drops the intent of a Rollout.
    pub(crate) fn forget(&mut self, rollout: &ObjectKey) {
        self.rollouts.remove(rollout);
        self.before.remove(rollout);
        match &mut self.start {
            Start::Called(called) => called.remove(rollout),
            Start::Resuming(rollouts) => rollouts.remove(rollout),
        };
    }

    /// Drops the intents of all Rollouts but those for which `exists` returns true.
    pub(crate) fn retain(&mut self, exists: impl Fn(&ObjectKey) -> bool) {
        self.rollouts.retain(|rollout, _| exists(rollout));
        self.before.retain(|rollout, _| exists(rollout));
        match &mut self.start {
            Start::Called(called) => called.retain(exists),
            Start::Resuming(rollouts) => rollouts.retain(exists),
        }
    }

    /// Returns the Rollouts whose intents fit.
    pub(crate) fn rollouts(&self, fits: impl Fn(&Standing) -> bool) -> Vec<ObjectKey> {
        let fitting = self.rollouts.iter().filter(|(_, standing)| fits(standing));
        fitting.map(|(rollout, _)| rollout.clone()).collect()
    }

    /// Refers to a Rollout, with the uid that its intent has.
    pub(crate) fn about(&self, rollout: &ObjectKey) -> About {
        About {
            key: rollout.clone(),
            // Without an intent it is not known.
            uid: self.of(rollout).map_or("", Standing::uid).to_owned(),
        }
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
            "spec": {"replicas": 4, "strategy": {"canary": {"steps": steps, "stableService": "reviews", "canaryService": "reviews-canary", "trafficRouting": {"plugins": {"p": selector("web")}}}}},
            "status": {"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 2, "canary": {"currentExperiment": "e1"}},
        })
    }

    fn selector(name: &str) -> Value {
        json!({"routeTableSelector": {"names": [name], "namespace": "mesh"}})
    }

    fn rollout(object: Value) -> Rollout {
        serde_json::from_value(object).unwrap()
    }

    fn policy() -> Policy {
        Policy {
            plugin_names: vec!["p".into()],
            ..Policy::default()
        }
    }

    fn hashes() -> PodHashes {
        PodHashes {
            stable: "s1".into(),
            canary: "c1".into(),
            others: false,
        }
    }

    /// The intent of a call for a Rollout.
    fn intent(object: Value, value: i32) -> Standing {
        let weight = weight(DesiredWeight { value, max: 100 }, &[]);
        let request = Request::new(&policy(), &rollout(object), hashes(), false, weight);
        Standing {
            is_complete: true,
            tables: [ObjectKey::new("mesh", "web")].into(),
            request: Arc::new(request.unwrap()),
        }
    }

    fn standing() -> Standing {
        intent(object(), 25)
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
            selector("other"),
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

    #[test]
    fn an_intent_lasts_from_a_call_that_leaves_marks_to_one_that_leaves_none() {
        let (rollout, table) = (rollout(object()), ObjectKey::new("mesh", "web"));
        let owner = key(&rollout);
        let mut intents = StandingIntents::default();
        intents.set(&rollout, standing(), true);
        assert_eq!(intents.of(&owner), Some(&standing()));
        assert_eq!(
            intents.rollouts(|it| it.tables.contains(&table)),
            std::slice::from_ref(&owner)
        );
        // There is no intent while the next call is running.
        intents.suspend(&owner);
        assert_eq!(intents.of(&owner), None);
        let next = intent(object(), 0);
        intents.set(&rollout, next.clone(), true);
        assert_eq!(intents.of(&owner), Some(&next));
        intents.set(&rollout, next, false);
        assert_eq!(intents.of(&owner), None);
        assert!(intents.rollouts(|it| it.tables.contains(&table)).is_empty());
        // The status of this Rollout admits 0 and 25.
        intents.set(&rollout, intent(object(), 40), true);
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
        let recorded = Standing::recorded(&policy(), &rollout(live), hashes());
        let weight = recorded.map(|it| match &it.request.intent.kind {
            IntentKind::SetWeight(split) => split.desired,
            other => panic!("{other:?}"),
        });
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
        let named = |name: &str| ObjectKey::new("shop", name);
        let mut intents = StandingIntents::default();
        intents.suspend(&owner);
        assert!(intents.is_settled(&owner) && !intents.is_settled(&other));
        let marked = [&other, &named("called"), &named("gone"), &named("differs")];
        intents.begin_resuming([&owner].into_iter().chain(marked).cloned().collect());
        intents.suspend(&named("called"));
        intents.forget(&named("gone"));
        assert_eq!(
            intents.to_resume(),
            [named("differs"), other.clone()].into()
        );
        for rollout in [&owner, &named("called"), &other] {
            assert_eq!(intents.is_settled(rollout), *rollout != other);
            intents.resume(rollout, Some(standing()));
            assert!(intents.is_settled(rollout));
        }
        intents.resume(&named("differs"), None);
        assert!(intents.to_resume().is_empty());
        assert_eq!(intents.rollouts(|_| true), [other]);
    }

    #[test]
    fn a_call_repeats_the_one_before_if_it_asks_for_the_same() {
        let mut scaled = object();
        scaled["metadata"]["generation"] = json!(8);
        let again = intent(scaled, 25);
        assert!(again.repeats(&standing()));
        let failed = Standing {
            is_complete: false,
            ..standing()
        };
        assert!(!again.repeats(&failed));
        let more = intent(object(), 50);
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
