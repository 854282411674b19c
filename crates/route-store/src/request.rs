//! The caller's side of a request: its priority and deadline, and the observer that measures it.

use std::{fmt, time::Duration};

use tokio::time::Instant;

/// How urgent a request is. When an API server gets more requests than the budget allows, those with the smallest
/// priority in this order go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Takes traffic away from a canary, or reads what is needed for it: an abort, a rollback, the end of a rollout.
    TowardStable,
    /// Any other request of a call, which the controller waits for.
    #[default]
    Call,
    /// Repairs drift, or watches over a promotion.
    Repair,
    /// Restores what a Rollout that is gone has left behind.
    Collect,
    /// Fills a cache.
    List,
    /// Writes an Event object. Its failure says nothing about the API server, and no one waits for it.
    Event,
}

/// Travels with the requests that are made while a future runs, beside the arguments of the store: what Go's
/// `context.Context` is to client-go.
///
/// It belongs to the task. What [`tokio::spawn`] starts does not inherit it; wrap the spawned future in [`with_context`] too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// When the caller stops waiting; `None` if only the request's own timeout counts.
    pub deadline: Option<Instant>,
    /// How urgent the requests are.
    pub priority: Priority,
}

tokio::task_local! {
    static CONTEXT: RequestContext;
}

impl RequestContext {
    /// The context of the running future; without [`with_context`] the default one.
    #[must_use]
    pub fn current() -> Self {
        CONTEXT.try_with(|context| *context).unwrap_or_default()
    }
}

/// Runs `future` with `context`. As in Go, a deadline that is in force already is never extended; the priority is replaced.
pub async fn with_context<F: Future>(mut context: RequestContext, future: F) -> F::Output {
    let outer = RequestContext::current().deadline;
    context.deadline = [outer, context.deadline].into_iter().flatten().min();
    CONTEXT.scope(context, future).await
}

/// Hears of the requests of one [`KubeRouteStore`](crate::KubeRouteStore). Every method defaults to doing nothing.
///
/// The methods are called in the middle of a request: they must neither block nor panic.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// A request was sent and ended. A request that is sent three times is reported three times.
    fn request(&self, _request: &SentRequest) {}

    /// A request waited this long for its share of the budget, whether it was sent then or not. A
    /// request that did not wait is not reported.
    fn waited(&self, _time: Duration) {}

    /// The breaker opened (`true`: requests now fail at once), or it closed. It is closed at the start.
    fn breaker(&self, _is_open: bool) {}

    /// An object was changed by another writer between our read and our write of it. `kind` is for example `RouteTable`.
    fn conflict(&self, _kind: &'static str) {}
}

/// The observer that does nothing.
impl Observer for () {}

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// As RBAC names it: `get`, `list`, `watch`, `create`, `patch` or `delete`.
    pub verb: &'static str,
    /// The kind of the object, for example `RouteTable`.
    pub kind: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// From the first byte that was sent to the last one that was received. Of a watch, only the time until it was open.
    pub duration: Duration,
}

/// How a request ended. Shown as the value of a label: `200`, `connection`, `timeout`, `cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The API server answered with this HTTP status.
    Answered(u16),
    /// There was no connection, or it broke.
    Connection,
    /// The answer was not complete before the deadline.
    Timeout,
    /// The caller stopped waiting.
    Cancelled,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(code) => write!(f, "{code}"),
            Self::Connection => f.write_str("connection"),
            Self::Timeout => f.write_str("timeout"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(deadline: Option<Instant>, priority: Priority) -> RequestContext {
        RequestContext { deadline, priority }
    }

    async fn current() -> RequestContext {
        RequestContext::current()
    }

    #[tokio::test]
    async fn a_request_reads_the_context_of_its_task() {
        assert_eq!(current().await, context(None, Priority::Call));
        let event = context(None, Priority::Event);
        assert_eq!(with_context(event, current()).await, event);
        let spawned = with_context(event, async { tokio::spawn(current()).await.unwrap() });
        assert_eq!(spawned.await, RequestContext::default());
    }

    #[tokio::test]
    async fn an_inner_context_never_extends_the_deadline() {
        let now = Instant::now();
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        for (outer, inner, expect) in [
            (at(1), at(2), at(1)),
            (at(2), at(1), at(1)),
            (at(1), None, at(1)),
            (None, at(1), at(1)),
            (None, None, None),
        ] {
            let urgent = context(inner, Priority::TowardStable);
            let asked = with_context(
                context(outer, Priority::Call),
                with_context(urgent, current()),
            );
            assert_eq!(asked.await, context(expect, Priority::TowardStable));
        }
    }

    #[test]
    fn an_abort_is_the_most_urgent_and_an_event_the_least() {
        use Priority::{Call, Collect, Event, List, Repair, TowardStable};
        let mut all = [Event, List, Collect, Repair, Call, TowardStable];
        all.sort();
        assert_eq!(all, [TowardStable, Call, Repair, Collect, List, Event]);
    }
}
