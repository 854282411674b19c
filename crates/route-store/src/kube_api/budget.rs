//! How many requests one API server gets, and which of them goes first.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use crate::Priority;

/// How many requests one API server gets. Watches are not counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestLimits {
    /// Requests per second, in the long run. Above 0.
    pub qps: f64,
    /// Requests at once, after a quiet time. At least 1. A fifth of it is kept for [`Priority::TowardStable`].
    pub burst: u32,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            qps: 50.0,
            burst: 100,
        }
    }
}

/// A place in the queue: those with a smaller priority are served first, and among equals those who came first.
pub(super) type Ticket = (Priority, u64);

/// A token bucket whose waiters are served in the order of their priority.
#[derive(Debug)]
pub(super) struct Budget {
    limits: RequestLimits,
    /// Requests that may be sent now.
    tokens: f64,
    /// When `tokens` was right.
    at: Instant,
    waiting: BTreeSet<Ticket>,
    next: u64,
}

impl Budget {
    pub(super) fn new(limits: RequestLimits, now: Instant) -> Self {
        Self {
            limits,
            tokens: limits.burst.into(),
            at: now,
            waiting: BTreeSet::new(),
            next: 0,
        }
    }

    /// Joins the queue.
    pub(super) fn join(&mut self, priority: Priority) -> Ticket {
        let ticket = (priority, self.next);
        self.next += 1;
        self.waiting.insert(ticket);
        ticket
    }

    /// Leaves the queue, with or without having been served. Returns whether the ticket was still waiting.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket)
    }

    /// Serves `ticket`, which then has left the queue, or says how long it waits if nobody joins in front of it and nobody
    /// in front of it leaves.
    pub(super) fn serve(&mut self, ticket: Ticket, now: Instant) -> Result<(), Duration> {
        self.refill(now);
        let (priority, _) = ticket;
        let in_front = self.waiting.range(..ticket).count();
        let missing = 1.0 + in_front as f64 + self.kept_from(priority) - self.tokens;
        // A sum of parts of tokens is not exact.
        if missing > 1e-6 {
            let wait = Duration::try_from_secs_f64(missing / self.limits.qps);
            return Err(wait.unwrap_or(Duration::MAX));
        }
        self.tokens -= 1.0;
        self.waiting.remove(&ticket);
        Ok(())
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let full = f64::from(self.limits.burst);
        self.tokens = full.min(self.tokens + passed * self.limits.qps);
        self.at = self.at.max(now);
    }

    /// Tokens that this priority leaves for more urgent requests.
    fn kept_from(&self, priority: Priority) -> f64 {
        match priority {
            Priority::TowardStable => 0.0,
            // Rounded down, so that a burst of 1 is not reserved forever.
            _ => f64::from(self.limits.burst / 5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Call, Event, List, Repair, TowardStable};

    /// A budget, and the time that its steps name in milliseconds.
    struct Test {
        budget: Budget,
        start: Instant,
    }

    impl Test {
        fn new(qps: f64, burst: u32) -> Self {
            let start = Instant::now();
            let budget = Budget::new(RequestLimits { qps, burst }, start);
            Self { budget, start }
        }

        /// Milliseconds that `ticket` waits when asked at `at`.
        fn serve(&mut self, ticket: Ticket, at: u64) -> Result<(), u128> {
            let now = self.start + Duration::from_millis(at);
            let served = self.budget.serve(ticket, now);
            served.map_err(|wait| wait.as_micros().div_ceil(1000))
        }

        /// The same for one who joins and leaves again unless it is served.
        fn ask(&mut self, priority: Priority, at: u64) -> Result<(), u128> {
            let ticket = self.budget.join(priority);
            let served = self.serve(ticket, at);
            self.budget.leave(ticket);
            served
        }

        /// How many requests are served at `at`.
        fn drain(&mut self, priority: Priority, at: u64) -> usize {
            (0..).take_while(|_| self.ask(priority, at).is_ok()).count()
        }
    }

    #[test]
    fn a_burst_and_then_so_many_per_second() {
        let mut test = Test::new(50.0, 100);
        assert_eq!(test.drain(TowardStable, 0), 100);
        assert_eq!(test.ask(TowardStable, 0), Err(20));
        assert_eq!(test.drain(TowardStable, 1000), 50);
        // What is not used is kept, up to one burst.
        assert_eq!(test.drain(TowardStable, 60_000), 100);
    }

    #[test]
    fn a_fifth_of_the_burst_is_kept_for_traffic_toward_stable() {
        for (priority, expect) in [(Call, 80), (List, 80), (Event, 80), (TowardStable, 100)] {
            assert_eq!(Test::new(50.0, 100).drain(priority, 0), expect);
        }
        let mut test = Test::new(50.0, 100);
        test.drain(Call, 0);
        assert_eq!(test.drain(TowardStable, 0), 20);
        // And it fills up before others are served.
        assert_eq!(test.ask(Call, 0), Err(420));
    }

    #[test]
    fn the_smallest_burst_serves_everybody() {
        let mut test = Test::new(0.5, 1);
        assert_eq!(test.ask(Event, 0), Ok(()));
        assert_eq!(test.ask(Event, 0), Err(2000));
        assert_eq!(test.ask(Event, 2000), Ok(()));
    }

    #[test]
    fn waiters_are_served_in_order_of_priority() {
        let mut test = Test::new(10.0, 4);
        test.drain(TowardStable, 0);
        let event = test.budget.join(Event);
        let first = test.budget.join(Call);
        let second = test.budget.join(Call);
        let repair = test.budget.join(Repair);
        let abort = test.budget.join(TowardStable);
        let order = [abort, first, second, repair, event];
        for (ticket, expect) in order.iter().zip([100, 200, 300, 400, 500]) {
            assert_eq!(test.serve(*ticket, 0), Err(expect));
        }
        // With one token at a time only the first is served.
        for (at, served) in [100, 200, 300, 400, 500].into_iter().zip(order) {
            let waiting: Vec<Ticket> = test.budget.waiting.iter().rev().copied().collect();
            for ticket in waiting {
                let expect = ticket == served;
                assert_eq!(test.serve(ticket, at).is_ok(), expect, "{ticket:?} at {at}");
            }
        }
    }

    #[test]
    fn one_who_leaves_lets_the_others_move_up() {
        let mut test = Test::new(10.0, 1);
        test.drain(Call, 0);
        let first = test.budget.join(Call);
        let second = test.budget.join(Call);
        assert_eq!(test.serve(second, 0), Err(200));
        assert!(test.budget.leave(first));
        assert!(!test.budget.leave(first));
        assert_eq!(test.serve(second, 0), Err(100));
    }

    #[test]
    fn a_clock_that_seems_to_go_back_gives_no_tokens() {
        let mut test = Test::new(10.0, 1);
        test.drain(Call, 1000);
        assert_eq!(test.ask(Call, 500), Err(100));
        assert_eq!(test.ask(Call, 1000), Err(100));
    }
}
