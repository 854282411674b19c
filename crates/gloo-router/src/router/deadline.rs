//! Deadline and priority of the requests of a call. Reading leaves time to write, and writing leaves time to reply.

use std::{future::Future, time::Duration};

use rollouts_rpc::{DesiredWeight, Rollout};
use route_store::{Priority, RequestContext};
use tokio::time::{Instant, timeout_at};

/// Fraction of the call's time after which nothing but tables is read. A table that takes the default request timeout, 3 of 5
/// s, leaves some of it.
const READING: f32 = 0.7;

/// Fraction of the call's time after which no table is read or written. The rest is for the reply.
const WRITING: f32 = 0.9;

/// The time by which a call has to be answered. A command has none, because a person can interrupt it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    begin: Instant,
    limit: Option<Duration>,
}

impl Deadline {
    /// Returns the deadline of a call that begins now.
    pub(super) fn of_call(limit: Option<Duration>) -> Self {
        Self {
            begin: Instant::now(),
            limit,
        }
    }

    /// Returns the context that the requests of the call share: their deadline and their `priority`.
    pub(super) fn context(self, priority: Priority) -> RequestContext {
        RequestContext {
            deadline: self.limit.map(|limit| self.begin + limit),
            priority,
        }
    }

    /// Waits for a request that reads something else than tables. Returns `None` if there is no time left.
    pub(super) async fn reading<T>(self, request: impl Future<Output = T>) -> Option<T> {
        self.part(READING, request).await
    }

    /// Waits for requests that read or write tables. Returns `None` if there is no time left.
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

/// Returns the priority of SetWeight's requests, before it is known what it writes.
pub(super) fn priority_of_weight(rollout: &Rollout, desired: DesiredWeight) -> Priority {
    if desired.value == 0 {
        priority_of_removal(rollout)
    } else {
        Priority::Call
    }
}

/// Returns the priority of a call that takes all traffic away from the canary.
///
/// The controller makes such calls again and again, also for every Rollout at rest. These change nothing, and must not delay
/// an abort.
pub(super) fn priority_of_removal(rollout: &Rollout) -> Priority {
    let weights = rollout.status.canary.weights.as_ref();
    // An abort may happen before the controller has recorded a weight.
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
    fn calls_that_take_traffic_from_a_canary_are_urgent() {
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
