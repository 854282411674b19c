//! One call over HTTP: bounded, counted, logged, and answered in one buffer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use appset_generator::{Answer, Failure, Request};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tracing::{Instrument as _, Span, field};

use crate::caller::Caller;
use crate::service::Service;

/// What Argo CD appends to `baseUrl` (`applicationset/services/plugin`).
const PATH: &str = "/api/v1/getparams.execute";

/// Longest body.
const MAX_BODY: usize = 1 << 20;

/// The routes for Argo CD.
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
    span.record("profile", &profile);
    let request = Request::from_body(&read(body).await?)?;
    span.record("application_set", &request.application_set);

    let query = service.query(profile.as_deref(), &caller.token, &request)?;
    let source = query.output.source().to_owned();
    span.record("source", &source);
    let answered = service.answer(query).await;
    Ok(Answered {
        answer: answered.map_err(|failure| Refused {
            failure,
            source: Some(source.clone()),
        })?,
        source,
    })
}

async fn read(body: Body) -> Result<Vec<u8>, Failure> {
    let body = Limited::new(body, MAX_BODY).collect().await;
    match body {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::BodyTooLarge(MAX_BODY)),
        Err(error) => Err(Failure::Body(error.to_string())),
    }
}

/// An answer, and the source that it is from.
#[derive(Clone)]
struct Answered {
    source: String,
    answer: Answer,
}

/// A failure, and the source that it is from. [`account`] writes the body.
#[derive(Clone)]
pub(crate) struct Refused {
    source: Option<String>,
    failure: Failure,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self {
            source: None,
            failure,
        }
    }
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        let mut response = json(StatusCode::OK, self.answer.to_body());
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

/// Runs a call within its bounds, and tells the log and the figures what became of it.
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
    let extensions = response.extensions_mut();
    if let Some(Refused { source, failure }) = extensions.remove() {
        let code = failure.code();
        tracing::warn!(status = code.status, code = code.name, ms, problem = %failure, "refused");
        service
            .metrics
            .called(source.as_deref(), code.name, started.elapsed());
        let headers = std::mem::take(response.headers_mut());
        let status = StatusCode::from_u16(code.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response = json(status, failure.to_body(&id));
        // Which methods a path has, for example.
        response.headers_mut().extend(headers);
        // The body may be unread, and the server then closes the connection: the client's next call must not use it, for
        // Argo CD does not repeat a call that finds it closed.
        set(&mut response, header::CONNECTION, "close");
    } else if let Some(Answered { source, answer }) = extensions.remove() {
        let count = answer.count();
        tracing::info!(status = 200, count, ms, "answered");
        service.metrics.answered(&source, count, started.elapsed());
    }
    if service.is_draining() {
        set(&mut response, header::CONNECTION, "close");
    }
    response
}

/// Runs `call` if there is room, until the deadline; a panic is a failure of this call only.
async fn bounded(
    service: &Service,
    call: impl Future<Output = Response>,
) -> Result<Response, Failure> {
    let _permit = service.permit()?;
    let call = AssertUnwindSafe(call).catch_unwind();
    match tokio::time::timeout(service.deadline, call).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(_panic)) => Err(Failure::Internal),
        Err(_elapsed) => Err(Failure::Deadline(service.deadline.as_secs())),
    }
}

fn json(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = (status, body).into_response();
    set(&mut response, header::CONTENT_TYPE, "application/json");
    response
}

fn set(response: &mut Response, name: HeaderName, value: &'static str) {
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}
