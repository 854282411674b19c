//! A connection on which a write fails if it makes no progress for 10 s.
//!
//! Without this deadline, a host that stops reading would hold the task and the buffer of every call forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// yamux's `ConnectionWriteTimeout` in go's default configuration.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Adds the deadline to the writes of `IO`.
#[derive(Debug)]
pub(crate) struct WriteDeadline<IO> {
    io: IO,
    /// The deadline of the pending write, if any.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<IO> WriteDeadline<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self { io, stuck: None }
    }

    fn limit<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.stuck = None;
            return write;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(DEADLINE)));
        stuck.as_mut().poll(cx).map(|()| Err(self::stuck()))
    }
}

/// Returns the error of a write to a host that does not read.
pub(crate) fn stuck() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the host has not read for 10 s")
}

impl<IO: AsyncRead + Unpin> AsyncRead for WriteDeadline<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.limit(cx, write)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.io).poll_flush(cx);
        self.limit(cx, flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.io).poll_shutdown(cx);
        self.limit(cx, shutdown)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_to_a_peer_that_stops_reading_fails() {
        let (ours, _theirs) = duplex(4);
        let error = WriteDeadline::new(ours)
            .write_all(b"12345")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_reaches_the_peer() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = WriteDeadline::new(ours);
        ours.shutdown().await.unwrap();
        let read = tokio::time::timeout(DEADLINE, theirs.read(&mut [0])).await;
        assert_eq!(read.unwrap().unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_to_a_slow_peer_succeeds() {
        let (ours, mut theirs) = duplex(4);
        let slow = tokio::spawn(async move {
            let mut read = [0; 12];
            for byte in read.chunks_mut(4) {
                sleep(DEADLINE - Duration::from_secs(1)).await;
                theirs.read_exact(byte).await.unwrap();
            }
            read
        });
        WriteDeadline::new(ours)
            .write_all(b"abcdefghijkl")
            .await
            .unwrap();
        assert_eq!(&slow.await.unwrap(), b"abcdefghijkl");
    }
}
