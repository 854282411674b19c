//! One yamux session with a host: three initial streams, then one stream per dispensed plugin.
//!
//! The host is the yamux client and opens every stream. Streams are told apart by the order in
//! which they arrive: control, stdout, stderr, then brokered ones (go-plugin `rpc_client.go`).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{AsyncWrite as _, FutureExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::broker::{self, Broker};
use super::control::Control;
use super::frame_guard::FrameGuard;
use super::handshake::PluginKind;
use super::write_deadline::WriteDeadline;
use crate::netrpc::server::{self, Room, Serve, StreamError};

/// Control, stdout, stderr and the dispensed plugin, with room for two more of these. A host that opens
/// more is no Argo Rollouts controller, and each may hold a message of 4 MiB.
const MAX_STREAMS: usize = 6;

/// yamux's initial receive window. Growing it would let the host send frames above the 1 MiB that
/// the yamux crate accepts, so the sum of all windows is held at this value per stream.
const WINDOW: usize = 256 * 1024;

/// How long the host gets to hang up by itself after Quit, or after it lost a stream. It kills a plugin that
/// takes 2 s to end.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// How a session that did not fail came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// The host said Quit.
    HostQuit,
    /// The host hung up: it crashed or was killed.
    HostGone,
    /// This process was asked to end by SIGTERM.
    Terminated,
}

/// Why a session failed. The process should end then: a host that merely loses a stream never
/// dispenses again, while it restarts a plugin that has exited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The host hung up, or was silent, before its three initial streams were open.
    #[error("the connection ended before the host had opened its three initial streams")]
    NotEstablished,
    /// The connection is broken or does not carry yamux.
    #[error("the yamux connection failed")]
    Connection(#[source] io::Error),
    /// The protocol code itself panicked; a router's panic is only its call's error.
    #[error("serving a stream panicked")]
    Panicked(#[source] tokio::task::JoinError),
    /// What arrived on a stream is not net/rpc over gob; nothing after it can be understood.
    #[error("the {stream} stream is corrupt")]
    CorruptStream {
        /// Which stream: `control` or `plugin`.
        stream: &'static str,
        /// What was wrong with the bytes.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stream ended in the middle of a call or of a reply, while the connection lives on.
    #[error("the {stream} stream broke off")]
    LostStream {
        /// Which stream: `control` or `plugin`.
        stream: &'static str,
        /// How that was noticed.
        #[source]
        source: io::Error,
    },
}

/// A session whose initial streams are open.
pub(crate) struct Session<IO> {
    connection: Connection<IO>,
    control: yamux::Stream,
    /// Never written to and never closed: the host logs an error when one of them ends early.
    stdio: [yamux::Stream; 2],
}

type Connection<IO> = yamux::Connection<Compat<FrameGuard<WriteDeadline<IO>>>>;

impl<IO> Session<IO>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Waits until the host has opened its three initial streams.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotEstablished`] for a peer that only knocks.
    pub(crate) async fn establish(io: IO) -> Result<Self, SessionError> {
        let io = FrameGuard::new(WriteDeadline::new(io)).compat();
        let mut connection =
            yamux::Connection::new(io, yamux_config(MAX_STREAMS), yamux::Mode::Server);
        let mut next = async || match accept(&mut connection).await {
            Ok(Some(stream)) => Ok(stream),
            Ok(None) => Err(SessionError::NotEstablished),
            Err(error) => Err(error),
        };
        let (control, stdout, stderr) = (next().await?, next().await?, next().await?);
        Ok(Self {
            connection,
            control,
            stdio: [stdout, stderr],
        })
    }

    /// Serves the session until it ends. `service` is what the host gets when it dispenses `kind`.
    ///
    /// It runs on the workers, as its calls do: a caller in `main` is outside of them, and each frame would change threads.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub(crate) async fn run(
        self,
        kind: PluginKind,
        service: Arc<dyn Serve>,
    ) -> Result<Shutdown, SessionError> {
        let session = tokio::spawn(async move {
            let ended = self.serve(kind, Arc::clone(&service)).await;
            stop(service.as_ref()).await;
            ended
        });
        let ended = AbortOnDropHandle::new(session).await;
        ended.map_err(SessionError::Panicked)?
    }

    async fn serve(
        mut self,
        kind: PluginKind,
        service: Arc<dyn Serve>,
    ) -> Result<Shutdown, SessionError> {
        let broker = Arc::new(Mutex::new(Broker::default()));
        let stopped = Arc::clone(&service);
        let stop_service = move || {
            let service = Arc::clone(&stopped);
            async move { stop(service.as_ref()).await }.boxed()
        };
        let control = Control::new(kind, Arc::clone(&broker), Box::new(stop_service));
        let control = Arc::new(control);

        let room = Room::default();

        // Dropping the set on return ends every stream and every call that still runs.
        let mut streams = JoinSet::new();
        let serve_control =
            server::serve(self.control.compat(), Arc::clone(&control), Room::default());
        streams.spawn(async move { serve_control.await.map_err(|error| error.on("control")) });
        for stdio in self.stdio {
            // A host writes nothing here; what is not read would take memory.
            streams.spawn(async move {
                let _ = tokio::io::copy(&mut stdio.compat(), &mut tokio::io::sink()).await;
                Ok(())
            });
        }
        loop {
            tokio::select! {
                inbound = accept(&mut self.connection) => match inbound? {
                    Some(stream) => {
                        let (broker, service) = (Arc::clone(&broker), Arc::clone(&service));
                        let room = room.clone();
                        streams.spawn(async move {
                            let end = serve_brokered(stream.compat(), &broker, service, room).await;
                            end.map_err(|error| error.on("plugin"))
                        });
                    }
                    None if control.quit_asked() => return Ok(Shutdown::HostQuit),
                    None => return Ok(Shutdown::HostGone),
                },
                Some(ended) = streams.join_next() => match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(lost @ SessionError::LostStream { .. })) => {
                        return after_loss(self.connection, control.quit_asked(), lost).await;
                    }
                    Ok(Err(error)) => {
                        drain(&mut self.connection).await;
                        return Err(error);
                    }
                    Err(panic) => return Err(SessionError::Panicked(panic)),
                },
                () = control.quit_answered() => break,
            }
        }
        hang_up(self.connection).await;
        Ok(Shutdown::HostQuit)
    }
}

/// Ends what the plugin does by itself. A host that waits longer for the reply to Quit kills the process.
async fn stop(service: &dyn Serve) {
    if timeout(GRACE, service.stop()).await.is_err() {
        warn!("the background work did not stop in time");
    }
}

/// Of either end. Windows do not grow: Go sends a frame as long as the window, and the yamux crate takes none above 1 MiB.
pub(crate) fn yamux_config(streams: usize) -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(streams);
    config.set_max_connection_receive_window(Some(streams * WINDOW));
    config
}

/// The next stream the host opens, acknowledged; `None` once the host has hung up.
///
/// The connection makes progress only here, pongs included, so some task must always be waiting in
/// this function.
async fn accept<IO>(connection: &mut Connection<IO>) -> Result<Option<yamux::Stream>, SessionError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    match poll_fn(|cx| connection.poll_next_inbound(cx)).await {
        Some(Ok(mut stream)) => {
            acknowledge(&mut stream)
                .await
                .map_err(SessionError::Connection)?;
            Ok(Some(stream))
        }
        None => Ok(None),
        Some(Err(error)) => match io_error(error) {
            error if is_hang_up(&error) => Ok(None),
            error => Err(SessionError::Connection(error)),
        },
    }
}

/// What the yamux crate says, without the layers that say the same.
fn io_error(error: yamux::ConnectionError) -> io::Error {
    use yamux::{ConnectionError, FrameDecodeError};
    match error {
        ConnectionError::Io(error) | ConnectionError::Decode(FrameDecodeError::Io(error)) => error,
        ConnectionError::Decode(error) => io::Error::other(error),
        error => io::Error::other(error),
    }
}

/// Tells the host that its stream was accepted.
///
/// The yamux crate sends an acknowledgement with a stream's first frame, which never comes on
/// stdout and stderr; a host with yamux 0.1.1 or later closes the session after 75 s without one. A
/// write of no bytes makes an empty data frame that carries it.
async fn acknowledge(stream: &mut yamux::Stream) -> io::Result<()> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, &[])).await?;
    poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await
}

/// Serves a stream that names the id of an earlier Dispense.
async fn serve_brokered(
    mut stream: Compat<yamux::Stream>,
    broker: &Mutex<Broker>,
    service: Arc<dyn Serve>,
    room: Room,
) -> Result<(), StreamError> {
    let mut id = [0; 4];
    match timeout(broker::EXPIRY, stream.read_exact(&mut id)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            debug!(%error, "a stream ended before it named its id");
            return Ok(());
        }
        Err(_elapsed) => {
            warn!("a stream did not name its id in time and was closed");
            return Ok(());
        }
    };
    let now = Instant::now().into_std();
    let claimed = broker
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .claim(u32::from_le_bytes(id), now);
    if !claimed {
        warn!(
            id = u32::from_le_bytes(id),
            "a stream named an id that is not waiting and was closed"
        );
        return Ok(());
    }
    stream.write_all(&id).await.map_err(StreamError::Io)?;
    stream.flush().await.map_err(StreamError::Io)?;
    service.serve(stream, room).await
}

impl StreamError {
    pub(crate) fn on(self, stream: &'static str) -> SessionError {
        match self {
            // The yamux crate's own text is about a connection.
            Self::Io(error) if error.kind() == io::ErrorKind::WriteZero => {
                let source = io::Error::new(io::ErrorKind::BrokenPipe, "the host has reset it");
                SessionError::LostStream { stream, source }
            }
            Self::Io(source) => SessionError::LostStream { stream, source },
            Self::Corrupt(source) => SessionError::CorruptStream { stream, source },
        }
    }
}

/// How the session ends after a stream is lost: with it, unless the whole connection is gone, which
/// the stream may have noticed first.
///
/// A host that loses a stream but not the connection continues to ping and never dispenses again, so
/// the process has to end.
async fn after_loss<IO>(
    mut connection: Connection<IO>,
    quit_asked: bool,
    lost: SessionError,
) -> Result<Shutdown, SessionError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let gone = timeout(GRACE, async {
        while accept(&mut connection).await?.is_some() {}
        Ok(())
    });
    match gone.await {
        Ok(Ok(())) if quit_asked => Ok(Shutdown::HostQuit),
        Ok(Ok(())) => Ok(Shutdown::HostGone),
        Ok(Err(error)) => Err(error),
        Err(_elapsed) => Err(lost),
    }
}

/// Lets the reply to Quit leave, gives the host a moment to hang up, then does so itself.
async fn hang_up<IO>(mut connection: Connection<IO>)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if !drain(&mut connection).await {
        let close = poll_fn(|cx| connection.poll_close(cx));
        if !matches!(timeout(GRACE, close).await, Ok(Ok(()))) {
            debug!("the connection did not close in order");
        }
    }
}

/// Sends what is still to be sent; tells whether the host hung up meanwhile.
async fn drain<IO>(connection: &mut Connection<IO>) -> bool
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let hung_up = async { while let Ok(Some(_)) = accept(connection).await {} };
    timeout(GRACE, hung_up).await.is_ok()
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            // In the middle of a frame.
            | io::ErrorKind::UnexpectedEof
    )
}
