//! Serves one stream: one reader that never waits for a call to end, one task per call, one writer.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use gob::Encoder;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, WriteHalf};
use tokio::sync::{AcquireError, Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::compat::Compat;
use tracing::warn;

use super::codec::{CallDecoder, Incoming, Request, encode_reply};
use super::{Body, Fault, Service};
use crate::error::error_chain;
use crate::write_deadline;

/// Capacity for calls in flight, in units. A controller calls a router or a step from ten workers, and a metric provider for the metrics of
/// 30 analysis runs; more calls wait in the host's send window.
const MAX_UNITS: u32 = 256;

/// Bytes per unit. Most arguments are smaller. All units are 6 MiB.
const UNIT: usize = 24 * 1024;

/// Size of a read in bytes.
const READ_SIZE: usize = 16 * 1024;

/// Why a stream ended before the host closed it.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// The stream was reset, or the connection failed.
    Io(io::Error),
    /// The bytes are not net/rpc over gob.
    Corrupt(Box<dyn std::error::Error + Send + Sync>),
}

/// Limits the memory of calls in flight. The streams of a session share one limit.
///
/// A call takes one unit, and one more for each 24 KiB of its argument: 256 calls with small arguments run at the same time, or 5
/// calls with arguments of 1.2 MB.
#[derive(Clone)]
pub(crate) struct InFlightLimit(Arc<Semaphore>);

impl Default for InFlightLimit {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UNITS as usize)))
    }
}

impl InFlightLimit {
    /// Waits for capacity for a call whose argument takes about `size` bytes of memory.
    async fn acquire(&self, size: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let units = u32::try_from(1 + size / UNIT).unwrap_or(MAX_UNITS);
        Arc::clone(&self.0)
            .acquire_many_owned(units.min(MAX_UNITS))
            .await
    }
}

/// A [`Service`] of any type.
pub(crate) trait Serve: Send + Sync {
    /// See [`serve`].
    fn serve(
        self: Arc<Self>,
        stream: Compat<yamux::Stream>,
        limit: InFlightLimit,
    ) -> BoxFuture<'static, Result<(), StreamError>>;

    /// See [`Service::stop`].
    fn stop(&self) -> BoxFuture<'_, ()>;
}

impl<S: Service> Serve for S {
    fn serve(
        self: Arc<Self>,
        stream: Compat<yamux::Stream>,
        limit: InFlightLimit,
    ) -> BoxFuture<'static, Result<(), StreamError>> {
        Box::pin(serve(stream, self, limit))
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(Service::stop(self))
    }
}

/// Serves the calls on `io` until the host closes the stream, and then waits for the calls in flight.
///
/// # Errors
///
/// Returns `Err` if the stream fails or its bytes are corrupt.
pub(crate) async fn serve<S, IO>(
    io: IO,
    service: Arc<S>,
    limit: InFlightLimit,
) -> Result<(), StreamError>
where
    S: Service,
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut reader, writer) = tokio::io::split(io);
    let replies = Arc::new(Replies {
        service,
        writer: Mutex::new((Encoder::new(), writer)),
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
                // The deadline counts the wait too.
                let arrived = Instant::now();
                let permit = running.until(limit.acquire(incoming.size)).await?;
                // The semaphore is never closed.
                running.start(incoming, arrived, permit.map_err(corrupt)?);
                continue;
            }
            Ok(None) => {}
            Err(error) => break Err(corrupt(error)),
        }
        let read = running.until(reader.read(&mut chunk)).await?;
        let read = chunk.get(..read.map_err(StreamError::Io)?);
        match read.ok_or_else(|| StreamError::Io(io::ErrorKind::InvalidData.into()))? {
            [] if decoder.is_between_calls() => break Ok(()),
            [] => break Err(StreamError::Io(io::ErrorKind::UnexpectedEof.into())),
            read => {
                if let Err(error) = decoder.handle_input(read) {
                    break Err(corrupt(error));
                }
            }
        }
    };
    // Calls before a corrupt or unfinished one are answered: the host handles a VerifyWeight without a reply as an error, and promotes.
    while !running.calls.is_empty() {
        running.step().await?;
    }
    end
}

/// The calls of a stream that are in flight.
struct Running<S: Service, IO> {
    replies: Arc<Replies<S, IO>>,
    calls: JoinSet<Result<(), StreamError>>,
    /// The calls with a deadline, in the order of arrival. All have the same timeout, so this is the order of their deadlines.
    due: VecDeque<Due<S>>,
}

/// A call with a deadline.
struct Due<S: Service> {
    at: Instant,
    header: Request,
    info: S::CallInfo,
    answered: Arc<AtomicBool>,
    task: AbortHandle,
}

impl<S, IO> Running<S, IO>
where
    S: Service,
    IO: AsyncWrite + Send + 'static,
{
    /// Starts a task that carries out a call and writes the reply.
    fn start(
        &mut self,
        incoming: Incoming<S::Call>,
        arrived: Instant,
        permit: OwnedSemaphorePermit,
    ) {
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
        let info = replies.service.call_info(&call);
        let answered = Arc::new(AtomicBool::new(false));
        let task = self.calls.spawn({
            let (header, info) = (header.clone(), info.clone());
            let answered = Arc::clone(&answered);
            async move {
                let _permit = permit;
                let outcome = replies.service.call(&info, call).await;
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
            at: arrived + deadline,
            header,
            info,
            answered,
            task,
        });
    }

    /// Waits for `event`, and handles ended calls and exceeded deadlines until then.
    async fn until<T>(&mut self, event: impl Future<Output = T>) -> Result<T, StreamError> {
        let mut event = pin!(event);
        loop {
            tokio::select! {
                happened = &mut event => return Ok(happened),
                stepped = self.step() => stepped?,
            }
        }
    }

    /// Waits until a call ends or exceeds its deadline. This task replies to a call that exceeds it, because the call's task may be
    /// blocked.
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
                if let Some(call) = self.due.pop_front()
                    && !call.answered.swap(true, Ordering::Relaxed)
                {
                    call.task.abort();
                    let replies = Arc::clone(&self.replies);
                    self.calls.spawn(async move {
                        let outcome = replies.service.deadline_exceeded(&call.info);
                        replies.send(&call.header, outcome).await
                    });
                }
                Ok(())
            }
        }
    }
}

/// Writes the replies of a stream.
struct Replies<S, IO> {
    service: Arc<S>,
    /// One lock over both: definitions must precede the values that use them, and the body of a reply must follow its header.
    writer: Mutex<(Encoder, WriteHalf<IO>)>,
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
        // A host may read the socket but send no window update for this stream.
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
    encoder: &mut Encoder,
    header: &Request,
    outcome: &Result<R, Fault>,
) -> Result<Vec<u8>, gob::EncodeError> {
    match outcome {
        Ok(reply) => encode_reply(encoder, header, Ok(reply)),
        Err(fault) => {
            let error = error_chain(fault);
            let (method, seq) = (&header.service_method, header.seq);
            warn!(method, seq, error, "call refused");
            encode_reply::<R>(encoder, header, Err(&error))
        }
    }
}

fn corrupt(error: impl std::error::Error + Send + Sync + 'static) -> StreamError {
    StreamError::Corrupt(error.into())
}

fn finished(ended: Result<Result<(), StreamError>, JoinError>) -> Result<(), StreamError> {
    match ended {
        Ok(answered) => answered,
        // The call exceeded its deadline.
        Err(error) if error.is_cancelled() => Ok(()),
        Err(panic) => Err(corrupt(panic)),
    }
}
