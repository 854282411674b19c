//! What a request passes before it is sent: the breaker and the budget of its API server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::breaker::{Breaker, Change, Pass, Verdict};
use crate::{Observer, Priority};

/// The gate in front of one API server.
pub(super) struct Gate {
    /// The API server in log records.
    name: String,
    /// An API server that was given less time has not failed because there is no answer.
    patience: Duration,
    breaker: Mutex<Guarded>,
    budget: Mutex<Budget>,
    /// A request has left the queue unserved.
    left: Notify,
    /// Hears of the requests too.
    pub(super) observer: Arc<dyn Observer>,
}

struct Guarded {
    breaker: Breaker,
    /// The last failure, for the errors of requests that are not sent.
    reason: Arc<str>,
}

/// Why a request is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shut {
    /// The API server fails; this was its last failure.
    Breaker(Arc<str>),
    /// The request's turn comes after its deadline.
    Budget,
}

impl Gate {
    /// A gate in front of the API server `name`, whose requests may take `timeout`.
    pub(super) fn new(name: String, limits: RequestLimits, timeout: Duration) -> Self {
        Self {
            name,
            patience: timeout.min(Duration::from_secs(1)),
            breaker: Mutex::new(Guarded {
                breaker: Breaker::new(),
                reason: Arc::from(""),
            }),
            budget: Mutex::new(Budget::new(limits, Instant::now())),
            left: Notify::new(),
            observer: Arc::new(()),
        }
    }

    /// Waits until a request may be sent, not beyond `end`.
    pub(super) async fn enter(
        &self,
        priority: Priority,
        end: Instant,
    ) -> Result<Entered<'_>, Shut> {
        // Before it waits for the budget: a request to an API server that fails must fail at once.
        self.check(priority, Instant::now())?;
        self.wait_for_turn(priority, end).await?;
        let mut guarded = self.breaker();
        let now = Instant::now();
        let pass = guarded.breaker.admit(priority, now);
        let pass = pass.ok_or_else(|| Shut::Breaker(guarded.reason.clone()))?;
        Ok(Entered {
            gate: self,
            pass,
            begin: now,
            verdict: None,
        })
    }

    /// Whether the breaker would let a request pass at a time, as far as is known now.
    pub(super) fn check(&self, priority: Priority, at: Instant) -> Result<(), Shut> {
        let guarded = self.breaker();
        if guarded.breaker.lets_pass(priority, at) {
            Ok(())
        } else {
            Err(Shut::Breaker(guarded.reason.clone()))
        }
    }

    /// A watch has heard from the API server.
    pub(super) fn heard(&self) {
        let mut guarded = self.breaker();
        let change = guarded.breaker.heard();
        self.report(&guarded, change);
    }

    async fn wait_for_turn(&self, priority: Priority, end: Instant) -> Result<(), Shut> {
        let begin = Instant::now();
        let ticket = self.budget().join(priority);
        let queued = Queued { gate: self, ticket };
        let mut has_waited = false;
        let turn = loop {
            // Before the budget is asked, so that no notification after that is missed.
            let left = self.left.notified();
            let now = Instant::now();
            let Err(wait) = self.budget().serve(ticket, now) else {
                break Ok(());
            };
            has_waited = true;
            if now.checked_add(wait).is_none_or(|turn| turn > end) {
                break Err(Shut::Budget);
            }
            let _ = timeout(wait, left).await;
        };
        drop(queued);
        if has_waited {
            self.observer.waited(begin.elapsed());
        }
        turn
    }

    fn judge(&self, pass: Pass, verdict: Verdict, reason: Option<String>) {
        let mut guarded = self.breaker();
        if let Some(reason) = reason {
            guarded.reason = reason.into();
        }
        let change = guarded.breaker.judge(pass, verdict, Instant::now());
        self.report(&guarded, change);
    }

    /// Under the lock, so that the last report is right.
    fn report(&self, guarded: &Guarded, change: Option<Change>) {
        let name = &self.name;
        match change {
            Some(Change::Opened) => {
                let reason = &guarded.reason;
                warn!("{name} fails every request, which are not sent for now: {reason}");
                self.observer.breaker(true);
            }
            Some(Change::Closed) => {
                info!("{name} answers again");
                self.observer.breaker(false);
            }
            None => {}
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Guarded> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue for the budget, given up when it is dropped.
struct Queued<'a> {
    gate: &'a Gate,
    ticket: Ticket,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.gate.budget().leave(self.ticket) {
            self.gate.left.notify_waiters();
        }
    }
}

/// A request that may be sent. How it ends is told to the breaker, also if it is dropped.
pub(super) struct Entered<'a> {
    gate: &'a Gate,
    pass: Pass,
    begin: Instant,
    verdict: Option<(Verdict, Option<String>)>,
}

impl Entered<'_> {
    /// The API server has answered something that is of use, or that says nothing about how it does.
    pub(super) fn answered(mut self, verdict: Verdict) {
        self.verdict = Some((verdict, None));
    }

    /// The API server has failed. `reason` is one line.
    pub(super) fn failed(mut self, reason: String) {
        self.verdict = Some((Verdict::Failed, Some(reason)));
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let (verdict, reason) = self.verdict.take().unwrap_or_else(|| {
            let time = self.begin.elapsed();
            if time < self.gate.patience {
                (Verdict::Unknown, None)
            } else {
                (Verdict::Failed, Some("no answer".to_owned()))
            }
        });
        self.gate.judge(self.pass, verdict, reason);
    }
}

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
type Ticket = (Priority, u64);

/// A token bucket whose waiters are served in the order of their priority.
#[derive(Debug)]
struct Budget {
    limits: RequestLimits,
    /// Requests that may be sent now.
    tokens: f64,
    /// When `tokens` was right.
    at: Instant,
    waiting: BTreeSet<Ticket>,
    next: u64,
}

impl Budget {
    fn new(limits: RequestLimits, now: Instant) -> Self {
        Self {
            limits,
            tokens: limits.burst.into(),
            at: now,
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

    /// Leaves the queue, with or without having been served. Returns whether the ticket was still waiting.
    fn leave(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket)
    }

    /// Serves `ticket`, which then has left the queue, or says how long it waits if nobody joins in front of it and nobody
    /// in front of it leaves.
    fn serve(&mut self, ticket: Ticket, now: Instant) -> Result<(), Duration> {
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

    /// When a request may be sent whose place in the queue is behind one that is given up after half a second.
    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_up_brings_the_next_one_forward() {
        let limits = RequestLimits { qps: 1.0, burst: 1 };
        let gate = Gate::new("the API server".into(), limits, Duration::from_secs(3));
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
