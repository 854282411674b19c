//! Serves the metrics over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use super::Metrics;

/// How long a connection may be idle. Prometheus keeps one open between scrapes.
const IDLE: Duration = Duration::from_secs(300);
/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 16;
/// Pause after a failed accept, which happens when too many files are open.
const PAUSE: Duration = Duration::from_secs(1);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `/metrics` at `address` until it is cancelled. If the port is taken, for example because the plugin is registered
/// under two names, it logs one warning and returns.
pub(crate) async fn serve(address: SocketAddr, metrics: Arc<Metrics>) {
    match TcpListener::bind(address).await {
        Ok(listener) => {
            info!(%address, "metrics are served");
            serve_on(listener, metrics).await;
        }
        Err(error) => warn!(
            "no metrics are served at {address}: {error}: choose another --metrics-address, or register the plugin once"
        ),
    }
}

async fn serve_on(listener: TcpListener, metrics: Arc<Metrics>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = connections.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    answer_on(stream, metrics).await;
                    drop(place);
                });
            }
            Err(error) => {
                debug!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer_on(stream: TcpStream, metrics: Arc<Metrics>) {
    let service = service_fn(async |request: Request<Incoming>| {
        let accept = request.headers().get(ACCEPT);
        let accept = accept.and_then(|accept| accept.to_str().ok());
        let (method, path) = (request.method(), request.uri().path());
        let answer = answer(&metrics, method, path, accept.unwrap_or_default());
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection ended early");
    }
}

pub(super) fn answer(
    metrics: &Metrics,
    method: &Method,
    path: &str,
    accept: &str,
) -> Response<String> {
    let (status, content_type, text) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/metrics") => match metrics.to_open_metrics() {
            Ok(text) if accept.contains("application/openmetrics-text") => {
                (StatusCode::OK, OPEN_METRICS, text)
            }
            Ok(text) => (StatusCode::OK, TEXT, to_text(&text)),
            Err(error) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                (status, TEXT, format!("{error}\n"))
            }
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, TEXT, String::new()),
        _ => (StatusCode::NOT_FOUND, TEXT, "see /metrics\n".to_owned()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Converts OpenMetrics to Prometheus's own text format, in which the name of a counter always ends with `_total`.
fn to_text(open_metrics: &str) -> String {
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::new();
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(&name) => {
                text.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}
