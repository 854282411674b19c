//! A host that reads and writes single frames, and the plugin at the other end.

use std::ops::{Deref, DerefMut};

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{
    Router, RouterCall, ServeConfig, SessionError, Shutdown, TrafficRouter, Verification,
    serve_connection,
};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::raw::{Raw, SILENCE};

/// Capacity of the pipe in each direction, in bytes.
const PIPE: usize = 1 << 16;

pub(crate) struct RawHost {
    raw: Raw<DuplexStream>,
    pub(crate) plugin: JoinHandle<Result<Shutdown, SessionError>>,
    /// The calls that reached the router.
    pub(crate) calls: mpsc::UnboundedReceiver<RouterCall>,
}

impl RawHost {
    pub(crate) fn start() -> Self {
        let (called, calls) = mpsc::unbounded_channel();
        let router = FnRouter(move |call| {
            let _ = called.send(call);
            async { Ok(Verification::Verified) }
        });
        Self {
            calls,
            ..Self::serve(router)
        }
    }

    /// Starts with the router of a test; `calls` stays empty.
    pub(crate) fn serve(router: impl TrafficRouter) -> Self {
        let (io, plugin) = duplex(PIPE);
        Self {
            raw: Raw { io },
            plugin: tokio::spawn(async move {
                serve_connection(&ServeConfig::new(), plugin, Router(router)).await
            }),
            calls: mpsc::unbounded_channel().1,
        }
    }

    /// Starts, and opens the three initial streams.
    pub(crate) async fn with_session() -> Self {
        let mut host = Self::start();
        host.open_session().await;
        host
    }

    /// Starts, and dispenses a router on stream 7.
    pub(crate) async fn with_router() -> Self {
        let mut host = Self::with_session().await;
        host.open_router(1, 7).await;
        host
    }

    /// Closes the connection and waits for the plugin to end.
    pub(crate) async fn hang_up(self) -> Result<Shutdown, SessionError> {
        let Self { raw, plugin, .. } = self;
        drop(raw);
        timeout(SILENCE, plugin)
            .await
            .expect("the plugin does not end")
            .expect("the plugin panicked")
    }

    /// Waits for the plugin to end while the connection stays open.
    pub(crate) async fn ended(self) -> Result<Shutdown, SessionError> {
        timeout(SILENCE, self.plugin)
            .await
            .expect("the plugin does not end")
            .unwrap()
    }
}

impl Deref for RawHost {
    type Target = Raw<DuplexStream>;

    fn deref(&self) -> &Self::Target {
        &self.raw
    }
}

impl DerefMut for RawHost {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.raw
    }
}
