//! An in-memory host: a whole session with a plugin, without process, socket or signal.

use std::future::{Future, Ready};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::task::JoinHandle;

use crate::call::{Plugin, PluginService, Router, RouterCall};
use crate::goplugin::handshake::PluginKind;
use crate::goplugin::serve::{ServeConfig, serve_connection};
use crate::goplugin::session::{SessionError, Shutdown};
use crate::host::{CallError, HostSession, RouterClient};
use crate::netrpc::codec::CallDecoder;
use crate::netrpc::server::{self, Room};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::traffic_router::{DesiredWeight, PodHashes, RouterError, TrafficRouter, Verification};
use crate::wire;

/// What a host may send on a stream of a dispensed plugin.
pub const LIMITS: gob::Limits = wire::LIMITS;

gob::gob_interface! {
    /// The argument of a method that takes none: as `Option<NoArgument>`, always `None`.
    pub enum NoArgument {
        /// Any type would do.
        Text(String) as "string",
    }
}

/// What the client package of a released controller has written to a plugin, call by call.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// The controller's version.
    pub version: &'static str,
    /// The stream behind the plugin's id.
    pub stream: &'static [u8],
    calls: &'static str,
}

impl Recording {
    /// Each call: its method, and the bytes of its header and argument.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, &'static [u8])> {
        let (stream, mut begin) = (self.stream, 0);
        self.calls.lines().filter_map(move |line| {
            let (method, end) = line.split_once(' ')?;
            let end = end.parse().ok()?;
            let call = stream.get(begin..end)?;
            begin = end;
            Some((method, call))
        })
    }
}

macro_rules! recordings {
    ($kind:literal: $($version:literal),+) => {
        &[$(Recording {
            version: $version,
            stream: include_bytes!(concat!("../tests/data/", $kind, "-", $version, ".gob")),
            calls: include_str!(concat!("../tests/data/", $kind, "-", $version, ".calls")),
        }),+]
    };
}

/// What the oldest and the newest supported controller have written to plugins of this kind (`tests/data/MANIFEST`).
#[must_use]
pub fn recordings(kind: PluginKind) -> &'static [Recording] {
    match kind {
        PluginKind::TrafficRouter => recordings!("router": "1.5.1", "1.10.1"),
        PluginKind::MetricProvider => recordings!("metric": "1.5.1", "1.10.1"),
        // 1.5.1 has no step plugins.
        PluginKind::Step => recordings!("step": "1.10.1"),
    }
}

/// Bytes either side can be ahead of the other.
const PIPE: usize = 64 * 1024;

/// A plugin that is being served over a pipe, and the host that calls it.
pub struct MemoryHost {
    session: HostSession,
    plugin: JoinHandle<Result<Shutdown, SessionError>>,
}

/// A router made of one function, which gets every call that takes a Rollout. The verification it
/// returns matters to VerifyWeight only.
pub struct FnRouter<F>(pub F);

/// The calls in a host's direction of a router's stream, decoded as in a session but not answered.
#[derive(Debug)]
pub struct CallStream(CallDecoder);

impl Default for CallStream {
    fn default() -> Self {
        Self(CallDecoder::new(LIMITS))
    }
}

impl CallStream {
    /// Takes the next bytes and returns the calls they complete. A call that would be refused is left out.
    ///
    /// # Errors
    ///
    /// [`gob::DecodeError`] for a stream that cannot be followed any further.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Vec<RouterCall>, gob::DecodeError> {
        type Unused = FnRouter<fn(RouterCall) -> Ready<Result<Verification, RouterError>>>;
        self.0.handle_input(bytes)?;
        let mut calls = Vec::new();
        while let Some(incoming) = self.0.poll_call::<PluginService<Router<Unused>>>()? {
            calls.extend(incoming.call);
        }
        Ok(calls)
    }
}

/// Serves the stream of a dispensed router, without the session around it, until the host closes it.
///
/// # Errors
///
/// [`SessionError::CorruptStream`] for bytes that make no sense, [`SessionError::LostStream`] when `stream` fails.
pub async fn serve_stream<R, IO>(
    config: ServeConfig,
    stream: IO,
    router: R,
) -> Result<(), SessionError>
where
    R: TrafficRouter,
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let service = PluginService::new(Router(router), config.deadline(PluginKind::TrafficRouter));
    let ended = server::serve(stream, Arc::new(service), Room::default()).await;
    ended.map_err(|error| error.on("plugin"))
}

impl MemoryHost {
    /// Serves a plugin and opens a session with it.
    ///
    /// # Errors
    ///
    /// [`CallError::Shutdown`] if the plugin's side ended at once.
    pub async fn start(config: ServeConfig, plugin: impl Plugin) -> Result<Self, CallError> {
        let (host, io) = duplex(PIPE);
        let plugin = tokio::spawn(async move { serve_connection(&config, io, plugin).await });
        Ok(Self {
            session: HostSession::open(host).await?,
            plugin,
        })
    }

    /// The host's end.
    #[must_use]
    pub fn session(&self) -> &HostSession {
        &self.session
    }

    /// Dispenses the router and initialises it, as a controller does first.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn router(&self) -> Result<RouterClient, CallError> {
        let router = self.session.dispense_router().await?;
        router.init_plugin().await?;
        Ok(router)
    }

    /// The host's end, and the task of the plugin's end.
    #[must_use]
    pub fn into_parts(self) -> (HostSession, JoinHandle<Result<Shutdown, SessionError>>) {
        (self.session, self.plugin)
    }

    /// Sends Quit and returns how the plugin's side ended.
    ///
    /// # Errors
    ///
    /// [`CallError::Shutdown`] if there was no reply.
    pub async fn quit(self) -> Result<Result<Shutdown, SessionError>, CallError> {
        self.session.quit().await?;
        self.hang_up().await
    }

    /// Hangs up without a Quit and returns how the plugin's side ended.
    ///
    /// # Errors
    ///
    /// [`CallError::Shutdown`] if the plugin's side panicked.
    pub async fn hang_up(self) -> Result<Result<Shutdown, SessionError>, CallError> {
        drop(self.session);
        self.plugin.await.map_err(|_| CallError::Shutdown)
    }
}

impl<F, Fut> FnRouter<F>
where
    F: Fn(RouterCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Verification, RouterError>> + Send,
{
    async fn answer(&self, call: RouterCall) -> Result<(), RouterError> {
        (self.0)(call).await.map(drop)
    }
}

impl<F, Fut> TrafficRouter for FnRouter<F>
where
    F: Fn(RouterCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Verification, RouterError>> + Send,
{
    fn type_name(&self) -> &str {
        "FnRouter"
    }

    async fn init(&self) -> Result<(), RouterError> {
        Ok(())
    }

    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.answer(RouterCall::UpdateHash(
            boxed(rollout),
            hashes.clone(),
            additional.to_vec(),
        ))
        .await
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.answer(RouterCall::SetWeight(
            boxed(rollout),
            desired,
            additional.to_vec(),
        ))
        .await
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        (self.0)(RouterCall::VerifyWeight(
            boxed(rollout),
            desired,
            additional.to_vec(),
        ))
        .await
    }

    async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), RouterError> {
        self.answer(RouterCall::SetHeaderRoute(boxed(rollout), route.clone()))
            .await
    }

    async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), RouterError> {
        self.answer(RouterCall::SetMirrorRoute(boxed(rollout), route.clone()))
            .await
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), RouterError> {
        self.answer(RouterCall::RemoveManagedRoutes(boxed(rollout)))
            .await
    }
}

fn boxed(rollout: &Rollout) -> Box<Rollout> {
    Box::new(rollout.clone())
}
