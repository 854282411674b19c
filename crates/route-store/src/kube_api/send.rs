//! Sends one request: its deadline, its retries, and the error that an answer becomes.

use std::time::Duration;

use bytes::Bytes;
use gloo_types::{Document, ObjectKey, Resource};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::core::{Request, Status};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::KubeRouteStore;
use super::client_error::{Answered, ClientError};
use super::gate::Rejection;
use super::layer::{Asked, Late, Refusal};
use crate::error::label;
use crate::{RequestContext, StoreError};

pub(super) type HttpRequest = http::Request<Vec<u8>>;
pub(super) type RequestError = kube::core::request::Error;

/// A request as errors describe it.
pub(super) struct Call {
    verb: &'static str,
    kind: &'static str,
    pub(super) what: String,
    /// The RBAC resource.
    resource: String,
    /// Whether the request names one object, so that 400, 409 and 422 are about its state.
    is_on_object: bool,
}

impl Call {
    /// A request for one object.
    pub(super) fn on<K: Resource>(verb: &'static str, key: &ObjectKey) -> Self {
        Self {
            verb,
            kind: K::KIND,
            what: label::<K>(key),
            resource: rbac_name::<K>(),
            is_on_object: true,
        }
    }

    /// A request for the objects of a namespace, or of all.
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

    /// Decodes an object of the answer.
    pub(super) fn parse<K: Resource>(&self, object: Value) -> Result<Document<K>, StoreError> {
        Document::from_value(object).map_err(|error| StoreError::unreadable::<K>(&self.what, error))
    }

    /// Maps an error of the client to a [`StoreError`].
    pub(super) fn failed(&self, error: kube::Error) -> StoreError {
        let kube::Error::Api(status) = &error else {
            return self.unreachable(ClientError::from(error));
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

/// Time of a call that its last request leaves for the answer to the controller.
const RESERVE: Duration = Duration::from_millis(100);

impl RequestContext {
    /// Returns when a request with this timeout ends.
    pub(super) fn end(&self, timeout: Duration) -> Instant {
        let now = Instant::now();
        let of_call = self
            .deadline
            .map(|it| it.checked_sub(RESERVE).unwrap_or(now));
        of_call.map_or(now + timeout, |end| end.min(now + timeout))
    }
}

impl KubeRouteStore {
    /// Sends a request like [`send_for_bytes`](Self::send_for_bytes), and parses the answer.
    pub(super) async fn send(
        &self,
        call: &Call,
        request: Result<HttpRequest, RequestError>,
    ) -> Result<Value, StoreError> {
        let answer = self.send_for_bytes(call, request).await?;
        serde_json::from_slice(&answer).map_err(|error| call.failed(kube::Error::SerdeError(error)))
    }

    /// Sends a request, with retries, before the earlier of its timeout and the deadline of [`RequestContext`]. Each try
    /// passes the gate. See the diagram of the [module](super).
    pub(super) async fn send_for_bytes(
        &self,
        call: &Call,
        request: Result<HttpRequest, RequestError>,
    ) -> Result<Bytes, StoreError> {
        let request = request.map_err(|error| call.unreachable(error))?;
        let context = RequestContext::current();
        let (now, timeout) = (Instant::now(), self.access.request_timeout);
        let end = context.end(timeout);
        let late = || call.late(timeout, end < now + timeout);
        if end <= now {
            return Err(late());
        }
        let Ok(client) = timeout_at(end, self.client()).await else {
            return Err(late());
        };
        let client = client.map_err(|error| call.unreachable(error))?;
        let mut tries = 1;
        let mut last = None;
        loop {
            let refused = match ask(client, call.until(end, request.clone())).await {
                Ok(answer) => return Ok(answer),
                Err(Unanswered::Late) => return Err(late()),
                // The answer to the previous try says more than the gate.
                Err(Unanswered::NotSent(rejection)) => {
                    return Err(last.unwrap_or_else(|| call.not_sent(rejection)));
                }
                Err(Unanswered::Refused(refused)) => refused,
            };
            let left = end.saturating_duration_since(Instant::now());
            let pause = refused.failure().and_then(|failure| {
                retry_pause(request.method(), failure, tries, left, fastrand::f64())
            });
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

    /// Waits for `answer` for the request timeout plus `longer`.
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

impl Call {
    /// Adds to the request what the layer needs to know of it.
    pub(super) fn until<B>(&self, end: Instant, mut request: http::Request<B>) -> http::Request<B> {
        let (verb, kind) = (self.verb, self.kind);
        request.extensions_mut().insert(Asked { verb, kind, end });
        request
    }

    /// Returns the error of a request that has no answer in time.
    fn late(&self, after: Duration, is_of_call: bool) -> StoreError {
        let (verb, what) = (self.verb, self.what.clone());
        match is_of_call {
            true => StoreError::CallEnded { verb, what },
            false => StoreError::Timeout { verb, what, after },
        }
    }

    fn not_sent(&self, rejection: Rejection) -> StoreError {
        let (verb, what) = (self.verb, self.what.clone());
        match rejection {
            Rejection::Breaker(reason) => StoreError::Failing { verb, what, reason },
            Rejection::Budget => StoreError::Throttled { verb, what },
            Rejection::Withdrawn => StoreError::Withdrawn { verb, what },
        }
    }
}

/// Sends a request once.
async fn ask(client: &Client, request: HttpRequest) -> Result<Bytes, Unanswered> {
    let response = client.send(request.map(Body::from)).await?;
    let (mut head, body) = response.into_parts();
    if let Some(refusal) = head.extensions.remove::<Refusal>() {
        return Err(Unanswered::Refused(Refused::Answered(refusal)));
    }
    Ok(body.collect().await?.to_bytes())
}

/// Why one try of a request has no result.
enum Unanswered {
    NotSent(Rejection),
    Late,
    Refused(Refused),
}

/// What a retry may mend.
enum Refused {
    Client(kube::Error),
    Answered(Refusal),
}

impl From<kube::Error> for Unanswered {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Service(error) if error.is::<Late>() => Self::Late,
            kube::Error::Service(error) => match error.downcast() {
                Ok(rejection) => Self::NotSent(*rejection),
                Err(error) => Self::Refused(Refused::Client(kube::Error::Service(error))),
            },
            error => Self::Refused(Refused::Client(error)),
        }
    }
}

impl Refused {
    /// Returns what a retry depends on; `None` if a retry cannot help.
    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Answered(refusal) => Some(Failure::Answered(refusal.code()?, refusal.after)),
            Self::Client(kube::Error::HyperError(_) | kube::Error::Service(_)) => {
                Some(Failure::Connection)
            }
            Self::Client(_) => None,
        }
    }

    fn into_error(self, call: &Call) -> StoreError {
        match self {
            Self::Client(error) => call.failed(error),
            Self::Answered(refusal) => call.failed(kube::Error::Api(refusal.status)),
        }
    }
}

/// Maximum number of tries of a request.
const TRIES: u32 = 3;
/// The shortest pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a try failed, for the decision to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The connection could not be opened, or broke before an answer.
    Connection,
    /// The API server answered with an error, possibly with `Retry-After`.
    Answered(StatusCode, Option<Duration>),
}

/// Returns the pause before the next try after `tries` tries; `None` if there is no next try.
///
/// Only transient failures are retried: 429, 503, 504 and broken connections. A POST is not retried if the API server may
/// have carried it out. The pause must end within `left`, the rest of the request's time. `jitter`, from 0 to 1, spreads
/// the tries of several clients.
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

impl Answered {
    /// Returns the unexpected answer that is the source of `error`.
    pub(super) fn of(error: &StoreError) -> Option<&Self> {
        match error {
            StoreError::Unreachable { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }
}

/// Returns whether the API server answered with an error, or is over its rate limit. A watch then backs off for longer
/// than after a request without an answer.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout { .. }
        | StoreError::CallEnded { .. }
        | StoreError::Failing { .. }
        | StoreError::Withdrawn { .. } => false,
        StoreError::Unreachable { .. } => Answered::of(error).is_some(),
        StoreError::Throttled { .. }
        | StoreError::NotFound { .. }
        | StoreError::Conflict(_)
        | StoreError::Rejected { .. }
        | StoreError::Forbidden { .. }
        | StoreError::Unreadable { .. } => true,
    }
}

/// Returns whether a 422 is a failed `test` of a JSON Patch. A schema or CEL rejection names the kind and lists causes; a
/// JSON Patch that does not apply has neither (apiserver `endpoints/handlers/patch.go`, `applyJSPatch`).
fn is_failed_test(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_none_or(|details| details.kind.is_empty() && details.causes.is_empty())
}

/// Returns whether a 403 is a denial of an admission webhook or policy, which has the same code as a missing permission
/// (apiserver `admission/errors.go`).
fn is_admission_denial(status: &Status) -> bool {
    status.message.contains("admission webhook")
        || status.message.contains("ValidatingAdmissionPolicy")
}

fn rbac_name<K: Resource>() -> String {
    let name = format!("{}.{}", K::PLURAL, K::GROUP);
    // The name of the core group is empty.
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
    fn transient_failures_are_retried_twice() {
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
    fn retry_after_is_respected_if_the_pause_fits() {
        check(&Method::GET, answered(429, 1), 1, Some(1000));
        check(&Method::GET, answered(429, 3), 1, None);
    }

    #[test]
    fn a_post_that_may_have_been_carried_out_is_not_retried() {
        check(&Method::POST, answered(429, 0), 1, Some(300));
        check(&Method::POST, answered(504, 0), 1, None);
        check(&Method::POST, Failure::Connection, 1, None);
    }
}
