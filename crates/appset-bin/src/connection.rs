//! The state of one connection: its current step, the time limit of the step, and whether it may be evicted.
//!
//! ```text
//! Waiting --first byte--> Head --all of the head--> Asked --answer is made--> Answered --it is written--> Waiting
//! ```
//!
//! hyper has one limit for waiting and reading the head together. That is too long for a client that sends the head byte by
//! byte, or too short for a client that keeps its connection between two polls. So this module has its own limits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use appset_generator::Failure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The time limits of the steps of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Between two requests, and before the first.
    pub(crate) idle: Duration,
    /// From the first byte of a head to the last.
    pub(crate) head: Duration,
    /// From the end of a head to the end of the answer.
    pub(crate) answer: Duration,
}

/// The state of a connection, which its task shares with the task that accepts connections.
#[derive(Debug)]
pub(crate) struct Phase {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    step: Step,
    until: Instant,
    /// Whether a request was answered with 2xx.
    is_served: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Waiting,
    Head,
    Asked,
    Answered,
}

/// The priority of a connection when one must be evicted. The lowest is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// The connection never had an answer with 2xx.
    Unknown,
    /// The connection is waiting for its next request.
    Idle,
}

impl Phase {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::new(State {
                step: Step::Waiting,
                until: Instant::now() + limits.idle,
                is_served: false,
            }),
        })
    }

    /// Returns the time limit of the current step.
    pub(crate) fn until(&self) -> Instant {
        self.state().until
    }

    /// Returns the priority of the connection for an eviction, or `None` if it must not be evicted because a request is pending.
    pub(crate) fn priority(&self) -> Option<Priority> {
        let state = self.state();
        match state.step {
            Step::Asked | Step::Answered => None,
            Step::Waiting | Step::Head if state.is_served => Some(Priority::Idle),
            Step::Waiting | Step::Head => Some(Priority::Unknown),
        }
    }

    /// Records that the whole head of a request was read.
    pub(crate) fn asked(&self) {
        self.enter(Step::Asked);
    }

    /// Records that the answer is complete. It is not written yet.
    pub(crate) fn answered(&self, is_success: bool) {
        let mut state = self.state();
        // The limit of the answer covers both steps.
        state.step = Step::Answered;
        state.is_served |= is_success;
    }

    fn read(&self) {
        if self.step() == Step::Waiting {
            self.enter(Step::Head);
        }
    }

    fn flushed(&self) {
        if self.step() == Step::Answered {
            self.enter(Step::Waiting);
        }
    }

    fn step(&self) -> Step {
        self.state().step
    }

    fn enter(&self, step: Step) {
        let limit = match step {
            Step::Waiting => self.limits.idle,
            Step::Head => self.limits.head,
            Step::Asked | Step::Answered => self.limits.answer,
        };
        let mut state = self.state();
        state.step = step;
        state.until = Instant::now() + limit;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that reports reads and flushes to its [`Phase`].
///
/// hyper itself answers an invalid head, without a body. Argo CD would show an empty message. So this type replaces the
/// response with an error of this service.
pub(crate) struct Observed<S> {
    stream: S,
    phase: Arc<Phase>,
    /// The part of the replacement that is not written yet.
    refusal: Vec<u8>,
}

impl<S> Observed<S> {
    pub(crate) const fn new(stream: S, phase: Arc<Phase>) -> Self {
        Self {
            stream,
            phase,
            refusal: Vec::new(),
        }
    }

    /// Returns whether `written` is hyper's own response. If so, it is dropped, and the replacement is queued.
    fn replaces(&mut self, written: &[u8]) -> bool {
        if !matches!(self.phase.step(), Step::Waiting | Step::Head) || written.is_empty() {
            return false;
        }
        if self.refusal.is_empty() {
            let status = written.get(9..12).and_then(|s| std::str::from_utf8(s).ok());
            let failure = Failure::Head(status.and_then(|s| s.parse().ok()).unwrap_or(400));
            let status = failure.code().status;
            let body = failure.to_body("");
            let length = body.len();
            self.refusal = format!(
                "HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            )
            .into_bytes();
            self.refusal.extend(body);
            tracing::debug!(status, "refused an invalid head");
        }
        true
    }
}

impl<S: AsyncWrite + Unpin> Observed<S> {
    fn poll_refusal(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.refusal))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.refusal.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.phase.read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replaces(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.phase.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = buffers.iter().find(|buffer| !buffer.is_empty());
        if first.is_some_and(|first| self.replaces(first)) {
            let all = buffers.iter().map(|buffer| buffer.len()).sum();
            return Poll::Ready(Ok(all));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        idle: Duration::from_secs(120),
        head: Duration::from_secs(10),
        answer: Duration::from_secs(30),
    };

    fn left(phase: &Phase) -> u64 {
        (phase.until() - Instant::now()).as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_has_its_own_limit() {
        let phase = Phase::new(LIMITS);
        assert_eq!(left(&phase), 120);
        tokio::time::advance(Duration::from_secs(90)).await;
        phase.read();
        assert_eq!(left(&phase), 10);
        tokio::time::advance(Duration::from_secs(4)).await;
        // More bytes of the head do not extend the limit.
        phase.read();
        assert_eq!(left(&phase), 6);
        phase.asked();
        assert_eq!(left(&phase), 30);
        tokio::time::advance(Duration::from_secs(5)).await;
        // Reading the body or writing an interim response does not extend the limit.
        phase.read();
        phase.flushed();
        assert_eq!(left(&phase), 25);
        phase.answered(true);
        assert_eq!(left(&phase), 25);
        phase.flushed();
        assert_eq!(left(&phase), 120);
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_clients_are_evicted_first_and_pending_requests_never() {
        let phase = Phase::new(LIMITS);
        assert_eq!(phase.priority(), Some(Priority::Unknown));
        phase.read();
        assert_eq!(phase.priority(), Some(Priority::Unknown));
        phase.asked();
        assert_eq!(phase.priority(), None);
        phase.answered(false);
        assert_eq!(phase.priority(), None);
        phase.flushed();
        assert_eq!(phase.priority(), Some(Priority::Unknown));
        phase.asked();
        phase.answered(true);
        phase.flushed();
        assert_eq!(phase.priority(), Some(Priority::Idle));
        phase.read();
        assert_eq!(phase.priority(), Some(Priority::Idle));
        assert!(Priority::Unknown < Priority::Idle);
    }
}
