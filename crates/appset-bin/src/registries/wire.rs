//! The HTTP client for registries: TLS with the trusted authorities, kept connections, proxies.

use std::env;
use std::future::ready;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::Uri;
use axum::http::uri::Scheme;
use futures::future::BoxFuture;
use futures::{FutureExt as _, TryFutureExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use tower::{BoxError, Service, service_fn};

use crate::registries::transport::Wire;

/// Makes the client. It has no connection yet.
pub(super) fn new() -> anyhow::Result<Wire> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trusted())
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector());
    let client: legacy::Client<_, Full<Bytes>> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    Ok(Arc::new(move |request| {
        let sent = client.request(request);
        let sent = sent
            .map(|sent| Ok(sent?.map(|body| body.map_err(std::io::Error::other).boxed_unsync())));
        sent.boxed()
    }))
}

/// Opens connections. Those for https use the proxy in `HTTPS_PROXY` or `ALL_PROXY`, unless `NO_PROXY` contains the host.
fn connector()
-> impl Service<Uri, Response = TcpIo, Error = BoxError, Future = Opening> + Clone + Send + Sync {
    let mut direct = HttpConnector::new();
    // The connector only opens TCP connections, also for https.
    direct.enforce_http(false);
    let proxies = Arc::new(Matcher::from_env());
    service_fn(move |registry: Uri| -> Opening {
        let is_https = registry.scheme() == Some(&Scheme::HTTPS);
        let proxy = proxies.intercept(&registry).filter(|_| is_https);
        let Some(proxy) = proxy else {
            return direct.clone().call(registry).err_into().boxed();
        };
        if proxy.uri().scheme() != Some(&Scheme::HTTP) {
            let error = "HTTPS_PROXY must be an address that begins with http://";
            return ready(Err(error.into())).boxed();
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), direct.clone());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        tunnel.call(registry).err_into().boxed()
    })
}

/// A TCP connection for hyper.
type TcpIo = <HttpConnector as Service<Uri>>::Response;
/// A connection that is being opened.
type Opening = BoxFuture<'static, Result<TcpIo, BoxError>>;

/// Returns the trusted certificate authorities: those in `SSL_CERT_FILE` and `SSL_CERT_DIR`, else those of the system, else those
/// that Mozilla trusts, which are part of the program for images without any.
fn trusted() -> RootCertStore {
    let mut variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter();
    let is_chosen = variables.any(|variable| env::var_os(variable).is_some());
    let (roots, origin) = choose(rustls_native_certs::load_native_certs().certs, is_chosen);
    if roots.is_empty() {
        tracing::warn!(
            "SSL_CERT_FILE and SSL_CERT_DIR contain no certificate authority: every lookup over https fails"
        );
    } else {
        tracing::info!(origin, count = roots.len(), "certificate authorities");
    }
    roots
}

/// Returns the authorities in `found` or those of the program, and their origin for the log.
fn choose(found: Vec<CertificateDer<'_>>, is_chosen: bool) -> (RootCertStore, &'static str) {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 && !is_chosen {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return (roots, "program");
    }
    (roots, if is_chosen { "environment" } else { "system" })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[track_caller]
    fn check(found: &[CertificateDer<'_>], is_chosen: bool, expect: (usize, &str)) {
        let (roots, origin) = choose(found.to_vec(), is_chosen);
        assert_eq!((roots.len(), origin), expect);
    }

    #[test]
    fn configured_authorities_replace_those_of_the_system_and_of_the_program() {
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::default().self_signed(&key).unwrap();
        let own = own.der().clone();
        let mozilla = webpki_roots::TLS_SERVER_ROOTS.len();
        assert!(mozilla > 100);
        check(std::slice::from_ref(&own), false, (1, "system"));
        check(&[], false, (mozilla, "program"));
        check(&[own], true, (1, "environment"));
        // A misspelt path must not extend the trusted authorities.
        check(&[], true, (0, "environment"));
        check(&[CertificateDer::from(vec![0])], true, (0, "environment"));
    }
}
