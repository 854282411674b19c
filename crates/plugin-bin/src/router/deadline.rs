//! How the time of a call is divided: reading leaves time to write, and writing leaves time to answer.

use std::{future::Future, time::Duration};

use rollouts_rpc::{DesiredWeight, Rollout};
use route_store::{Priority, RequestContext};
use tokio::time::{Instant, timeout_at};

/// The part of the time after which nothing more is read beside the tables. A table that takes as long as one request may
/// take by default, 3 of 5 s, leaves some of it.
const READING: f32 = 0.7;

/// The part of the time after which no table is read or written. The answer has the rest.
const WRITING: f32 = 0.9;

/// When a call has to be answered; never for a command, which a person can interrupt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    begin: Instant,
    limit: Option<Duration>,
}

impl Deadline {
    /// The deadline of a call that begins now.
    pub(super) fn of_call(limit: Option<Duration>) -> Self {
        Self {
            begin: Instant::now(),
            limit,
        }
    }

    /// What the requests of the call share: they end before it does, and go in the order of `priority`.
    pub(super) fn context(self, priority: Priority) -> RequestContext {
        RequestContext {
            deadline: self.limit.map(|limit| self.begin + limit),
            priority,
        }
    }

    /// Waits for a request beside those for tables; `None` when there is no time left.
    pub(super) async fn reading<T>(self, request: impl Future<Output = T>) -> Option<T> {
        self.part(READING, request).await
    }

    /// Waits for requests that read or write tables; `None` when there is no time left.
    pub(super) async fn tables<T>(self, requests: impl Future<Output = T>) -> Option<T> {
        self.part(WRITING, requests).await
    }

    async fn part<T>(self, part: f32, work: impl Future<Output = T>) -> Option<T> {
        match self.limit {
            Some(limit) => timeout_at(self.begin + limit.mul_f32(part), work)
                .await
                .ok(),
            None => Some(work.await),
        }
    }
}

/// The requests of SetWeight, before it is known what it writes.
pub(super) fn priority_of_weight(rollout: &Rollout, desired: DesiredWeight) -> Priority {
    if desired.value == 0 {
        priority_of_removal(rollout)
    } else {
        Priority::Call
    }
}

/// The requests of a call that takes all traffic away from the canary.
///
/// The controller makes such calls for every Rollout at rest too, again and again. They find nothing to do, and must not be
/// in front of an abort.
pub(super) fn priority_of_removal(rollout: &Rollout) -> Priority {
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
        assert_eq!(priority_of_weight(&rollout, desired), expect);
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
