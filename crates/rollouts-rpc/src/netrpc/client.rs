//! Makes calls on one stream, for the host half (`net/rpc/client.go` in Go).

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gob::{DecodeError, Decoder, EncodeError, Encoder, GobType, Raw};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::LIMITS;
use super::codec::{Request, Response};

/// How long a call waits for its reply, far longer than any plugin should take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The plugin did not carry out the call: unknown method, wrong argument or panic.
    #[error("{0}")]
    Refused(String),
    /// The plugin carried out the call and returned this error.
    #[error("{0}")]
    Router(String),
    /// The plugin did not reply within a minute. A controller would wait forever.
    #[error("the plugin has not replied within {} s", REPLY_TIMEOUT.as_secs())]
    Timeout,
    /// The stream is closed, and all calls on it failed.
    #[error("the stream to the plugin is shut down")]
    Shutdown,
    /// The reply is not of the type that the method returns. As in Go, it ends the stream.
    #[error("the reply does not decode")]
    Reply(#[source] DecodeError),
    /// The argument cannot be encoded.
    #[error("the argument cannot be encoded")]
    Argument(#[source] EncodeError),
}

/// The calling end of a stream.
///
/// The future of a call may be dropped at any time. The bytes of a call are queued completely or not at all, and a task writes the
/// queue, so a dropped future never leaves half a message on the stream.
pub(crate) struct RpcClient {
    calls: Mutex<Sending>,
    queue: mpsc::Sender<Vec<u8>>,
    pending: Arc<Pending>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

/// State of the sending direction. The lock keeps definitions before the values that use them.
struct Sending {
    gob: Encoder,
    next_seq: u64,
}

/// Calls that are queued while the plugin does not read; further callers wait.
const QUEUE: usize = 8;

/// The calls that wait for their reply, or `None` after the stream ended.
type Pending = Mutex<Option<HashMap<u64, oneshot::Sender<Received>>>>;

/// The header and the body of a reply. The caller knows the type of the body.
type Received = (Response, Raw);

impl RpcClient {
    pub(crate) fn new<IO>(io: IO) -> Self
    where
        IO: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(io);
        let (queue, queued) = mpsc::channel(QUEUE);
        let pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = {
            let pending = Arc::clone(&pending);
            async move {
                let ended = read_replies(reader, &pending).await;
                shut_down(&pending, ended);
            }
        };
        let writer = {
            let pending = Arc::clone(&pending);
            async move {
                if let Err(error) = write_calls(writer, queued).await {
                    shut_down(&pending, Err(error));
                }
            }
        };
        Self {
            calls: Mutex::new(Sending {
                gob: Encoder::new(),
                next_seq: 0,
            }),
            queue,
            pending,
            _tasks: [
                AbortOnDropHandle::new(tokio::spawn(reader)),
                AbortOnDropHandle::new(tokio::spawn(writer)),
            ],
        }
    }

    /// Calls `service_method` with any argument and waits for the reply.
    pub(crate) async fn call<A, T>(
        &self,
        service_method: &str,
        argument: &A,
    ) -> Result<T, CallError>
    where
        A: GobType + Serialize + Sync,
        T: DeserializeOwned + GobType,
    {
        let encode = |gob: &mut Encoder, out: &mut Vec<u8>| gob.encode(argument, out);
        self.call_with(service_method, encode).await
    }

    /// Calls `service_method` and waits for the reply. `encode` appends the argument.
    ///
    /// Dropping the future gives up on the reply; the call may or may not be made.
    pub(crate) async fn call_with<T: DeserializeOwned + GobType>(
        &self,
        service_method: &str,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<T, CallError> {
        let body = self.answer(service_method, encode).await?;
        // As in Go, a reply of another type ends the stream.
        body.decode_like_go().map_err(|error| {
            shut_down(&self.pending, Err(io::Error::other(error.clone())));
            CallError::Reply(error)
        })
    }

    /// Calls `service_method` and waits for the reply, of any type.
    pub(crate) async fn answer(
        &self,
        service_method: &str,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<Raw, CallError> {
        let place = self.queue.reserve().await;
        let place = place.map_err(|_| CallError::Shutdown)?;
        let (reply, received) = oneshot::channel();
        self.enqueue(place, service_method, encode, reply)?;
        let received = timeout(REPLY_TIMEOUT, received)
            .await
            .map_err(|_| CallError::Timeout)?;
        let (header, body) = received.map_err(|_| CallError::Shutdown)?;
        if header.error.is_empty() {
            Ok(body)
        } else {
            Err(CallError::Refused(header.error))
        }
    }

    fn enqueue(
        &self,
        place: mpsc::Permit<'_, Vec<u8>>,
        service_method: &str,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), EncodeError>,
        reply: oneshot::Sender<Received>,
    ) -> Result<(), CallError> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let Sending { gob, next_seq } = &mut *calls;
        let seq = *next_seq;
        let header = Request {
            service_method: service_method.to_owned(),
            seq,
        };
        let mut bytes = Vec::new();
        gob.atomically(&mut bytes, |gob, bytes| {
            gob.encode(&header, bytes)?;
            encode(gob, bytes)
        })
        .map_err(CallError::Argument)?;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = pending.as_mut().ok_or(CallError::Shutdown)?;
        pending.insert(seq, reply);
        *next_seq += 1;
        place.send(bytes);
        Ok(())
    }
}

/// Fails all pending calls, by dropping their senders.
fn shut_down(pending: &Pending, ended: io::Result<()>) {
    match ended {
        Ok(()) => debug!("no further replies: the stream ended"),
        Err(error) => debug!("no further replies: {error}"),
    }
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    pending.take();
}

async fn write_calls<IO: AsyncWrite>(
    mut writer: WriteHalf<IO>,
    mut queued: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(call) = queued.recv().await {
        writer.write_all(&call).await?;
        writer.flush().await?;
    }
    Ok(())
}

async fn read_replies<IO: AsyncRead>(
    mut reader: ReadHalf<IO>,
    pending: &Pending,
) -> io::Result<()> {
    let mut gob = Decoder::new(LIMITS);
    let mut header = None;
    let mut chunk = vec![0; 16 * 1024];
    loop {
        while let Some(reply) = poll_reply(&mut gob, &mut header).map_err(io::Error::other)? {
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            let caller = pending.as_mut().and_then(|all| all.remove(&reply.0.seq));
            // As in Go, a reply to an unknown call is skipped.
            if let Some(caller) = caller {
                // The caller may have dropped its future.
                let _ = caller.send(reply);
            }
        }
        match reader.read(&mut chunk).await? {
            0 => return Ok(()),
            n => gob
                .handle_input(chunk.get(..n).ok_or(io::ErrorKind::InvalidData)?)
                .map_err(io::Error::other)?,
        }
    }
}

/// Returns the next reply, or `None` if more bytes are needed. `header` is that of the reply whose body is not complete.
fn poll_reply(
    gob: &mut Decoder,
    header: &mut Option<Response>,
) -> Result<Option<Received>, DecodeError> {
    if header.is_none() {
        *header = gob.poll_like_go()?;
    }
    if header.is_none() {
        return Ok(None);
    }
    let body = gob.poll_value()?;
    Ok(body.and_then(|body| Some((header.take()?, body))))
}
