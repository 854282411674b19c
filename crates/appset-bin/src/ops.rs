//! For the kubelet and for Prometheus, on a port of their own.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::service::Service;

/// The routes for the kubelet and for Prometheus.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(service)
}

/// A configuration that became invalid does not make it unready: the one before is still in use.
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
