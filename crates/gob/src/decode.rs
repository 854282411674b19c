//! [`Decoder`]: bytes in, values out.

use serde::de::DeserializeOwned;

use self::{
    assemble::{Assembler, Failure},
    frame::Input,
};
use crate::{error::DecodeError, limits::Limits, wire::Cursor};

mod assemble;
mod frame;
mod interface;
mod skip;
pub(crate) mod value;
mod walk;

pub(crate) use skip::skip;
pub(crate) use walk::array_len;

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
