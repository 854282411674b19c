//! What the requests to one API server report, for metrics.

use std::{fmt, time::Duration};

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
