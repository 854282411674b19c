//! The circuit breaker of one API server. It has no clock: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::Priority;

/// Number of consecutive failures that open the breaker.
const FAILURES: u32 = 5;
/// The pause before the first probe. It doubles with each failed probe.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// While the breaker is open, one request toward stable may pass in each such interval.
const URGENT_PAUSE: Duration = Duration::from_secs(1);

/// Stops requests to a failing API server, so that calls fail at once instead of waiting for a timeout.
///
/// ```text
///           5 consecutive failures
///  Closed ---------------------------> Open: one probe after 1, 2, 4, 8, 10, 10 ... s,
///    ^                                  |    one request toward stable each second
///    +----------------------------------+
///      an answer other than 5xx and 429, or an event of a watch
/// ```
#[derive(Debug)]
pub(super) enum Breaker {
    Closed { failures: u32 },
    Open(Open),
}

#[derive(Debug)]
pub(super) struct Open {
    /// The time between the last probe and the next.
    pause: Duration,
    probe_at: Instant,
    /// Whether a probe is in flight.
    is_probing: bool,
    urgent_at: Instant,
}

/// Permission to send a request, by its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The breaker is closed, or this is the request toward stable of this second.
    Usual,
    /// The request tests whether the API server has recovered.
    Probe,
    /// The request lists objects or writes an Event object, and its outcome is ignored.
    Unjudged,
}

/// The state of the API server as the outcome of a request shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The API server answers.
    Healthy,
    /// It does not answer, or answers that it cannot serve.
    Failed,
    /// The outcome shows neither, for example because the caller cancelled the request.
    Unknown,
}

impl Breaker {
    pub(super) const fn new() -> Self {
        Self::Closed { failures: 0 }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// Returns whether a request may pass at `now`, without a change of the state.
    pub(super) fn lets_pass(&self, priority: Priority, now: Instant) -> bool {
        match self {
            Self::Closed { .. } => true,
            Self::Open(open) => open.pass(priority, now).is_some(),
        }
    }

    /// Permits a request; `None` if it must not be sent. [`judge`](Self::judge) must follow each permission.
    pub(super) fn admit(&mut self, priority: Priority, now: Instant) -> Option<Pass> {
        let Self::Open(open) = self else {
            // A list is the heaviest request, and the first to fail: others may be answered all the same.
            return Some(match priority {
                Priority::Event | Priority::List => Pass::Unjudged,
                _ => Pass::Usual,
            });
        };
        let pass = open.pass(priority, now)?;
        match pass {
            Pass::Probe => open.is_probing = true,
            Pass::Usual | Pass::Unjudged => open.urgent_at = now + URGENT_PAUSE,
        }
        Some(pass)
    }

    /// Updates the state with the outcome of a request that [`admit`](Self::admit) permitted.
    pub(super) fn judge(&mut self, pass: Pass, verdict: Verdict, now: Instant) {
        match (&mut *self, verdict) {
            _ if pass == Pass::Unjudged => {}
            (_, Verdict::Healthy) => *self = Self::new(),
            (Self::Closed { failures }, Verdict::Failed) => {
                *failures += 1;
                if *failures == FAILURES {
                    *self = Self::Open(Open {
                        pause: FIRST_PAUSE,
                        probe_at: now + FIRST_PAUSE,
                        is_probing: false,
                        urgent_at: now,
                    });
                }
            }
            // Another request was sent before it opened, or toward stable: it must not delay the probe.
            (Self::Open(open), _) if pass == Pass::Probe => {
                if verdict == Verdict::Failed {
                    open.pause = LONGEST_PAUSE.min(open.pause * 2);
                }
                open.is_probing = false;
                open.probe_at = now + open.pause;
            }
            _ => {}
        }
    }

    /// Closes the breaker, because a watch has received something from the API server.
    pub(super) fn answered(&mut self) {
        // While closed, failures of requests still count: a healthy watch does not reset them.
        if self.is_open() {
            *self = Self::new();
        }
    }
}

impl Open {
    fn pass(&self, priority: Priority, now: Instant) -> Option<Pass> {
        let probe = !self.is_probing && now >= self.probe_at && priority != Priority::Event;
        let urgent = priority == Priority::TowardStable && now >= self.urgent_at;
        probe
            .then_some(Pass::Probe)
            .or(urgent.then_some(Pass::Usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Call, Event, List, TowardStable};
    use Verdict::{Failed, Healthy, Unknown};

    /// A transition of the breaker.
    #[derive(Debug, PartialEq)]
    enum Change {
        Opened,
        Closed,
    }

    /// A breaker, and the time to which the milliseconds of each step are relative.
    struct Test {
        breaker: Breaker,
        start: Instant,
    }

    impl Test {
        fn new() -> Self {
            Self {
                breaker: Breaker::new(),
                start: Instant::now(),
            }
        }

        /// A breaker that opened at 0 ms.
        fn open() -> Self {
            let mut test = Self::new();
            for _ in 1..FAILURES {
                assert_eq!(test.send(Call, Failed, 0), Some(None));
            }
            assert_eq!(test.send(Call, Failed, 0), Some(Some(Change::Opened)));
            test
        }

        fn admit(&mut self, priority: Priority, at: u64) -> Option<Pass> {
            let now = self.start + Duration::from_millis(at);
            let may_pass = self.breaker.lets_pass(priority, now);
            let pass = self.breaker.admit(priority, now);
            assert_eq!(may_pass, pass.is_some());
            pass
        }

        fn judge(&mut self, pass: Pass, verdict: Verdict, at: u64) -> Option<Change> {
            let now = self.start + Duration::from_millis(at);
            self.changed(|breaker| breaker.judge(pass, verdict, now))
        }

        fn answered(&mut self) -> Option<Change> {
            self.changed(Breaker::answered)
        }

        fn changed(&mut self, change: impl FnOnce(&mut Breaker)) -> Option<Change> {
            let was_open = self.breaker.is_open();
            change(&mut self.breaker);
            match (was_open, self.breaker.is_open()) {
                (false, true) => Some(Change::Opened),
                (true, false) => Some(Change::Closed),
                _ => None,
            }
        }

        /// Sends a request that ends at once. Returns `None` if it may not pass, else the transition.
        fn send(
            &mut self,
            priority: Priority,
            verdict: Verdict,
            at: u64,
        ) -> Option<Option<Change>> {
            let pass = self.admit(priority, at)?;
            Some(self.judge(pass, verdict, at))
        }

        /// Sends requests at 0 ms that fail.
        fn fail(&mut self, times: u32) {
            for _ in 0..times {
                self.send(Call, Failed, 0);
            }
        }

        /// Tries a failing request each 100 ms up to `until`, and returns the times at which one passed.
        fn passed(&mut self, priority: Priority, until: u64) -> Vec<u64> {
            let times = (0..=until / 100).map(|tenth| tenth * 100);
            let passed = times.filter(|at| self.send(priority, Failed, *at).is_some());
            passed.collect()
        }
    }

    #[test]
    fn lists_that_fail_do_not_open_it() {
        let mut test = Test::new();
        for _ in 0..2 * FAILURES {
            assert_eq!(test.send(List, Failed, 0), Some(None));
        }
        assert_eq!(test.admit(Call, 0), Some(Pass::Usual));
    }

    #[test]
    fn five_consecutive_failures_open_it() {
        let mut test = Test::new();
        for verdict in [
            Failed, Failed, Failed, Failed, Healthy, Failed, Failed, Failed,
        ] {
            assert_eq!(test.send(Call, verdict, 0), Some(None));
        }
        // An unknown outcome does not reset the count.
        assert_eq!(test.send(Call, Unknown, 0), Some(None));
        assert_eq!(test.send(Call, Failed, 0), Some(None));
        assert_eq!(test.send(Call, Failed, 0), Some(Some(Change::Opened)));
        assert_eq!(test.send(Call, Failed, 0), None);
    }

    #[test]
    fn one_probe_after_a_pause_that_doubles_up_to_ten_seconds() {
        let passed = Test::open().passed(Call, 45_000);
        assert_eq!(passed, [1000, 3000, 7000, 15_000, 25_000, 35_000, 45_000]);
    }

    #[test]
    fn one_probe_at_a_time() {
        let mut test = Test::open();
        assert_eq!(test.admit(Call, 1000), Some(Pass::Probe));
        assert_eq!(test.admit(Call, 60_000), None);
        // The caller cancelled the probe: the next one follows after the same pause.
        assert_eq!(test.judge(Pass::Probe, Unknown, 60_000), None);
        assert_eq!(test.admit(Call, 60_999), None);
        assert_eq!(test.admit(List, 61_000), Some(Pass::Probe));
    }

    #[test]
    fn a_success_closes_it() {
        let mut test = Test::open();
        assert_eq!(test.send(Call, Healthy, 1000), Some(Some(Change::Closed)));
        assert_eq!(test.send(Call, Failed, 1000), Some(None));
        // A request that was sent before it opened closes it too.
        let mut test = Test::new();
        let early = test.admit(Call, 0).unwrap();
        test.fail(FAILURES);
        assert_eq!(test.judge(early, Healthy, 10), Some(Change::Closed));
    }

    #[test]
    fn failures_of_requests_in_flight_do_not_delay_the_probe() {
        let mut test = Test::new();
        let early = test.admit(Call, 0).unwrap();
        test.fail(FAILURES);
        assert_eq!(test.judge(early, Failed, 999), None);
        assert_eq!(test.admit(Call, 1000), Some(Pass::Probe));
    }

    #[test]
    fn an_event_of_a_watch_closes_it() {
        let mut test = Test::open();
        assert_eq!(test.answered(), Some(Change::Closed));
        assert_eq!(test.answered(), None);
        assert_eq!(test.admit(Call, 0), Some(Pass::Usual));
        // While it is closed, the count of failures continues.
        let mut test = Test::new();
        test.fail(FAILURES - 1);
        assert_eq!(test.answered(), None);
        assert_eq!(test.send(Call, Failed, 0), Some(Some(Change::Opened)));
    }

    #[test]
    fn a_request_toward_stable_passes_once_per_second() {
        let mut test = Test::open();
        assert_eq!(
            test.passed(TowardStable, 3500),
            // At 1000 and 3000 it is the probe, which does not use up the second.
            [0, 1000, 1100, 2100, 3000, 3100]
        );
        assert_eq!(
            test.send(TowardStable, Healthy, 4100),
            Some(Some(Change::Closed))
        );
    }

    #[test]
    fn events_neither_count_nor_probe() {
        let mut test = Test::new();
        for _ in 0..2 * FAILURES {
            assert_eq!(test.send(Event, Failed, 0), Some(None));
        }
        test.fail(FAILURES - 1);
        assert_eq!(test.send(Event, Healthy, 0), Some(None));
        assert_eq!(test.send(Call, Failed, 0), Some(Some(Change::Opened)));
        assert_eq!(test.send(Event, Healthy, 5000), None);
    }
}
