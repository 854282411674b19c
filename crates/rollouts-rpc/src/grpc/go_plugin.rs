//! The services that go-plugin itself defines (`grpc_controller.go`, `grpc_broker.go` and `grpc_stdio.go`).

use std::future::ready;
use std::pin::Pin;

use futures::{Stream, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use pb::grpc_broker_server::GrpcBroker;
use pb::grpc_controller_server::GrpcController;
use pb::grpc_stdio_server::GrpcStdio;
use pb::{ConnInfo, Empty, StdioData};

pub(super) use pb::grpc_broker_server::GrpcBrokerServer;
pub(super) use pb::grpc_controller_server::GrpcControllerServer;
pub(super) use pb::grpc_stdio_server::GrpcStdioServer;

#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated, with the host's half"
)]
mod pb {
    tonic::include_proto!("plugin");
}

/// The reply of a streaming method.
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Shuts the plugin down.
pub(super) struct Controller {
    quit: CancellationToken,
}

impl Controller {
    pub(super) fn new(quit: &CancellationToken) -> Self {
        Self { quit: quit.clone() }
    }
}

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _request: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.quit.cancel();
        Ok(Response::new(Empty {}))
    }
}

/// Reads and ignores what the host sends about more connections, because the plugin opens none.
pub(super) struct Broker {
    quit: CancellationToken,
}

impl Broker {
    pub(super) fn new(quit: &CancellationToken) -> Self {
        Self { quit: quit.clone() }
    }
}

#[tonic::async_trait]
impl GrpcBroker for Broker {
    type StartStreamStream = Replies<ConnInfo>;

    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Replies<ConnInfo>>, Status> {
        let silent = request
            .into_inner()
            .take_until(self.quit.clone().cancelled_owned())
            .filter_map(|_ignored| ready(None));
        Ok(Response::new(silent.boxed()))
    }
}

/// The stream for what the plugin prints, which is nothing.
pub(super) struct Stdio {
    quit: CancellationToken,
}

impl Stdio {
    pub(super) fn new(quit: &CancellationToken) -> Self {
        Self { quit: quit.clone() }
    }
}

#[tonic::async_trait]
impl GrpcStdio for Stdio {
    type StreamStdioStream = Replies<StdioData>;

    /// Keeps the stream open until shutdown: the host logs an error if it ends earlier.
    async fn stream_stdio(
        &self,
        _request: Request<()>,
    ) -> Result<Response<Replies<StdioData>>, Status> {
        let silent = stream::once(self.quit.clone().cancelled_owned()).filter_map(|()| ready(None));
        Ok(Response::new(silent.boxed()))
    }
}
