//! Test support: a session with a plugin in memory, recorded calls of released controllers, and a router made of a function.

use std::future::{Future, Ready};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::task::JoinHandle;

use crate::call::{Plugin, PluginService, Router};
use crate::goplugin::handshake::PluginKind;
use crate::goplugin::serve::{ServeConfig, serve_connection};
use crate::goplugin::session::{SessionError, Shutdown};
use crate::host::{CallError, HostSession, RouterClient};
use crate::methods::RouterCall;
use crate::netrpc;
use crate::netrpc::codec::CallDecoder;
use crate::netrpc::server::{self, InFlightLimit};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::traffic_router::{DesiredWeight, PodHashes, RouterError, TrafficRouter, Verification};
use crate::workers::Workers;

/// Limits on what a host may send on the stream of a dispensed plugin.
pub const LIMITS: gob::Limits = netrpc::LIMITS;

gob::gob_interface! {
    /// The type for the argument of a method without arguments: `None::<NoArgument>`.
    pub enum NoArgument {
        /// Never used; an interface needs a variant.
        Text(String) as "string",
    }
}

/// The bytes that the client package of a released controller wrote to a plugin.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// The controller's version.
    pub version: &'static str,
    /// The bytes on the stream after the id of the dispensed plugin.
    pub stream: &'static [u8],
    calls: &'static str,
}

impl Recording {
    /// Iterates over the calls: the method, and the bytes of header and argument.
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

/// Returns the recordings of the oldest and the newest supported controller for this kind of plugin (`tests/data/MANIFEST`).
#[must_use]
pub fn recordings(kind: PluginKind) -> &'static [Recording] {
    match kind {
        PluginKind::TrafficRouter => recordings!("router": "1.5.1", "1.10.2"),
        PluginKind::MetricProvider => recordings!("metric": "1.5.1", "1.10.2"),
        // 1.5.1 has no step plugins.
        PluginKind::Step => recordings!("step": "1.10.2"),
    }
}

/// Capacity of the pipe in each direction, in bytes.
const PIPE: usize = 64 * 1024;

/// A plugin that is served over a pipe, and the host's end of the session.
pub struct MemoryHost {
    session: HostSession,
    plugin: JoinHandle<Result<Shutdown, SessionError>>,
}

/// A router made of one function, which receives every call with a Rollout. Only VerifyWeight uses the verification that it returns.
pub struct FnRouter<F>(pub F);

/// Decodes the host's direction of a router's stream, without replies.
#[derive(Debug)]
pub struct CallStream(CallDecoder);

impl Default for CallStream {
    fn default() -> Self {
        Self(CallDecoder::new(LIMITS))
    }
}

impl CallStream {
    /// Takes the next bytes and returns the calls that they complete, except those that a plugin would refuse.
    ///
    /// # Errors
    ///
    /// Returns [`gob::DecodeError`] if the stream is corrupt.
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

/// Serves the stream of a dispensed router without a session, until the host closes it.
///
/// # Errors
///
/// Returns [`SessionError::CorruptStream`] if the bytes are not net/rpc over gob, and [`SessionError::LostStream`] if `stream` fails.
pub async fn serve_stream<R, IO>(
    config: ServeConfig,
    stream: IO,
    router: R,
) -> Result<(), SessionError>
where
    R: TrafficRouter,
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let service = PluginService::new(
        Router(router),
        config.deadline(PluginKind::TrafficRouter),
        Workers::Inline,
    );
    let ended = server::serve(stream, Arc::new(service), InFlightLimit::default()).await;
    ended.map_err(|error| error.on("plugin"))
}

impl MemoryHost {
    /// Serves a plugin and opens a session with it.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Shutdown`] if the plugin's end failed.
    pub async fn start(config: ServeConfig, plugin: impl Plugin) -> Result<Self, CallError> {
        let (host, io) = duplex(PIPE);
        let plugin = tokio::spawn(async move { serve_connection(&config, io, plugin).await });
        Ok(Self {
            session: HostSession::open(host).await?,
            plugin,
        })
    }

    /// Returns the host's end.
    #[must_use]
    pub fn session(&self) -> &HostSession {
        &self.session
    }

    /// Dispenses the router and calls InitPlugin, as a controller does.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn router(&self) -> Result<RouterClient, CallError> {
        let router = self.session.dispense_router().await?;
        router.init_plugin().await?;
        Ok(router)
    }

    /// Returns the host's end, and the task of the plugin's end.
    #[must_use]
    pub fn into_parts(self) -> (HostSession, JoinHandle<Result<Shutdown, SessionError>>) {
        (self.session, self.plugin)
    }

    /// Calls Quit and returns the result of the plugin's session.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Shutdown`] if there was no reply.
    pub async fn quit(self) -> Result<Result<Shutdown, SessionError>, CallError> {
        self.session.quit().await?;
        self.hang_up().await
    }

    /// Closes the connection without Quit and returns the result of the plugin's session.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Shutdown`] if the plugin's end panicked.
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
