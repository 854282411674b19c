//! A connection that writes down the headers of the yamux frames that come in.

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const HEADER: usize = 12;
const ACK: u16 = 2;
const PING: u8 = 2;

/// What the plugin has sent.
#[derive(Clone, Default)]
pub(crate) struct Frames(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    acknowledged: HashSet<u32>,
    pongs: usize,
    header: Vec<u8>,
    payload: usize,
}

impl Frames {
    /// Whether the plugin has acknowledged the stream.
    pub(crate) fn has_acknowledged(&self, stream: u32) -> bool {
        self.seen(|seen| seen.acknowledged.contains(&stream))
    }

    /// Pings of the host that the plugin has answered.
    pub(crate) fn pongs(&self) -> usize {
        self.seen(|seen| seen.pongs)
    }

    fn seen<T>(&self, read: impl FnOnce(&mut Seen) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Seen {
    fn scan(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.payload > 0 {
                self.payload -= 1;
                continue;
            }
            self.header.push(*byte);
            if self.header.len() < HEADER {
                continue;
            }
            let header = std::mem::take(&mut self.header);
            if let Ok([_, kind, f0, f1, a, b, c, d, length @ ..]) = <[u8; HEADER]>::try_from(header)
            {
                let (flags, stream) = (
                    u16::from_be_bytes([f0, f1]),
                    u32::from_be_bytes([a, b, c, d]),
                );
                if flags & ACK != 0 && kind == PING {
                    self.pongs += 1;
                } else if flags & ACK != 0 {
                    self.acknowledged.insert(stream);
                }
                if kind == 0 {
                    self.payload =
                        usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                }
            }
        }
    }
}

pub(crate) struct Sniffer<IO> {
    io: IO,
    frames: Frames,
}

impl<IO> Sniffer<IO> {
    pub(crate) fn new(io: IO) -> (Self, Frames) {
        let frames = Frames::default();
        let sniffer = Self {
            io,
            frames: frames.clone(),
        };
        (sniffer, frames)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Sniffer<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        if let Some(read) = buffer.filled().get(before..) {
            self.frames.seen(|seen| seen.scan(read));
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Sniffer<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_and_pongs_are_seen_however_the_bytes_are_cut() {
        let bytes = [
            [0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0].as_slice(),
            // Data of three bytes that look like a header, with an acknowledgement.
            &[0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3, 0, 1, 0],
            &[0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9],
        ]
        .concat();
        for cut in 1..bytes.len() {
            let frames = Frames::default();
            for piece in bytes.chunks(cut) {
                frames.seen(|seen| seen.scan(piece));
            }
            assert!(frames.has_acknowledged(1) && frames.has_acknowledged(3));
            assert!(!frames.has_acknowledged(5));
            assert_eq!(frames.pongs(), 1);
        }
    }
}
