//! Sending one request: its deadline, its tries, what an answer becomes, and what it says about the API server.

use std::time::Duration;

use bytes::Bytes;
use gloo_types::{Document, ObjectKey, Resource};
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::core::{Request, Status};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::KubeRouteStore;
use super::breaker::Verdict;
use super::gate::Shut;
use crate::error::label;
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
                retry_pause(request.method(), failure, tries, left, fastrand::f64())
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
                let code = StatusCode::from_u16(status.code).ok()?;
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

/// How often a request is sent at most.
const TRIES: u32 = 3;
/// The shortest pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a try failed, as far as that decides about another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// No connection, or it broke before there was an answer.
    Connection,
    /// The API server answered with an error, and may have said how long to wait (`Retry-After`).
    Answered(StatusCode, Option<Duration>),
}

/// The pause before the next try, after so many `tries`. `None` when there is none.
///
/// Only what may go away is tried again: 429, 503, 504 and broken connections. A POST is not after it may have been carried
/// out. `left` is the time that is left for the request, and `jitter`, from 0 to 1, spreads the tries of several clients.
fn retry_pause(
    method: &Method,
    failure: Failure,
    tries: u32,
    left: Duration,
    jitter: f64,
) -> Option<Duration> {
    let may_be_done = method == Method::POST;
    let asked = match failure {
        Failure::Connection => (!may_be_done).then_some(None),
        Failure::Answered(code, after) => match code {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Some(after),
            StatusCode::GATEWAY_TIMEOUT if !may_be_done => Some(after),
            _ => None,
        },
    }?;
    let pause = PAUSE.mul_f64(1.0 + jitter).max(asked.unwrap_or_default());
    (tries < TRIES && pause < left).then_some(pause)
}

pub(super) type HttpRequest = http::Request<Vec<u8>>;
pub(super) type RequestError = kube::core::request::Error;

/// What was asked of the API server, in the words an error uses.
pub(super) struct Call {
    verb: &'static str,
    kind: &'static str,
    pub(super) what: String,
    /// As RBAC names it.
    resource: String,
    /// Whether one object was named, so that its state can be in the way.
    is_on_object: bool,
}

impl Call {
    pub(super) fn on<K: Resource>(verb: &'static str, key: &ObjectKey) -> Self {
        Self {
            verb,
            kind: K::KIND,
            what: label::<K>(key),
            resource: rbac_name::<K>(),
            is_on_object: true,
        }
    }

    pub(super) fn many<K: Resource>(verb: &'static str, namespace: Option<&str>) -> Self {
        let place = namespace.map_or_else(
            || "all namespaces".to_owned(),
            |name| format!("namespace {name}"),
        );
        Self {
            verb,
            kind: K::KIND,
            what: format!("{} in {place}", K::PLURAL),
            resource: rbac_name::<K>(),
            is_on_object: false,
        }
    }

    pub(super) fn parse<K: Resource>(&self, object: Value) -> Result<Document<K>, StoreError> {
        Document::from_value(object).map_err(|error| StoreError::unreadable::<K>(&self.what, error))
    }

    pub(super) fn failed(&self, error: kube::Error) -> StoreError {
        let kube::Error::Api(status) = &error else {
            return self.unreachable(error);
        };
        let (what, reason) = (self.what.clone(), status.message.clone());
        match status.code {
            404 => StoreError::NotFound { what },
            409 if self.is_on_object => StoreError::Conflict(what),
            422 if self.is_on_object && is_failed_test(status) => StoreError::Conflict(what),
            400 | 422 if self.is_on_object => StoreError::Rejected { what, reason },
            403 if self.is_on_object && is_admission_denial(status) => {
                StoreError::Rejected { what, reason }
            }
            401 | 403 => StoreError::Forbidden {
                verb: self.verb,
                what,
                resource: self.resource.clone(),
                reason,
            },
            _ => self.unreachable(Answered::from(status.as_ref())),
        }
    }

    pub(super) fn unreachable(
        &self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> StoreError {
        StoreError::Unreachable {
            verb: self.verb,
            what: self.what.clone(),
            source: Box::new(source),
        }
    }
}

/// A schema or CEL rejection names the kind and lists causes; a JSON Patch that does not apply
/// carries neither (apiserver `endpoints/handlers/patch.go`, `applyJSPatch`).
fn is_failed_test(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_none_or(|details| details.kind.is_empty() && details.causes.is_empty())
}

/// A validating webhook's refusal has the code of a missing permission (apiserver `admission/errors.go`).
fn is_admission_denial(status: &Status) -> bool {
    status.message.contains("admission webhook")
        || status.message.contains("ValidatingAdmissionPolicy")
}

fn rbac_name<K: Resource>() -> String {
    let name = format!("{}.{}", K::PLURAL, K::GROUP);
    // The core group has no name.
    name.trim_end_matches('.').to_owned()
}

pub(super) fn resource<K: Resource>(namespace: Option<&str>) -> Request {
    let (group, version, plural) = (K::GROUP, K::VERSION, K::PLURAL);
    let place = namespace
        .map(|name| format!("namespaces/{name}/"))
        .unwrap_or_default();
    let root = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    Request::new(format!("{root}/{place}{plural}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, after: u64) -> Failure {
        let after = Some(Duration::from_secs(after)).filter(|after| !after.is_zero());
        Failure::Answered(StatusCode::from_u16(code).unwrap(), after)
    }

    #[track_caller]
    fn check(method: &Method, failure: Failure, tries: u32, expect: Option<u64>) {
        let left = Duration::from_secs(3);
        let pause = retry_pause(method, failure, tries, left, 0.5);
        assert_eq!(pause, expect.map(Duration::from_millis), "{failure:?}");
    }

    #[test]
    fn what_may_go_away_is_tried_twice_more() {
        check(&Method::GET, answered(429, 0), 1, Some(300));
        check(&Method::GET, answered(503, 0), 2, Some(300));
        check(&Method::PATCH, answered(504, 0), 2, Some(300));
        check(&Method::GET, Failure::Connection, 1, Some(300));
        check(&Method::GET, answered(429, 0), 3, None);
        for code in [400, 403, 404, 409, 410, 422, 500, 502] {
            check(&Method::GET, answered(code, 0), 1, None);
        }
    }

    #[test]
    fn the_server_says_how_long_to_wait_if_that_fits() {
        check(&Method::GET, answered(429, 1), 1, Some(1000));
        check(&Method::GET, answered(429, 3), 1, None);
    }

    #[test]
    fn what_may_have_been_created_is_not_created_again() {
        check(&Method::POST, answered(429, 0), 1, Some(300));
        check(&Method::POST, answered(504, 0), 1, None);
        check(&Method::POST, Failure::Connection, 1, None);
    }
}
