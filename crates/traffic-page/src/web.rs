//! The HTTP routes of the page and its events, for browsers on this machine only.
//!
//! Any web page can send requests to 127.0.0.1. Against DNS rebinding, the `Host` must be the address of this server. Against
//! cross-site request forgery, a command must have this server as its `Origin` and be JSON.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{Stream, stream};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, watch};

use crate::Command;
use crate::stage::Queued;
use crate::view::{Reader, Snapshot};

const PAGE: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/app.js");
/// Permits no content of other origins, and only the script of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(crate) commands: mpsc::Sender<Queued>,
}

/// The body of a command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Do {
    what: String,
}

pub(crate) fn router(site: Site) -> Router {
    Router::new()
        .route("/", get(async || text("text/html; charset=utf-8", PAGE)))
        .route(
            "/app.js",
            get(async || text("text/javascript; charset=utf-8", SCRIPT)),
        )
        .route("/events", get(events))
        .route("/do", post(carry_out))
        .layer(middleware::from_fn_with_state(site.clone(), guard))
        .with_state(site)
}

fn text(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Rejects requests that do not come from a page of this server.
async fn guard(State(site): State<Site>, request: Request, next: Next) -> Response {
    if let Err(refused) = admit(
        site.address.port(),
        request.method().is_safe(),
        request.headers(),
    ) {
        return (StatusCode::FORBIDDEN, refused).into_response();
    }
    let mut response = next.run(request).await;
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

fn admit(port: u16, is_safe: bool, headers: &HeaderMap) -> Result<(), &'static str> {
    let is = |name: HeaderName, scheme: &str| {
        let mut values = headers.get_all(name).iter();
        let value = values.next().and_then(|value| value.to_str().ok());
        let own = ["127.0.0.1", "localhost"].map(|host| format!("{scheme}{host}:{port}"));
        values.next().is_none() && value.is_some_and(|value| own.iter().any(|own| own == value))
    };
    if !is(header::HOST, "") {
        return Err("open the address that the demo prints");
    }
    if !is_safe && !is(header::ORIGIN, "http://") {
        return Err("only the page of this server may send commands");
    }
    Ok(())
}

async fn events(State(site): State<Site>) -> impl IntoResponse {
    Sse::new(follow(site.snapshots))
}

/// Returns an event for each snapshot. A slow reader skips snapshots.
fn follow(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    snapshots.mark_changed();
    stream::unfold(
        (snapshots, Reader::default()),
        async |(mut snapshots, mut reader)| {
            snapshots.changed().await.ok()?;
            let snapshot = snapshots.borrow_and_update().clone();
            let event = reader.event(&snapshot).to_string();
            Some((Ok(Event::default().data(event)), (snapshots, reader)))
        },
    )
}

async fn carry_out(State(site): State<Site>, headers: HeaderMap, body: Bytes) -> Response {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/json") {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    let command = serde_json::from_slice::<Do>(&body);
    let command = command
        .ok()
        .and_then(|command| Command::named(&command.what));
    let Some(command) = command else {
        return (StatusCode::BAD_REQUEST, "unknown command").into_response();
    };
    let (reply, outcome) = oneshot::channel();
    let gone = || (StatusCode::SERVICE_UNAVAILABLE, "the demo is ending").into_response();
    if site.commands.send((command, reply)).await.is_err() {
        return gone();
    }
    match outcome.await {
        Ok(Ok(())) => StatusCode::NO_CONTENT.into_response(),
        Ok(Err(refused)) => (StatusCode::CONFLICT, refused).into_response(),
        Err(_) => gone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(is_safe: bool, headers: &[(HeaderName, &'static str)], expect: bool) {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        assert_eq!(admit(80, is_safe, &map).is_ok(), expect, "{map:?}");
    }

    #[test]
    fn another_origin_and_another_host_are_rejected() {
        use header::{HOST, ORIGIN};
        let own = (HOST, "127.0.0.1:80");
        check(true, std::slice::from_ref(&own), true);
        check(true, &[(HOST, "localhost:80")], true);
        check(true, &[(HOST, "127.0.0.1:81")], false);
        check(true, &[(HOST, "evil.example:80")], false);
        check(true, &[(HOST, "127.0.0.1:80.evil.example")], false);
        check(true, &[], false);
        check(true, &[own.clone(), (HOST, "evil.example")], false);
        check(false, &[own.clone(), (ORIGIN, "http://127.0.0.1:80")], true);
        check(false, &[own.clone(), (ORIGIN, "http://localhost:80")], true);
        check(
            false,
            &[own.clone(), (ORIGIN, "http://127.0.0.1:81")],
            false,
        );
        check(
            false,
            &[own.clone(), (ORIGIN, "https://127.0.0.1:80")],
            false,
        );
        check(false, &[own.clone(), (ORIGIN, "null")], false);
        check(false, &[own], false);
        check(
            false,
            &[(HOST, "evil.example"), (ORIGIN, "http://127.0.0.1:80")],
            false,
        );
    }

    #[test]
    fn the_page_is_small_and_loads_nothing_from_other_servers() {
        assert!(PAGE.len() + SCRIPT.len() <= 100_000);
        for text in [PAGE, SCRIPT] {
            for foreign in ["http:", "https:", "//cdn", "url(", "@import", "innerHTML"] {
                assert!(!text.contains(foreign), "{foreign}");
            }
        }
    }
}
