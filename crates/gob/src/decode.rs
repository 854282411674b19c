//! [`Decoder`]: decodes a stream of bytes to values.
//!
//! The decoder works in three stages: [`Input`] divides the stream into messages, [`Assembler`] collects the messages of
//! one value and learns the types that they define, and [`value::Reader`] lets serde read the value.

use std::{ops::Range, sync::Arc};

use serde::de::DeserializeOwned;

use self::{
    value::Reader,
    walk::{Progress, Walker},
};
use crate::{
    definition::{self, TypeRef, TypeTable, WireType},
    error::{DecodeError, Fault, ValueError},
    limits::{Budget, Limits, Used, at_most},
    wire::Cursor,
};

pub(crate) mod value;
pub(crate) mod walk;

/// Decodes one gob stream, without I/O. The caller passes bytes as they arrive, in pieces of any size.
///
/// The decoder keeps the types of the stream, so each stream and direction needs its own decoder.
///
/// Go values decode to Rust values as follows:
///
/// - A struct decodes to a Rust struct by exact Go field names. Unknown fields are skipped. A field that is zero in Go is absent, so use
///   `#[serde(default)]`.
/// - A pointer is not visible in gob: `*int32` decodes to `i32` or `Option<i32>`.
/// - An interface value decodes to an enum whose variants have the names of the registered types; nil decodes to `None`.
/// - `[]byte` decodes to [`Bytes`](crate::Bytes), and `time.Time` to [`Time`](crate::Time).
/// - A bool is true if it is not zero, as in Go.
/// - An integer must be in the range of the Rust type.
/// - A string must be UTF-8 only if it is decoded to a `String`.
#[derive(Debug)]
pub struct Decoder {
    input: Input,
    values: Assembler,
    failure: Option<DecodeError>,
}

impl Decoder {
    /// Creates a decoder for a new stream.
    pub fn new(limits: Limits) -> Self {
        Self {
            input: Input::default(),
            values: Assembler::new(limits),
            failure: None,
        }
    }

    /// Takes the next bytes of the stream.
    ///
    /// Call [`poll_value`](Self::poll_value) until it returns `None` before the next input: then the decoder holds at most one value and
    /// one input.
    ///
    /// # Errors
    ///
    /// Returns the error that ended the stream, if it ended.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.input.push(bytes);
        Ok(())
    }

    /// Returns the next value, or `None` if more bytes are needed.
    ///
    /// It consumes the value with all definitions before and inside it. The type [`IgnoredAny`](serde::de::IgnoredAny) skips a value.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::Mismatch`] if the value does not fit `T`. The value is consumed, and the next call returns the next value.
    /// Returns [`DecodeError::Corrupt`] if the stream is corrupt. Every later call returns the same error.
    pub fn poll_value<T: DeserializeOwned>(&mut self) -> Result<Option<T>, DecodeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let result = self.read();
        if let Err(failure @ DecodeError::Corrupt { .. }) = &result {
            self.failure = Some(failure.clone());
        }
        result
    }

    /// Returns whether the stream is between two values, with no unread bytes. At the end of input, false means that the stream was cut
    /// short.
    pub fn is_between_values(&self) -> bool {
        self.input.is_empty() && self.values.is_empty()
    }

    /// Returns the number of bytes that arrived after the last complete message.
    pub fn unread_bytes(&self) -> usize {
        self.input.buffer.len() - self.input.start
    }

    /// Returns the number of slice elements, array elements and map entries in the last value that was decoded. Skipped ones do not count.
    /// An element is at least one byte on the wire and may be hundreds in memory.
    pub fn last_elements(&self) -> usize {
        self.values.elements
    }

    /// Returns the number of bytes in all type definitions so far. A [`Raw`](crate::Raw) keeps the types of its stream, and a new definition makes
    /// another copy of them.
    pub fn definition_bytes(&self) -> usize {
        self.values.types.definition_bytes()
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, DecodeError> {
        loop {
            let at_message = |offset| move |fault| DecodeError::Corrupt { offset, fault };
            let max_bytes = self.values.limits.message_bytes;
            let message = self.input.next_message(max_bytes);
            let message =
                message.map_err(at_message(self.input.stream_offset(self.input.start)))?;
            let Some(message) = message else {
                return Ok(None);
            };
            let end = message.end;
            let payload = self.input.payload(message);
            let payload = payload.map_err(at_message(self.input.stream_offset(end)))?;
            let mut cursor = Cursor::new(payload);
            return match self.values.message(&mut cursor) {
                Ok(None) => continue,
                Ok(value) => Ok(value),
                Err(Failure::Mismatch(error)) => Err(error.into()),
                Err(Failure::Corrupt(fault)) => {
                    let offset = self.input.stream_offset(end - cursor.remaining());
                    Err(DecodeError::Corrupt { offset, fault })
                }
            };
        }
    }
}

/// Collects input and divides it into messages: a length, then that many bytes.
#[derive(Debug, Default)]
struct Input {
    buffer: Vec<u8>,
    // Everything before this position is consumed.
    start: usize,
    // Position in the stream of the first byte of the buffer.
    offset: u64,
}

impl Input {
    fn push(&mut self, bytes: &[u8]) {
        // The cost stays linear because unread bytes move only when the consumed part is at least as long.
        if self.start * 2 >= self.buffer.len() {
            self.buffer.drain(..self.start);
            self.offset += self.start as u64;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether all input is consumed.
    fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Consumes the next message if it is complete, and returns the range of its payload. The payload stays in the buffer until the
    /// next [`push`](Self::push).
    fn next_message(&mut self, max_bytes: usize) -> Result<Option<Range<usize>>, Fault> {
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

    /// Returns the bytes of a message.
    fn payload(&self, range: Range<usize>) -> Result<&[u8], Fault> {
        self.buffer.get(range).ok_or(Fault::Misplaced)
    }

    /// Converts a position in the buffer to a position in the stream.
    fn stream_offset(&self, position: usize) -> u64 {
        self.offset + position as u64
    }
}

/// Assembles messages to values, and stores the types that they define.
///
/// Most values are one message. An interface value whose concrete type is new to the stream spans several: Go has already buffered the
/// start of the value when it meets the new type, and flushes it together with the first definition (`encoder.go`,
/// `sendTypeDescriptor`):
///
/// ```text
/// message 1     interface id, registered name, first definition
/// message 2..k  one definition each
/// message k+1   concrete type id, byte count, value
/// ```
///
/// Such a value is collected in a buffer without the definitions, so that serde reads the same bytes as for a value whose types were all
/// defined before.
#[derive(Debug)]
struct Assembler {
    limits: Limits,
    types: Arc<TypeTable>,
    walker: Walker,
    pending: Option<Pending>,
    // Bytes of the pending value, or of the last one: the buffer is reused.
    body: Vec<u8>,
    // Elements of the last value.
    elements: usize,
}

/// A value that continues in the next message. The walker has the position in it.
#[derive(Debug)]
struct Pending {
    ty: TypeRef,
    messages: usize,
    used: Used,
}

/// Why a complete value could not be decoded.
#[derive(Debug)]
enum Failure {
    Mismatch(ValueError),
    Corrupt(Fault),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Corrupt(fault)
    }
}

impl Assembler {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            types: Arc::new(TypeTable::new()),
            walker: Walker::default(),
            pending: None,
            body: Vec::new(),
            elements: 0,
        }
    }

    /// Returns whether no value needs more messages.
    fn is_empty(&self) -> bool {
        self.pending.is_none()
    }

    /// Takes one message and returns the value that it completes, if any. After [`Failure::Corrupt`] the cursor is at the fault.
    fn message<T: DeserializeOwned>(
        &mut self,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<T>, Failure> {
        let begin = cursor.rest();
        let complete = match self.pending.take() {
            Some(pending) => self.collect(pending, begin, cursor)?,
            None => {
                let Some(ty) = self.head(cursor)? else {
                    return Ok(None);
                };
                // Fast path: nearly all values are one message and fit the type.
                if let Ok((value, elements)) = self.decode(ty, cursor.rest()) {
                    self.elements = elements;
                    return Ok(Some(value));
                }
                // The value continues in the next message, is corrupt or does not fit: the walk tells which.
                self.begin(ty, cursor)?
            }
        };
        let Some(ty) = complete else {
            return Ok(None);
        };
        let decoded = self.decode(ty, &self.body);
        let (value, elements) = decoded.map_err(Failure::Mismatch)?;
        self.elements = elements;
        Ok(Some(value))
    }

    // Reads the type id of a value, or a whole message with a definition.
    fn head(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<TypeRef>, Fault> {
        let id = cursor.int()?;
        if id < 0 {
            definition::read(id, cursor, Arc::make_mut(&mut self.types), &self.limits)?;
            return no_bytes_left(cursor).map(|()| None);
        }
        let ty = self.types.of_value(id)?;
        if !matches!(self.types.get(ty), WireType::Struct { .. }) {
            cursor.singleton_marker()?;
        }
        Ok(Some(ty))
    }

    // Returns the value and the number of its elements.
    fn decode<T: DeserializeOwned>(
        &self,
        ty: TypeRef,
        body: &[u8],
    ) -> Result<(T, usize), ValueError> {
        let mut reader = Reader::new(body, &self.types, Budget::new(&self.limits));
        let value = reader.only(ty)?;
        Ok((value, reader.budget.elements()))
    }

    // Starts to collect a value.
    fn begin(&mut self, ty: TypeRef, cursor: &mut Cursor<'_>) -> Result<Option<TypeRef>, Fault> {
        self.body.clear();
        let begin = cursor.rest();
        let mut budget = Budget::new(&self.limits);
        self.walker.begin(ty, cursor, &self.types, &mut budget)?;
        let pending = Pending {
            ty,
            messages: 0,
            used: budget.used(),
        };
        self.collect(pending, begin, cursor)
    }

    // Walks over the rest of a message and appends it to the buffer, from `begin` on and without definitions. Returns the type of the
    // value if it is complete and valid.
    fn collect<'c>(
        &mut self,
        mut pending: Pending,
        mut begin: &'c [u8],
        cursor: &mut Cursor<'c>,
    ) -> Result<Option<TypeRef>, Fault> {
        pending.messages += 1;
        at_most(
            pending.messages,
            self.limits.value_messages,
            "messages in one value",
        )?;
        let mut budget = Budget::resume(&self.limits, pending.used);
        loop {
            let progress = self.walker.run(cursor, &self.types, &mut budget)?;
            let read = begin.len().checked_sub(cursor.remaining());
            let piece = read.and_then(|read| begin.get(..read));
            let piece = piece.ok_or(Fault::Misplaced)?;
            at_most(
                self.body.len() + piece.len(),
                self.limits.message_bytes,
                "bytes in one value",
            )?;
            self.body.extend_from_slice(piece);
            match progress {
                Progress::Done => {
                    return no_bytes_left(cursor).map(|()| Some(pending.ty));
                }
                Progress::NeedMessage => {
                    pending.used = budget.used();
                    self.pending = Some(pending);
                    return Ok(None);
                }
                Progress::Definition => {
                    let id = cursor.int()?;
                    definition::read(id, cursor, Arc::make_mut(&mut self.types), &self.limits)?;
                    // Inside the value of another interface, a new byte count precedes the rest. Go ignores it.
                    if !cursor.is_empty() {
                        cursor.uint()?;
                    }
                    begin = cursor.rest();
                }
            }
        }
    }
}

fn no_bytes_left(cursor: &Cursor<'_>) -> Result<(), Fault> {
    match cursor.remaining() {
        0 => Ok(()),
        count => Err(Fault::TrailingBytes { count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_in_pieces_that_end_within_messages_does_not_fill_the_buffer() {
        let (mut input, message) = (Input::default(), [7, 0, 0, 0, 0, 0, 0, 0]);
        input.push(&message[..4]);
        for _ in 0..100 {
            input.push(&message[4..]);
            input.push(&message[..4]);
            assert!(input.next_message(7).unwrap().is_some());
        }
        assert!(input.buffer.len() < 3 * message.len());
    }
}
