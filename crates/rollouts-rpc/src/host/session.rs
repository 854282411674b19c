//! The host's end of the yamux session.

use std::future::poll_fn;
use std::io;

use futures::AsyncWrite as _;
use gob::{Encoder, GobType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use tokio_util::task::AbortOnDropHandle;

use super::clients::{MetricClient, RouterClient, StepClient};
use crate::goplugin::handshake::PluginKind;
use crate::goplugin::session::yamux_config;
use crate::methods::RouterCall;
use crate::netrpc::client::{CallError, RpcClient};
use crate::wire;

gob::gob_struct! {
    /// The reply to Ping and Quit: any struct.
    struct Empty as "" {}
}

/// Most streams of a session, far more than a host dispenses.
const MAX_STREAMS: usize = 64;

/// A session with a plugin. Dropping it closes the connection without Quit, as a host that crashes.
pub struct HostSession {
    control: RpcClient,
    streams: mpsc::Sender<oneshot::Sender<yamux::Stream>>,
    _stdio: [Compat<yamux::Stream>; 2],
    _driver: AbortOnDropHandle<()>,
}

impl HostSession {
    /// Opens a session on a connection, with the control, stdout and stderr streams.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Shutdown`] if the plugin closed the connection.
    pub async fn open<IO>(connection: IO) -> Result<Self, CallError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = yamux::Connection::new(
            connection.compat(),
            yamux_config(MAX_STREAMS),
            yamux::Mode::Client,
        );
        let (streams, requests) = mpsc::channel(1);
        let driver = AbortOnDropHandle::new(tokio::spawn(drive(connection, requests)));
        let control = open_stream(&streams).await?;
        let stdio = [open_stream(&streams).await?, open_stream(&streams).await?];
        Ok(Self {
            control: RpcClient::new(control),
            streams,
            _stdio: stdio,
            _driver: driver,
        })
    }

    /// Dispenses a traffic router.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Refused`] if the plugin is of another kind.
    pub async fn dispense_router(&self) -> Result<RouterClient, CallError> {
        let stream = self.dispense(PluginKind::TrafficRouter).await?;
        Ok(RouterClient::new(stream))
    }

    /// Dispenses a metric provider.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Refused`] if the plugin is of another kind.
    pub async fn dispense_metric_provider(&self) -> Result<MetricClient, CallError> {
        let stream = self.dispense(PluginKind::MetricProvider).await?;
        Ok(MetricClient::new(stream))
    }

    /// Dispenses a step plugin.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Refused`] if the plugin is of another kind.
    pub async fn dispense_step(&self) -> Result<StepClient, CallError> {
        let stream = self.dispense(PluginKind::Step).await?;
        Ok(StepClient::new(stream))
    }

    /// Calls Ping, as the controller does before every reconcile.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn ping(&self) -> Result<(), CallError> {
        self.control("Control.Ping", &true).await.map(|Empty {}| ())
    }

    /// Calls Quit.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Shutdown`] if the connection ended before the reply. A controller would kill the process.
    pub async fn quit(&self) -> Result<(), CallError> {
        self.control("Control.Quit", &true).await.map(|Empty {}| ())
    }

    /// Calls any method with any argument on the control stream, for tests of a plugin.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn control<A, T>(&self, service_method: &str, argument: &A) -> Result<T, CallError>
    where
        A: GobType + Serialize + Sync,
        T: DeserializeOwned + GobType,
    {
        self.control.call(service_method, argument).await
    }

    /// Dispenses a plugin, to call any method with any argument.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Refused`] if the plugin is of another kind.
    pub async fn dispense_any(&self, kind: PluginKind) -> Result<AnyClient, CallError> {
        Ok(AnyClient(self.dispense(kind).await?))
    }

    /// Dispenses a plugin, to write and read the bytes of its stream.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Refused`] if the plugin is of another kind.
    pub async fn dispense_stream(
        &self,
        kind: PluginKind,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, CallError> {
        let name = kind.dispense_name().to_owned();
        let id: u32 = self.control.call("Dispenser.Dispense", &name).await?;
        self.claim(id).await
    }

    async fn dispense(&self, kind: PluginKind) -> Result<RpcClient, CallError> {
        Ok(RpcClient::new(self.dispense_stream(kind).await?))
    }

    /// Opens the stream of a dispensed plugin. The host sends the id, and the plugin sends it back.
    async fn claim(&self, id: u32) -> Result<Compat<yamux::Stream>, CallError> {
        let mut stream = open_stream(&self.streams).await?;
        let shutdown = |_: io::Error| CallError::Shutdown;
        stream
            .write_all(&id.to_le_bytes())
            .await
            .map_err(shutdown)?;
        stream.flush().await.map_err(shutdown)?;
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.map_err(shutdown)?;
        if echo != id.to_le_bytes() {
            return Err(CallError::Shutdown);
        }
        Ok(stream)
    }
}

/// A client of a dispensed plugin of any kind, for tests.
pub struct AnyClient(RpcClient);

impl AnyClient {
    /// Calls `Type`, which returns the plugin's name.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn type_name(&self) -> Result<String, CallError> {
        let encode = |gob: &mut Encoder, out: &mut Vec<u8>| {
            wire::router::encode_call(RouterCall::Type, gob, out)
        };
        self.0.call_with("Plugin.Type", encode).await
    }

    /// Calls any method with any argument.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn call<A, T>(&self, service_method: &str, argument: &A) -> Result<T, CallError>
    where
        A: GobType + Serialize + Sync,
        T: DeserializeOwned + GobType,
    {
        self.0.call(service_method, argument).await
    }

    /// Calls any method with any argument, and takes a reply of any type.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn answer<A>(&self, service_method: &str, argument: &A) -> Result<(), CallError>
    where
        A: GobType + Serialize + Sync,
    {
        let encode = |gob: &mut Encoder, out: &mut Vec<u8>| gob.encode(argument, out);
        self.0.answer(service_method, encode).await.map(drop)
    }
}

async fn open_stream(
    streams: &mpsc::Sender<oneshot::Sender<yamux::Stream>>,
) -> Result<Compat<yamux::Stream>, CallError> {
    let (reply, stream) = oneshot::channel();
    streams.send(reply).await.map_err(|_| CallError::Shutdown)?;
    Ok(stream.await.map_err(|_| CallError::Shutdown)?.compat())
}

/// Drives the connection, and opens a stream for each request.
async fn drive<IO>(
    mut connection: yamux::Connection<Compat<IO>>,
    mut requests: mpsc::Receiver<oneshot::Sender<yamux::Stream>>,
) where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        tokio::select! {
            inbound = poll_fn(|cx| connection.poll_next_inbound(cx)) => match inbound {
                // A plugin opens no streams.
                Some(Ok(_refused)) => {}
                Some(Err(_)) | None => return,
            },
            Some(reply) = requests.recv() => {
                let Ok(mut stream) = poll_fn(|cx| connection.poll_new_outbound(cx)).await else {
                    return;
                };
                // The yamux crate announces a stream with its first frame, so this writes an empty one.
                if poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &[])).await.is_err() {
                    return;
                }
                let _ = reply.send(stream);
            }
        }
    }
}
