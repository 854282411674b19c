//! Serves HTTP/2 on the plugin's socket, until the host calls Shutdown or has no connection for a while.

use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing::debug;

use crate::goplugin::control::GRACE;
use crate::goplugin::serve::ServeError;
use crate::goplugin::session::Shutdown;
use crate::write_deadline::WriteDeadline;

/// Most concurrent connections. A go-plugin host has one.
const MAX_CONNECTIONS: usize = 4;

/// Most concurrent streams of a connection: two for go-plugin's own services, and the rest for calls. A host makes about ten
/// calls at once.
const MAX_STREAMS: u32 = 18;

/// Serves until `quit` is cancelled, or until there is no connection for `session_timeout`.
///
/// # Errors
///
/// Returns [`ServeError::NoSession`] if no host ever connected, and [`ServeError::Accept`] if the socket fails.
pub(super) async fn serve(
    listener: &UnixListener,
    services: Routes,
    quit: &CancellationToken,
    session_timeout: Duration,
) -> Result<Shutdown, ServeError> {
    let mut connections = JoinSet::new();
    let mut was_connected = false;
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                let (socket, _) = accepted.map_err(ServeError::Accept)?;
                was_connected = true;
                connections.spawn(connection(socket, services.clone(), quit.clone()));
            }
            Some(ended) = connections.join_next() => {
                if let Err(panic) = ended {
                    debug!(%panic, "serving a connection panicked");
                }
            }
            () = sleep(session_timeout), if connections.is_empty() => {
                return if was_connected { Ok(Shutdown::HostGone) } else { Err(ServeError::NoSession(session_timeout)) };
            }
            () = quit.cancelled() => break,
        }
    }
    if timeout(GRACE, connections.join_all()).await.is_err() {
        debug!("a connection did not close in time");
    }
    Ok(Shutdown::HostQuit)
}

async fn connection(socket: UnixStream, services: Routes, quit: CancellationToken) {
    let io = TokioIo::new(WriteDeadline::new(socket));
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    let serving = http.serve_connection(io, TowerToHyperService::new(services));
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = quit.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended");
    }
}
