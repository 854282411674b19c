//! What waits for Gloo beside VerifyWeight: the scale of the stable Pods, and the time before a promotion.
//!
//! With `dynamicStableScale` the controller scales the stable Pods by the weights it recorded, and it records them after
//! SetWeight, whatever VerifyWeight says (upstream `rollout/canary.go`, `rollout/trafficrouting.go`). Only an error of
//! SetWeight keeps the Pods until the gateways send their requests elsewhere.

use std::time::Duration;

use rollouts_rpc::{DesiredWeight, Rollout};
use route_planner::{IntentKind, Observation, VerifyMode, observe};
use route_store::{Decision, Store};
use tokio::time::{Instant, sleep};

use super::{GlooRouter, deadline::Deadline, selected::Selected};
use crate::{
    error::Failure,
    from_rpc::{self, Request},
};

/// How long the first call of a weight waits for Gloo. Later ones only look.
const WAIT: Duration = Duration::from_secs(1);

/// After which time it looks again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

impl<S: Store> GlooRouter<S> {
    /// Checks that Gloo has accepted weights that take traffic from Pods which the controller is about to scale down.
    pub(super) async fn check_acceptance(
        &self,
        rollout: &Rollout,
        request: &Request,
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
            let Selected { tables, failures } =
                self.selected(request, Decision::Verify, deadline).await;
            if !failures.is_empty() {
                return failures;
            }
            let observed =
                tables.iter().map(
                    |table| match observe(&request.config, &request.intent, table) {
                        Ok(
                            Observation::NotVerified { reason } | Observation::Refused { reason },
                        ) => Some(Failure::NotAccepted(reason)),
                        Ok(Observation::Verified | Observation::NotApplicable { .. }) => None,
                        Err(error) => Some(Failure::Plan(error)),
                    },
                );
            let pending: Vec<_> = observed.flatten().collect();
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

    /// Whether the canary has had all traffic long enough to be promoted. The time begins when Gloo is seen to have accepted
    /// it; in a new process it begins again.
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
        // A step with that weight may be followed by others, and the time counts there too.
        rollout.current_step().is_some() || lasts >= before
    }
}

/// Whether the controller will keep fewer stable Pods for the weights of a request than for those it recorded last.
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
