//! Connections: accepted, kept alive, drained.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::Flags;
use crate::tls::Certificate;

/// How long a connection may wait for the next request. Go's client keeps an idle one for 90 s, and a poll on one that the
/// server has just closed fails.
const IDLE: Duration = Duration::from_secs(120);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: there are too many open files, which takes time to pass.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take on its way to a client, besides the time that a call may take.
const WAY: Duration = Duration::from_secs(5);
/// Connections for each call that may run. Argo CD keeps two that it does not use.
const PER_CALL: usize = 4;

/// One listener and its connections.
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    /// Accepts connections, over TLS when there is a certificate, until [`finish`](Self::finish).
    pub(crate) fn start(
        listener: TcpListener,
        tls: Option<Certificate>,
        router: Router,
        flags: &Flags,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let open = Open {
            most: flags.max_concurrent.saturating_mul(PER_CALL),
            closers: VecDeque::new(),
        };
        let answering = Answering {
            router,
            longest: flags.deadline.saturating_add(WAY),
        };
        Self {
            stop,
            serving: tokio::spawn(accept(listener, tls, answering, open, stopped)),
        }
    }

    /// Accepts no more, closes what is idle and waits for the answers to what was asked.
    pub(crate) async fn finish(self) {
        // Nobody listens only if accepting has ended already.
        let _ = self.stop.send(());
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "accepting connections ended");
        }
    }
}

/// The connections that are open, the oldest first.
struct Open {
    most: usize,
    /// A connection closes when its closer is dropped.
    closers: VecDeque<oneshot::Sender<()>>,
}

impl Open {
    /// Adds one, for which the oldest has to go if there are too many: a client that still wants it connects again, while
    /// one that was turned away would have failed.
    fn add(&mut self) -> oneshot::Receiver<()> {
        if self.closers.len() >= self.most {
            self.closers.retain(|closer| !closer.is_closed());
        }
        while self.closers.len() >= self.most.max(1) {
            self.closers.pop_front();
        }
        let (closer, closing) = oneshot::channel();
        self.closers.push_back(closer);
        closing
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Certificate>,
    answering: Answering,
    mut open: Open,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_ended) = connections.join_next() => continue,
            _ = &mut stopped => break,
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
        let (answering, closing) = (answering.clone(), open.add());
        connections.spawn(async move {
            match acceptor {
                None => answering.on(stream, closing).await,
                Some(acceptor) => answering.over_tls(acceptor, stream, closing).await,
            }
        });
    }
    drop((listener, open));
    while connections.join_next().await.is_some() {}
}

/// What is said on a connection.
#[derive(Clone)]
struct Answering {
    router: Router,
    /// Longest time from a request to the end of its answer.
    longest: Duration,
}

impl Answering {
    async fn over_tls(
        self,
        acceptor: TlsAcceptor,
        stream: TcpStream,
        mut closing: oneshot::Receiver<()>,
    ) {
        let accepted = tokio::select! {
            accepted = timeout(HANDSHAKE, acceptor.accept(stream)) => accepted,
            _ = &mut closing => return,
        };
        match accepted {
            Ok(Ok(stream)) => self.on(stream, closing).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS connection"),
            Err(_elapsed) => tracing::debug!("no TLS connection in time"),
        }
    }

    /// Answers requests until the client or `closing` ends it.
    async fn on(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        closing: oneshot::Receiver<()>,
    ) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // It runs while a connection is idle, too.
            .header_read_timeout(IDLE)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router));
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Ok(ended),
            _ = closing => {
                connection.as_mut().graceful_shutdown();
                timeout(self.longest, connection).await
            }
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
            Err(_elapsed) => tracing::debug!("a connection did not end in time"),
        }
    }
}
