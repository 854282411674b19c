//! gRPC mode: a traffic router for hosts that are not the Rollouts controller.
//!
//! The controller uses net/rpc and refuses gRPC, so a Rollout does not need this mode. It is for other programs that start a router, in
//! any language: a test rig, another controller, a command line tool. They use a go-plugin client with `AllowedProtocols: grpc`, or
//! do themselves what [`go-plugin` does](https://github.com/hashicorp/go-plugin/blob/main/docs/guide-plugin-write-non-go.md):
//!
//! ```text
//! host                                         plugin
//!     |  exec, cookie and PLUGIN_* in env        |   as in net/rpc
//!     |----------------------------------------->|
//!     |  stdout: 1|1|unix|/tmp/pluginXyz|grpc|   |
//!     |<-----------------------------------------|
//!     |  HTTP/2 on the socket                    |
//!     |<========================================>|
//!     |  grpc.health.v1.Health/Check "plugin"    |   SERVING: this is Ping
//!     |  plugin.GRPCBroker/StartStream           |   accepted, sends nothing
//!     |  plugin.GRPCStdio/StreamStdio            |   accepted, sends nothing
//!     |  grpc.reflection.v1                      |   describes all services
//!     |  rollouts.plugin.v1.TrafficRouter/...    |   the router, see [`proto`]
//!     |  plugin.GRPCController/Shutdown          |   reply, hang up, exit 0
//!     |<---------------------------------------->|
//! ```
//!
//! Calls have the same deadline, the same handling of panics and the same error texts as over net/rpc. A host may connect repeatedly. If
//! it has no connection for [`ServeConfig::session_timeout`], the plugin exits.
//!
//! The plugin supports neither AutoMTLS nor broker multiplexing: it refuses to start for a host with AutoMTLS, and the seventh field
//! of its handshake line is `false`, so a host that requires multiplexing fails with go-plugin's own message.

/// The service `rollouts.plugin.v1.TrafficRouter`, generated from
/// `proto/rollouts/plugin/v1/traffic_router.proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod proto {
    tonic::include_proto!("rollouts.plugin.v1");
}

mod calls;
mod go_plugin;
mod server;

use std::io;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::call::{PluginService, Router};
use crate::goplugin::control::stop;
use crate::goplugin::env::PluginEnv;
use crate::goplugin::handshake::{PluginKind, Protocol};
use crate::goplugin::serve::{Announced, ServeConfig, ServeError, Signals, on_own_runtime};
use crate::goplugin::session::Shutdown;
use crate::traffic_router::TrafficRouter;
use crate::workers::Workers;
use calls::Calls;
use go_plugin::{GoPlugin, GrpcBrokerServer, GrpcControllerServer, GrpcStdioServer};
use proto::traffic_router_server::TrafficRouterServer;

/// All services as a `FileDescriptorSet`, with imported files.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.bin"));

/// The service name that a go-plugin host sends to the health service (`GRPCServiceName` in `grpc_server.go`).
const HEALTH_SERVICE: &str = "plugin";

/// Serves `router` in gRPC mode, and otherwise does the same as [`crate::serve`].
///
/// # Errors
///
/// See [`crate::serve`].
pub async fn serve<R: TrafficRouter>(
    config: &ServeConfig,
    env: &PluginEnv,
    announce: impl FnOnce(&str) -> io::Result<()>,
    router: Router<R>,
) -> Result<Shutdown, ServeError> {
    let kind = PluginKind::TrafficRouter;
    let workers = Workers::new(Handle::current());
    let service = Arc::new(PluginService::new(router, config.deadline(kind), workers));
    let signals = Signals::handle()?;
    let announced = Announced::new(env, (kind, Protocol::Grpc), announce)?;
    let timeout = config.session_timeout;
    on_own_runtime(async move {
        let serve = async |listener: &UnixListener| {
            let quit = CancellationToken::new();
            let services = services(Arc::clone(&service), &quit).await?;
            let ended = server::serve(listener, services, &quit, timeout).await;
            stop(service.as_ref()).await;
            ended
        };
        announced.serve(signals, service.as_ref(), serve).await
    })
    .await
}

async fn services<R: TrafficRouter>(
    service: Arc<PluginService<Router<R>>>,
    quit: &CancellationToken,
) -> Result<Routes, ServeError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_service_status(HEALTH_SERVICE, tonic_health::ServingStatus::Serving)
        .await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| ServeError::Reflection(error.into()))?;
    let go_plugin = GoPlugin { quit: quit.clone() };
    Ok(Routes::new(TrafficRouterServer::new(Calls::new(service)))
        .add_service(GrpcControllerServer::new(go_plugin.clone()))
        .add_service(GrpcBrokerServer::new(go_plugin.clone()))
        .add_service(GrpcStdioServer::new(go_plugin))
        .add_service(health_service)
        .add_service(reflection))
}
