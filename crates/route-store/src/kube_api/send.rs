//! Sending one request: its deadline, its tries, what an answer becomes, and what it says about the API server.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::breaker::Verdict;
use super::gate::Shut;
use super::retry::{self, Failure};
use super::{Call, HttpRequest, KubeRouteStore, RequestError};
use crate::{Observer, Outcome, RequestContext, SentRequest, StoreError};

/// An error that the API server answered with and nothing here expects, as the source of [`StoreError::Unreachable`].
#[derive(Debug, thiserror::Error)]
#[error("the API server answered {code}{}", detail(.message))]
pub(super) struct Answered {
    pub(super) code: u16,
    pub(super) message: String,
}

impl From<&Status> for Answered {
    fn from(status: &Status) -> Self {
        Self {
            code: status.code,
            message: status.message.clone(),
        }
    }
}

impl Answered {
    /// The unexpected answer that an error carries.
    pub(super) fn of(error: &StoreError) -> Option<&Self> {
        match error {
            StoreError::Unreachable { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }
}

/// Whether the API server returned an error, or answers but must not be sent more: the next try has to wait longer.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout { .. } | StoreError::CallEnded { .. } | StoreError::Failing { .. } => {
            false
        }
        StoreError::Unreachable { .. } => Answered::of(error).is_some(),
        StoreError::Throttled { .. }
        | StoreError::NotFound { .. }
        | StoreError::Conflict(_)
        | StoreError::Rejected { .. }
        | StoreError::Forbidden { .. }
        | StoreError::Unreadable { .. } => true,
    }
}

/// What the API server said, if anything.
fn detail(message: &str) -> String {
    let line = one_line(message);
    if line.is_empty() {
        line
    } else {
        format!(": {line}")
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Why there is no answer of use.
enum Refused {
    Client(kube::Error),
    Answered {
        status: Box<Status>,
        after: Option<Duration>,
    },
}

/// What is left of a call after its last request: the time to answer the controller.
const RESERVE: Duration = Duration::from_millis(100);

impl KubeRouteStore {
    /// Sends a request as [`send_for_bytes`](Self::send_for_bytes) does, and parses the answer.
    pub(super) async fn send(
        &self,
        call: &Call,
        request: Result<HttpRequest, RequestError>,
    ) -> Result<Value, StoreError> {
        let answer = self.send_for_bytes(call, request).await?;
        serde_json::from_slice(&answer).map_err(|error| call.failed(kube::Error::SerdeError(error)))
    }

    /// Sends a request, again if that can help, within the time that the request and [`RequestContext`] leave. It waits for
    /// its share of the budget, and is not sent while the breaker is open.
    pub(super) async fn send_for_bytes(
        &self,
        call: &Call,
        request: Result<HttpRequest, RequestError>,
    ) -> Result<Bytes, StoreError> {
        let request = request.map_err(|error| call.unreachable(error))?;
        let context = RequestContext::current();
        let limit = Limit::new(&context, Instant::now(), self.access.request_timeout);
        let end = limit.end();
        if end <= Instant::now() {
            return Err(call.late(limit));
        }
        let client = timeout_at(end, self.client()).await;
        let client = client.map_err(|_| call.late(limit))?;
        let client = client.map_err(|error| call.unreachable(error))?;
        let mut tries = 1;
        let mut last = None;
        loop {
            let entered = match self.gate.enter(context.priority, end).await {
                Ok(entered) => entered,
                // What the API server answered says more.
                Err(shut) => return Err(last.unwrap_or_else(|| call.not_sent(shut))),
            };
            let asked = self.ask(client, call, request.clone(), end);
            let Ok(asked) = timeout_at(end, asked).await else {
                return Err(call.late(limit));
            };
            let refused = match asked {
                Ok(answer) => {
                    entered.answered(Verdict::Well);
                    return Ok(answer);
                }
                Err(refused) => refused,
            };
            let left = end.saturating_duration_since(Instant::now());
            let pause = refused.failure().and_then(|failure| {
                retry::pause(request.method(), failure, tries, left, fastrand::f64())
            });
            match refused.verdict(left) {
                Verdict::Failed => entered.failed(refused.reason()),
                verdict => entered.answered(verdict),
            }
            let error = refused.into_error(call);
            let may_pass = |pause: &Duration| {
                let at = Instant::now() + *pause;
                self.gate.check(context.priority, at).is_ok()
            };
            let Some(pause) = pause.filter(may_pass) else {
                if matches!(error, StoreError::Conflict(_)) {
                    self.gate.observer.conflict(call.kind);
                }
                return Err(error);
            };
            last = Some(error);
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// Sends a request once.
    async fn ask(
        &self,
        client: &Client,
        call: &Call,
        request: HttpRequest,
        end: Instant,
    ) -> Result<Bytes, Refused> {
        let mut sent = self.sent(call, end);
        let response = client.send(request.map(Body::from)).await;
        let response = response.map_err(|error| sent.broke(error))?;
        let (head, body) = Response::into_parts(response);
        let body = body.collect().await.map_err(|error| sent.broke(error))?;
        sent.outcome = Some(Outcome::Answered(head.status.as_u16()));
        drop(sent);
        let body = body.to_bytes();
        if head.status.is_client_error() || head.status.is_server_error() {
            let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
                let text = String::from_utf8_lossy(&body);
                Status::failure(&text, "").with_code(head.status.as_u16())
            });
            let after = retry_after(&head.headers, &status);
            let status = Box::new(status);
            return Err(Refused::Answered { status, after });
        }
        Ok(body)
    }

    /// A request that is sent now, and has until `end`.
    pub(super) fn sent<'a>(&'a self, call: &'a Call, end: Instant) -> Sent<'a> {
        Sent {
            call,
            observer: self.gate.observer.as_ref(),
            begin: Instant::now(),
            end,
            outcome: None,
        }
    }

    /// Waits for `answer` as long as a request may take, and `longer`.
    pub(super) async fn within<T>(
        &self,
        call: &Call,
        longer: Duration,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let after = self.access.request_timeout + longer;
        let answer = tokio::time::timeout(after, answer);
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::Timeout {
                verb: call.verb,
                what: call.what.clone(),
                after,
            })
        })
    }
}

/// How long a request may take.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// Its own timeout ends it.
    Timeout { end: Instant, after: Duration },
    /// The caller stops waiting before.
    Call { end: Instant },
}

impl Limit {
    /// The limit of a request that begins now.
    fn new(context: &RequestContext, now: Instant, timeout: Duration) -> Self {
        let of_timeout = Self::Timeout {
            end: now + timeout,
            after: timeout,
        };
        let Some(deadline) = context.deadline else {
            return of_timeout;
        };
        let end = deadline.checked_sub(RESERVE).unwrap_or(now);
        if end < now + timeout {
            Self::Call { end }
        } else {
            of_timeout
        }
    }

    fn end(self) -> Instant {
        match self {
            Self::Timeout { end, .. } | Self::Call { end } => end,
        }
    }
}

impl Call {
    fn late(&self, limit: Limit) -> StoreError {
        let (verb, what) = (self.verb, self.what.clone());
        match limit {
            Limit::Timeout { after, .. } => StoreError::Timeout { verb, what, after },
            Limit::Call { .. } => StoreError::CallEnded { verb, what },
        }
    }

    fn not_sent(&self, shut: Shut) -> StoreError {
        let (verb, what) = (self.verb, self.what.clone());
        match shut {
            Shut::Breaker(reason) => StoreError::Failing { verb, what, reason },
            Shut::Budget => StoreError::Throttled { verb, what },
        }
    }
}

/// A request that is under way. It tells the observer when it ends, also if it is dropped.
pub(super) struct Sent<'a> {
    call: &'a Call,
    observer: &'a dyn Observer,
    begin: Instant,
    end: Instant,
    /// `None` while there is no answer.
    pub(super) outcome: Option<Outcome>,
}

impl Sent<'_> {
    /// There was no connection, or it broke.
    fn broke(&mut self, error: kube::Error) -> Refused {
        self.outcome = Some(Outcome::Connection);
        Refused::Client(error)
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let without_answer = if now < self.end {
            Outcome::Cancelled
        } else {
            Outcome::Timeout
        };
        self.observer.request(&SentRequest {
            verb: self.call.verb,
            kind: self.call.kind,
            outcome: self.outcome.unwrap_or(without_answer),
            duration: now - self.begin,
        });
    }
}

impl Refused {
    /// What decides about another try; `None` for what another try would not change.
    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Answered { status, after } => {
                let code = http::StatusCode::from_u16(status.code).ok()?;
                Some(Failure::Answered(code, *after))
            }
            Self::Client(kube::Error::HyperError(_) | kube::Error::Service(_)) => {
                Some(Failure::Connection)
            }
            Self::Client(_) => None,
        }
    }

    /// What it says about the API server, if a pause of `left` still fits.
    fn verdict(&self, left: Duration) -> Verdict {
        match self {
            Self::Answered { status, after } => match status.code {
                500.. => Verdict::Failed,
                429 if after.is_some_and(|after| after >= left) => Verdict::Failed,
                429 => Verdict::Unknown,
                _ => Verdict::Well,
            },
            Self::Client(_) if self.failure().is_some() => Verdict::Failed,
            // It has answered, if not what was expected.
            Self::Client(_) => Verdict::Well,
        }
    }

    /// The cause in one line.
    fn reason(&self) -> String {
        match self {
            Self::Client(error) => {
                let mut cause: &dyn std::error::Error = error;
                while let Some(source) = cause.source() {
                    cause = source;
                }
                one_line(&cause.to_string())
            }
            Self::Answered { status, .. } => Answered::from(status.as_ref()).to_string(),
        }
    }

    fn into_error(self, call: &Call) -> StoreError {
        match self {
            Self::Client(error) => call.failed(error),
            Self::Answered { status, .. } => call.failed(kube::Error::Api(status)),
        }
    }
}

/// `Retry-After`, in seconds as the API server writes it, or the same in the answer itself.
fn retry_after(headers: &HeaderMap, status: &Status) -> Option<Duration> {
    let header = headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok());
    let header = header.and_then(|seconds| seconds.parse().ok());
    let details = status.details.as_ref();
    let details = details.map(|details| u64::from(details.retry_after_seconds));
    let seconds = header.or(details.filter(|seconds| *seconds > 0));
    seconds.map(Duration::from_secs)
}
