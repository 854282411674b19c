//! Serving one stream: a reader that never waits for a call, many calls, one writer.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, WriteHalf};
use tokio::sync::{AcquireError, Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::Service;
use super::codec::{CallDecoder, Incoming, ReplyEncoder};
use crate::goplugin::write_deadline;
use crate::to_wire;

/// Units of calls in flight at once. A host sends about ten calls; further ones wait in the host's window.
const ROOM: u32 = 24;

/// Bytes of an argument that take one unit. Most Rollouts are smaller.
const UNIT: usize = 256 * 1024;

/// Bytes read at once.
const READ_SIZE: usize = 16 * 1024;

/// Why a stream ended before the host closed it.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// It was reset, or the connection is gone.
    Io(io::Error),
    /// Its bytes make no sense.
    Corrupt(Box<dyn std::error::Error + Send + Sync>),
}

/// Room for calls in flight, shared by the streams of a session: it bounds what their arguments take.
#[derive(Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM as usize)))
    }
}

impl Room {
    /// Waits for the room a call with an argument of so many bytes takes.
    async fn enter(&self, bytes: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let units = u32::try_from(1 + bytes / UNIT).unwrap_or(ROOM);
        Arc::clone(&self.0)
            .acquire_many_owned(units.min(ROOM))
            .await
    }
}

/// Answers every call on `io` until the host closes the stream; calls that still run then may
/// finish.
pub(crate) async fn serve<S, IO>(io: IO, service: Arc<S>, room: Room) -> Result<(), StreamError>
where
    S: Service,
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut reader, writer) = tokio::io::split(io);
    let replies = Arc::new(Replies {
        service,
        writer: Mutex::new((ReplyEncoder::new(), writer)),
    });
    let mut decoder = CallDecoder::new(S::LIMITS);
    let mut calls = JoinSet::new();
    let mut chunk = vec![0; READ_SIZE];
    let end = loop {
        match decoder.poll_call::<S>() {
            Ok(Some(incoming)) => {
                // Nobody closes the semaphore.
                let permit = room.enter(incoming.bytes).await.map_err(corrupt)?;
                calls.spawn(Arc::clone(&replies).answer(incoming, permit));
                continue;
            }
            Ok(None) => {}
            Err(error) => break Err(corrupt(error)),
        }
        tokio::select! {
            read = reader.read(&mut chunk) => match read.map_err(StreamError::Io)? {
                0 if decoder.is_between_calls() => break Ok(()),
                0 => return Err(StreamError::Io(io::ErrorKind::UnexpectedEof.into())),
                n => {
                    let read = chunk.get(..n).unwrap_or_default();
                    if let Err(error) = decoder.handle_input(read) {
                        break Err(corrupt(error));
                    }
                }
            },
            Some(answered) = calls.join_next() => finished(answered)?,
        }
    };
    // The calls before a corrupt one are answered: to the host, a VerifyWeight without an answer is an error.
    while let Some(answered) = calls.join_next().await {
        finished(answered)?;
    }
    end
}

/// Where calls go and their replies come from.
struct Replies<S, IO> {
    service: Arc<S>,
    /// One lock over both: definitions must arrive before the values that use them, and the header
    /// of a reply directly before its body.
    writer: Mutex<(ReplyEncoder, WriteHalf<IO>)>,
}

impl<S, IO> Replies<S, IO>
where
    S: Service,
    IO: AsyncWrite + Send + 'static,
{
    async fn answer(
        self: Arc<Self>,
        Incoming { header, call, .. }: Incoming<S::Call>,
        _permit: OwnedSemaphorePermit,
    ) -> Result<(), StreamError> {
        let outcome = match call {
            Ok(call) => self.service.call(call).await,
            Err(fault) => S::refuse(&header.service_method, fault),
        };
        let outcome = outcome.map_err(|fault| to_wire::error_chain(&fault));
        if let Err(error) = &outcome {
            warn!(
                method = header.service_method,
                seq = header.seq,
                error,
                "call refused"
            );
        }
        let mut writer = self.writer.lock().await;
        let (encoder, writer) = &mut *writer;
        let reply = encoder.encode(header, &outcome).map_err(corrupt)?;
        let written = timeout(write_deadline::DEADLINE, async {
            writer.write_all(&reply).await?;
            writer.flush().await
        });
        // A host can read the socket and still give this stream no window.
        written
            .await
            .unwrap_or_else(|_elapsed| Err(write_deadline::stuck()))
            .map_err(StreamError::Io)?;
        if let Ok(reply) = &outcome {
            self.service.replied(reply);
        }
        Ok(())
    }
}

fn corrupt(error: impl std::error::Error + Send + Sync + 'static) -> StreamError {
    StreamError::Corrupt(error.into())
}

fn finished(
    answered: Result<Result<(), StreamError>, tokio::task::JoinError>,
) -> Result<(), StreamError> {
    answered.unwrap_or_else(|panic| Err(corrupt(panic)))
}
