//! The way to a registry: straight, or through the proxy that the environment names.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Uri;
use axum::http::uri::Scheme;
use futures::TryFutureExt as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use tower::{BoxError, Service};

/// Makes connections. Those for https go through the proxy in `HTTPS_PROXY` or `ALL_PROXY`, unless `NO_PROXY` has the host.
#[derive(Clone)]
pub(super) struct Connector {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Connector {
    pub(super) fn from_env() -> Self {
        let mut direct = HttpConnector::new();
        // What comes after the connection is not its business.
        direct.enforce_http(false);
        Self {
            direct,
            proxies: Arc::new(Matcher::from_env()),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, registry: Uri) -> Self::Future {
        let is_https = registry.scheme() == Some(&Scheme::HTTPS);
        let proxy = self.proxies.intercept(&registry).filter(|_| is_https);
        let Some(proxy) = proxy else {
            return Box::pin(self.direct.call(registry).err_into());
        };
        if proxy.uri().scheme() != Some(&Scheme::HTTP) {
            let error = "HTTPS_PROXY has to be the address of a proxy that begins with http://";
            return Box::pin(std::future::ready(Err(error.into())));
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.direct.clone());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        Box::pin(tunnel.call(registry).err_into())
    }
}
