//! What a request passes before it is sent: the breaker and the budget of its API server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::breaker::{Breaker, Change, Pass, Verdict};
use super::budget::{Budget, RequestLimits, Ticket};
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

#[cfg(test)]
mod tests {
    use super::*;

    /// When a request may be sent whose place in the queue is behind one that is given up after half a second.
    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_up_brings_the_next_one_forward() {
        let limits = RequestLimits { qps: 1.0, burst: 1 };
        let gate = Gate::new("the API server".into(), limits, Duration::from_secs(3));
        let begin = Instant::now();
        let end = begin + Duration::from_secs(60);
        assert!(gate.enter(Priority::Call, end).await.is_ok());
        let given_up = timeout(Duration::from_millis(500), gate.enter(Priority::Call, end));
        let next = async {
            tokio::task::yield_now().await;
            let entered = gate.enter(Priority::Call, end).await;
            (entered.is_ok(), begin.elapsed())
        };
        let (given_up, next) = tokio::join!(given_up, next);
        assert!(given_up.is_err());
        assert_eq!(next, (true, Duration::from_secs(1)));
    }
}
