//! Sending one request: its deadline, its tries, and what an answer becomes.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::Status;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

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

/// One line of what the API server said.
fn detail(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        line
    } else {
        format!(": {line}")
    }
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

    /// Sends a request, again if that can help, within the time that the request and [`RequestContext`] leave.
    pub(super) async fn send_for_bytes(
        &self,
        call: &Call,
        request: Result<HttpRequest, RequestError>,
    ) -> Result<Bytes, StoreError> {
        let request = request.map_err(|error| call.unreachable(error))?;
        let begin = Instant::now();
        let after = time_for_request(begin, self.access.request_timeout);
        if after.is_zero() {
            return Err(call.timeout(after));
        }
        let mut tries = 1;
        loop {
            let asked = self.ask(call, request.clone(), begin + after);
            let asked = match timeout_at(begin + after, asked).await {
                Ok(asked) => asked?,
                Err(_) => return Err(call.timeout(after)),
            };
            let refused = match asked {
                Ok(answer) => return Ok(answer),
                Err(refused) => refused,
            };
            let left = (begin + after).saturating_duration_since(Instant::now());
            let failure = refused.failure();
            let pause = failure.and_then(|failure| {
                retry::pause(request.method(), failure, tries, left, fastrand::f64())
            });
            let Some(pause) = pause else {
                let error = refused.into_error(call);
                if matches!(error, StoreError::Conflict(_)) {
                    self.observer.conflict(call.kind);
                }
                return Err(error);
            };
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// Sends a request once.
    async fn ask(
        &self,
        call: &Call,
        request: HttpRequest,
        end: Instant,
    ) -> Result<Result<Bytes, Refused>, StoreError> {
        let client = self.client().await;
        let client = client.map_err(|error| call.unreachable(error))?;
        let mut sent = self.sent(call, end);
        let response = match client.send(request.map(Body::from)).await {
            Ok(response) => response,
            Err(error) => {
                sent.outcome = Some(Outcome::Connection);
                return Ok(Err(Refused::Client(error)));
            }
        };
        let (head, body) = Response::into_parts(response);
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                sent.outcome = Some(Outcome::Connection);
                return Ok(Err(Refused::Client(error)));
            }
        };
        sent.outcome = Some(Outcome::Answered(head.status.as_u16()));
        drop(sent);
        if head.status.is_client_error() || head.status.is_server_error() {
            let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
                let text = String::from_utf8_lossy(&body);
                Status::failure(&text, "").with_code(head.status.as_u16())
            });
            let after = retry_after(&head.headers, &status);
            let status = Box::new(status);
            return Ok(Err(Refused::Answered { status, after }));
        }
        Ok(Ok(body))
    }

    /// A request that is sent now, and has until `end`.
    pub(super) fn sent<'a>(&'a self, call: &'a Call, end: Instant) -> Sent<'a> {
        Sent {
            call,
            observer: self.observer.as_ref(),
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
        answer.await.unwrap_or_else(|_| Err(call.timeout(after)))
    }
}

/// The time that a request may take which begins now: its own timeout, and no more than the call has left.
fn time_for_request(now: Instant, timeout: Duration) -> Duration {
    let deadline = RequestContext::current().deadline;
    let left = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(now);
        left.saturating_sub(RESERVE)
    });
    left.map_or(timeout, |left| left.min(timeout))
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
