//! Where a Rollout is: its steps, its versions, and what gob left open about them.

use crate::{
    CanaryStep, CanaryStrategy, ObjectMeta, Rollout, RolloutSpec, RolloutStatus, TrafficRouting,
};

/// The annotation that counts a Rollout's revisions (`utils/annotations` in Argo Rollouts).
pub const REVISION_ANNOTATION: &str = "rollout.argoproj.io/revision";

impl Rollout {
    /// A Rollout of which only the key is known.
    #[must_use]
    pub fn named(namespace: &str, name: &str) -> Self {
        let metadata = ObjectMeta {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..ObjectMeta::default()
        };
        Self {
            metadata,
            ..Self::default()
        }
    }

    /// Restores the zeros that gob dropped, in a Rollout that the controller sent:
    ///
    /// - a step that arrives empty was `setWeight: 0`, since validation refuses one with nothing set;
    /// - an absent `currentStepIndex` was 0 if there are steps;
    /// - absent `replicas` were 0, since the controller fills in the default before it reconciles.
    #[must_use]
    pub fn restore_zeros(mut self) -> Self {
        for step in self.steps_mut() {
            if *step == CanaryStep::default() {
                step.set_weight = Some(0);
            }
        }
        if !self.steps().is_empty() {
            self.status.current_step_index.get_or_insert(0);
        }
        self.spec.replicas.get_or_insert(0);
        self
    }

    /// Fills in what the controller fills in before it reconciles and calls a plugin (`utils/defaults` in Argo Rollouts).
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        self.spec.replicas = Some(self.replicas());
        self
    }

    /// `spec.strategy.canary`.
    #[must_use]
    pub fn canary(&self) -> Option<&CanaryStrategy> {
        self.spec.canary()
    }

    /// `spec.strategy.canary.trafficRouting`.
    #[must_use]
    pub fn traffic_routing(&self) -> Option<&TrafficRouting> {
        self.canary()?.traffic_routing.as_ref()
    }

    /// The steps; none without a canary strategy.
    #[must_use]
    pub fn steps(&self) -> &[CanaryStep] {
        self.spec.steps()
    }

    /// The steps, to change them.
    pub fn steps_mut(&mut self) -> &mut [CanaryStep] {
        let canary = self.spec.strategy.canary.as_mut();
        canary.map_or(&mut [], |canary| &mut canary.steps)
    }

    /// The step that is carried out; `None` after the last one, and without steps.
    #[must_use]
    pub fn current_step(&self) -> Option<&CanaryStep> {
        self.steps().get(self.status.step_index()?)
    }

    /// Number of Pods that are asked for: `spec.replicas`, or 1 (`utils/defaults` in Argo Rollouts).
    #[must_use]
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// The weight that means all traffic: `maxTrafficWeight`, or 100.
    #[must_use]
    pub fn max_traffic_weight(&self) -> i32 {
        let routing = self.traffic_routing();
        routing
            .and_then(|routing| routing.max_traffic_weight)
            .unwrap_or(100)
    }

    /// The revision that the controller counts in an annotation; 1 is the first deployment.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        self.metadata
            .annotations
            .get(REVISION_ANNOTATION)?
            .parse()
            .ok()
    }
}

impl RolloutSpec {
    /// `strategy.canary`.
    #[must_use]
    pub fn canary(&self) -> Option<&CanaryStrategy> {
        self.strategy.canary.as_ref()
    }

    /// The steps; none without a canary strategy.
    #[must_use]
    pub fn steps(&self) -> &[CanaryStep] {
        self.canary().map_or(&[], |canary| &canary.steps)
    }
}

impl RolloutStatus {
    /// Position of the current step; the number of steps after the last one.
    #[must_use]
    pub fn step_index(&self) -> Option<usize> {
        usize::try_from(self.current_step_index?).ok()
    }

    /// Whether the spec asks for another version than the stable one. False before there is a stable version.
    #[must_use]
    pub fn is_updating(&self) -> bool {
        !self.stable_rs.is_empty() && self.stable_rs != self.current_pod_hash
    }

    /// Whether the tables of the Rollout may be split: the update is under way, or the canary still gets traffic. False
    /// before there is a stable version.
    ///
    /// The phase does not tell: it is `Progressing` whenever a Pod is not ready, too.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        let weights = self.canary.weights.as_ref();
        let has_traffic = weights.is_some_and(|weights| weights.canary.weight > 0);
        !self.stable_rs.is_empty() && (self.is_updating() && !self.abort || has_traffic)
    }

    /// Whether the version that the spec asks for is the stable one.
    #[must_use]
    pub fn is_promoted(&self) -> bool {
        !self.stable_rs.is_empty() && self.stable_rs == self.current_pod_hash
    }

    /// The hash of the version that was the canary until it was promoted; `None` while it is not, and after a rollback.
    ///
    /// A rollback to the stable version also ends with one version in the spec and in the status. The recorded weights tell
    /// the two apart: they name the hash of the last canary, as upstream asks in `isDynamicallyRollingBackToStable`
    /// (`rollout/trafficrouting.go` in Argo Rollouts).
    #[must_use]
    pub fn promoted_canary(&self) -> Option<&str> {
        let canary = &self.canary.weights.as_ref()?.canary.pod_template_hash;
        let is_promoted = self.is_promoted() && !self.abort && *canary == self.stable_rs;
        is_promoted.then_some(canary)
    }

    /// Whether the controller has seen the spec of this `metadata.generation`.
    #[must_use]
    pub fn has_observed(&self, generation: i64) -> bool {
        self.observed_generation.parse() == Ok(generation)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::Present;

    fn with_steps(steps: Vec<CanaryStep>) -> Rollout {
        let mut rollout = Rollout::default();
        rollout.spec.strategy.canary = Some(CanaryStrategy {
            steps,
            ..CanaryStrategy::default()
        });
        rollout
    }

    #[track_caller]
    fn check_step(step: CanaryStep, set_weight: Option<i32>) {
        let rollout = with_steps(vec![step]).restore_zeros();
        assert_eq!(rollout.steps()[0].set_weight, set_weight);
    }

    #[test]
    fn a_step_that_arrives_empty_was_set_weight_0() {
        let present = Some(Present {});
        let step = CanaryStep::default;
        check_step(step(), Some(0));
        check_step(
            CanaryStep {
                set_weight: Some(5),
                ..step()
            },
            Some(5),
        );
        check_step(
            CanaryStep {
                pause: present,
                ..step()
            },
            None,
        );
        check_step(
            CanaryStep {
                experiment: present,
                ..step()
            },
            None,
        );
        check_step(
            CanaryStep {
                analysis: present,
                ..step()
            },
            None,
        );
        check_step(
            CanaryStep {
                set_canary_scale: present,
                ..step()
            },
            None,
        );
        check_step(
            CanaryStep {
                plugin: present,
                ..step()
            },
            None,
        );
        let header = Some(crate::SetHeaderRoute::default());
        check_step(
            CanaryStep {
                set_header_route: header,
                ..step()
            },
            None,
        );
    }

    #[track_caller]
    fn check_index(steps: usize, index: Option<i32>, expect: Option<i32>) {
        let mut rollout = with_steps(vec![CanaryStep::default(); steps]);
        rollout.status.current_step_index = index;
        assert_eq!(rollout.restore_zeros().status.current_step_index, expect);
    }

    #[test]
    fn a_step_index_that_is_absent_is_0_if_there_are_steps() {
        check_index(2, None, Some(0));
        check_index(2, Some(1), Some(1));
        check_index(0, None, None);
    }

    #[test]
    fn absent_replicas_are_0_in_gob_and_1_in_json() {
        let rollout = Rollout::default();
        assert_eq!(rollout.replicas(), 1);
        assert_eq!(rollout.restore_zeros().replicas(), 0);
    }

    #[track_caller]
    fn check_in_progress(status: serde_json::Value, expect: bool) {
        let status: RolloutStatus = serde_json::from_value(status).unwrap();
        assert_eq!(status.is_in_progress(), expect, "{status:?}");
    }

    #[test]
    fn when_a_canary_is_under_way() {
        let promoted = json!({"stableRS": "a", "currentPodHash": "a", "phase": "Progressing"});
        let updating = json!({"stableRS": "a", "currentPodHash": "b", "phase": "Degraded"});
        let aborted = json!({"stableRS": "a", "currentPodHash": "b", "abort": true});
        check_in_progress(json!({}), false);
        check_in_progress(promoted.clone(), false);
        check_in_progress(updating, true);
        check_in_progress(aborted.clone(), false);
        // The first version: there is nothing to keep from changing.
        check_in_progress(
            json!({"currentPodHash": "a", "phase": "Progressing"}),
            false,
        );
        // On the way back with dynamicStableScale, traffic moves as the stable version grows.
        for mut status in [promoted, aborted] {
            status["canary"] =
                json!({"weights": {"canary": {"weight": 30}, "stable": {"weight": 70}}});
            check_in_progress(status, true);
        }
    }

    #[track_caller]
    fn check_promoted(
        stable: &str,
        current: &str,
        recorded: Option<&str>,
        abort: bool,
        expect: bool,
    ) {
        let weights =
            recorded.map(|hash| json!({"canary": {"weight": 100, "podTemplateHash": hash}}));
        let status = json!({
            "stableRS": stable, "currentPodHash": current, "abort": abort, "canary": {"weights": weights},
        });
        let status: RolloutStatus = serde_json::from_value(status).unwrap();
        assert_eq!(
            status.promoted_canary(),
            expect.then_some(current),
            "{status:?}"
        );
    }

    #[test]
    fn a_promotion_is_told_from_a_rollback() {
        check_promoted("b", "b", Some("b"), false, true);
        check_promoted("a", "b", Some("b"), false, false);
        check_promoted("a", "b", Some("b"), true, false);
        check_promoted("b", "b", Some("b"), true, false);
        // Back to the stable version: the bad canary is recorded.
        check_promoted("a", "a", Some("b"), false, false);
        check_promoted("a", "a", None, false, false);
        check_promoted("", "", Some(""), false, false);
    }

    #[test]
    fn whether_the_controller_has_seen_the_spec() {
        for (observed, expect) in [("7", true), ("6", false), ("", false), ("7b9", false)] {
            let status = RolloutStatus {
                observed_generation: observed.to_owned(),
                ..RolloutStatus::default()
            };
            assert_eq!(status.has_observed(7), expect, "{observed}");
        }
    }

    #[test]
    fn the_revision_is_read_from_its_annotation() {
        let revision = |value: &str| {
            let mut rollout = Rollout::default();
            let annotation = (REVISION_ANNOTATION.to_owned(), value.to_owned());
            rollout.metadata.annotations = BTreeMap::from([annotation]);
            rollout.revision()
        };
        assert_eq!((revision("7"), revision("x")), (Some(7), None));
        assert_eq!(Rollout::default().revision(), None);
    }

    #[test]
    fn all_traffic_is_100_unless_the_rollout_says_otherwise() {
        let with = |max_traffic_weight| {
            let mut rollout = with_steps(Vec::new());
            let canary = rollout.spec.strategy.canary.as_mut();
            canary.unwrap().traffic_routing = Some(TrafficRouting {
                max_traffic_weight,
                ..TrafficRouting::default()
            });
            rollout.max_traffic_weight()
        };
        assert_eq!((with(None), with(Some(1000))), (100, 1000));
        assert_eq!(Rollout::default().max_traffic_weight(), 100);
    }
}
