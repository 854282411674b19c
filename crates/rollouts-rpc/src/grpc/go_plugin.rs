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
type ReplyStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The services. All of them end when `quit` is cancelled.
#[derive(Clone)]
pub(super) struct GoPlugin {
    pub(super) quit: CancellationToken,
}

#[tonic::async_trait]
impl GrpcController for GoPlugin {
    async fn shutdown(&self, _request: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.quit.cancel();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcBroker for GoPlugin {
    type StartStreamStream = ReplyStream<ConnInfo>;

    /// Reads and ignores what the host sends about more connections, because the plugin opens none.
    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<ReplyStream<ConnInfo>>, Status> {
        let silent = request
            .into_inner()
            .take_until(self.quit.clone().cancelled_owned())
            .filter_map(|_ignored| ready(None));
        Ok(Response::new(silent.boxed()))
    }
}

#[tonic::async_trait]
impl GrpcStdio for GoPlugin {
    type StreamStdioStream = ReplyStream<StdioData>;

    /// The stream for what the plugin prints, which is nothing. It stays open until shutdown: the host logs an error if it ends
    /// earlier.
    async fn stream_stdio(
        &self,
        _request: Request<()>,
    ) -> Result<Response<ReplyStream<StdioData>>, Status> {
        let silent = stream::once(self.quit.clone().cancelled_owned()).filter_map(|()| ready(None));
        Ok(Response::new(silent.boxed()))
    }
}
