//! When an API server that fails is not asked any more, and when it is asked again.

use std::time::Duration;

use tokio::time::Instant;

use crate::Priority;

/// So many failures in a row open the breaker.
const FAILURES: u32 = 5;
/// The pause before the first probe. It doubles with each probe that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// While it is open, one request toward stable may pass in this time.
const URGENT_PAUSE: Duration = Duration::from_secs(1);

/// Stops requests to an API server that fails, so that calls fail at once instead of waiting for it.
///
/// Closed, it lets every request pass. [`FAILURES`] in a row open it. Open, it lets one probe pass after 1, 2, 4, 8, 10,
/// 10 … seconds, and a request toward stable once per second. Any success closes it.
#[derive(Debug)]
pub(super) enum Breaker {
    Closed { failures: u32 },
    Open(Open),
}

#[derive(Debug)]
pub(super) struct Open {
    /// Between the last probe and the next.
    pause: Duration,
    probe_at: Instant,
    /// Whether the answer to a probe is awaited.
    is_probing: bool,
    urgent_at: Instant,
}

/// Why a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The breaker is closed, or the request toward stable is the one of this second.
    Usual,
    /// To see whether the API server is well again.
    Probe,
    /// An Event object: its outcome means nothing here.
    Unjudged,
}

/// What a request says about the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It answers.
    Well,
    /// It does not, or only that it cannot.
    Failed,
    Unknown,
}

/// The breaker has just opened or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    Closed,
}

impl Breaker {
    pub(super) const fn new() -> Self {
        Self::Closed { failures: 0 }
    }

    /// Whether a request may pass now. Changes nothing.
    pub(super) fn lets_pass(&self, priority: Priority, now: Instant) -> bool {
        match self {
            Self::Closed { .. } => true,
            Self::Open(open) => open.pass(priority, now).is_some(),
        }
    }

    /// Lets a request pass, or not. One that passes has to be [`judge`](Self::judge)d.
    pub(super) fn admit(&mut self, priority: Priority, now: Instant) -> Option<Pass> {
        let Self::Open(open) = self else {
            return Some(match priority {
                Priority::Event => Pass::Unjudged,
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

    /// Takes note of how a request that passed ended.
    pub(super) fn judge(&mut self, pass: Pass, verdict: Verdict, now: Instant) -> Option<Change> {
        if pass == Pass::Unjudged {
            return None;
        }
        if verdict == Verdict::Well {
            let was_open = matches!(self, Self::Open(_));
            *self = Self::new();
            return was_open.then_some(Change::Closed);
        }
        match self {
            Self::Closed { failures } if verdict == Verdict::Failed => {
                *failures += 1;
                if *failures < FAILURES {
                    return None;
                }
                *self = Self::Open(Open {
                    pause: FIRST_PAUSE,
                    probe_at: now + FIRST_PAUSE,
                    is_probing: false,
                    urgent_at: now,
                });
                Some(Change::Opened)
            }
            Self::Open(open) if pass == Pass::Probe => {
                if verdict == Verdict::Failed {
                    open.pause = LONGEST_PAUSE.min(open.pause * 2);
                }
                open.is_probing = false;
                open.probe_at = now + open.pause;
                None
            }
            Self::Closed { .. } | Self::Open(_) => None,
        }
    }

    /// A watch has heard from the API server.
    pub(super) fn heard(&mut self) -> Option<Change> {
        // While it is closed the failures of requests count, however well watches are.
        let is_open = matches!(self, Self::Open(_));
        is_open.then(|| {
            *self = Self::new();
            Change::Closed
        })
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
    use Verdict::{Failed, Unknown, Well};

    /// A breaker, and the time that its steps name in milliseconds.
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

        /// One that opened at 0.
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
            self.breaker.judge(pass, verdict, now)
        }

        /// A request that ends at once: `None` if it does not pass, else what it changes.
        fn send(
            &mut self,
            priority: Priority,
            verdict: Verdict,
            at: u64,
        ) -> Option<Option<Change>> {
            let pass = self.admit(priority, at)?;
            Some(self.judge(pass, verdict, at))
        }

        /// Failures at 0.
        fn fail(&mut self, times: u32) {
            for _ in 0..times {
                self.send(Call, Failed, 0);
            }
        }

        /// When requests passed of one each 100 ms up to `until`, all of which fail.
        fn passed(&mut self, priority: Priority, until: u64) -> Vec<u64> {
            let times = (0..=until / 100).map(|tenth| tenth * 100);
            let passed = times.filter(|at| self.send(priority, Failed, *at).is_some());
            passed.collect()
        }
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        let mut test = Test::new();
        for verdict in [Failed, Failed, Failed, Failed, Well, Failed, Failed, Failed] {
            assert_eq!(test.send(Call, verdict, 0), Some(None));
        }
        // What says nothing does not interrupt the row.
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
        // The caller stopped waiting: the next probe follows after the same pause.
        assert_eq!(test.judge(Pass::Probe, Unknown, 60_000), None);
        assert_eq!(test.admit(Call, 60_999), None);
        assert_eq!(test.admit(List, 61_000), Some(Pass::Probe));
    }

    #[test]
    fn a_success_closes_it() {
        let mut test = Test::open();
        assert_eq!(test.send(Call, Well, 1000), Some(Some(Change::Closed)));
        assert_eq!(test.send(Call, Failed, 1000), Some(None));
        // A request that was sent before it opened tells as much.
        let mut test = Test::new();
        let early = test.admit(Call, 0).unwrap();
        test.fail(FAILURES);
        assert_eq!(test.judge(early, Well, 10), Some(Change::Closed));
    }

    #[test]
    fn failures_of_requests_that_were_on_their_way_do_not_delay_the_probe() {
        let mut test = Test::new();
        let early = test.admit(Call, 0).unwrap();
        test.fail(FAILURES);
        assert_eq!(test.judge(early, Failed, 999), None);
        assert_eq!(test.admit(Call, 1000), Some(Pass::Probe));
    }

    #[test]
    fn a_watch_that_hears_something_closes_it() {
        let mut test = Test::open();
        assert_eq!(test.breaker.heard(), Some(Change::Closed));
        assert_eq!(test.breaker.heard(), None);
        assert_eq!(test.admit(Call, 0), Some(Pass::Usual));
        // While it is closed the row of failures goes on.
        let mut test = Test::new();
        test.fail(FAILURES - 1);
        assert_eq!(test.breaker.heard(), None);
        assert_eq!(test.send(Call, Failed, 0), Some(Some(Change::Opened)));
    }

    #[test]
    fn a_request_toward_stable_passes_once_per_second() {
        let mut test = Test::open();
        assert_eq!(
            test.passed(TowardStable, 3500),
            // At 1000 and 3000 as the probe, which does not count.
            [0, 1000, 1100, 2100, 3000, 3100]
        );
        assert_eq!(
            test.send(TowardStable, Well, 4100),
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
        assert_eq!(test.send(Event, Well, 0), Some(None));
        assert_eq!(test.send(Call, Failed, 0), Some(Some(Change::Opened)));
        assert_eq!(test.send(Event, Well, 5000), None);
    }
}
