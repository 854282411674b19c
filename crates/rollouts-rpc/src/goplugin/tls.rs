//! The host's connection: the socket, or TLS on the socket if the host requires AutoMTLS.

#[cfg(feature = "grpc")]
mod auto;

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

#[cfg(feature = "grpc")]
pub use auto::TlsError;

/// A connection that a session can use.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// Converts accepted sockets to connections.
#[derive(Clone, Default)]
pub(crate) struct Acceptor {
    #[cfg(feature = "grpc")]
    tls: Option<tokio_rustls::TlsAcceptor>,
}

impl Acceptor {
    /// Does the TLS handshake, if the host requires TLS.
    ///
    /// # Errors
    ///
    /// Returns `Err` if the TLS handshake fails, for example because the peer is not the host.
    pub(crate) async fn accept(&self, socket: UnixStream) -> io::Result<Box<dyn Connection>> {
        #[cfg(feature = "grpc")]
        if let Some(tls) = &self.tls {
            return Ok(Box::new(tls.accept(socket).await?));
        }
        Ok(Box::new(socket))
    }
}
