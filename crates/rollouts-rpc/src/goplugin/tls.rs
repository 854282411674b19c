//! The host's connection: the socket itself, or TLS on it where the host asks for AutoMTLS.

#[cfg(feature = "grpc")]
mod auto;
#[cfg(feature = "grpc")]
mod p521;

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

#[cfg(feature = "grpc")]
pub use auto::TlsError;

/// What either protocol runs on.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// Turns what the socket accepts into connections.
#[derive(Clone, Default)]
pub(crate) struct Acceptor {
    #[cfg(feature = "grpc")]
    tls: Option<tokio_rustls::TlsAcceptor>,
}

impl Acceptor {
    /// # Errors
    ///
    /// When the peer is not the host: the TLS handshake fails.
    pub(crate) async fn accept(&self, socket: UnixStream) -> io::Result<Box<dyn Connection>> {
        #[cfg(feature = "grpc")]
        if let Some(tls) = &self.tls {
            return Ok(Box::new(tls.accept(socket).await?));
        }
        Ok(Box::new(socket))
    }
}
