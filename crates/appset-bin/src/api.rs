//! The HTTP routes of both ports: one for Argo CD, one for the kubelet and Prometheus.
//!
//! Every call of Argo CD, also to an unknown path, goes through [`account`]: it is bounded, counted and logged, and its outcome
//! becomes the response. A call without a known token ends before its body is read.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use appset_generator::Failure;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{FutureExt as _, stream};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tracing::{Instrument as _, Span, field};

use crate::service::{Answered, Caller, Refused, Service, cut};
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
    let refuse = |failure: Failure| {
        async move |State(service): State<Arc<Service>>| {
            account(&service, async { Err(failure.into()) }).await
        }
    };
    Router::new()
        .route(PATH, post(execute))
        .route(&format!("/profiles/{{profile}}{PATH}"), post(execute))
        .method_not_allowed_fallback(refuse(Failure::Method))
        .fallback(refuse(Failure::UnknownPath))
        .with_state(service)
}

async fn execute(
    State(service): State<Arc<Service>>,
    profile: Result<Option<Path<String>>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let call = async {
        // axum rejects a path that is not UTF-8.
        let profile = profile.map_err(|_rejection| Failure::UnknownPath)?;
        let caller = caller(&service, &headers)?;
        let span = Span::current();
        span.record("token", &caller.token);
        let profile = profile.map(|Path(profile)| profile);
        span.record("profile", profile.as_deref().map(cut));
        let (_place, memory) = service.admit(&caller).await?;
        let body = read(body, memory).await?;
        service.call(profile, caller.token, body).await
    };
    account(&service, call).await
}

/// Returns the caller that the token in the headers belongs to.
fn caller(service: &Service, headers: &HeaderMap) -> Result<Caller, Failure> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let (sent, another) = (sent.next().ok_or(Failure::NoToken)?, sent.next());
    if another.is_some() {
        return Err(Failure::TwoTokens);
    }
    let sent = bearer(sent.as_bytes())?;
    let tokens = service.tokens.current().ok_or_else(|| {
        Failure::NotReady("the tokens cannot be read: see the generator's log".to_owned())
    })?;
    match tokens.name_of(sent) {
        Some(token) => Ok(Caller {
            token: token.to_owned(),
            is_only: tokens.is_only(token),
        }),
        // If the Secret does not have the key, Argo CD sends the reference from the ConfigMap: `$key` or `$secret:key`.
        None if sent.starts_with(b"$") => Err(Failure::TokenReference),
        None => Err(Failure::WrongToken),
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

/// Makes the response for an answer.
fn response(body: Held) -> Response {
    // The memory is free when the last part of the body is written.
    let mut rest = Bytes::from_owner(body);
    let headers = [
        (header::CONTENT_TYPE, JSON.to_owned()),
        (header::CONTENT_LENGTH, rest.len().to_string()),
    ];
    // hyper copies what it is given if the stream encrypts, and takes the next part when that is written.
    let parts = std::iter::from_fn(move || {
        let size = rest.len().min(PART);
        (size > 0).then(|| Ok::<_, Infallible>(rest.split_to(size)))
    });
    (headers, Body::from_stream(stream::iter(parts))).into_response()
}

/// Runs a call within its limits, and writes its outcome to the log, the metrics and the response.
async fn account(
    service: &Service,
    call: impl Future<Output = Result<Answered, Refused>>,
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
    let (started, metrics) = (Instant::now(), &service.metrics);
    let running = metrics.begin();
    let called = bounded(service, call).instrument(span.clone()).await;
    running.finish();

    let _entered = span.enter();
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    let is_refused = called.is_err();
    let mut response = match called {
        Ok(Answered {
            source,
            count,
            body,
        }) => {
            tracing::info!(status = 200, count, ms, "answered");
            metrics.answered(&source, count, started.elapsed());
            response(body)
        }
        Err(Refused { source, failure }) => {
            let (code, problem) = (failure.code(), failure.to_log());
            let (status, problem) = (code.status, cut(&problem));
            tracing::warn!(status, code = code.name, ms, problem, "refused");
            metrics.called(source.as_deref(), code.name, started.elapsed());
            // The controller deletes every Application after a status of success without sets.
            let unknown = StatusCode::INTERNAL_SERVER_ERROR;
            let status = StatusCode::from_u16(status).unwrap_or(unknown);
            let headers = [(header::CONTENT_TYPE, JSON)];
            (status, headers, failure.to_body(&id)).into_response()
        }
    };
    // If the body was not read, the server closes the connection. The header prevents the client from using it for the next call,
    // since Argo CD does not repeat a call that fails on a closed connection.
    if is_refused || service.is_draining() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Runs `call` until the deadline. A panic fails only this call.
async fn bounded(
    service: &Service,
    call: impl Future<Output = Result<Answered, Refused>>,
) -> Result<Answered, Refused> {
    let deadline = service.sources.deadline;
    let call = AssertUnwindSafe(call).catch_unwind();
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(called)) => called,
        Ok(Err(_panic)) => Err(Failure::Internal.into()),
        Err(_elapsed) => {
            let waiting = "waiting for the body of the request, for a processor or for a source";
            Err(Failure::Deadline(deadline.as_secs(), waiting.to_owned()).into())
        }
    }
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
