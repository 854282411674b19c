//! A host that writes its frames by hand, and the plugin it talks to.

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

/// Bytes either side can be ahead of the other.
const PIPE: usize = 1 << 16;

pub(crate) struct RawHost {
    raw: Raw<DuplexStream>,
    pub(crate) plugin: JoinHandle<Result<Shutdown, SessionError>>,
    /// What reached the router.
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

    /// With a router of the test's own; `calls` stays empty.
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

    /// With the three initial streams.
    pub(crate) async fn with_session() -> Self {
        let mut host = Self::start();
        host.open_session().await;
        host
    }

    /// With a router on stream 7.
    pub(crate) async fn with_router() -> Self {
        let mut host = Self::with_session().await;
        host.open_router(1, 7).await;
        host
    }

    /// Hangs up and waits for the plugin to end.
    pub(crate) async fn hang_up(self) -> Result<Shutdown, SessionError> {
        let Self { raw, plugin, .. } = self;
        drop(raw);
        timeout(SILENCE, plugin)
            .await
            .expect("the plugin stays")
            .expect("the plugin has panicked")
    }

    /// Waits for the plugin to end by itself, while the connection stays open.
    pub(crate) async fn ended(self) -> Result<Shutdown, SessionError> {
        timeout(SILENCE, self.plugin)
            .await
            .expect("the plugin stays")
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
