//! When an answer to VerifyWeight is of use.

use rollouts_rpc::{DesiredWeight, Rollout};

/// Whether the controller waits for the answer: at a step that sets a weight, and for the switch at the end.
///
/// It asks in every reconcile. Anywhere else "not verified" would only make it ask again every ten seconds, for ever
/// (upstream `ShouldVerifyWeight` in utils/rollout/rolloututil.go). The abort of a rollout waits for nobody. A step with
/// `setWeight: 0` beside a header or mirror route arrives without its zero and counts as one that sets no weight.
pub(super) fn is_waited_for(rollout: &Rollout, desired: DesiredWeight) -> bool {
    let status = &rollout.status;
    let is_updating = !status.stable_rs.is_empty() && status.stable_rs != status.current_pod_hash;
    if !is_updating || status.abort {
        return false;
    }
    let index = status
        .current_step_index
        .and_then(|index| usize::try_from(index).ok());
    let steps = rollout.canary.as_ref().map(|canary| &canary.steps);
    match index.and_then(|index| steps?.get(index)) {
        Some(step) => step.set_weight.is_some(),
        None => desired.value >= desired.max,
    }
}

#[cfg(test)]
mod tests {
    use rollouts_rpc::rollout::{
        CanaryStep, CanaryStrategy, OtherStep, RolloutStatus, SetHeaderRoute,
    };

    use super::*;

    fn rollout(index: Option<i32>) -> Rollout {
        let weight = |weight| CanaryStep {
            set_weight: Some(weight),
            ..CanaryStep::default()
        };
        let pause = CanaryStep {
            others: vec![OtherStep::Pause],
            ..CanaryStep::default()
        };
        let header = CanaryStep {
            set_header_route: Some(SetHeaderRoute::default()),
            ..CanaryStep::default()
        };
        let canary = CanaryStrategy {
            steps: vec![weight(0), weight(25), pause, header],
            ..CanaryStrategy::default()
        };
        Rollout {
            canary: Some(canary),
            status: RolloutStatus {
                stable_rs: "s1".into(),
                current_pod_hash: "c1".into(),
                current_step_index: index,
                ..RolloutStatus::default()
            },
            ..Rollout::default()
        }
    }

    #[track_caller]
    fn check(rollout: &Rollout, value: i32, expect: bool) {
        let desired = DesiredWeight { value, max: 1000 };
        assert_eq!(is_waited_for(rollout, desired), expect);
    }

    #[test]
    fn at_steps_that_set_a_weight() {
        check(&rollout(Some(0)), 0, true);
        check(&rollout(Some(1)), 250, true);
        // While the canary is scaled the weight of the step before is asked for.
        check(&rollout(Some(1)), 0, true);
        check(&rollout(Some(2)), 250, false);
        check(&rollout(Some(3)), 250, false);
    }

    #[test]
    fn for_the_switch_at_the_end() {
        check(&rollout(Some(4)), 1000, true);
        check(&rollout(Some(4)), 1200, true);
        check(&rollout(Some(4)), 250, false);
        check(&rollout(Some(2)), 1000, false);
        check(&rollout(None), 1000, true);
        check(&rollout(Some(-1)), 250, false);
    }

    #[test]
    fn not_while_nothing_is_rolled_out() {
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
}
