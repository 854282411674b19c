//! Calling over one stream: what Go's `net/rpc/client.go` does, for the host half.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gob::{Decoder, Encoder, GobType};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::wire::{LIMITS, Request, Response};

/// How long a call may take: far longer than any plugin should let it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin did not carry it out: unknown method, wrong argument, a panic.
    #[error("{0}")]
    Refused(String),
    /// The router said no.
    #[error("{0}")]
    Router(String),
    /// There was no reply within a minute. A controller would wait for ever.
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
pub(crate) struct RpcClient {
    writer: tokio::sync::Mutex<Writer>,
    pending: Arc<Pending>,
    _reader: AbortOnDropHandle<()>,
}

struct Writer {
    gob: Encoder,
    next_seq: u64,
    io: Box<dyn AsyncWrite + Send + Unpin>,
}

/// The calls that wait for their reply, or `None` once no reply can come any more.
type Pending = Mutex<Option<HashMap<u64, Box<dyn Reply>>>>;

impl RpcClient {
    pub(crate) fn new<IO>(io: IO) -> Self
    where
        IO: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(io);
        let pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tokio::spawn({
            let pending = Arc::clone(&pending);
            async move {
                // However reading ends, dropping the senders tells every caller.
                let ended = read_replies(reader, &pending).await;
                tracing::debug!(?ended, "no further replies");
                pending
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
            }
        });
        let writer = Writer {
            gob: Encoder::new(),
            next_seq: 0,
            io: Box::new(writer),
        };
        Self {
            writer: writer.into(),
            pending,
            _reader: AbortOnDropHandle::new(reader),
        }
    }

    /// Calls `service_method` and waits for its reply.
    pub(crate) async fn call<A, T>(
        &self,
        service_method: &str,
        argument: &A,
    ) -> Result<T, CallError>
    where
        A: GobType + Serialize + Sync,
        T: DeserializeOwned + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        self.send(
            service_method,
            argument,
            Box::new(Waiting::<T> { reply: Some(reply) }),
        )
        .await?;
        let reply = timeout(PATIENCE, result)
            .await
            .map_err(|_| CallError::Timeout)?;
        reply.map_err(|_| CallError::Shutdown)?
    }

    async fn send<A>(
        &self,
        service_method: &str,
        argument: &A,
        reply: Box<dyn Reply>,
    ) -> Result<(), CallError>
    where
        A: GobType + Serialize + Sync,
    {
        let mut writer = self.writer.lock().await;
        let Writer { gob, next_seq, io } = &mut *writer;
        let seq = *next_seq;
        let header = Request {
            service_method: service_method.to_owned(),
            seq,
        };
        let mut bytes = Vec::new();
        gob.encode(&header, &mut bytes)
            .map_err(CallError::Argument)?;
        gob.encode(argument, &mut bytes)
            .map_err(CallError::Argument)?;
        *next_seq += 1;

        match self
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
        {
            Some(pending) => pending.insert(seq, reply),
            None => return Err(CallError::Shutdown),
        };
        io.write_all(&bytes)
            .await
            .map_err(|_| CallError::Shutdown)?;
        io.flush().await.map_err(|_| CallError::Shutdown)
    }
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
                .handle_input(chunk.get(..n).unwrap_or_default())
                .map_err(io::Error::other)?,
        }
    }
}

fn caller(pending: &Pending, seq: u64) -> Box<dyn Reply> {
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = pending.as_mut().and_then(|pending| pending.remove(&seq));
    // A reply nobody asked for is skipped with its body, as in Go.
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
            // The body of a refusal says nothing.
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
