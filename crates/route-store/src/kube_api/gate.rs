//! Admission of requests to one API server: the rate limit (budget) with its queue, and the circuit breaker.
//!
//! The budget is a token bucket. A request without a token waits in a queue that is ordered by priority, then by arrival.
//! It is rejected at once if its turn would come after its deadline. Both [`Budget`] and [`Breaker`] take the time as an
//! argument; [`Gate`] adds locks, waiting and log records.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::breaker::{Breaker, Pass, Verdict};
use crate::bucket::Bucket;
use crate::{Observer, Priority, RequestLimits, lock};

/// Admits the requests to one API server.
pub(super) struct Gate {
    /// Name of the API server in log records.
    name: String,
    /// The timeout of a request.
    pub(super) timeout: Duration,
    breaker: Mutex<Guarded>,
    budget: Option<Mutex<Budget>>,
    /// Notified when a request leaves the queue without a token, so that the others move up.
    left: Notify,
    /// Measures requests, waits and the breaker.
    pub(super) observer: Arc<dyn Observer>,
}

struct Guarded {
    breaker: Breaker,
    /// The last failure, for the errors of requests that are not sent.
    reason: Arc<str>,
}

/// Why a request has no answer although its client did not fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Rejection {
    /// The breaker is open; the reason is the last failure.
    #[error("not sent, because earlier requests failed: {0}")]
    Breaker(Arc<str>),
    /// The request's turn would come after its deadline.
    #[error("not sent, because of too many requests before it")]
    Budget,
    /// Its permit was withdrawn before it was sent.
    #[error("not sent, because a later call replaces it")]
    Withdrawn,
    /// Its time is over.
    #[error("no answer in time")]
    Late,
}

impl Gate {
    /// The gate of the API server `name`, whose requests have `timeout`.
    pub(super) fn new(
        name: String,
        timeout: Duration,
        limits: Option<RequestLimits>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let budget = limits.map(|it| Budget::new(it, Instant::now()));
        Self {
            name,
            timeout,
            breaker: Mutex::new(Guarded {
                breaker: Breaker::new(),
                reason: Arc::from(""),
            }),
            budget: budget.map(Mutex::new),
            left: Notify::new(),
            observer,
        }
    }

    /// Waits until a request may be sent, at most until `end`. [`judge`](Self::judge) must follow.
    pub(super) async fn enter(&self, priority: Priority, end: Instant) -> Result<Pass, Rejection> {
        // Before the wait for a token, so that a request to a failing API server fails at once.
        self.check(priority, Instant::now())?;
        self.wait_for_turn(priority, end).await?;
        let mut guarded = lock(&self.breaker);
        let pass = guarded.breaker.admit(priority, Instant::now());
        pass.ok_or_else(|| Rejection::Breaker(guarded.reason.clone()))
    }

    /// Tells the breaker what the outcome of a request shows. `reason` is one line, for a failure.
    pub(super) fn judge(&self, pass: Pass, verdict: Verdict, reason: String) {
        self.change_breaker(|guarded| {
            if verdict == Verdict::Failed {
                guarded.reason = reason.into();
            }
            guarded.breaker.judge(pass, verdict, Instant::now());
        });
    }

    /// Returns whether the breaker in its current state would let a request pass at `at`.
    pub(super) fn check(&self, priority: Priority, at: Instant) -> Result<(), Rejection> {
        let guarded = lock(&self.breaker);
        let passes = guarded.breaker.lets_pass(priority, at);
        let reason = || Rejection::Breaker(guarded.reason.clone());
        passes.then_some(()).ok_or_else(reason)
    }

    /// Closes the breaker, because a watch has received something from the API server.
    pub(super) fn answered(&self) {
        self.change_breaker(|guarded| guarded.breaker.answered());
    }

    async fn wait_for_turn(&self, priority: Priority, end: Instant) -> Result<(), Rejection> {
        let Some(budget) = &self.budget else {
            return Ok(());
        };
        let begin = Instant::now();
        let queued = Queued {
            budget,
            left: &self.left,
            ticket: lock(budget).join(priority),
        };
        let mut has_waited = false;
        let turn = loop {
            // Created before `serve` is called, so that no later notification is missed.
            let left = self.left.notified();
            let now = Instant::now();
            let Err(wait) = lock(budget).serve(queued.ticket, now) else {
                break Ok(());
            };
            has_waited = true;
            if now.checked_add(wait).is_none_or(|turn| turn > end) {
                break Err(Rejection::Budget);
            }
            let _ = timeout(wait, left).await;
        };
        drop(queued);
        if has_waited {
            self.observer.waited(begin.elapsed());
        }
        turn
    }

    /// Changes the breaker, and reports a transition while it is locked, so that reports have the order of the transitions.
    fn change_breaker(&self, change: impl FnOnce(&mut Guarded)) {
        let mut guarded = lock(&self.breaker);
        let was_open = guarded.breaker.is_open();
        change(&mut guarded);
        let is_open = guarded.breaker.is_open();
        if is_open == was_open {
            return;
        }
        let (name, reason) = (&self.name, &guarded.reason);
        if is_open {
            warn!("{name} fails every request; the breaker is open: {reason}");
        } else {
            info!("{name} answers again; the breaker is closed");
        }
        self.observer.breaker(is_open);
    }
}

/// A place in the queue of the budget. Dropping it leaves the queue.
struct Queued<'a> {
    budget: &'a Mutex<Budget>,
    left: &'a Notify,
    ticket: Ticket,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if lock(self.budget).waiting.remove(&self.ticket) {
            self.left.notify_waiters();
        }
    }
}

/// A place in the queue: priority, then order of arrival.
type Ticket = (Priority, u64);

/// A token bucket that serves its waiters in order of priority.
///
/// Example with 10 requests per second, a burst of 4 and no token left: an abort waits 100 ms. A call that waits behind it
/// waits 200 ms, of which 100 ms are for the abort.
#[derive(Debug)]
struct Budget {
    bucket: Bucket,
    /// Number of tokens that are kept for [`Priority::TowardStable`].
    reserve: f64,
    waiting: BTreeSet<Ticket>,
    next: u64,
}

impl Budget {
    fn new(limits: RequestLimits, now: Instant) -> Self {
        Self {
            bucket: Bucket::full(limits, now),
            // Rounded down, so that a burst of 1 reserves nothing.
            reserve: f64::from(limits.burst / 5),
            waiting: BTreeSet::new(),
            next: 0,
        }
    }

    /// Joins the queue.
    fn join(&mut self, priority: Priority) -> Ticket {
        let ticket = (priority, self.next);
        self.next += 1;
        self.waiting.insert(ticket);
        ticket
    }

    /// Takes a token for `ticket`, which leaves the queue. Otherwise returns how long it waits if no ticket joins or leaves
    /// in front of it.
    fn serve(&mut self, ticket: Ticket, now: Instant) -> Result<(), Duration> {
        let kept = match ticket.0 {
            Priority::TowardStable => 0.0,
            _ => self.reserve,
        };
        let in_front = self.waiting.range(..ticket).count();
        let wait = self.bucket.pause(1.0 + in_front as f64 + kept, now);
        if !wait.is_zero() {
            return Err(wait);
        }
        self.bucket.take(now);
        self.waiting.remove(&ticket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Call, Event, List, Repair, TowardStable};

    /// A budget, and the time to which the milliseconds of each step are relative.
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

        /// Serves `ticket` at `at`, or returns the milliseconds that it waits.
        fn serve(&mut self, ticket: Ticket, at: u64) -> Result<(), u128> {
            let now = self.start + Duration::from_millis(at);
            let served = self.budget.serve(ticket, now);
            served.map_err(|wait| wait.as_micros().div_ceil(1000))
        }

        /// Joins the queue, asks for a token at `at`, and leaves again.
        fn ask(&mut self, priority: Priority, at: u64) -> Result<(), u128> {
            let ticket = self.budget.join(priority);
            let served = self.serve(ticket, at);
            self.budget.waiting.remove(&ticket);
            served
        }

        /// Takes tokens at `at` until none is left, and returns their number.
        fn drain(&mut self, priority: Priority, at: u64) -> usize {
            (0..).take_while(|_| self.ask(priority, at).is_ok()).count()
        }
    }

    #[test]
    fn after_a_burst_requests_are_limited_per_second() {
        let mut test = Test::new(50.0, 100);
        assert_eq!(test.drain(TowardStable, 0), 100);
        assert_eq!(test.ask(TowardStable, 0), Err(20));
        assert_eq!(test.drain(TowardStable, 1000), 50);
        // Unused tokens are kept, up to one burst.
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
        // The reserved part fills up before others are served.
        assert_eq!(test.ask(Call, 0), Err(420));
    }

    #[test]
    fn a_burst_of_one_serves_all_priorities() {
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
    fn a_ticket_that_leaves_lets_the_others_move_up() {
        let mut test = Test::new(10.0, 1);
        test.drain(Call, 0);
        let first = test.budget.join(Call);
        let second = test.budget.join(Call);
        assert_eq!(test.serve(second, 0), Err(200));
        assert!(test.budget.waiting.remove(&first));
        assert!(!test.budget.waiting.remove(&first));
        assert_eq!(test.serve(second, 0), Err(100));
    }

    #[test]
    fn a_clock_that_goes_back_gives_no_tokens() {
        let mut test = Test::new(10.0, 1);
        test.drain(Call, 1000);
        assert_eq!(test.ask(Call, 500), Err(100));
        assert_eq!(test.ask(Call, 1000), Err(100));
    }

    /// A request is queued behind one that is cancelled after half a second.
    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_lets_the_next_one_move_up() {
        let limits = RequestLimits { qps: 1.0, burst: 1 };
        let name = "the API server".to_owned();
        let gate = Gate::new(name, Duration::from_secs(3), Some(limits), Arc::new(()));
        let begin = Instant::now();
        let end = begin + Duration::from_secs(60);
        assert!(gate.enter(Call, end).await.is_ok());
        let given_up = timeout(Duration::from_millis(500), gate.enter(Call, end));
        let next = async {
            tokio::task::yield_now().await;
            let entered = gate.enter(Call, end).await;
            (entered.is_ok(), begin.elapsed())
        };
        let (given_up, next) = tokio::join!(given_up, next);
        assert!(given_up.is_err());
        assert_eq!(next, (true, Duration::from_secs(1)));
    }
}
