//! The answer to VerifyWeight, and what else waits for Gloo: the scale-down of stable Pods, and the time before a promotion.
//!
//! With `dynamicStableScale` the controller scales the stable Pods by the weights it recorded. It records them after
//! SetWeight, whatever VerifyWeight answers (upstream `rollout/canary.go`, `rollout/trafficrouting.go`). Only an error of
//! SetWeight keeps the Pods until the gateways send their requests elsewhere.

use std::time::Duration;

use gloo_types::RouteTableDoc;
use rollouts_rpc::{DesiredWeight, Rollout, Verification, WeightDestination};
use route_planner::{IntentKind, Observation, PlanError, VerifyMode, observe};
use route_store::{Decision, Store};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{GlooRouter, deadline::Deadline, read::Selected};
use crate::{
    error::{Failure, Failures, ShiftError},
    from_rpc::{self, Request},
    report::{About, Report},
};

/// How long the first call with a weight waits for Gloo. Later calls only check.
const WAIT: Duration = Duration::from_secs(1);

/// Pause before the second check; each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

impl<S: Store> GlooRouter<S> {
    /// Compares each selected table with what the call asks for: one observation for each, in the order of the tables.
    pub(super) async fn observe_all(
        &self,
        request: &mut Request,
        decision: Decision,
        deadline: Deadline,
    ) -> Result<Vec<(RouteTableDoc, Observation)>, Failures> {
        let selected = self.selected(request, decision, deadline).await;
        let Selected { tables, failures } = self.for_weights(request, selected, deadline).await;
        Failures::check(failures)?;
        let observed = tables.into_iter().map(|table| {
            let observation = observe(&request.config, &request.intent, &table)?;
            Ok((table, observation))
        });
        let observed: Result<_, PlanError> = observed.collect();
        observed.map_err(|error| Failure::Plan(error).into())
    }

    /// Answers VerifyWeight. The answer for all tables is that of the table furthest behind.
    pub(super) async fn verify(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
        deadline: Deadline,
    ) -> Result<Verification, ShiftError> {
        let weight = from_rpc::weight(desired, additional);
        let decision = if desired.value >= desired.max {
            self.observer.observe(&Report::Confirming);
            Decision::VerifyPromotion
        } else {
            Decision::Verify
        };
        let complete = self.complete(rollout, deadline).await;
        let complete = complete.map_err(Failures::from)?;
        let mut request = self.request(&complete, weight)?;
        let observed = self.observe_all(&mut request, decision, deadline).await?;
        let mut verification = Verification::Verified;
        for (table, observation) in observed {
            let reason = match observation {
                Observation::Verified => continue,
                Observation::NotApplicable { reason } => {
                    if verification == Verification::Verified {
                        verification = Verification::NotImplemented;
                    }
                    reason
                }
                Observation::NotApplied { reason } | Observation::NotAccepted { reason } => {
                    verification = Verification::NotVerified;
                    reason
                }
                Observation::Refused { reason } => {
                    verification = Verification::NotVerified;
                    warn!(rollout = %request.rollout, "not verified until the table is corrected: {reason}");
                    self.observer.observe(&Report::GlooRejected {
                        rollout: About::of_call(rollout),
                        table: About::of(&table),
                        reason,
                    });
                    continue;
                }
            };
            info!(rollout = %request.rollout, "not verified: {reason}");
        }
        if verification == Verification::Verified
            && !self.may_be_promoted(rollout, &request, desired)
        {
            info!(rollout = %request.rollout, "not verified: promotionGuard.before has not passed");
            verification = Verification::NotVerified;
        }
        Ok(verification)
    }

    /// Returns a failure for each table whose weights Gloo has not accepted yet, if they take traffic from Pods that the
    /// controller is about to scale down.
    pub(super) async fn check_acceptance(
        &self,
        rollout: &Rollout,
        request: &mut Request,
        deadline: Deadline,
    ) -> Vec<Failure> {
        let key = &request.rollout;
        if !shrinks_stable(rollout, request) || request.config.verify() == VerifyMode::Weights {
            self.memory.stop_waiting(key);
            return Vec::new();
        }
        let wait = if self.memory.wait_first(key, &request.intent.kind) {
            WAIT
        } else {
            Duration::ZERO
        };
        let end = Instant::now() + wait;
        let mut pause = FIRST_PAUSE;
        loop {
            let observed = match self.observe_all(request, Decision::Verify, deadline).await {
                Ok(observed) => observed.into_iter(),
                Err(failures) => return failures.into(),
            };
            let pending = observed.filter_map(|(_, observation)| match observation {
                Observation::NotApplied { reason }
                | Observation::NotAccepted { reason }
                | Observation::Refused { reason } => Some(Failure::NotAccepted(reason)),
                Observation::Verified | Observation::NotApplicable { .. } => None,
            });
            let pending: Vec<_> = pending.collect();
            if pending.is_empty() || Instant::now() >= end {
                return pending;
            }
            let left = end.saturating_duration_since(Instant::now());
            if deadline.tables(sleep(pause.min(left))).await.is_none() {
                return pending;
            }
            pause *= 2;
        }
    }

    /// Whether the canary has had all traffic for `promotionGuard.before`. The time starts when Gloo has accepted that
    /// weight, and starts again in a new process.
    pub(super) fn may_be_promoted(
        &self,
        rollout: &Rollout,
        request: &Request,
        desired: DesiredWeight,
    ) -> bool {
        let key = from_rpc::key(rollout);
        let before = request.config.promotion_guard().before;
        if before.is_zero() || rollout.status.promote_full || desired.value < desired.max {
            return true;
        }
        let hash = &rollout.status.current_pod_hash;
        let lasts = self.memory.full_for(&key, &rollout.metadata.uid, hash);
        // A step with full weight may be followed by other steps. The time counts during it, but does not delay it.
        rollout.current_step().is_some() || lasts >= before
    }
}

/// Whether the controller will keep fewer stable Pods for the weights of a request than for those that it recorded last.
fn shrinks_stable(rollout: &Rollout, request: &Request) -> bool {
    let is_dynamic = rollout.canary().is_some_and(|it| it.dynamic_stable_scale);
    let IntentKind::SetWeight(split) = &request.intent.kind else {
        return false;
    };
    let additional = split.additional.iter().map(|it| i64::from(it.weight));
    let max = i64::from(split.max);
    let stable = max - i64::from(split.desired) - additional.sum::<i64>();
    let recorded = rollout.status.canary.weights.as_ref();
    let recorded = recorded.map_or(max, |weights| i64::from(weights.stable.weight));
    is_dynamic && stable < recorded
}

/// Whether the controller waits for the answer: at a step that sets a weight, and before it promotes at the end.
///
/// The controller calls VerifyWeight in every reconcile. At other times "not verified" would only make it retry every ten
/// seconds, forever (upstream `ShouldVerifyWeight` in utils/rollout/rolloututil.go). An abort does not wait. A step with
/// `setWeight: 0` beside a header or mirror route arrives without its zero and counts as a step without weight.
pub(super) fn is_waited_for(rollout: &Rollout, desired: DesiredWeight) -> bool {
    let status = &rollout.status;
    if !status.is_updating() || status.abort {
        return false;
    }
    match rollout.current_step() {
        Some(step) => step.set_weight.is_some(),
        None => desired.value >= desired.max,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Policy;

    fn rollout(index: Option<i32>) -> Rollout {
        let steps =
            json!([{"setWeight": 0}, {"setWeight": 25}, {"pause": {}}, {"setHeaderRoute": {}}]);
        let rollout = json!({
            "spec": {"strategy": {"canary": {"steps": steps}}},
            "status": {"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": index},
        });
        serde_json::from_value(rollout).unwrap()
    }

    #[track_caller]
    fn check(rollout: &Rollout, value: i32, expect: bool) {
        let desired = DesiredWeight { value, max: 1000 };
        assert_eq!(is_waited_for(rollout, desired), expect);
    }

    #[test]
    fn the_controller_waits_at_steps_that_set_a_weight() {
        check(&rollout(Some(0)), 0, true);
        check(&rollout(Some(1)), 250, true);
        // While the canary is scaled, the controller sends the weight of the previous step.
        check(&rollout(Some(1)), 0, true);
        check(&rollout(Some(2)), 250, false);
        check(&rollout(Some(3)), 250, false);
    }

    #[test]
    fn the_controller_waits_before_a_promotion() {
        check(&rollout(Some(4)), 1000, true);
        check(&rollout(Some(4)), 1200, true);
        check(&rollout(Some(4)), 250, false);
        check(&rollout(Some(2)), 1000, false);
        check(&rollout(None), 1000, true);
        check(&rollout(Some(-1)), 250, false);
    }

    #[test]
    fn the_controller_does_not_wait_without_an_update() {
        let mut promoted = rollout(Some(4));
        promoted.status.stable_rs = "c1".into();
        check(&promoted, 0, false);
        let mut first = rollout(Some(1));
        first.status.stable_rs = String::new();
        check(&first, 250, false);
        let mut aborted = rollout(Some(0));
        aborted.status.abort = true;
        check(&aborted, 0, false);
    }

    #[test]
    fn stable_shrinks_if_canary_and_experiment_get_more_together() {
        let check = |is_dynamic: bool, [canary, experiment]: [i32; 2], expect: bool| {
            let rollout: Rollout = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"strategy": {"canary": {
                    "stableService": "web", "canaryService": "web-canary", "dynamicStableScale": is_dynamic,
                    "trafficRouting": {"plugins": {"p": {"routeTableSelector": {"name": "shop"}}}},
                }}},
                "status": {"canary": {"weights": {"canary": {"weight": 20}, "stable": {"weight": 80}}}},
            }))
            .unwrap();
            let additional = WeightDestination {
                weight: experiment,
                service_name: "experiment".into(),
                ..WeightDestination::default()
            };
            let desired = DesiredWeight {
                value: canary,
                max: 100,
            };
            let weight = from_rpc::weight(desired, &[additional]);
            let policy = Policy {
                plugin_names: vec!["p".into()],
                ..Policy::default()
            };
            let hashes = route_planner::PodHashes::default();
            let request = Request::new(&policy, &rollout, hashes, false, weight).unwrap();
            assert_eq!(
                shrinks_stable(&rollout, &request),
                expect,
                "{canary} {experiment}"
            );
        };
        check(true, [20, 0], false);
        check(true, [21, 0], true);
        check(true, [10, 10], false);
        check(true, [10, 11], true);
        check(true, [10, 0], false);
        check(false, [90, 5], false);
    }
}
