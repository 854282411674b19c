//! The way to registries over the network: TLS, kept connections, proxies.

use std::sync::Arc;

use axum::body::Bytes;
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use crate::registries::authorities;
use crate::registries::connector::Connector;
use crate::registries::transport::Wire;

/// A client without connections.
pub(super) fn new() -> anyhow::Result<Wire> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities::trusted())
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(Connector::from_env());
    let client: legacy::Client<HttpsConnector<Connector>, Full<Bytes>> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    Ok(Arc::new(move |request| {
        let sent = client.request(request);
        let sent = sent
            .map(|sent| Ok(sent?.map(|body| body.map_err(std::io::Error::other).boxed_unsync())));
        sent.boxed()
    }))
}
