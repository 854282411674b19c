//! The server of the page: opens the port and the stage, and runs until it is stopped.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::stage::{run, show};
use crate::web::{Site, router};
use crate::{Stage, StageError};

/// Flags of the server.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PageFlags {
    /// Port of the page; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// End after this many seconds.
    #[arg(long = "for", value_name = "SECONDS")]
    pub seconds: Option<u64>,
}

/// Why a demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The port is in use.
    #[error("cannot serve at port {port}; --port 0 takes a free one: {source}")]
    Port {
        /// The port.
        port: u16,
        /// The system's error.
        source: io::Error,
    },
    /// A socket or a signal handler failed.
    #[error("the web server of the page failed: {0}")]
    Server(#[from] io::Error),
    /// The stage failed.
    #[error("{0}")]
    Stage(StageError),
}

/// Opens a stage and serves its page until Ctrl-C or for the time in `flags`. Calls `announce` with the address when the page
/// can be opened.
///
/// # Errors
/// Returns `Err` if the port is in use or the stage fails.
pub async fn serve<S: Stage>(
    flags: PageFlags,
    open: impl Future<Output = Result<S, StageError>>,
    announce: impl FnOnce(SocketAddr),
) -> Result<(), DemoError> {
    let port = flags.port;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.map_err(|source| DemoError::Port { port, source })?;
    let address = listener.local_addr()?;
    let mut stage = tokio::select! {
        opened = open => opened.map_err(DemoError::Stage)?,
        interrupted = interrupted() => return Ok(interrupted?),
    };
    show(&mut stage);
    let (commands, queue) = mpsc::channel(16);
    let site = Site {
        address,
        snapshots: stage.board().watch(),
        commands,
    };
    let (stop, stopped) = oneshot::channel();
    let mut stage = pin!(run(stage, queue, stopped));
    announce(address);
    let end = async {
        match flags.seconds {
            Some(seconds) => sleep(Duration::from_secs(seconds)).await,
            None => pending().await,
        }
    };
    // Open pages see their connection close.
    let early = tokio::select! {
        served = axum::serve(listener, router(site)) => { served?; None }
        interrupted = interrupted() => { interrupted?; None }
        () = end => None,
        ended = &mut stage => Some(ended),
    };
    drop(stop);
    let ended = match early {
        Some(ended) => ended,
        None => stage.await,
    };
    ended.map_err(DemoError::Stage)
}

/// Waits for a signal to end. Without a handler the processes of the stage would keep running.
async fn interrupted() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(())
}
