//! How urgent the requests of a call are.

use rollouts_rpc::{DesiredWeight, Rollout};
use route_store::Priority;

/// The requests of SetWeight, before it is known what it writes.
pub(super) fn of_weight(rollout: &Rollout, desired: DesiredWeight) -> Priority {
    if desired.value == 0 {
        of_removal(rollout)
    } else {
        Priority::Call
    }
}

/// The requests of a call that takes all traffic away from the canary.
///
/// The controller makes such calls for every Rollout at rest too, again and again. They find nothing to do, and must not be
/// in front of an abort.
pub(super) fn of_removal(rollout: &Rollout) -> Priority {
    let weights = rollout.status.canary.weights.as_ref();
    // An abort may come before the controller has recorded a weight.
    let has_traffic = weights.is_some_and(|weights| weights.canary.weight > 0);
    if has_traffic || rollout.status.is_updating() {
        Priority::TowardStable
    } else {
        Priority::Call
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(stable: &str, recorded: Option<i32>, value: i32, expect: Priority) {
        let weights = recorded.map(|weight| json!({"canary": {"weight": weight}}));
        let status =
            json!({"stableRS": stable, "currentPodHash": "c1", "canary": {"weights": weights}});
        let rollout: Rollout = serde_json::from_value(json!({"status": status})).unwrap();
        let desired = DesiredWeight { value, max: 100 };
        assert_eq!(of_weight(&rollout, desired), expect);
    }

    #[test]
    fn traffic_that_leaves_a_canary_is_urgent() {
        // A step, an abort before and after a weight was recorded, a promotion.
        check("s1", Some(25), 50, Priority::Call);
        check("s1", None, 0, Priority::TowardStable);
        check("s1", Some(25), 0, Priority::TowardStable);
        check("c1", Some(100), 0, Priority::TowardStable);
        // At rest, and before the first version is stable.
        check("c1", Some(0), 0, Priority::Call);
        check("c1", None, 0, Priority::Call);
        check("", None, 0, Priority::Call);
    }
}
