//! [`Decoder`]: bytes in, values out.
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

/// Decodes one gob stream. Does no I/O: feed it bytes as they arrive, in pieces of any size.
///
/// Types stay known for the life of the stream, so there is one decoder per stream and direction.
///
/// How Go values become Rust values: a struct fills a Rust struct by exact Go field name, whatever it does
/// not name is skipped, and a field that is zero in Go is absent (use `#[serde(default)]`). Pointers vanish,
/// so `*int32` decodes as `i32` or `Option<i32>`. An interface value is an enum whose variants are named
/// after the registered types, nil is `None`. `[]byte` is [`Bytes`](crate::Bytes), `time.Time` is
/// [`Time`](crate::Time). Any non-zero bool is true, as in Go. Integers are checked against the range of the
/// Rust type. A string must be UTF-8 if, and only if, it is decoded into a `String`.
#[derive(Debug)]
pub struct Decoder {
    input: Input,
    values: Assembler,
    failure: Option<DecodeError>,
}

impl Decoder {
    /// A decoder for a stream of which no byte has been read yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            input: Input::default(),
            values: Assembler::new(limits),
            failure: None,
        }
    }

    /// Takes the next bytes of the stream.
    ///
    /// Call [`poll_value`](Self::poll_value) until it returns `None` before the next input: then never more
    /// than one value and one input are held.
    ///
    /// # Errors
    ///
    /// The error that ended the stream, if it has ended.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.input.push(bytes);
        Ok(())
    }

    /// The next value, or `None` when more bytes are needed.
    ///
    /// Consumes the value whole, with all definitions before and inside it. `T` =
    /// [`IgnoredAny`](serde::de::IgnoredAny) skips it.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Mismatch`] if this value does not fit `T`; it is consumed and the next call yields the
    /// next value. [`DecodeError::Corrupt`] if the stream is broken; every later call returns it too.
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

    /// True when the stream stands between two values: nothing has arrived that was not polled. At the end
    /// of input this tells a finished stream from one cut short.
    pub fn is_between_values(&self) -> bool {
        self.input.is_empty() && self.values.is_empty()
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, DecodeError> {
        loop {
            let at_message = |offset| move |fault| DecodeError::Corrupt { offset, fault };
            let max_bytes = self.values.max_message_bytes();
            let message = self.input.next_message(max_bytes);
            let message = message.map_err(at_message(self.input.next_offset()))?;
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

/// Bytes of the stream that have arrived.
#[derive(Debug, Default)]
struct Input {
    buffer: Vec<u8>,
    // Everything before is consumed.
    start: usize,
    // Position in the stream of the buffer's first byte.
    offset: u64,
}

impl Input {
    fn push(&mut self, bytes: &[u8]) {
        // Moving the unread rest only once the read part outgrows it keeps the cost linear.
        if self.start * 2 >= self.buffer.len() {
            self.buffer.drain(..self.start);
            self.offset += self.start as u64;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// True when nothing waits to be consumed.
    fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Consumes the next message when it is complete, and says where its payload is. The payload stays
    /// in place until the next [`push`](Self::push).
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

    /// The bytes of a message.
    fn payload(&self, range: Range<usize>) -> Result<&[u8], Fault> {
        self.buffer.get(range).ok_or(Fault::Misplaced)
    }

    /// Position in the stream of a position in the buffer.
    fn stream_offset(&self, position: usize) -> u64 {
        self.offset + position as u64
    }

    /// Position in the stream of the next message.
    fn next_offset(&self) -> u64 {
        self.stream_offset(self.start)
    }
}

/// Puts messages together into values, and learns the types they define on the way.
///
/// Most values are one message. An interface value whose concrete type is new to the stream is not: Go has
/// already buffered the value's beginning when it finds out, and flushes it together with the first
/// definition (`encoder.go`, `sendTypeDescriptor`):
///
/// ```text
/// message 1     interface id, registered name, first definition
/// message 2..k  one definition each
/// message k+1   concrete type id, byte count, value
/// ```
///
/// Such a value is collected in a buffer of its own, without the definitions, so that serde sees the same
/// bytes as when all types had been known before.
#[derive(Debug)]
struct Assembler {
    limits: Limits,
    types: Arc<TypeTable>,
    walker: Walker,
    pending: Option<Pending>,
    // Of the pending or the last collected value. Kept for its allocation.
    body: Vec<u8>,
}

/// A value that continues in the next message. The walker knows where it stopped.
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
        }
    }

    fn max_message_bytes(&self) -> usize {
        self.limits.message_bytes
    }

    /// True when no value waits for more messages.
    fn is_empty(&self) -> bool {
        self.pending.is_none()
    }

    /// Takes one message. Returns the value it completes, if it completes one. After [`Failure::Corrupt`] the cursor
    /// stands at the fault.
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
                // Nearly every value ends with its message and fits, so this comes first.
                if let Ok(value) = self.decode(ty, cursor.rest()) {
                    return Ok(Some(value));
                }
                // The value continues in the next message, is corrupt or has another type: the walk finds out which.
                self.begin(ty, cursor)?
            }
        };
        let Some(ty) = complete else {
            return Ok(None);
        };
        self.decode(ty, &self.body)
            .map(Some)
            .map_err(Failure::Mismatch)
    }

    // Reads up to the value, and the whole message if it holds a definition instead.
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

    fn decode<T: DeserializeOwned>(&self, ty: TypeRef, body: &[u8]) -> Result<T, ValueError> {
        Reader::new(body, &self.types, Budget::new(&self.limits)).only(ty)
    }

    // Begins to collect a value.
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

    // Walks over the rest of a message and keeps it from `begin` on, except for definitions. Returns the type of the
    // value in the buffer when it is complete and sound.
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
                    // Inside another interface's value the rest is counted anew. Go ignores the count.
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
