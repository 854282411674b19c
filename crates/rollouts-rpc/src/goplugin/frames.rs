//! The headers of yamux frames, read from the bytes of a connection.

/// Length of a frame header: version, type, flags, stream id, length (`header.go` in yamux).
const HEADER: usize = 12;

/// Finds the headers in the bytes of one direction, in pieces of any size.
#[derive(Debug, Default)]
pub struct Headers {
    header: [u8; HEADER],
    have: usize,
    /// Remaining bytes of the payload.
    payload: usize,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The type of the frame.
    pub kind: FrameKind,
    /// SYN is 1, ACK 2, FIN 4, and RST 8.
    pub flags: u8,
    /// The stream; 0 for frames of the session.
    pub stream: u32,
    /// The length of a data frame, and otherwise a number that depends on the type.
    pub length: u32,
}

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameKind {
    /// Bytes of a stream.
    Data,
    /// More room for bytes of a stream.
    WindowUpdate,
    /// A sign of life of the session, or the answer to one, with ACK.
    Ping,
    /// The end of the session.
    GoAway,
    /// A type that the yamux crate refuses.
    Other,
}

impl Headers {
    /// Takes the next bytes, and calls `found` with each header that they complete.
    pub fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            // Payloads are skipped without a look at them.
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();

            // A read may end at any byte of a header.
            let gap = self.header.get_mut(self.have..).unwrap_or_default();
            let copied = gap.len().min(bytes.len());
            let (head, rest) = bytes.split_at(copied);
            gap.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
            self.have += copied;
            bytes = rest;
            if self.have == HEADER {
                self.have = 0;
                let frame = Frame::parse(self.header);
                // Only data has a payload. The length of the others is a window, an opaque number or a code.
                if frame.kind == FrameKind::Data {
                    self.payload = usize::try_from(frame.length).unwrap_or(usize::MAX);
                }
                found(frame);
            }
        }
    }
}

impl Frame {
    fn parse(header: [u8; HEADER]) -> Self {
        let [_version, kind, _, flags, a, b, c, d, length @ ..] = header;
        let kind = match kind {
            0 => FrameKind::Data,
            1 => FrameKind::WindowUpdate,
            2 => FrameKind::Ping,
            3 => FrameKind::GoAway,
            _ => FrameKind::Other,
        };
        Self {
            kind,
            flags,
            stream: u32::from_be_bytes([a, b, c, d]),
            length: u32::from_be_bytes(length),
        }
    }
}
