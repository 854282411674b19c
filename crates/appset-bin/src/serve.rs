//! Connections: accepted, bounded, kept alive, drained.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use futures::FutureExt as _;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::Flags;
use crate::connection::{Limits, Observed, Phase};
use crate::live::Certificate;
use crate::metrics::Closed;

/// How long a connection may wait for the next request. Go's client keeps an idle one for 90 s, and a poll on one that the
/// server has just closed fails.
const IDLE: Duration = Duration::from_secs(120);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: there are too many open files, which takes time to pass.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take on its way to a client, besides the time that a call may take.
const WAY: Duration = Duration::from_secs(5);
/// Most bytes of a head, and of what a connection buffers. Argo CD sends a few hundred.
const HEAD_BYTES: usize = 16 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;

/// What one listener admits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections that are open at the same time. One more may be waiting for its place.
    connections: usize,
    limits: Limits,
}

impl Bounds {
    /// Those of the port that Argo CD asks. It keeps two connections that it does not use.
    pub(crate) fn api(flags: &Flags) -> Self {
        Self {
            connections: flags.max_concurrent.saturating_mul(4).max(1),
            limits: Limits {
                idle: IDLE,
                head: Duration::from_secs(10),
                answer: flags.deadline.saturating_add(WAY),
            },
        }
    }

    /// Those of the port for the kubelet and Prometheus.
    pub(crate) const fn ops() -> Self {
        Self {
            connections: 16,
            limits: Limits {
                idle: IDLE,
                head: Duration::from_secs(5),
                answer: Duration::from_secs(10),
            },
        }
    }
}

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
        bounds: Bounds,
        closed: Closed,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let open = Open {
            permits: Arc::new(Semaphore::new(bounds.connections)),
            most: bounds.connections,
            connections: VecDeque::new(),
            closed: closed.clone(),
        };
        let answering = Answering {
            router,
            limits: bounds.limits,
            closed,
        };
        Self {
            stop,
            serving: tokio::spawn(accept(listener, tls, answering, open, stopped)),
        }
    }

    /// Accepts no more, closes what is idle and waits for the answers to what was asked.
    pub(crate) async fn finish(self) {
        // There is no receiver only if accepting has ended already.
        let _ = self.stop.send(());
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "accepting connections ended");
        }
    }
}

/// The connections that are open, the oldest first.
struct Open {
    permits: Arc<Semaphore>,
    most: usize,
    connections: VecDeque<Connection>,
    closed: Closed,
}

/// One of them, as the accepting side knows it.
struct Connection {
    phase: Arc<Phase>,
    /// Sent to, the connection makes room for another one; dropped, it ends after its answer.
    closer: oneshot::Sender<()>,
}

impl Open {
    /// A place for one more connection. If there is none, the oldest connection that has no answer to come makes room: a
    /// client that still wants it connects again, while one that was refused would have failed.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = Arc::clone(&self.permits).try_acquire_owned() {
                return Some(place);
            }
            self.connections.retain(|it| !it.closer.is_closed());
            let claims = self.connections.iter().enumerate();
            let claims = claims.filter_map(|(age, it)| Some((it.phase.claim()?, age)));
            if let Some((_, age)) = claims.min()
                && let Some(connection) = self.connections.remove(age)
            {
                self.closed.evicted();
                // It may have ended just now.
                let _ = connection.closer.send(());
            }
            // A request may have come in at the last moment: then another one has to go.
            match timeout(PAUSE, Arc::clone(&self.permits).acquire_owned()).await {
                Ok(place) => return place.ok(),
                Err(_elapsed) => {}
            }
        }
    }

    fn add(&mut self, phase: Arc<Phase>) -> oneshot::Receiver<()> {
        let (closer, closing) = oneshot::channel();
        self.connections.push_back(Connection { phase, closer });
        // Those that ended by themselves.
        if self.connections.len() > self.most.saturating_mul(2) {
            self.connections.retain(|it| !it.closer.is_closed());
        }
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
        // What has ended is removed first, or it would pile up while new connections keep coming.
        let accepted = tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(_ended) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let place = tokio::select! {
            biased;
            _ = &mut stopped => break,
            place = open.place() => place,
        };
        let Some(place) = place else { break };
        let acceptor = tls.as_ref().map(Certificate::acceptor);
        let phase = Phase::new(answering.limits);
        let (answering, closing) = (answering.clone(), open.add(Arc::clone(&phase)));
        connections.spawn(async move {
            match acceptor {
                None => answering.on(stream, phase, closing).await,
                Some(acceptor) => answering.over_tls(acceptor, stream, phase, closing).await,
            }
            drop(place);
        });
    }
    drop((listener, open));
    while connections.join_next().await.is_some() {}
}

/// What is said on a connection.
#[derive(Clone)]
struct Answering {
    router: Router,
    limits: Limits,
    closed: Closed,
}

/// Why a connection is left.
enum End {
    Ended(hyper::Result<()>),
    Late,
    Closing { makes_room: bool },
}

impl Answering {
    async fn over_tls(
        self,
        acceptor: TlsAcceptor,
        stream: TcpStream,
        phase: Arc<Phase>,
        mut closing: oneshot::Receiver<()>,
    ) {
        let accepted = tokio::select! {
            accepted = timeout(HANDSHAKE, acceptor.accept(stream)) => accepted,
            _ = &mut closing => return,
        };
        match accepted {
            Ok(Ok(stream)) => self.on(stream, phase, closing).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS connection"),
            Err(_elapsed) => self.closed.late(),
        }
    }

    /// Answers requests until the client, a limit or `closing` ends it.
    async fn on(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        phase: Arc<Phase>,
        mut closing: oneshot::Receiver<()>,
    ) {
        let router = TowerToHyperService::new(self.router);
        let of_call = Arc::clone(&phase);
        let service = service_fn(move |request| {
            of_call.asked();
            let phase = Arc::clone(&of_call);
            router.call(request).inspect(move |response| {
                let status = response.as_ref().map(hyper::Response::status);
                phase.answered(status.is_ok_and(|status| status.is_success()));
            })
        });
        let stream = TokioIo::new(Observed::new(stream, Arc::clone(&phase)));
        let connection = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .max_header_size(HEAD_BYTES)
            .max_headers(HEADERS)
            // The phase has limits of its own.
            .header_read_timeout(None)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        let mut late = pin!(sleep_until(phase.until()));
        let mut is_closing = false;
        let ended = loop {
            let end = poll_fn(|context| {
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(End::Ended(ended));
                }
                // The step may be another one by now.
                if late.deadline() != phase.until() {
                    late.as_mut().reset(phase.until());
                }
                if late.as_mut().poll(context).is_ready() {
                    return Poll::Ready(End::Late);
                }
                if !is_closing && let Poll::Ready(closing) = closing.poll_unpin(context) {
                    let makes_room = closing.is_ok();
                    return Poll::Ready(End::Closing { makes_room });
                }
                Poll::Pending
            });
            match end.await {
                End::Ended(ended) => break ended,
                End::Late => return self.closed.late(),
                End::Closing { makes_room } if makes_room && phase.claim().is_some() => return,
                End::Closing { .. } => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::{Instant, advance, sleep};

    use super::*;
    use crate::metrics::Metrics;

    /// A connection to a server that answers `/` at once, and `/slow` never.
    fn connect() -> DuplexStream {
        let (client, server) = duplex(1 << 20);
        let never = get(async || std::future::pending::<()>().await);
        let router = Router::new()
            .route("/", get(async || "ok"))
            .route("/slow", never);
        let limits = Limits {
            idle: IDLE,
            head: Duration::from_secs(10),
            answer: Duration::from_secs(30),
        };
        let closed = Metrics::new().closed("api");
        let answering = Answering {
            router,
            limits,
            closed,
        };
        tokio::spawn(async move {
            let (_closer, closing) = oneshot::channel();
            answering.on(server, Phase::new(limits), closing).await;
        });
        client
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    async fn answer(client: &mut DuplexStream) {
        client.write_all(REQUEST).await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"ok") {
            assert_ne!(client.read_buf(&mut read).await.unwrap(), 0);
        }
    }

    /// After how many seconds the server closes.
    async fn closed(mut client: DuplexStream) -> u64 {
        let started = Instant::now();
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        started.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_longer_than_a_head_may_take() {
        let mut client = connect();
        for _ in 0..2 {
            sleep(Duration::from_secs(90)).await;
            answer(&mut client).await;
        }
        assert_eq!(closed(client).await, 120);
        assert_eq!(closed(connect()).await, 120);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_byte_by_byte_ends_after_ten_seconds() {
        let mut client = connect();
        answer(&mut client).await;
        for byte in REQUEST.iter().take(9) {
            client.write_all(&[*byte]).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(closed(client).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_a_limit() {
        let mut client = connect();
        client
            .write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        advance(Duration::from_millis(1)).await;
        assert_eq!(closed(client).await, 30);
    }
}
