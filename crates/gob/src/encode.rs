//! [`Encoder`]: encodes values to a stream of bytes.

use std::mem;

use serde::Serialize;

use self::value::{Place, ValueSerializer};
use crate::{
    definition,
    error::EncodeError,
    schema::{GobType, Schema, SchemaRef},
    wire::{put_int, put_uint},
};

mod value;

/// Encodes one gob stream, without I/O: it appends bytes to a buffer.
///
/// The encoder sends each type once, before the first value that needs it. So each stream and direction needs its own encoder, and its
/// output must reach the peer in order and without gaps.
///
/// Rust values become Go values as follows:
///
/// - A `None` field is nil.
/// - As in Go, a field is omitted if it is zero, false, an empty string or an empty slice, even behind a pointer. So `Some(0)` arrives as
///   nil. A struct is never omitted.
/// - An empty map arrives as nil, and `Some` of an empty map as an empty map.
/// - Elements of slices, arrays and maps are always sent.
#[derive(Debug)]
pub struct Encoder {
    schema: Schema,
    // Empty between calls; the buffer is reused.
    spare: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Creates an encoder for a new stream.
    pub fn new() -> Self {
        Self {
            schema: Schema::new(),
            spare: Vec::new(),
        }
    }

    /// Appends a value to `out`, after the definitions of all types that the stream does not have yet.
    ///
    /// # Errors
    ///
    /// Returns `Err` if gob cannot represent the value ([`EncodeError::Nil`], [`EncodeError::Length`]), or if `Serialize` and
    /// [`GobType`] disagree. Then `out` and the stream are unchanged, and the encoder can continue.
    pub fn encode<T: GobType + Serialize>(
        &mut self,
        value: &T,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        self.atomically(out, |encoder, out| encoder.append(value, out))
    }

    /// Appends all values of `write` or none: if `write` fails, `out` and the stream are unchanged, and the encoder can continue.
    ///
    /// For example, if the body after a header cannot be encoded, the type of the header counts as not sent again.
    ///
    /// # Errors
    ///
    /// Returns the error of `write`.
    pub fn atomically<R, E>(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Self, &mut Vec<u8>) -> Result<R, E>,
    ) -> Result<R, E> {
        let (bytes, types) = (out.len(), self.schema.sent());
        let result = write(self, out);
        if result.is_err() {
            out.truncate(bytes);
            self.schema.unsend(types);
        }
        result
    }

    fn append<T: GobType + Serialize>(
        &mut self,
        value: &T,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let ty = T::describe(&mut self.schema);
        let mut messages = Messages {
            schema: &mut self.schema,
            current: mem::take(&mut self.spare),
            outer: Vec::new(),
            out,
        };
        let result = messages.top_level(ty, value);
        let mut current = messages.current;
        current.clear();
        self.spare = current;
        result
    }
}

/// Writes the messages of one value.
///
/// The value inside an interface needs its own buffer, because its length precedes it. Like Go's encoder, a definition at any level ends
/// the content of the current buffer, which becomes one piece with a byte count in the level above. At the outermost level the
/// piece is a message.
struct Messages<'e> {
    schema: &'e mut Schema,
    current: Vec<u8>,
    // The levels above the current one, outermost first.
    outer: Vec<Vec<u8>>,
    out: &'e mut Vec<u8>,
}

impl Messages<'_> {
    fn top_level<T: Serialize>(&mut self, ty: SchemaRef, value: &T) -> Result<(), EncodeError> {
        self.define(ty)?;
        put_int(&mut self.current, self.schema.id(ty)?);
        self.body(ty, value)?;
        self.flush();
        Ok(())
    }

    /// Writes the concrete value of an interface, after the registered name.
    fn concrete<T: Serialize + ?Sized>(
        &mut self,
        ty: SchemaRef,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.define(ty)?;
        put_int(&mut self.current, self.schema.id(ty)?);
        self.outer.push(mem::take(&mut self.current));
        self.body(ty, value)?;
        self.flush();
        self.current = self.outer.pop().ok_or(EncodeError::Unbalanced)?;
        Ok(())
    }

    fn body<T: Serialize + ?Sized>(&mut self, ty: SchemaRef, value: &T) -> Result<(), EncodeError> {
        if !self.schema.is_struct(ty)? {
            put_uint(&mut self.current, 0);
        }
        self.element(ty, value)
    }

    /// Writes a value that is never omitted.
    fn element<T: Serialize + ?Sized>(
        &mut self,
        ty: SchemaRef,
        value: &T,
    ) -> Result<(), EncodeError> {
        let serializer = ValueSerializer {
            messages: self,
            ty,
            place: Place::Element,
        };
        value.serialize(serializer).map(drop)
    }

    // Depth first, as in Go. A type counts as sent before its parts, so recursion ends for recursive types.
    fn define(&mut self, ty: SchemaRef) -> Result<(), EncodeError> {
        if !self.schema.send(ty)? {
            return Ok(());
        }
        let Some((definition, parts)) = self.schema.definition(ty)? else {
            return Ok(());
        };
        definition::write(&mut self.current, self.schema.id(ty)?, &definition);
        self.flush();
        for part in parts {
            self.define(part)?;
        }
        Ok(())
    }

    // Moves the current buffer to the level above, after its byte count.
    fn flush(&mut self) {
        let above = self.outer.last_mut().unwrap_or(self.out);
        put_uint(above, self.current.len() as u64);
        above.append(&mut self.current);
    }
}
