//! Cuts the incoming bytes into messages: a length, then that many bytes.

use std::ops::Range;

use crate::{error::Fault, limits::at_most, wire::Cursor};

/// Bytes of the stream that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    // Everything before is consumed.
    start: usize,
    // Position in the stream of the buffer's first byte.
    offset: u64,
}

impl Input {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Moving the unread rest only once the read part outgrows it keeps the cost linear.
        if self.start * 2 >= self.buffer.len() {
            self.buffer.drain(..self.start);
            self.offset += self.start as u64;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// True when nothing waits to be consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Consumes the next message when it is complete, and says where its payload is. The payload stays
    /// in place until the next [`push`](Self::push).
    pub(crate) fn next_message(&mut self, max_bytes: usize) -> Result<Option<Range<usize>>, Fault> {
        let unread = self.payload(self.start..self.buffer.len())?;
        let mut cursor = Cursor::new(unread);
        let length = match cursor.uint() {
            Ok(0) => return Err(Fault::EmptyMessage),
            Ok(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Err(Fault::Truncated) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        at_most(length, max_bytes, "bytes in one message")?;
        if cursor.remaining() < length {
            return Ok(None);
        }
        let begin = self.buffer.len() - cursor.remaining();
        self.start = begin + length;
        Ok(Some(begin..self.start))
    }

    /// The bytes of a message.
    pub(crate) fn payload(&self, range: Range<usize>) -> Result<&[u8], Fault> {
        self.buffer.get(range).ok_or(Fault::Misplaced)
    }

    /// Position in the stream of a position in the buffer.
    pub(crate) fn stream_offset(&self, position: usize) -> u64 {
        self.offset + position as u64
    }

    /// Position in the stream of the next message.
    pub(crate) fn next_offset(&self) -> u64 {
        self.stream_offset(self.start)
    }
}
