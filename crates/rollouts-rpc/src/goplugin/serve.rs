//! Serves a plugin as a process: socket, handshake line, signals, and the first session of the host.

use std::convert::Infallible;
use std::error::Error;
use std::fs::File;
use std::future::pending;
use std::io::{self, Write as _};
use std::mem;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::Mode;
use tempfile::NamedTempFile;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Dispatch, debug, dispatcher, info, warn};

use super::control::stop;
use super::env::PluginEnv;
use super::handshake::{HandshakeError, PluginKind, Protocol, negotiate};
use super::session::{Session, SessionError, Shutdown};
use crate::call::Plugin;
use crate::netrpc::server::Serve;
use crate::workers::{SESSION_THREADS, Workers};

/// Most connections that are tried at the same time until one of them becomes the session.
const MAX_CANDIDATES: usize = 8;

/// Timeouts of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServeConfig {
    /// How long one call may take. A call that takes longer is aborted, and the reply is an error (VerifyWeight: "not verified"). The
    /// controller itself would wait forever.
    ///
    /// `None` is the default of the kind. Traffic routers and steps have 5 s, because ten hanging calls stop all Rollouts of the
    /// cluster. Metric providers have 30 s, as long as a query of the controller's built-in providers.
    pub call_deadline: Option<Duration>,
    /// How long the host may take to open its session after the handshake line.
    pub session_timeout: Duration,
}

impl ServeConfig {
    /// Returns the defaults: the call deadline of the kind, and 60 s for the host.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            call_deadline: None,
            session_timeout: Duration::from_secs(60),
        }
    }

    /// Sets [`call_deadline`](Self::call_deadline).
    #[must_use]
    pub const fn with_call_deadline(mut self, deadline: Duration) -> Self {
        self.call_deadline = Some(deadline);
        self
    }

    /// Sets [`session_timeout`](Self::session_timeout).
    #[must_use]
    pub const fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    pub(crate) fn deadline(&self, kind: PluginKind) -> Duration {
        let seconds = match kind {
            PluginKind::TrafficRouter | PluginKind::Step => 5,
            PluginKind::MetricProvider => 30,
        };
        self.call_deadline.unwrap_or(Duration::from_secs(seconds))
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a plugin could not start to serve, or failed while it served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The environment is not from a host that this plugin can serve.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The socket could not be created.
    #[error("cannot listen on a socket in {}", dir.display())]
    Listen {
        /// The directory of the socket.
        dir: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The group of the socket could not be set to the host's group.
    #[error("cannot give the socket to group \"{group}\" (PLUGIN_UNIX_SOCKET_GROUP)")]
    Group {
        /// The group's name or number.
        group: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The handshake line could not be written.
    #[error("cannot write the handshake line")]
    Announce(#[source] io::Error),
    /// The thread of the session could not be started.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// Signal handlers could not be set up.
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
    /// The socket failed to accept a connection.
    #[error("cannot accept a connection")]
    Accept(#[source] io::Error),
    /// Server reflection could not be set up (feature `grpc`).
    #[error("cannot set up server reflection")]
    Reflection(#[source] Box<dyn Error + Send + Sync>),
    /// No host opened a session in time.
    #[error("no host opened a session within {} s of the handshake line", .0.as_secs_f32())]
    NoSession(Duration),
    /// The session failed.
    #[error("the session with the host failed")]
    Session(#[from] SessionError),
}

/// Serves a plugin to the host that started this process, until the host or a signal ends it.
///
/// It ignores SIGINT, checks the cookie, negotiates the version, listens on a private socket, calls `announce` with the handshake
/// line, and serves one session. The line includes its newline; a program passes [`announce_on_stdout`]. The socket is removed when
/// this function returns.
///
/// [`main`](crate::main) also sets up the log and the runtime.
///
/// # Errors
///
/// Returns [`ServeError`] if the plugin cannot serve or the session fails. The process should exit with code 1, and the host then
/// restarts it.
pub async fn serve<P: Plugin>(
    config: &ServeConfig,
    env: &PluginEnv,
    announce: impl FnOnce(&str) -> io::Result<()>,
    plugin: P,
) -> Result<Shutdown, ServeError> {
    // The signal handlers are installed before the host reads the handshake line.
    let signals = Signals::handle()?;
    let announced = Announced::new(env, (P::KIND, Protocol::NetRpc), announce)?;
    let calls = Handle::current();
    on_own_runtime(serve_announced(*config, calls, signals, announced, plugin)).await
}

/// Runs the session on a runtime of its own: nothing that the author's code does in the caller's runtime may stall it.
pub(crate) async fn on_own_runtime(
    session: impl Future<Output = Result<Shutdown, ServeError>> + Send + 'static,
) -> Result<Shutdown, ServeError> {
    let runtime = SessionRuntime::start()?;
    let session = AbortOnDropHandle::new(runtime.handle.spawn(session));
    // A panic of the protocol code goes on in the caller, as without the runtime.
    session
        .await
        .unwrap_or_else(|panic| resume_unwind(panic.into_panic()))
}

/// The runtime of a session and of the calls that do not wait (see [`Workers`]).
pub(crate) struct SessionRuntime {
    pub(crate) handle: Handle,
    runtime: Option<Runtime>,
}

impl SessionRuntime {
    pub(crate) fn start() -> Result<Self, ServeError> {
        let mut runtime = Builder::new_multi_thread();
        // The caller may have set its subscriber for its own thread only.
        let log = dispatcher::get_default(Dispatch::clone);
        runtime.on_thread_start(move || mem::forget(dispatcher::set_default(&log)));
        runtime
            .worker_threads(SESSION_THREADS)
            .thread_name("session")
            .enable_all();
        let runtime = runtime.build().map_err(ServeError::Runtime)?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }
}

impl Drop for SessionRuntime {
    /// A call that blocks its thread must not keep the process running.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Does what [`serve`] does after the handshake line. Calls run on `calls`.
pub(crate) async fn serve_announced<P: Plugin>(
    config: ServeConfig,
    calls: Handle,
    signals: Signals,
    announced: Announced,
    plugin: P,
) -> Result<Shutdown, ServeError> {
    let service = plugin.into_service(config.deadline(P::KIND), Workers::new(calls));
    let served = Arc::clone(&service.0);
    let serve = async |listener: &UnixListener| {
        let first = first_session(listener);
        let session = match timeout(config.session_timeout, first).await {
            Ok(session) => session.map_err(ServeError::Accept)?,
            Err(_elapsed) => return Err(ServeError::NoSession(config.session_timeout)),
        };
        debug!("the host opened its session");
        tokio::select! {
            ended = session.run(P::KIND, served) => Ok(ended?),
            never = refuse_others(listener) => match never {},
        }
    };
    announced.serve(signals, service.0.as_ref(), serve).await
}

/// The handlers of SIGINT and SIGTERM. They work in any runtime of the process.
pub(crate) struct Signals {
    terminate: Signal,
}

impl Signals {
    pub(crate) fn handle() -> Result<Self, ServeError> {
        // Ctrl-C signals the whole process group, and the host stops its plugins itself. The handler stays installed after this value
        // is dropped.
        let _ignored = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        let terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        Ok(Self { terminate })
    }
}

/// A process that listens on its socket and wrote the handshake line. It does not need a runtime.
pub(crate) struct Announced {
    socket: NamedTempFile<StdUnixListener>,
}

impl Announced {
    /// Checks the environment, listens, and announces the socket.
    pub(crate) fn new(
        env: &PluginEnv,
        (kind, protocol): (PluginKind, Protocol),
        announce: impl FnOnce(&str) -> io::Result<()>,
    ) -> Result<Self, ServeError> {
        let negotiated = negotiate(kind, env)?;
        for version in &negotiated.ignored_versions {
            warn!(
                version,
                "PLUGIN_PROTOCOL_VERSIONS has an entry that is not a number"
            );
        }
        let socket = listen(env)?;
        announce(&negotiated.handshake_line(socket.path(), protocol))
            .map_err(ServeError::Announce)?;
        debug!(socket = %socket.path().display(), "listening");
        Ok(Self { socket })
    }

    /// Serves connections until the host or a signal ends the process. After a signal it stops the background work of `service`, which
    /// `serve` does at every other end.
    pub(crate) async fn serve(
        self,
        mut signals: Signals,
        service: &dyn Serve,
        serve: impl AsyncFnOnce(&UnixListener) -> Result<Shutdown, ServeError>,
    ) -> Result<Shutdown, ServeError> {
        let (listener, _removed_at_the_end) = self.socket.into_parts();
        let listener = UnixListener::from_std(listener).map_err(ServeError::Accept)?;
        let shutdown = tokio::select! {
            ended = serve(&listener) => ended?,
            _ = signals.terminate.recv() => {
                stop(service).await;
                Shutdown::Terminated
            }
        };
        info!("ending: {shutdown}");
        Ok(shutdown)
    }
}

/// Serves a plugin on an open connection, without handshake, socket and signals. The calls run in the caller's runtime together with
/// the session, so a call that blocks its thread stalls it.
///
/// # Errors
///
/// See [`SessionError`].
pub async fn serve_connection<P, IO>(
    config: &ServeConfig,
    connection: IO,
    plugin: P,
) -> Result<Shutdown, SessionError>
where
    P: Plugin,
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = plugin.into_service(config.deadline(P::KIND), Workers::Inline);
    let session = Session::establish(connection).await?;
    session.run(P::KIND, service.0).await
}

/// Writes the handshake line to stdout, then redirects stdout to `/dev/null`.
///
/// The host continues to read stdout. Output of a dependency must not reach it, and must not fill the pipe.
///
/// # Errors
///
/// Returns `Err` if stdout is closed or `/dev/null` cannot be opened.
pub fn announce_on_stdout(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null)?;
    Ok(())
}

/// Creates a socket that only this user, and the host's group if it sets one, may connect to. Dropping the value removes the file.
fn listen(env: &PluginEnv) -> Result<NamedTempFile<StdUnixListener>, ServeError> {
    let dir = env.socket_dir();
    let socket = tempfile::Builder::new()
        .prefix("plugin")
        .make_in(dir, bind_private)
        .map_err(|source| ServeError::Listen {
            dir: dir.to_owned(),
            source,
        })?;
    if let Some(group) = &env.unix_socket_group {
        share_with(socket.path(), group).map_err(|source| ServeError::Group {
            group: group.clone(),
            source,
        })?;
    }
    Ok(socket)
}

/// Binds with a umask instead of changing the mode afterwards, so that the socket is never accessible to others.
fn bind_private(path: &Path) -> io::Result<StdUnixListener> {
    // The umask is per process: without the lock, another thread that binds could restore it too early.
    static MASK: Mutex<()> = Mutex::new(());
    let _alone = MASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rustix::process::umask(Mode::from_bits_truncate(0o177));
    let bound = StdUnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn share_with(path: &Path, group: &str) -> io::Result<()> {
    let gid = match group.parse() {
        Ok(gid) => gid,
        Err(_) => group_id(group, &std::fs::read_to_string("/etc/group")?).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "/etc/group does not have it; give its number",
            )
        })?,
    };
    chown(path, None, Some(gid))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
}

/// Looks up a group in the text of `/etc/group`, because a static binary has no name service.
fn group_id(name: &str, groups: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Returns the first connection that becomes a session.
///
/// A host may connect and close the connection at once, after a failed attempt or when it kills the plugin. So connections are tried
/// concurrently.
async fn first_session(listener: &UnixListener) -> io::Result<Session<UnixStream>> {
    let mut candidates = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if candidates.len() < MAX_CANDIDATES => {
                let (connection, _) = accepted?;
                candidates.spawn(Session::establish(connection));
            }
            Some(candidate) = candidates.join_next() => match candidate.map_err(io::Error::other)? {
                Ok(session) => return Ok(session),
                Err(error) => debug!(%error, "a connection did not become a session"),
            },
        }
    }
}

/// Closes all connections after the host's. Only the first is logged as a warning.
async fn refuse_others(listener: &UnixListener) -> Infallible {
    let mut refused = 0_u64;
    while let Ok((connection, _)) = listener.accept().await {
        refused += 1;
        let peer = connection.peer_cred().ok();
        let pid = peer.and_then(|peer| peer.pid());
        let uid = peer.map(|peer| peer.uid());
        if refused == 1 {
            warn!(
                pid,
                uid, "closed a second connection: a plugin serves only the host that started it"
            );
        } else {
            debug!(pid, uid, refused, "closed one more connection");
        }
    }
    pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_group(name: &str, expect: Option<u32>) {
        let groups = "root:x:0:\ndaemon:x:1:a,b\nbroken\nargo:x:999:\nodd:x:many:\n";
        assert_eq!(group_id(name, groups), expect);
    }

    #[test]
    fn a_group_is_looked_up_by_name() {
        check_group("root", Some(0));
        check_group("argo", Some(999));
        check_group("broken", None);
        check_group("odd", None);
        check_group("arg", None);
        check_group("", None);
    }

    #[test]
    fn the_socket_is_private_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let env = PluginEnv {
            temp_dir: Some(dir.path().to_owned()),
            ..PluginEnv::default()
        };
        let socket = listen(&env).unwrap();
        let path = socket.path().to_owned();
        assert!(
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("plugin")
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn the_hosts_group_may_connect() {
        let dir = tempfile::tempdir().unwrap();
        let group = rustix::process::getgid().as_raw().to_string();
        let env = PluginEnv {
            unix_socket_dir: Some(dir.path().to_owned()),
            unix_socket_group: Some(group),
            ..PluginEnv::default()
        };
        let socket = listen(&env).unwrap();
        assert_eq!(
            std::fs::metadata(socket.path())
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o660
        );
    }

    #[test]
    fn an_unknown_group_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let env = PluginEnv {
            temp_dir: Some(dir.path().to_owned()),
            unix_socket_group: Some("no such group".into()),
            ..PluginEnv::default()
        };
        let error = listen(&env).unwrap_err();
        assert!(matches!(error, ServeError::Group { .. }), "{error}");
    }
}
