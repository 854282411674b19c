//! The server of one port: accepts connections, limits them, keeps them alive and drains them.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::TryFutureExt as _;
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::Flags;
use crate::connection::Phase;
use crate::live::Certificate;
use crate::metrics::Metrics;

/// The time from an answer to the head of the next request. Go's client keeps an idle connection for 90 s, and its request fails if
/// the server has just closed the connection. A client that sends a head slowly has as much time, but is evicted before others.
const IDLE: Duration = Duration::from_secs(120);
/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The pause after a failed accept, such as with too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// The time for writing an answer, in addition to the deadline of the call.
const WRITE: Duration = Duration::from_secs(5);
/// The maximum size of a head, and of the buffer of a connection, in bytes. Argo CD sends a few hundred.
const HEAD_BYTES: usize = 16 << 10;
/// The maximum number of headers of a request.
const HEADERS: usize = 64;

/// The limits of one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The maximum number of open connections. One more may wait until a place is free.
    connections: usize,
    /// The time from the head of a request to the end of its answer.
    answer: Duration,
}

impl Bounds {
    /// The limits of the port for the kubelet and Prometheus.
    pub(crate) const OPS: Self = Self {
        connections: 16,
        answer: Duration::from_secs(10),
    };

    /// Returns the limits of the port for Argo CD, which keeps two idle connections.
    pub(crate) fn api(flags: &Flags) -> Self {
        Self {
            connections: flags.max_concurrent.saturating_mul(4).max(1),
            answer: flags.deadline.saturating_add(WRITE),
        }
    }
}

/// One listener and its connections.
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    /// Accepts connections until [`finish`](Self::finish), with TLS if there is a certificate.
    pub(crate) fn start(
        listener: TcpListener,
        tls: Option<Arc<Certificate>>,
        handler: Handler,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(accept(listener, tls, handler, stopped));
        Self { stop, serving }
    }

    /// Stops accepting connections, closes idle ones, and waits for pending answers.
    pub(crate) async fn finish(self) {
        // Sending fails only if the task has already ended.
        let _ = self.stop.send(());
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the task that accepts connections failed");
        }
    }
}

/// The open connections.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    /// The handles of the tasks, the oldest first. Some may have ended.
    connections: VecDeque<Connection>,
}

/// The handle of an open connection.
struct Connection {
    phase: Arc<Phase>,
    /// A message evicts the connection. If the sender is dropped, the connection closes after its pending answer.
    closer: oneshot::Sender<()>,
}

impl Open {
    /// Waits until one of `most` places is free for one more connection.
    ///
    /// If all places are taken, the oldest connection without a pending answer is evicted. Its client can connect again, while
    /// a refused client would fail.
    async fn place(&mut self, most: usize, evicted: &Counter) {
        while self.tasks.len() >= most {
            if self.tasks.try_join_next().is_some() {
                continue;
            }
            self.remove_ended();
            let candidates = self.connections.iter().enumerate();
            let candidates =
                candidates.filter_map(|(index, it)| Some((it.phase.evictable()?, index)));
            if let Some((_, index)) = candidates.min()
                && let Some(connection) = self.connections.remove(index)
            {
                evicted.inc();
                // Sending fails if the connection has just ended.
                let _ = connection.closer.send(());
            }
            // The connection stays if a request has just arrived. Then the next iteration evicts another one.
            let _ = timeout(PAUSE, self.tasks.join_next()).await;
        }
        if self.connections.len() > most.saturating_mul(2) {
            self.remove_ended();
        }
    }

    fn remove_ended(&mut self) {
        self.connections.retain(|it| !it.closer.is_closed());
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Certificate>>,
    handler: Handler,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut open = Open::default();
    loop {
        // Ended connections are removed first. Otherwise they would accumulate under a steady load of new connections.
        let accepted = tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(_ended) = open.tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            () = open.place(handler.bounds.connections, &handler.evicted) => {}
        }
        let acceptor = tls.as_ref().map(|it| TlsAcceptor::from(it.current()));
        let phase = Arc::new(Phase::default());
        let (closer, closing) = oneshot::channel();
        let (handler, of_task) = (handler.clone(), Arc::clone(&phase));
        open.connections.push_back(Connection { phase, closer });
        open.tasks.spawn(async move {
            match acceptor {
                None => handler.serve(stream, of_task, closing).await,
                Some(acceptor) => handler.serve_tls(acceptor, stream, of_task, closing).await,
            }
        });
    }
    drop((listener, open.connections));
    while open.tasks.join_next().await.is_some() {}
}

/// Serves HTTP on the connections of one port.
#[derive(Clone)]
pub(crate) struct Handler {
    router: Router,
    bounds: Bounds,
    /// Counts connections whose time limit passed.
    late: Counter,
    /// Counts connections that were evicted to accept another one.
    evicted: Counter,
}

impl Handler {
    pub(crate) fn new(router: Router, bounds: Bounds, metrics: &Metrics, port: &str) -> Self {
        Self {
            router,
            bounds,
            late: metrics.closed(port, "late"),
            evicted: metrics.closed(port, "evicted"),
        }
    }

    async fn serve_tls(
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
            Ok(Ok(stream)) => self.serve(stream, phase, closing).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_elapsed) => {
                self.late.inc();
            }
        }
    }

    /// Answers requests until the client, a time limit or `closing` ends the connection.
    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        phase: Arc<Phase>,
        mut closing: oneshot::Receiver<()>,
    ) {
        let router = TowerToHyperService::new(self.router);
        let (of_call, limit) = (Arc::clone(&phase), self.bounds.answer);
        let service = service_fn(move |request| {
            let (pending, phase) = (of_call.begin(limit), Arc::clone(&of_call));
            router.call(request).map_ok(move |response| {
                if response.status().is_success() {
                    phase.served();
                }
                // The body is dropped when its last part is written, or when the connection ends.
                response.map(|body| {
                    body.map_frame(move |frame| {
                        let _until_dropped = &pending;
                        frame
                    })
                })
            })
        });
        let connection = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .max_header_size(HEAD_BYTES)
            .max_headers(HEADERS)
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut late = pin!(sleep(IDLE));
        let mut is_closing = false;
        let ended = loop {
            tokio::select! {
                // The connection is polled first, since that may begin an answer, or end one.
                biased;
                ended = connection.as_mut() => break ended,
                () = phase.late(late.as_mut()) => {
                    self.late.inc();
                    return;
                }
                evicted = &mut closing, if !is_closing => {
                    if evicted.is_ok() && phase.evictable().is_some() {
                        return;
                    }
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        match ended {
            Err(error) if error.is_timeout() => {
                self.late.inc();
            }
            Err(error) => tracing::debug!(%error, "a connection failed"),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use futures::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::{Instant, advance};

    use super::*;

    fn parts() -> impl futures::Stream<Item = Result<Vec<u8>, std::io::Error>> {
        futures::stream::repeat_with(|| Ok(vec![b'x'; 64 << 10])).take(48)
    }

    /// Connects to a server that answers `/` at once and never answers `/slow`.
    fn connect() -> DuplexStream {
        let (client, server) = duplex(1 << 20);
        let never = get(async || std::future::pending::<()>().await);
        let router = Router::new()
            .route("/", get(async || "ok"))
            .route("/slow", never)
            .route("/long", get(async || Body::from_stream(parts())));
        let bounds = Bounds {
            connections: 1,
            answer: Duration::from_secs(30),
        };
        let handler = Handler::new(router, bounds, &Metrics::new(), "api");
        tokio::spawn(async move {
            let (_closer, closing) = oneshot::channel();
            handler.serve(server, Arc::default(), closing).await;
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

    /// Waits until the server closes the connection. Returns the time in seconds.
    async fn closed(mut client: DuplexStream) -> u64 {
        let started = Instant::now();
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        started.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_has_two_minutes_with_the_head() {
        let mut client = connect();
        for _ in 0..2 {
            sleep(Duration::from_secs(90)).await;
            answer(&mut client).await;
        }
        assert_eq!(closed(client).await, 120);
        assert_eq!(closed(connect()).await, 120);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_sent_byte_by_byte_is_cut_off() {
        let mut client = connect();
        answer(&mut client).await;
        for byte in REQUEST.iter().take(11) {
            client.write_all(&[*byte]).await.unwrap();
            sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(closed(client).await, 10);
    }

    /// A body of several parts, each of which hyper flushes.
    #[tokio::test(start_paused = true)]
    async fn a_long_answer_arrives_whole_or_is_cut_off() {
        let length = 3 << 20;
        let head = b"GET /long HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut client = connect();
        client.write_all(head).await.unwrap();
        let mut read = Vec::new();
        while read.len() < length {
            assert_ne!(client.read_buf(&mut read).await.unwrap(), 0);
        }
        assert!(read.starts_with(b"HTTP/1.1 200"));
        assert_eq!(closed(client).await, 120);

        let mut slow = connect();
        slow.write_all(head).await.unwrap();
        sleep(Duration::from_secs(31)).await;
        assert_eq!(closed(slow).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_a_time_limit() {
        let mut client = connect();
        client
            .write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        advance(Duration::from_millis(1)).await;
        assert_eq!(closed(client).await, 30);
    }
}
