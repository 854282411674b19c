//! The certificate to answer https with, read again when its files change.

use std::sync::Arc;

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::Flags;
use crate::live::Live;

/// The certificate and its key.
pub(crate) struct Certificate(Live<ServerConfig>);

impl Certificate {
    /// What the flags name, if they name one.
    pub(crate) fn from_flags(flags: &Flags) -> anyhow::Result<Option<Self>> {
        let (Some(cert), Some(key)) = (&flags.tls_cert, &flags.tls_key) else {
            return Ok(None);
        };
        let live = Live::new(vec![cert.clone(), key.clone()], |files| match files {
            [cert, key] => config(cert, key),
            _ => anyhow::bail!("two files make a certificate"),
        })?;
        Ok(Some(Self(live)))
    }

    /// The configuration for the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.current().into()
    }
}

/// TLS 1.2 and up, HTTP/1.1 only.
fn config(cert: &[u8], key: &[u8]) -> anyhow::Result<ServerConfig> {
    let certs = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<Vec<_>, _>>()
        .context("the certificate is not PEM")?;
    let key = PrivateKeyDer::from_pem_slice(key).context("the key is not PEM")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .context("the certificate and the key do not belong together")?;
    Ok(config)
}
