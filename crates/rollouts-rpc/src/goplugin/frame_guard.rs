//! Ends a connection whose peer breaks the rules of yamux, and limits the memory of small frames.
//!
//! The yamux crate answers a violation with GoAway and reads on. It also keeps every unread data frame in an allocation of its own:
//! 256 KiB in frames of one byte take 16 MiB. So the guard stands between the socket and the crate, and reads the headers of the
//! frames in both directions. It does not hold back or change any byte.
//!
//! ```text
//!            incoming                            outgoing
//! socket --------------> FrameGuard ----> yamux ----------> FrameGuard ----> socket
//!   Data, stream 7         count[7] += 1            (16,385th: the connection fails)
//!   WindowUpdate of ours                             count[7] = 0
//!   Data with FIN or RST   count[7] is removed when both ends are closed
//!   GoAway 1               the connection fails      GoAway 1: the connection fails
//! ```
//!
//! For example, a host sends an argument of 100 KB in 25 frames of 4 KiB: the count reaches 25, and the window update that the crate
//! sends after 128 KiB sets it to 0. A host that sends the same 100 KB byte by byte reaches the limit after 16 KiB.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{Frame, FrameKind, Headers};

/// Most data frames on one stream between two window updates of ours. At most 256 KiB arrive in this time, and the shortest call of a
/// host is a Ping of 24 bytes.
const MAX_FRAMES: u32 = 16 * 1024;

const SYN: u8 = 1;
const FIN: u8 = 4;
const RST: u8 = 8;

/// A connection that fails after either side found a violation.
#[derive(Debug)]
pub(crate) struct FrameGuard<IO> {
    io: IO,
    incoming: Headers,
    outgoing: Headers,
    rules: Rules,
}

/// Checks the frames of a session.
#[derive(Debug, Default)]
struct Rules {
    /// Data frames since the last window update, by open stream.
    frames: HashMap<u32, u32>,
    violation: Option<Violation>,
}

/// Why the connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Violation {
    #[error("the host violated the yamux protocol (GoAway {0} was sent)")]
    ByHost(u32),
    #[error("the host reports a violation of the yamux protocol (GoAway {0})")]
    ByPlugin(u32),
    #[error("the host sent more than {MAX_FRAMES} nearly empty frames on one stream")]
    TinyFrames,
}

impl<IO> FrameGuard<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self {
            io,
            incoming: Headers::default(),
            outgoing: Headers::default(),
            rules: Rules::default(),
        }
    }
}

impl Rules {
    fn received(&mut self, frame: Frame) {
        match frame.kind {
            FrameKind::GoAway if frame.length != 0 => {
                self.violation = Some(Violation::ByPlugin(frame.length));
            }
            FrameKind::Data | FrameKind::WindowUpdate => {
                if frame.flags & SYN != 0 {
                    self.frames.entry(frame.stream).or_default();
                }
                // FIN ends only the host's direction. Frames that it sent before are still unread, so they count.
                if frame.flags & RST != 0 {
                    self.frames.remove(&frame.stream);
                }
                if frame.kind == FrameKind::Data
                    // The yamux crate drops a frame of a stream that is not open, so it takes no memory.
                    && let Some(frames) = self.frames.get_mut(&frame.stream)
                {
                    *frames += 1;
                    if *frames > MAX_FRAMES {
                        self.violation = Some(Violation::TinyFrames);
                    }
                }
            }
            FrameKind::Ping | FrameKind::GoAway | FrameKind::Other => {}
        }
    }

    fn sent(&mut self, frame: Frame) {
        match frame.kind {
            FrameKind::GoAway if frame.length != 0 => {
                self.violation = Some(Violation::ByHost(frame.length));
            }
            // Whichever side ends a stream first, the yamux crate sends a frame with FIN or RST.
            FrameKind::Data | FrameKind::WindowUpdate if frame.flags & (FIN | RST) != 0 => {
                self.frames.remove(&frame.stream);
            }
            FrameKind::WindowUpdate => {
                if let Some(frames) = self.frames.get_mut(&frame.stream) {
                    *frames = 0;
                }
            }
            FrameKind::Data | FrameKind::Ping | FrameKind::GoAway | FrameKind::Other => {}
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for FrameGuard<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            io,
            incoming,
            rules,
            ..
        } = &mut *self;
        // Nothing is read after a violation, also not after one that was found in a write.
        if rules.violation.is_none() {
            // The buffer may have bytes of an earlier read.
            let before = buf.filled().len();
            ready!(Pin::new(io).poll_read(cx, buf))?;
            let read = buf.filled().get(before..).unwrap_or_default();
            incoming.scan(read, |frame| rules.received(frame));
        }
        Poll::Ready(match rules.violation {
            Some(violation) => Err(io::Error::new(io::ErrorKind::InvalidData, violation)),
            None => Ok(()),
        })
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for FrameGuard<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self {
            io,
            outgoing,
            rules,
            ..
        } = &mut *self;
        let written = ready!(Pin::new(io).poll_write(cx, bytes))?;
        let taken = bytes.get(..written).unwrap_or_default();
        outgoing.scan(taken, |frame| rules.sent(frame));
        // A violation fails the next read and not this write, so that GoAway reaches the host.
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn frame(kind: FrameKind, flags: u8, stream: u32, length: u32) -> Frame {
        Frame {
            kind,
            flags,
            stream,
            length,
        }
    }

    #[test]
    fn headers_are_found_in_pieces_of_any_size() {
        let bytes = [
            &[0, 1, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0][..],
            &[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, b'a', b'b', b'c'],
            &[0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9],
            &[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ]
        .concat();
        for piece in 1..=bytes.len() {
            let (mut headers, mut found) = (Headers::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                headers.scan(piece, |frame| found.push(frame));
            }
            assert_eq!(
                found,
                [
                    frame(FrameKind::WindowUpdate, SYN, 7, 0),
                    frame(FrameKind::Data, 0, 7, 3),
                    frame(FrameKind::Ping, SYN, 0, 9),
                    frame(FrameKind::GoAway, 0, 0, 1),
                ]
            );
        }
    }

    #[track_caller]
    fn check(judge: impl FnOnce(&mut Rules), expect: Option<Violation>) {
        let mut rules = Rules::default();
        rules.received(frame(FrameKind::WindowUpdate, SYN, 7, 0));
        judge(&mut rules);
        assert_eq!(rules.violation, expect);
    }

    #[test]
    fn a_goaway_with_an_error_ends_the_connection() {
        check(
            |rules| rules.received(frame(FrameKind::GoAway, 0, 0, 0)),
            None,
        );
        check(|rules| rules.sent(frame(FrameKind::GoAway, 0, 0, 0)), None);
        check(
            |rules| rules.received(frame(FrameKind::GoAway, 0, 0, 2)),
            Some(Violation::ByPlugin(2)),
        );
        check(
            |rules| rules.sent(frame(FrameKind::GoAway, 0, 0, 1)),
            Some(Violation::ByHost(1)),
        );
    }

    fn tiny(rules: &mut Rules, frames: u32) {
        for _ in 0..frames {
            rules.received(frame(FrameKind::Data, 0, 7, 1));
        }
    }

    #[test]
    fn too_many_unread_tiny_frames_end_the_connection() {
        check(|rules| tiny(rules, MAX_FRAMES), None);
        check(
            |rules| tiny(rules, MAX_FRAMES + 1),
            Some(Violation::TinyFrames),
        );
    }

    #[test]
    fn a_window_update_resets_the_count_of_tiny_frames() {
        check(
            |rules| {
                tiny(rules, MAX_FRAMES);
                rules.sent(frame(FrameKind::WindowUpdate, 0, 7, 1 << 17));
                tiny(rules, MAX_FRAMES);
            },
            None,
        );
    }

    #[test]
    fn closed_streams_are_removed() {
        for end in [
            (|rules| rules.received(frame(FrameKind::Data, RST, 7, 0))) as fn(&mut Rules),
            |rules| rules.sent(frame(FrameKind::Data, FIN, 7, 0)),
            |rules| rules.sent(frame(FrameKind::Data, RST, 7, 0)),
        ] {
            check(
                |rules| {
                    end(rules);
                    tiny(rules, MAX_FRAMES + 1);
                    assert!(rules.frames.is_empty());
                },
                None,
            );
        }
    }
}
