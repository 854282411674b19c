//! Sends one request: its deadline, its retries, and the error that an answer becomes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gloo_types::{Document, ObjectKey, Resource};
use http::Method;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::core::{Request, Status};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tower::BoxError;

use super::KubeRouteStore;
use super::client_error::ClientError;
use super::gate::Rejection;
use super::layer::{Asked, Refusal, is_broken};
use crate::error::label;
use crate::{RequestContext, StoreError};

pub(super) type HttpRequest = http::Request<Vec<u8>>;
pub(super) type RequestError = kube::core::request::Error;

/// A request as errors describe it.
pub(super) struct Call {
    verb: &'static str,
    kind: &'static str,
    pub(super) what: String,
    /// Makes requests for objects of this kind and namespace.
    pub(super) path: Request,
    /// The RBAC resource.
    resource: String,
    /// Whether the request names one object, so that 400, 409 and 422 are about its state.
    is_on_object: bool,
}

impl Call {
    /// A request for one object.
    pub(super) fn on<K: Resource>(verb: &'static str, key: &ObjectKey) -> Self {
        Self::new::<K>(verb, label::<K>(key), Some(&key.namespace), true)
    }

    /// A request for the objects of a namespace, or of all.
    pub(super) fn many<K: Resource>(verb: &'static str, namespace: Option<&str>) -> Self {
        let what = match namespace {
            Some(namespace) => format!("{} in namespace {namespace}", K::PLURAL),
            None => format!("{} in all namespaces", K::PLURAL),
        };
        Self::new::<K>(verb, what, namespace, false)
    }

    fn new<K: Resource>(
        verb: &'static str,
        what: String,
        namespace: Option<&str>,
        is_on_object: bool,
    ) -> Self {
        let (group, version, plural) = (K::GROUP, K::VERSION, K::PLURAL);
        let root = match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let place = namespace.map(|name| format!("namespaces/{name}/"));
        let place = place.unwrap_or_default();
        let resource = format!("{plural}.{group}");
        Self {
            verb,
            kind: K::KIND,
            what,
            path: Request::new(format!("{root}/{place}{plural}")),
            // The name of the core group is empty.
            resource: resource.trim_end_matches('.').to_owned(),
            is_on_object,
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
            _ => self.unreachable(ClientError::from(error)),
        }
    }

    pub(super) fn unreachable(&self, source: impl Into<BoxError>) -> StoreError {
        StoreError::Unreachable {
            verb: self.verb,
            what: self.what.clone(),
            source: source.into(),
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
        let rejected = |why: &Rejection| call.rejected(why, timeout, end < now + timeout);
        if end <= now {
            return Err(rejected(&Rejection::Late));
        }
        let Ok(client) = timeout_at(end, self.client()).await else {
            return Err(rejected(&Rejection::Late));
        };
        let client = client.map_err(|error| call.unreachable(error))?;
        let mut tries = 1;
        let mut last = None;
        loop {
            let sent = ask(client, call.until(end, request.clone())).await;
            let (failure, asked_pause) = match sent {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            match Rejection::of(&failure) {
                None => {}
                Some(Rejection::Late) => return Err(rejected(&Rejection::Late)),
                // The answer to the previous try says more than the gate.
                Some(why) => return Err(last.unwrap_or_else(|| rejected(why))),
            }
            let left = end.saturating_duration_since(Instant::now());
            let pause = retry_pause(
                request.method(),
                &failure,
                asked_pause.unwrap_or_default(),
                tries,
                left,
                fastrand::f64(),
            );
            let error = call.failed(failure);
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
        let answer = tokio::time::timeout(after, answer).await;
        answer.unwrap_or_else(|_| Err(call.rejected(&Rejection::Late, after, false)))
    }
}

impl Call {
    /// Adds to the request what the layer needs to know of it.
    pub(super) fn until<B>(&self, end: Instant, mut request: http::Request<B>) -> http::Request<B> {
        let (verb, kind) = (self.verb, self.kind);
        request.extensions_mut().insert(Asked { verb, kind, end });
        request
    }

    /// Returns the error of a request without an answer. Its time was `after`, or ended earlier with that of the call.
    fn rejected(&self, why: &Rejection, after: Duration, is_of_call: bool) -> StoreError {
        let (verb, what) = (self.verb, self.what.clone());
        match why {
            Rejection::Breaker(reason) => StoreError::Failing {
                verb,
                what,
                reason: Arc::clone(reason),
            },
            Rejection::Budget => StoreError::Throttled { verb, what },
            Rejection::Withdrawn => StoreError::Withdrawn { verb, what },
            Rejection::Late if is_of_call => StoreError::CallEnded { verb, what },
            Rejection::Late => StoreError::Timeout { verb, what, after },
        }
    }
}

impl Rejection {
    /// Returns the rejection with which the layer ended a request; `None` for an error of the client itself.
    fn of(error: &kube::Error) -> Option<&Self> {
        match error {
            kube::Error::Service(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

/// Sends a request once. The error has the pause that the API server asks for.
async fn ask(
    client: &Client,
    request: HttpRequest,
) -> Result<Bytes, (kube::Error, Option<Duration>)> {
    let failed = |error| (error, None);
    let response = client.send(request.map(Body::from)).await.map_err(failed)?;
    let (mut head, body) = response.into_parts();
    if let Some(refusal) = head.extensions.remove::<Refusal>() {
        return Err((kube::Error::Api(refusal.status), refusal.after));
    }
    Ok(body.collect().await.map_err(failed)?.to_bytes())
}

/// Maximum number of tries of a request.
const TRIES: u32 = 3;
/// The shortest pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns the pause before the next try after `tries` tries; `None` if there is no next try.
///
/// Only transient failures are retried: 429, 503, 504 and broken connections. A POST is not retried if the API server may
/// have carried it out. The pause is at least the one that the API server `asked` for, and must end within `left`, the rest of
/// the request's time. `jitter`, from 0 to 1, spreads the tries of several clients.
fn retry_pause(
    method: &Method,
    failure: &kube::Error,
    asked: Duration,
    tries: u32,
    left: Duration,
    jitter: f64,
) -> Option<Duration> {
    let is_transient = match failure {
        kube::Error::Api(status) if matches!(status.code, 429 | 503) => true,
        kube::Error::Api(status) => status.code == 504 && method != Method::POST,
        error => is_broken(error) && method != Method::POST,
    };
    let pause = PAUSE.mul_f64(1.0 + jitter).max(asked);
    (is_transient && tries < TRIES && pause < left).then_some(pause)
}

/// Returns the unexpected status of the API server that is the source of `error`.
pub(super) fn answered_code(error: &StoreError) -> Option<u16> {
    match answer(error)? {
        ClientError::Answered { code, .. } => Some(*code),
        ClientError::Other(_) => None,
    }
}

/// Returns the pause that the API server asks for in the answer that is the source of `error`.
pub(super) fn asked_pause(error: &StoreError) -> Option<Duration> {
    match answer(error)? {
        ClientError::Answered { after, .. } => *after,
        ClientError::Other(_) => None,
    }
}

fn answer(error: &StoreError) -> Option<&ClientError> {
    match error {
        StoreError::Unreachable { source, .. } => source.downcast_ref(),
        _ => None,
    }
}

/// Returns whether the API server answered with an error, or is over its rate limit. A watch then backs off for longer
/// than after a request without an answer.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    !error.is_unavailable()
        || matches!(error, StoreError::Throttled { .. })
        || answered_code(error).is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("no", "Because").with_code(code)))
    }

    fn broken() -> kube::Error {
        kube::Error::Service("connection refused".into())
    }

    /// The API server asks for a pause of `after` seconds.
    #[track_caller]
    fn check(method: &Method, failure: kube::Error, after: u64, tries: u32, expect: Option<u64>) {
        let [after, left] = [after, 3].map(Duration::from_secs);
        let pause = retry_pause(method, &failure, after, tries, left, 0.5);
        assert_eq!(pause, expect.map(Duration::from_millis), "{failure:?}");
    }

    #[test]
    fn transient_failures_are_retried_twice() {
        check(&Method::GET, answered(429), 0, 1, Some(300));
        check(&Method::GET, answered(503), 0, 2, Some(300));
        check(&Method::PATCH, answered(504), 0, 2, Some(300));
        check(&Method::GET, broken(), 0, 1, Some(300));
        check(&Method::GET, answered(429), 0, 3, None);
        for code in [400, 403, 404, 409, 410, 422, 500, 502] {
            check(&Method::GET, answered(code), 0, 1, None);
        }
        let of_client = kube::Error::Auth(kube::client::AuthError::AuthExec("no".into()));
        check(&Method::GET, of_client, 0, 1, None);
    }

    #[test]
    fn retry_after_is_respected_if_the_pause_fits() {
        check(&Method::GET, answered(429), 1, 1, Some(1000));
        check(&Method::GET, answered(429), 3, 1, None);
    }

    #[test]
    fn a_post_that_may_have_been_carried_out_is_not_retried() {
        check(&Method::POST, answered(429), 0, 1, Some(300));
        check(&Method::POST, answered(504), 0, 1, None);
        check(&Method::POST, broken(), 0, 1, None);
    }
}
