//! The layer around kube's client that each request passes, also one of kube's own helpers: the gate lets it through, the observer
//! measures it, and the breaker learns what came of it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::TryFutureExt as _;
use futures::future::BoxFuture;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use tokio::time::{Instant, timeout_at};
use tower::layer::{LayerFn, layer_fn};
use tower::{BoxError, Service};

use super::breaker::{Pass, Verdict};
use super::client_error::{ClientError, first_cause, retry_after};
use super::gate::{Gate, Rejection};
use crate::{Outcome, Permit, RequestContext, SentRequest};

/// A request as the observer sees it, and its time. [`send`](super::send) adds it to the extensions of a request.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) verb: &'static str,
    pub(super) kind: &'static str,
    /// When the caller stops waiting.
    pub(super) end: Instant,
}

/// An answer with a status of 400 or above. The layer adds it to the extensions of a response.
#[derive(Clone)]
pub(super) struct Refusal {
    pub(super) status: Box<Status>,
    /// The pause that the API server asks for.
    pub(super) after: Option<Duration>,
}

/// Returns the layer that puts a client behind the gate. See the [module](self).
pub(super) fn behind<S>(gate: &Arc<Gate>) -> LayerFn<impl Fn(S) -> Gated<S> + use<S>> {
    let gate = Arc::clone(gate);
    layer_fn(move |client| Gated {
        client,
        gate: Arc::clone(&gate),
    })
}

/// A client behind the gate.
pub(super) struct Gated<S> {
    client: S,
    gate: Arc<Gate>,
}

impl<S, B> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Answer<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Answer<B>>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let gate = Arc::clone(&self.gate);
        let asked = request.extensions().get::<Asked>().copied();
        let mut parameters = request.uri().query().unwrap_or_default().split('&');
        let is_watch = parameters.any(|it| it == "watch=true");
        // The request is sent when this is polled.
        let answer = self.client.call(request).map_err(Into::into);
        // Polled by the task of the caller, which has the context of the request; `call` runs in a task of kube's client.
        Box::pin(async move {
            let asked = asked.unwrap_or_else(|| Asked {
                verb: "other",
                kind: "other",
                end: RequestContext::current().end(gate.timeout),
            });
            Ok(if is_watch {
                gate.open(asked, answer).await?.map(Either::Left)
            } else {
                gate.ask(asked, answer).await?.map(Either::Right)
            })
        })
    }
}

/// The answer to a watch, which goes on, or a whole one.
type Answer<B> = Either<B, Full<Bytes>>;

impl Gate {
    /// Sends a request as soon as it may pass, and waits for its whole answer.
    async fn ask<B>(
        &self,
        asked: Asked,
        answer: impl Future<Output = Result<Response<B>, BoxError>>,
    ) -> Result<Response<Full<Bytes>>, BoxError>
    where
        B: http_body::Body,
        B::Error: Into<BoxError>,
    {
        let (context, permit) = (RequestContext::current(), Permit::current());
        let pass = tokio::select! {
            biased;
            () = permit.withdrawn() => return Err(Rejection::Withdrawn.into()),
            pass = self.enter(context.priority, asked.end) => pass?,
        };
        let mut sent = Sent::new(self, asked, Some(pass));
        let whole = async {
            let (head, body) = answer.await?.into_parts();
            let body = body.collect().await.map_err(Into::into)?;
            Ok::<_, BoxError>((head, body.to_bytes()))
        };
        let Ok(answered) = timeout_at(asked.end, whole).await else {
            return Err(Rejection::Late.into());
        };
        let (mut head, body) = match answered {
            Ok(answer) => answer,
            Err(error) => {
                // Otherwise there is an answer, although an unexpected one, or the credentials failed.
                let verdict = match error.downcast_ref().is_none_or(is_broken) {
                    true => Verdict::Failed,
                    false => Verdict::Healthy,
                };
                sent.outcome = Some(Outcome::Connection);
                sent.verdict = Some((verdict, first_cause(error.as_ref())));
                return Err(error);
            }
        };
        sent.outcome = Some(Outcome::Answered(head.status.as_u16()));
        sent.verdict = Some((Verdict::Healthy, String::new()));
        if is_refused(head.status) {
            let refusal = Refusal::of(&head, &body);
            let left = asked.end.saturating_duration_since(Instant::now());
            let reason = ClientError::from(kube::Error::Api(refusal.status.clone())).to_string();
            sent.verdict = Some((refusal.verdict(left), reason));
            head.extensions.insert(refusal);
        }
        Ok(Response::from_parts(head, Full::new(body)))
    }

    /// Opens a watch. It takes neither a token nor a permission of the breaker, which it closes.
    async fn open<B>(
        &self,
        asked: Asked,
        answer: impl Future<Output = Result<Response<B>, BoxError>>,
    ) -> Result<Response<B>, BoxError>
    where
        B: http_body::Body,
        B::Error: Into<BoxError>,
    {
        let mut sent = Sent::new(self, asked, None);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                sent.outcome = Some(Outcome::Connection);
                return Err(error);
            }
        };
        sent.outcome = Some(Outcome::Answered(answer.status().as_u16()));
        if answer.status().is_success() {
            self.answered();
        }
        if !is_refused(answer.status()) {
            return Ok(answer);
        }
        // Kube's client would lose the header `Retry-After`.
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        let refusal = Refusal::of(&head, &body);
        Err(kube::Error::Api(refusal.status).into())
    }
}

fn is_refused(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

impl Refusal {
    fn of(head: &Parts, body: &[u8]) -> Self {
        let status = serde_json::from_slice(body).ok();
        // A proxy may answer with other JSON.
        let status = status.filter(|status: &Status| status.code != 0);
        let mut status = status.unwrap_or_else(|| {
            let text = String::from_utf8_lossy(body);
            Status::failure(&text, "").with_code(head.status.as_u16())
        });
        let header = head.headers.get(RETRY_AFTER);
        let header = header.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
        if let Some(seconds) = header {
            let details = status.details.get_or_insert_with(|| StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: 0,
            });
            details.retry_after_seconds = seconds.try_into().unwrap_or(u32::MAX);
        }
        Self {
            after: retry_after(&status),
            status: Box::new(status),
        }
    }

    /// An overloaded API server has failed if it asks for a pause of at least `left`, the rest of the request's time.
    fn verdict(&self, left: Duration) -> Verdict {
        match self.status.code {
            500.. => Verdict::Failed,
            429 if self.after.is_some_and(|after| after >= left) => Verdict::Failed,
            429 => Verdict::Unknown,
            _ => Verdict::Healthy,
        }
    }
}

/// A request in flight. Dropping it reports the request to the observer and then to the breaker, so that the observer hears of
/// the cause first. It is dropped without an outcome if the request is late or cancelled.
struct Sent<'a> {
    gate: &'a Gate,
    asked: Asked,
    /// `None` for a watch, which the breaker does not judge.
    pass: Option<Pass>,
    begin: Instant,
    outcome: Option<Outcome>,
    /// What the outcome shows, and the reason of a failure.
    verdict: Option<(Verdict, String)>,
}

impl<'a> Sent<'a> {
    fn new(gate: &'a Gate, asked: Asked, pass: Option<Pass>) -> Self {
        Self {
            gate,
            asked,
            pass,
            begin: Instant::now(),
            outcome: None,
            verdict: None,
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let without_answer = if now < self.asked.end {
            Outcome::Cancelled
        } else {
            Outcome::Timeout
        };
        let duration = now - self.begin;
        self.gate.observer.request(&SentRequest {
            verb: self.asked.verb,
            kind: self.asked.kind,
            outcome: self.outcome.unwrap_or(without_answer),
            duration,
        });
        // A caller that has waited for long enough has seen that the API server does not answer.
        let patience = self.gate.timeout.min(Duration::from_secs(1));
        let without_answer = match duration < patience {
            true => Verdict::Unknown,
            false => Verdict::Failed,
        };
        let judged = self.verdict.take();
        let (verdict, reason) = judged.unwrap_or((without_answer, "no answer".to_owned()));
        if let Some(pass) = self.pass {
            self.gate.judge(pass, verdict, reason);
        }
    }
}

/// Returns whether the connection failed, and not for example the credentials.
pub(super) const fn is_broken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_))
}
