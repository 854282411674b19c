//! Serving one stream: a reader that never waits for a call, a task for each call, one writer.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, WriteHalf};
use tokio::sync::{AcquireError, Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::compat::Compat;
use tracing::warn;

use super::codec::{CallDecoder, Incoming, ReplyEncoder};
use super::{Body, Fault, Service};
use crate::goplugin::write_deadline;
use crate::to_wire;
use crate::wire::Request;

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

/// A service of any type, on streams of a session.
pub(crate) trait Serve: Send + Sync {
    /// See [`serve`].
    fn serve(
        self: Arc<Self>,
        stream: Compat<yamux::Stream>,
        room: Room,
    ) -> BoxFuture<'static, Result<(), StreamError>>;

    /// See [`Service::stop`].
    fn stop(&self) -> BoxFuture<'_, ()>;
}

impl<S: Service> Serve for S {
    fn serve(
        self: Arc<Self>,
        stream: Compat<yamux::Stream>,
        room: Room,
    ) -> BoxFuture<'static, Result<(), StreamError>> {
        Box::pin(serve(stream, self, room))
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(Service::stop(self))
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
    let mut running = Running {
        replies,
        calls: JoinSet::new(),
        due: VecDeque::new(),
    };
    let mut chunk = vec![0; READ_SIZE];
    let end = loop {
        match decoder.poll_call::<S>() {
            Ok(Some(incoming)) => {
                let permit = running.until(room.enter(incoming.bytes)).await?;
                // Nobody closes the semaphore.
                running.start(incoming, permit.map_err(corrupt)?);
                continue;
            }
            Ok(None) => {}
            Err(error) => break Err(corrupt(error)),
        }
        let read = running.until(reader.read(&mut chunk)).await?;
        let read = chunk.get(..read.map_err(StreamError::Io)?);
        match read.ok_or_else(|| StreamError::Io(io::ErrorKind::InvalidData.into()))? {
            [] if decoder.is_between_calls() => break Ok(()),
            [] => return Err(StreamError::Io(io::ErrorKind::UnexpectedEof.into())),
            read => {
                if let Err(error) = decoder.handle_input(read) {
                    break Err(corrupt(error));
                }
            }
        }
    };
    // The calls before a corrupt one are answered: to the host, a VerifyWeight without an answer is an error.
    while !running.calls.is_empty() {
        running.step().await?;
    }
    end
}

/// The calls of a stream that are being carried out.
struct Running<S: Service, IO> {
    replies: Arc<Replies<S, IO>>,
    calls: JoinSet<Result<(), StreamError>>,
    /// Those that have a deadline, in the order in which they came, which is that of their deadlines.
    due: VecDeque<Due<S>>,
}

/// A call that has to be answered by then.
struct Due<S: Service> {
    at: Instant,
    header: Request,
    ticket: S::Ticket,
    answered: Arc<AtomicBool>,
    task: AbortHandle,
}

impl<S, IO> Running<S, IO>
where
    S: Service,
    IO: AsyncWrite + Send + 'static,
{
    /// Carries out a call, in the only task it gets.
    fn start(&mut self, incoming: Incoming<S::Call>, permit: OwnedSemaphorePermit) {
        let replies = Arc::clone(&self.replies);
        let Incoming { header, call, .. } = incoming;
        let call = match call {
            Ok(call) => call,
            Err(fault) => {
                self.calls.spawn(async move {
                    let _permit = permit;
                    let outcome = S::refuse(&header.service_method, fault);
                    replies.send(&header, outcome).await
                });
                return;
            }
        };
        let ticket = replies.service.ticket(&call);
        let answered = Arc::new(AtomicBool::new(false));
        let task = self.calls.spawn({
            let (header, ticket) = (header.clone(), ticket.clone());
            let answered = Arc::clone(&answered);
            async move {
                let _permit = permit;
                let outcome = replies.service.call(&ticket, call).await;
                if answered.swap(true, Ordering::Relaxed) {
                    return Ok(());
                }
                replies.send(&header, outcome).await
            }
        });
        let Some(deadline) = self.replies.service.deadline() else {
            return;
        };
        while let Some(first) = self.due.front()
            && first.answered.load(Ordering::Relaxed)
        {
            self.due.pop_front();
        }
        self.due.push_back(Due {
            at: Instant::now() + deadline,
            header,
            ticket,
            answered,
            task,
        });
    }

    /// Waits for `event`, and meanwhile for what the calls come to.
    async fn until<T>(&mut self, event: impl Future<Output = T>) -> Result<T, StreamError> {
        let mut event = pin!(event);
        loop {
            tokio::select! {
                happened = &mut event => return Ok(happened),
                stepped = self.step() => stepped?,
            }
        }
    }

    /// Waits until a call has ended or is late. A late one is answered here: its own task may be blocked.
    async fn step(&mut self) -> Result<(), StreamError> {
        let due = async {
            match self.due.front() {
                Some(first) => sleep_until(first.at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            ended = self.calls.join_next(), if !self.calls.is_empty() => ended.map_or(Ok(()), finished),
            () = due => {
                if let Some(late) = self.due.pop_front()
                    && !late.answered.swap(true, Ordering::Relaxed)
                {
                    late.task.abort();
                    let replies = Arc::clone(&self.replies);
                    self.calls.spawn(async move {
                        let outcome = replies.service.late(&late.ticket);
                        replies.send(&late.header, outcome).await
                    });
                }
                Ok(())
            }
        }
    }
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
    async fn send(
        &self,
        header: &Request,
        mut outcome: Result<S::Reply, Fault>,
    ) -> Result<(), StreamError> {
        let mut writer = self.writer.lock().await;
        let (encoder, writer) = &mut *writer;
        let mut bytes = encode(encoder, header, &outcome);
        if let Err(unsendable) = bytes {
            let fault = Fault::Unsendable {
                method: header.service_method.clone(),
                source: unsendable,
            };
            outcome = S::refuse(&header.service_method, fault);
            bytes = encode(encoder, header, &outcome);
        }
        let bytes = bytes.map_err(corrupt)?;
        let written = timeout(write_deadline::DEADLINE, async {
            writer.write_all(&bytes).await?;
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

fn encode<R: Body>(
    encoder: &mut ReplyEncoder,
    header: &Request,
    outcome: &Result<R, Fault>,
) -> Result<Vec<u8>, gob::EncodeError> {
    match outcome {
        Ok(reply) => encoder.encode(header, Ok(reply)),
        Err(fault) => {
            let error = to_wire::error_chain(fault);
            let (method, seq) = (&header.service_method, header.seq);
            warn!(method, seq, error, "call refused");
            encoder.encode::<R>(header, Err(&error))
        }
    }
}

fn corrupt(error: impl std::error::Error + Send + Sync + 'static) -> StreamError {
    StreamError::Corrupt(error.into())
}

fn finished(ended: Result<Result<(), StreamError>, JoinError>) -> Result<(), StreamError> {
    match ended {
        Ok(answered) => answered,
        // It was late.
        Err(error) if error.is_cancelled() => Ok(()),
        Err(panic) => Err(corrupt(panic)),
    }
}
