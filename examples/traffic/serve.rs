//! From the first process to the last.

use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use anstream::println;
use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::Flags;
use crate::stage::Stage;
use crate::web::{Site, router};

/// Serves the page until Ctrl-C, or for the time that was asked for.
///
/// # Errors
/// Returns `Err` if the port is taken, or Envoy or the plugin does not start.
pub(crate) async fn run(flags: Flags) -> Result<()> {
    let address = (Ipv4Addr::LOCALHOST, flags.port);
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| {
        format!(
            "cannot serve at port {}; --port 0 takes a free one",
            flags.port
        )
    })?;
    let address = listener.local_addr()?;
    let stage = Stage::open(&flags.plugin).await?;
    let (orders, queue) = mpsc::channel(16);
    let site = Site {
        address,
        snapshots: stage.watch(),
        orders,
    };
    let (stop, stopped) = oneshot::channel();
    let mut stage = tokio::spawn(stage.run(queue, stopped));
    println!("http://{address}/  shows a canary on Envoy. Ctrl-C ends it.");
    let end = async {
        match flags.seconds {
            Some(seconds) => sleep(Duration::from_secs(seconds)).await,
            None => pending().await,
        }
    };
    // Whoever is still watching sees the connection end.
    tokio::select! {
        served = axum::serve(listener, router(site)) => served?,
        interrupted = interrupted() => interrupted?,
        () = end => {}
        ended = &mut stage => return ended?,
    }
    drop(stop);
    stage.await?
}

/// Waits for a signal to end. Without this the Envoy would be left.
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
