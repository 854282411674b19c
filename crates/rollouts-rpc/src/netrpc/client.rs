//! Calling over one stream: what Go's `net/rpc/client.go` does, for the host half.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gob::{Decoder, Encoder, GobType};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::wire::{LIMITS, Request, Response};

/// How long a call may take: far longer than any plugin should let it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The plugin did not carry it out: unknown method, wrong argument, a panic.
    #[error("{0}")]
    Refused(String),
    /// The plugin returned this error.
    #[error("{0}")]
    Router(String),
    /// There was no reply within a minute. A controller would wait forever.
    #[error("the plugin has not replied within {} s", PATIENCE.as_secs())]
    Timeout,
    /// The stream is gone, and with it every call on it.
    #[error("the stream to the plugin is shut down")]
    Shutdown,
    /// The reply is not what the method returns.
    #[error("the reply does not decode")]
    Reply(#[source] gob::DecodeError),
    /// The argument does not encode.
    #[error("the argument does not encode")]
    Argument(#[source] gob::EncodeError),
}

/// The calling end of a stream.
///
/// A call can be dropped at any time. Its bytes are queued whole or not at all, and a task of its own writes what is
/// queued, so that half a message never stays behind.
pub(crate) struct RpcClient {
    calls: Mutex<Calls>,
    queue: mpsc::Sender<Vec<u8>>,
    pending: Arc<Pending>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

/// What a call takes its place in: definitions must be queued before the values that use them.
struct Calls {
    gob: Encoder,
    next_seq: u64,
}

/// Calls that are queued while the plugin takes nothing; further callers wait.
const QUEUE: usize = 8;

/// The calls that wait for their reply, or `None` once no reply can come any more.
type Pending = Mutex<Option<HashMap<u64, Box<dyn Reply>>>>;

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
            calls: Mutex::new(Calls {
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

    /// Calls `service_method` and waits for its reply. Dropping the future gives up on the reply; the call is made or not.
    pub(crate) async fn call<A, T>(
        &self,
        service_method: &str,
        argument: &A,
    ) -> Result<T, CallError>
    where
        A: GobType + Serialize + Sync,
        T: DeserializeOwned + Send + 'static,
    {
        let place = self.queue.reserve().await;
        let place = place.map_err(|_| CallError::Shutdown)?;
        let (reply, result) = oneshot::channel();
        self.enqueue(
            place,
            service_method,
            argument,
            Box::new(Waiting::<T> { reply: Some(reply) }),
        )?;
        let reply = timeout(PATIENCE, result)
            .await
            .map_err(|_| CallError::Timeout)?;
        reply.map_err(|_| CallError::Shutdown)?
    }

    fn enqueue<A: GobType + Serialize>(
        &self,
        place: mpsc::Permit<'_, Vec<u8>>,
        service_method: &str,
        argument: &A,
        reply: Box<dyn Reply>,
    ) -> Result<(), CallError> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let Calls { gob, next_seq } = &mut *calls;
        let seq = *next_seq;
        let header = Request {
            service_method: service_method.to_owned(),
            seq,
        };
        let mut bytes = Vec::new();
        gob.atomically(&mut bytes, |gob, bytes| {
            gob.encode(&header, bytes)?;
            gob.encode(argument, bytes)
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

/// Dropping the senders tells every caller.
fn shut_down(pending: &Pending, ended: io::Result<()>) {
    debug!(?ended, "no further replies");
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
    let mut current: Option<(String, Box<dyn Reply>)> = None;
    let mut chunk = vec![0; 16 * 1024];
    loop {
        loop {
            let (error, mut reply) = match current.take() {
                Some(current) => current,
                None => match gob.poll_value::<Response>().map_err(io::Error::other)? {
                    Some(header) => (header.error, caller(pending, header.seq)),
                    None => break,
                },
            };
            if !reply
                .poll_body(&error, &mut gob)
                .map_err(io::Error::other)?
            {
                current = Some((error, reply));
                break;
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

fn caller(pending: &Pending, seq: u64) -> Box<dyn Reply> {
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = pending.as_mut().and_then(|pending| pending.remove(&seq));
    // A reply to an unknown call is skipped with its body, as in Go.
    waiting.unwrap_or_else(|| Box::new(Waiting::<IgnoredAny> { reply: None }))
}

/// A reply's body, of a type only the caller knows.
trait Reply: Send {
    /// Reads the body and tells the caller; false if more bytes are needed.
    fn poll_body(&mut self, error: &str, gob: &mut Decoder) -> Result<bool, gob::DecodeError>;
}

struct Waiting<T> {
    reply: Option<oneshot::Sender<Result<T, CallError>>>,
}

impl<T: DeserializeOwned + Send> Reply for Waiting<T> {
    fn poll_body(&mut self, error: &str, gob: &mut Decoder) -> Result<bool, gob::DecodeError> {
        let result = if error.is_empty() {
            match gob.poll_value::<T>() {
                Ok(None) => return Ok(false),
                Ok(Some(body)) => Ok(body),
                Err(fatal) if fatal.is_fatal() => return Err(fatal),
                Err(mismatch) => Err(CallError::Reply(mismatch)),
            }
        } else {
            // The body of an error reply has no content.
            if gob.poll_value::<IgnoredAny>()?.is_none() {
                return Ok(false);
            }
            Err(CallError::Refused(error.to_owned()))
        };
        if let Some(reply) = self.reply.take() {
            // The caller may have lost interest.
            let _ = reply.send(result);
        }
        Ok(true)
    }
}
