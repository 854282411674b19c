//! Connections: accepted, kept alive, drained.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::tls::Certificate;

/// How long a connection may wait for the next request. Go's client keeps an idle one for 90 s, and a poll on one that the
/// server has just closed fails.
const IDLE: Duration = Duration::from_secs(120);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: there are too many open files, which takes time to pass.
const PAUSE: Duration = Duration::from_millis(100);

/// One listener and its connections.
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<GracefulShutdown>,
}

impl Server {
    /// Accepts connections, over TLS when there is a certificate, until [`finish`](Self::finish).
    pub(crate) fn start(listener: TcpListener, tls: Option<Certificate>, router: Router) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self {
            stop,
            accepting: tokio::spawn(accept(listener, tls, router, stopped)),
        }
    }

    /// Accepts no more, closes what is idle and waits for the answers to what was asked.
    pub(crate) async fn finish(self) {
        // Nobody listens only if accepting has ended already.
        let _ = self.stop.send(());
        match self.accepting.await {
            Ok(connections) => connections.shutdown().await,
            Err(error) => tracing::error!(%error, "accepting connections ended"),
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Certificate>,
    router: Router,
    mut stopped: oneshot::Receiver<()>,
) -> GracefulShutdown {
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return connections,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let acceptor = tls.as_ref().map(Certificate::acceptor);
        let (router, watcher) = (router.clone(), connections.watcher());
        tokio::spawn(async move {
            match acceptor {
                None => serve(stream, router, watcher).await,
                Some(acceptor) => {
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => serve(stream, router, watcher).await,
                        Ok(Err(error)) => tracing::debug!(%error, "no TLS connection"),
                        Err(_elapsed) => tracing::debug!("no TLS connection in time"),
                    }
                }
            }
        });
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    watcher: Watcher,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // It runs while a connection is idle, too.
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
