//! Serves one yamux session with a host: three initial streams, then one stream per dispensed plugin.
//!
//! The host is the yamux client and opens every stream. The order of arrival identifies them: control, stdout, stderr, and then
//! streams of dispensed plugins (go-plugin `rpc_client.go`).

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::AsyncWrite as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::control::{self, Control, DispensedIds, GRACE, stop};
use super::frame_guard::FrameGuard;
use crate::kind::PluginKind;
use crate::netrpc::server::{self, InFlightLimit, Serve, StreamError};
use crate::write_deadline::WriteDeadline;

/// Most streams of a session: control, stdout, stderr, and three dispensed plugins. An Argo Rollouts controller dispenses one, and
/// each stream may hold a message of 4 MiB.
const MAX_STREAMS: usize = 6;

/// The receive window of a stream: yamux's initial window. With a larger window the host could send frames above 1 MiB, which the
/// yamux crate refuses. So the sum of all windows is limited to this value per stream.
const WINDOW: usize = 256 * 1024;

/// Why a session ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// The host called Quit.
    HostQuit,
    /// The host closed the connection: it crashed or was killed.
    HostGone,
    /// This process received SIGTERM.
    Terminated,
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostQuit => "the host called Quit",
            Self::HostGone => "the host closed the connection",
            Self::Terminated => "the process received SIGTERM",
        })
    }
}

/// Why a session failed.
///
/// The process should exit: a host restarts a plugin that exited, but does not dispense again after it lost a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The host closed the connection before it opened its three initial streams.
    #[error("the connection ended before the host had opened its three initial streams")]
    NotEstablished,
    /// The connection failed, or its bytes are not yamux.
    #[error("the yamux connection failed")]
    Connection(#[source] io::Error),
    /// The protocol code panicked. A panic in the plugin's code only fails its call.
    #[error("serving a stream panicked")]
    Panicked(#[source] tokio::task::JoinError),
    /// The bytes on a stream are not net/rpc over gob.
    #[error("the {stream} stream is corrupt")]
    CorruptStream {
        /// `control` or `plugin`.
        stream: &'static str,
        /// The error in the bytes.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stream ended within a call or a reply, and the connection stayed open.
    #[error("the {stream} stream broke off")]
    LostStream {
        /// `control` or `plugin`.
        stream: &'static str,
        /// The error of the read or write.
        #[source]
        source: io::Error,
    },
}

/// A session whose initial streams are open.
pub(crate) struct Session<IO> {
    connection: Connection<IO>,
    control: yamux::Stream,
    /// stdout and stderr. They are never written to or closed: the host logs an error if one of them ends early.
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
    /// Returns [`SessionError::NotEstablished`] if the peer closes the connection earlier, and [`SessionError::Connection`] if the
    /// connection fails.
    pub(crate) async fn establish(io: IO) -> Result<Self, SessionError> {
        // The deadline is nearest to the socket, so it limits the frames that the yamux crate sends by itself too.
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

    /// Serves the session until it ends. `service` is the plugin that the host dispenses as `kind`.
    ///
    /// It runs in a task, so that a panic in it is an error of the session.
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
            // Also after a crash of the host: another controller may be the leader by now, and both would write.
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
        let ids = Arc::new(Mutex::new(DispensedIds::default()));
        let control = Control::new(kind, Arc::clone(&ids), Arc::clone(&service));
        let control = Arc::new(control);

        // The control stream has a limit of its own: Ping must be answered while calls use all of this one.
        let limit = InFlightLimit::default();

        // Dropping the set on return aborts all streams and their calls.
        let mut streams = JoinSet::new();
        let serve_control = server::serve(
            self.control.compat(),
            Arc::clone(&control),
            InFlightLimit::default(),
        );
        streams.spawn(async move { serve_control.await.map_err(|error| error.on("control")) });
        for stdio in self.stdio {
            // A host writes nothing here. Unread bytes would take memory.
            streams.spawn(async move {
                let _ = tokio::io::copy(&mut stdio.compat(), &mut tokio::io::sink()).await;
                Ok(())
            });
        }
        loop {
            tokio::select! {
                inbound = accept(&mut self.connection) => match inbound? {
                    Some(stream) => {
                        let (ids, service) = (Arc::clone(&ids), Arc::clone(&service));
                        let limit = limit.clone();
                        streams.spawn(async move {
                            let end = serve_dispensed(stream.compat(), &ids, service, limit).await;
                            end.map_err(|error| error.on("plugin"))
                        });
                    }
                    // A host that called Quit may close the connection before it has read the reply.
                    None if control.quit_requested() => return Ok(Shutdown::HostQuit),
                    None => return Ok(Shutdown::HostGone),
                },
                Some(ended) = streams.join_next() => match ended {
                    Ok(Ok(())) => {}
                    // A stream that breaks may be the first sign of a connection that breaks.
                    Ok(Err(lost @ SessionError::LostStream { .. })) => {
                        return after_loss(self.connection, control.quit_requested(), lost).await;
                    }
                    Ok(Err(error)) => {
                        // Replies to earlier calls may still wait in the connection.
                        drain(&mut self.connection).await;
                        return Err(error);
                    }
                    Err(panic) => return Err(SessionError::Panicked(panic)),
                },
                () = control.quit_replied() => break,
            }
        }
        close(self.connection).await;
        Ok(Shutdown::HostQuit)
    }
}

/// Returns the configuration of either end. Windows do not grow: Go sends frames as long as the window, and the yamux crate refuses
/// frames above 1 MiB.
pub(crate) fn yamux_config(streams: usize) -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(streams);
    config.set_max_connection_receive_window(Some(streams * WINDOW));
    config
}

/// Returns the next stream that the host opens, after acknowledging it, or `None` if the host closed the connection.
///
/// The connection makes progress only in this function, including pongs, so a task must always wait in it.
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

/// Converts an error of the yamux crate, without the outer layers that repeat its text.
fn io_error(error: yamux::ConnectionError) -> io::Error {
    use yamux::{ConnectionError, FrameDecodeError};
    match error {
        ConnectionError::Io(error) | ConnectionError::Decode(FrameDecodeError::Io(error)) => error,
        ConnectionError::Decode(error) => io::Error::other(error),
        error => io::Error::other(error),
    }
}

/// Acknowledges a stream.
///
/// The yamux crate sends the acknowledgement with the first frame of a stream, and stdout and stderr never send one. A host with
/// yamux 0.1.1 or later closes the session if a stream is not acknowledged within 75 s. A write of no bytes sends an empty data
/// frame with the acknowledgement.
async fn acknowledge(stream: &mut yamux::Stream) -> io::Result<()> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, &[])).await?;
    poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await
}

/// Serves a stream that starts with the id of an earlier Dispense.
async fn serve_dispensed(
    mut stream: Compat<yamux::Stream>,
    ids: &Mutex<DispensedIds>,
    service: Arc<dyn Serve>,
    limit: InFlightLimit,
) -> Result<(), StreamError> {
    let mut id = [0; 4];
    match timeout(control::ID_EXPIRY, stream.read_exact(&mut id)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            debug!(%error, "a stream ended before it sent its id");
            return Ok(());
        }
        Err(_elapsed) => {
            warn!("closed a stream that did not send its id in time");
            return Ok(());
        }
    };
    // tokio's clock, which tests can advance.
    let now = Instant::now().into_std();
    let claimed = ids
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .claim(u32::from_le_bytes(id), now);
    if !claimed {
        warn!(
            id = u32::from_le_bytes(id),
            "closed a stream with an unknown id"
        );
        return Ok(());
    }
    // The host waits for its id before it makes calls (`mux_broker.go` in go-plugin).
    stream.write_all(&id).await.map_err(StreamError::Io)?;
    stream.flush().await.map_err(StreamError::Io)?;
    service.serve(stream, limit).await
}

impl StreamError {
    pub(crate) fn on(self, stream: &'static str) -> SessionError {
        match self {
            // The text of the yamux crate names the connection, but only the stream was reset.
            Self::Io(error) if error.kind() == io::ErrorKind::WriteZero => {
                let source = io::Error::new(io::ErrorKind::BrokenPipe, "the host has reset it");
                SessionError::LostStream { stream, source }
            }
            Self::Io(source) => SessionError::LostStream { stream, source },
            Self::Corrupt(source) => SessionError::CorruptStream { stream, source },
        }
    }
}

/// Returns how the session ends after a stream failed.
///
/// If the connection ends within [`GRACE`], the stream only noticed that first. Otherwise the session fails: the host would continue
/// to ping and never dispense again.
async fn after_loss<IO>(
    mut connection: Connection<IO>,
    quit_requested: bool,
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
        Ok(Ok(())) if quit_requested => Ok(Shutdown::HostQuit),
        Ok(Ok(())) => Ok(Shutdown::HostGone),
        Ok(Err(error)) => Err(error),
        Err(_elapsed) => Err(lost),
    }
}

/// Sends the reply to Quit, waits for the host to close the connection, and closes it after [`GRACE`].
async fn close<IO>(mut connection: Connection<IO>)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if !drain(&mut connection).await {
        let closed = poll_fn(|cx| connection.poll_close(cx));
        if !matches!(timeout(GRACE, closed).await, Ok(Ok(()))) {
            debug!("the connection did not close in time");
        }
    }
}

/// Sends pending frames for [`GRACE`]. Returns whether the host closed the connection in this time.
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
            // The connection ended within a frame.
            | io::ErrorKind::UnexpectedEof
    )
}
