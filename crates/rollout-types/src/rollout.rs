//! Methods of a Rollout: its steps, versions and Services, and the zeros that gob dropped.

use crate::{
    CanaryStep, CanaryStrategy, ObjectMeta, PingPong, Rollout, RolloutSpec, RolloutStatus,
    TrafficRouting,
};

/// The annotation with the revision of a Rollout (`utils/annotations` in Argo Rollouts).
pub const REVISION_ANNOTATION: &str = "rollout.argoproj.io/revision";

impl Rollout {
    /// Returns a Rollout with only a namespace and a name.
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

    /// Restores the zeros that gob dropped from a Rollout that the controller sent:
    ///
    /// - An empty step was `setWeight: 0`, because validation refuses an empty step.
    /// - An absent `currentStepIndex` was 0 if there are steps.
    /// - Absent `replicas` were 0, because the controller sets the default before it reconciles.
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

    /// Sets the defaults that the controller sets before it reconciles and calls a plugin (`utils/defaults` in Argo Rollouts).
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        self.spec.replicas = Some(self.replicas());
        self
    }

    /// Returns `spec.strategy.canary`.
    #[must_use]
    pub fn canary(&self) -> Option<&CanaryStrategy> {
        self.spec.canary()
    }

    /// Returns `spec.strategy.canary.trafficRouting`.
    #[must_use]
    pub fn traffic_routing(&self) -> Option<&TrafficRouting> {
        self.canary()?.traffic_routing.as_ref()
    }

    /// Returns the steps; there are none without a canary strategy.
    #[must_use]
    pub fn steps(&self) -> &[CanaryStep] {
        self.spec.steps()
    }

    /// Returns the steps, mutable.
    pub fn steps_mut(&mut self) -> &mut [CanaryStep] {
        let canary = self.spec.strategy.canary.as_mut();
        canary.map_or(&mut [], |canary| &mut canary.steps)
    }

    /// Returns the current step, or `None` after the last step or without steps.
    #[must_use]
    pub fn current_step(&self) -> Option<&CanaryStep> {
        self.steps().get(self.status.step_index()?)
    }

    /// Returns the desired number of Pods: `spec.replicas`, or 1 (`utils/defaults` in Argo Rollouts).
    #[must_use]
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// Returns the weight of all traffic: `maxTrafficWeight`, or 100.
    #[must_use]
    pub fn max_traffic_weight(&self) -> i32 {
        let routing = self.traffic_routing();
        routing
            .and_then(|routing| routing.max_traffic_weight)
            .unwrap_or(100)
    }

    /// Returns the revision in the controller's annotation; the first deployment is 1.
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
    /// Returns `strategy.canary`.
    #[must_use]
    pub fn canary(&self) -> Option<&CanaryStrategy> {
        self.strategy.canary.as_ref()
    }

    /// Returns the steps; there are none without a canary strategy.
    #[must_use]
    pub fn steps(&self) -> &[CanaryStep] {
        self.canary().map_or(&[], |canary| &canary.steps)
    }
}

impl RolloutStatus {
    /// Returns the index of the current step. After the last step it is the number of steps.
    #[must_use]
    pub fn step_index(&self) -> Option<usize> {
        usize::try_from(self.current_step_index?).ok()
    }

    /// Returns whether the spec has another version than the stable one. It is false before there is a stable version.
    #[must_use]
    pub fn is_updating(&self) -> bool {
        !self.stable_rs.is_empty() && self.stable_rs != self.current_pod_hash
    }

    /// Returns whether the traffic of the Rollout may be split: an update is in progress, or the canary still has a weight. It is false
    /// before there is a stable version.
    ///
    /// It does not use the phase, which is also `Progressing` if a Pod is not ready.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        let weights = self.canary.weights.as_ref();
        let has_traffic = weights.is_some_and(|weights| weights.canary.weight > 0);
        !self.stable_rs.is_empty() && (self.is_updating() && !self.abort || has_traffic)
    }

    /// Returns whether the version in the spec is the stable one.
    #[must_use]
    pub fn is_promoted(&self) -> bool {
        !self.stable_rs.is_empty() && self.stable_rs == self.current_pod_hash
    }

    /// Returns the hash of the promoted canary, or `None` before the promotion and in the first pass after a rollback.
    ///
    /// After a rollback to the stable version, spec and status have the same version too. The recorded weights distinguish the two cases
    /// until the controller records those of that pass: they contain the hash of the last canary, as in
    /// `isDynamicallyRollingBackToStable` (`rollout/trafficrouting.go` in Argo Rollouts).
    #[must_use]
    pub fn promoted_canary(&self) -> Option<&str> {
        let canary = &self.canary.weights.as_ref()?.canary.pod_template_hash;
        let is_promoted = self.is_promoted() && !self.abort && *canary == self.stable_rs;
        is_promoted.then_some(canary)
    }

    /// Returns whether the spec was set back to the stable version, and the recorded weights are still those of the canary.
    #[must_use]
    pub fn is_rolling_back(&self) -> bool {
        let weights = self.canary.weights.as_ref();
        let recorded = weights.map_or("", |weights| &weights.canary.pod_template_hash);
        self.is_promoted() && !recorded.is_empty() && recorded != self.stable_rs
    }

    /// Returns whether the controller has observed this `metadata.generation`.
    #[must_use]
    pub fn has_observed(&self, generation: i64) -> bool {
        self.observed_generation.parse() == Ok(generation)
    }
}

/// The two Services between which a canary moves traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Services<'a> {
    /// The Service of the stable Pods; may be empty.
    pub stable: &'a str,
    /// The Service of the canary's Pods; may be empty.
    pub canary: &'a str,
}

impl Rollout {
    /// Returns the current stable and canary Services, or `None` without a canary strategy. See [`CanaryStrategy::services`].
    #[must_use]
    pub fn services(&self) -> Option<Services<'_>> {
        Some(self.canary()?.services(&self.status))
    }

    /// Returns whether the Services exchange their roles at each promotion.
    #[must_use]
    pub fn is_ping_pong(&self) -> bool {
        self.canary().is_some_and(|it| it.ping_pong().is_some())
    }
}

impl CanaryStrategy {
    /// Returns the current stable and canary Services. With ping-pong, they depend on the status
    /// (`rollout/trafficrouting/service_helper.go` in Argo Rollouts).
    #[must_use]
    pub fn services<'a>(&'a self, status: &RolloutStatus) -> Services<'a> {
        let (stable, canary) = match self.ping_pong() {
            Some(PingPong {
                ping_service: ping,
                pong_service: pong,
            }) if status.canary.stable_ping_pong == "ping" => (ping, pong),
            Some(PingPong {
                ping_service: ping,
                pong_service: pong,
            }) => (pong, ping),
            None => (&self.stable_service, &self.canary_service),
        };
        Services { stable, canary }
    }

    /// Returns `pingPong`, or `None` if `stableService` or `canaryService` is set and takes precedence.
    fn ping_pong(&self) -> Option<&PingPong> {
        let is_named = !self.stable_service.is_empty() || !self.canary_service.is_empty();
        self.ping_pong.as_ref().filter(|_| !is_named)
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
    fn an_empty_step_was_set_weight_0() {
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
    fn an_absent_step_index_is_0_if_there_are_steps() {
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
    fn a_canary_is_in_progress() {
        let promoted = json!({"stableRS": "a", "currentPodHash": "a", "phase": "Progressing"});
        let updating = json!({"stableRS": "a", "currentPodHash": "b", "phase": "Degraded"});
        let aborted = json!({"stableRS": "a", "currentPodHash": "b", "abort": true});
        check_in_progress(json!({}), false);
        check_in_progress(promoted.clone(), false);
        check_in_progress(updating, true);
        check_in_progress(aborted.clone(), false);
        // The first version: there is no stable version.
        check_in_progress(
            json!({"currentPodHash": "a", "phase": "Progressing"}),
            false,
        );
        // During a rollback with dynamicStableScale, the canary has a weight until the stable version is scaled up.
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
        let is_of_other = recorded.is_some_and(|hash| !hash.is_empty() && hash != stable);
        assert_eq!(
            status.is_rolling_back(),
            stable == current && is_of_other,
            "{status:?}"
        );
    }

    #[test]
    fn a_promotion_is_distinguished_from_a_rollback() {
        check_promoted("b", "b", Some("b"), false, true);
        check_promoted("a", "b", Some("b"), false, false);
        check_promoted("a", "b", Some("b"), true, false);
        check_promoted("b", "b", Some("b"), true, false);
        // A rollback to the stable version: the recorded hash is that of the canary.
        check_promoted("a", "a", Some("b"), false, false);
        check_promoted("a", "a", None, false, false);
        check_promoted("", "", Some(""), false, false);
    }

    #[test]
    fn the_controller_has_observed_the_spec() {
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
    fn all_traffic_is_100_by_default() {
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

    #[track_caller]
    fn check_services(
        stable: &str,
        canary: &str,
        stable_ping_pong: Option<&str>,
        expect: (&str, &str),
    ) {
        let mut rollout = Rollout::default();
        rollout.status.canary.stable_ping_pong = stable_ping_pong.unwrap_or_default().to_owned();
        rollout.spec.strategy.canary = Some(CanaryStrategy {
            stable_service: stable.to_owned(),
            canary_service: canary.to_owned(),
            ping_pong: stable_ping_pong.map(|_| PingPong {
                ping_service: "ping-svc".to_owned(),
                pong_service: "pong-svc".to_owned(),
            }),
            ..CanaryStrategy::default()
        });
        let (stable, canary) = expect;
        assert_eq!(rollout.services(), Some(Services { stable, canary }));
        assert_eq!(rollout.is_ping_pong(), stable.ends_with("-svc"));
    }

    #[test]
    fn services_without_ping_pong() {
        check_services("s", "c", None, ("s", "c"));
        check_services("", "", None, ("", ""));
        assert_eq!(Rollout::default().services(), None);
    }

    #[test]
    fn with_ping_pong_the_stable_service_depends_on_the_status() {
        check_services("", "", Some("ping"), ("ping-svc", "pong-svc"));
        check_services("", "", Some("pong"), ("pong-svc", "ping-svc"));
        check_services("", "", Some(""), ("pong-svc", "ping-svc"));
    }

    #[test]
    fn a_named_service_takes_precedence_over_ping_pong() {
        check_services("s", "", Some("ping"), ("s", ""));
        check_services("", "c", Some("ping"), ("", "c"));
    }
}
