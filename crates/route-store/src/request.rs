//! The caller's side of a request: its priority and deadline, and the observer that measures it.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::SetOnce;
use tokio::time::Instant;

/// The priority of a request. When requests wait for the budget of an API server, the smallest priority in this order is
/// served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Moves traffic from a canary to stable, or reads what that needs: an abort, a rollback, the end of a rollout.
    TowardStable,
    /// Any other request of a call, which the controller waits for.
    #[default]
    Call,
    /// Repairs drift, or guards a promotion.
    Repair,
    /// Restores the tables of a deleted Rollout.
    Collect,
    /// Fills a cache.
    List,
    /// Writes an Event object. No call waits for it, and its failure does not open the breaker.
    Event,
}

/// The priority and deadline of all requests that a future sends, like Go's `context.Context` in client-go.
///
/// It is a task-local value. A task that [`tokio::spawn`] starts does not inherit it; wrap the spawned future in
/// [`with_context`] too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// When the caller stops waiting; `None` if only the timeout of each request counts.
    pub deadline: Option<Instant>,
    /// The priority of the requests.
    pub priority: Priority,
}

/// Permission to send requests, which can be withdrawn. A request that is sent already is not affected.
#[derive(Clone, Debug, Default)]
pub struct Permit(Arc<SetOnce<()>>);

impl Permit {
    /// Withdraws the permission: from now on no request is sent with it.
    pub fn withdraw(&self) {
        // It may be withdrawn already.
        let _ = self.0.set(());
    }

    /// Waits until the permission is withdrawn. For stores whose requests wait before they are sent.
    pub async fn withdrawn(&self) {
        self.0.wait().await;
    }

    /// Returns the permit of the running future; without [`with_permit`] one that nobody withdraws.
    #[must_use]
    pub fn current() -> Self {
        PERMIT.try_with(Self::clone).unwrap_or_default()
    }
}

tokio::task_local! {
    static CONTEXT: RequestContext;
    static PERMIT: Permit;
}

/// Runs `future`, whose requests are sent only while `permit` is not withdrawn.
pub async fn with_permit<F: Future>(permit: Permit, future: F) -> F::Output {
    PERMIT.scope(permit, future).await
}

impl RequestContext {
    /// Returns the context of the running future; the default one without [`with_context`].
    #[must_use]
    pub fn current() -> Self {
        CONTEXT.try_with(|context| *context).unwrap_or_default()
    }
}

/// Runs `future` with `context`. As in Go, the earlier of the outer and the inner deadline counts; the inner priority
/// replaces the outer one.
pub async fn with_context<F: Future>(mut context: RequestContext, future: F) -> F::Output {
    let outer = RequestContext::current().deadline;
    context.deadline = [outer, context.deadline].into_iter().flatten().min();
    CONTEXT.scope(context, future).await
}

/// Runs `future` with this priority, and with the deadline that it has without it.
pub fn with_priority<F: Future>(priority: Priority, future: F) -> impl Future<Output = F::Output> {
    let deadline = None;
    with_context(RequestContext { deadline, priority }, future)
}

/// Measures the requests of one [`KubeRouteStore`](crate::KubeRouteStore). Every method does nothing by default.
///
/// The methods run during a request: they must neither block nor panic.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Called when a request ended that was sent. Each try of a request counts.
    fn request(&self, _request: &SentRequest) {}

    /// Called when a request waited this long for the budget, whether it was sent then or not. Not called for a request that
    /// did not wait.
    fn waited(&self, _time: Duration) {}

    /// Called when the breaker opened (`true`: requests now fail at once) or closed. It is closed at the start.
    fn breaker(&self, _is_open: bool) {}

    /// Called when another writer changed an object between our read and our write. `kind` is for example `RouteTable`.
    fn conflict(&self, _kind: &'static str) {}
}

/// The observer that does nothing.
impl Observer for () {}

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// The RBAC verb: `get`, `list`, `watch`, `create`, `patch` or `delete`.
    pub verb: &'static str,
    /// The kind of the object, for example `RouteTable`.
    pub kind: &'static str,
    /// The outcome.
    pub outcome: Outcome,
    /// The time from the first byte sent to the last byte received; for a watch, the time until it was open.
    pub duration: Duration,
}

/// The outcome of a request. `Display` writes the value of a metric's label: `200`, `connection`, `timeout`, `cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The API server answered with this HTTP status.
    Answered(u16),
    /// The connection could not be opened, or it broke.
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
