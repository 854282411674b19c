//! The HTTP routes of both ports: one for Argo CD, one for the kubelet and Prometheus.
//!
//! A call of Argo CD is bounded, counted and logged. Its handler takes a [`Caller`], and without a known
//! token there is none, so no handler can run.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use appset_generator::Failure;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures::{FutureExt as _, stream};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tracing::{Instrument as _, Span, field};

use crate::service::{Answered, Caller, Outcome, Refused, Service, cut};
use crate::shares::{Held, Share};

/// The path that Argo CD appends to `baseUrl` (`applicationset/services/plugin`).
const PATH: &str = "/api/v1/getparams.execute";

/// The type of each body.
const JSON: &str = "application/json";
/// The maximum size of a body, in bytes.
const MAX_BODY: usize = 1 << 20;
/// The maximum size of a part in which an answer is written, in bytes.
const PART: usize = 64 << 10;

/// Returns the routes for Argo CD.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route(PATH, post(execute))
        .route(&format!("/profiles/{{profile}}{PATH}"), post(execute))
        .method_not_allowed_fallback(async || Refused::from(Failure::Method))
        .fallback(async || Refused::from(Failure::UnknownPath))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&service),
            account,
        ))
        .with_state(service)
}

async fn execute(
    State(service): State<Arc<Service>>,
    profile: Option<Path<String>>,
    caller: Caller,
    body: Body,
) -> Result<Answered, Refused> {
    let span = Span::current();
    span.record("token", &caller.token);
    let profile = profile.map(|Path(profile)| profile);
    span.record("profile", profile.as_deref().map(cut));
    let (_place, memory) = service.admit(&caller).await?;
    let body = read(body, memory).await?;
    service.call(profile, caller.token, body).await
}

impl FromRequestParts<Arc<Service>> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<Service>,
    ) -> Result<Self, Self::Rejection> {
        let mut sent = parts.headers.get_all(header::AUTHORIZATION).iter();
        let (sent, another) = (sent.next().ok_or(Failure::NoToken)?, sent.next());
        if another.is_some() {
            return Err(Failure::TwoTokens.into());
        }
        let sent = bearer(sent.as_bytes())?;
        let tokens = service.tokens.current().ok_or_else(|| {
            Failure::NotReady("the tokens cannot be read: see the generator's log".to_owned())
        })?;
        match tokens.name_of(sent) {
            Some(token) => Ok(Self {
                token: token.to_owned(),
                is_only: tokens.is_only(token),
            }),
            // If the Secret does not have the key, Argo CD sends the reference from the ConfigMap: `$key` or `$secret:key`.
            None if sent.starts_with(b"$") => Err(Failure::TokenReference.into()),
            None => Err(Failure::WrongToken.into()),
        }
    }
}

/// Returns the token of an Authorization header. The scheme is case-insensitive (RFC 9110, 11.1).
fn bearer(header: &[u8]) -> Result<&[u8], Failure> {
    const SCHEME: &[u8] = b"bearer";
    match header.split_at_checked(SCHEME.len()) {
        Some((scheme, token @ ([] | [b' ', ..]))) if scheme.eq_ignore_ascii_case(SCHEME) => {
            let token = Some(token.trim_ascii()).filter(|token| !token.is_empty());
            token.ok_or(Failure::EmptyToken)
        }
        _ => Err(Failure::OtherScheme),
    }
}

/// Reads a body, whose size is added to `memory` while it arrives.
async fn read(body: Body, mut memory: Share) -> Result<Held, Failure> {
    let mut body = Limited::new(body, MAX_BODY);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => Failure::BodyTooLarge(MAX_BODY),
            false => Failure::Body(error.to_string()),
        })?;
        if let Ok(part) = frame.into_data() {
            memory.grow(part.len())?;
            bytes.extend_from_slice(&part);
        }
    }
    Ok(Held { bytes, memory })
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        // The memory is free when the last part of the body is written.
        let mut rest = Bytes::from_owner(self.body);
        let headers = [
            (header::CONTENT_TYPE, JSON.to_owned()),
            (header::CONTENT_LENGTH, rest.len().to_string()),
        ];
        // hyper copies what it is given if the stream encrypts, and takes the next part when that is written.
        let parts = std::iter::from_fn(move || {
            let size = rest.len().min(PART);
            (size > 0).then(|| Ok::<_, Infallible>(rest.split_to(size)))
        });
        let body = Body::from_stream(stream::iter(parts));
        (headers, Extension(self.outcome), body).into_response()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        // This response must be a complete error by itself, in case no layer replaces it: the controller deletes every
        // Application after status 200 without a body.
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let body = Failure::Internal.to_body("");
        let headers = [(header::CONTENT_TYPE, JSON)];
        (status, headers, Extension(self), body).into_response()
    }
}

/// Runs a call within its limits, and writes its outcome to the log and the metrics.
async fn account(
    State(service): State<Arc<Service>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let id = format!("{:016x}", fastrand::u64(..));
    let span = tracing::info_span!(
        "call",
        request_id = id,
        token = field::Empty,
        profile = field::Empty,
        application_set = field::Empty,
        source = field::Empty,
    );
    let started = Instant::now();
    let running = service.metrics.begin();
    let call = bounded(&service, next.run(request)).instrument(span.clone());
    let mut response = call
        .await
        .unwrap_or_else(|failure| Refused::from(failure).into_response());
    running.finish();

    let _entered = span.enter();
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    if let Some(Outcome { source, count }) = response.extensions_mut().remove() {
        tracing::info!(status = 200, count, ms, "answered");
        service.metrics.answered(&source, count, started.elapsed());
    } else {
        let refused = response.extensions_mut().remove();
        let Refused { source, failure } = refused.unwrap_or_else(|| {
            // axum itself rejects a path that is not UTF-8.
            let failure = match response.status().is_client_error() {
                true => Failure::UnknownPath,
                false => Failure::Internal,
            };
            failure.into()
        });
        let (code, problem) = (failure.code(), failure.to_log());
        let (status, problem) = (code.status, cut(&problem));
        tracing::warn!(status, code = code.name, ms, problem, "refused");
        let metrics = &service.metrics;
        metrics.called(source.as_deref(), code.name, started.elapsed());
        let unknown = StatusCode::INTERNAL_SERVER_ERROR;
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(unknown);
        *response.body_mut() = failure.to_body(&id).into();
        // The length is that of the previous body. Other headers stay: `allow` lists the methods of a path.
        response.headers_mut().remove(header::CONTENT_LENGTH);
        set(&mut response, header::CONTENT_TYPE, JSON);
        // If the body was not read, the server closes the connection. The header prevents the client from using it for the
        // next call, since Argo CD does not repeat a call that fails on a closed connection.
        set(&mut response, header::CONNECTION, "close");
    }
    if service.is_draining() {
        set(&mut response, header::CONNECTION, "close");
    }
    response
}

/// Runs `call` until the deadline. A panic fails only this call.
async fn bounded(
    service: &Service,
    call: impl Future<Output = Response>,
) -> Result<Response, Failure> {
    let deadline = service.sources.deadline;
    let call = AssertUnwindSafe(call).catch_unwind();
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(_panic)) => Err(Failure::Internal),
        Err(_elapsed) => {
            let waiting = "waiting for the body of the request, for a processor or for a source";
            Err(Failure::Deadline(deadline.as_secs(), waiting.to_owned()))
        }
    }
}

fn set(response: &mut Response, name: HeaderName, value: &'static str) {
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

/// Returns the routes for the kubelet and Prometheus.
pub(crate) fn ops_router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(service)
}

/// Reports readiness. An invalid change of the configuration does not affect it, since the previous one stays in use.
async fn readyz(State(service): State<Arc<Service>>) -> impl IntoResponse {
    match service.unready() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics(State(service): State<Arc<Service>>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, OPEN_METRICS)],
        service.metrics_text(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_without_the_layer_is_an_error_with_a_body() {
        let response = Refused::from(Failure::Empty("a source".to_owned())).into_response();
        assert_eq!(response.status(), 500);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"{\"message\":"), "{body:?}");
    }

    #[test]
    fn a_header_has_a_bearer_token() {
        for (header, expect) in [
            ("Bearer t", Ok("t")),
            ("bEARER  t ", Ok("t")),
            ("Bearer", Err(Failure::EmptyToken)),
            ("Bearer ", Err(Failure::EmptyToken)),
            ("Bearert", Err(Failure::OtherScheme)),
            ("Basic dTpw", Err(Failure::OtherScheme)),
            ("t", Err(Failure::OtherScheme)),
        ] {
            let token = bearer(header.as_bytes());
            assert_eq!(token, expect.map(str::as_bytes), "{header}");
        }
    }

    #[test]
    fn a_field_is_shortened_between_two_characters() {
        assert_eq!(cut(&"é".repeat(200)).len(), 256);
        assert_eq!(cut(&format!("a{}", "é".repeat(200))).len(), 255);
        assert_eq!(cut("a"), "a");
    }
}
