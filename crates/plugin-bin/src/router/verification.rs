//! When an answer to VerifyWeight is of use.

use rollouts_rpc::{DesiredWeight, Rollout};

/// Whether the controller waits for the answer: at a step that sets a weight, and for the switch at the end.
///
/// It asks in every reconcile. Anywhere else "not verified" would only make it ask again every ten seconds, forever
/// (upstream `ShouldVerifyWeight` in utils/rollout/rolloututil.go). An abort does not wait. A step with
/// `setWeight: 0` beside a header or mirror route arrives without its zero and counts as one that sets no weight.
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
