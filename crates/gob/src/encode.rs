//! [`Encoder`]: values in, bytes out.

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

/// Encodes one gob stream. Does no I/O: bytes are appended to a buffer.
///
/// Each type is sent once per stream, before the first value that needs it. So there is one encoder per
/// stream and direction, and its output must reach the peer in order and without gaps.
///
/// How Rust values become Go values, where Go knows nil: a `None` field is nil. As in Go, a field is left out
/// when it is zero, false, an empty string or an empty slice, even behind a pointer (so `Some(0)` arrives as
/// nil); a struct never is. An empty map arrives as nil, `Some` of an empty map as an empty map. Elements of
/// slices, arrays and maps are always sent.
#[derive(Debug)]
pub struct Encoder {
    schema: Schema,
    // Empty between calls. Kept for its allocation.
    spare: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder for a stream to which nothing has been written yet.
    pub fn new() -> Self {
        Self {
            schema: Schema::new(),
            spare: Vec::new(),
        }
    }

    /// Appends a value to `out`, preceded by the definitions of all types the peer has not seen.
    ///
    /// # Errors
    ///
    /// When gob has no form for the value ([`EncodeError::Nil`], [`EncodeError::Length`]) or `Serialize` and
    /// [`GobType`] disagree. Then `out` is unchanged and the stream can go on.
    pub fn encode<T: GobType + Serialize>(
        &mut self,
        value: &T,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        self.atomically(out, |encoder, out| encoder.append(value, out))
    }

    /// Lets `write` append several values, or none: if it fails, `out` is unchanged and the stream can go on.
    ///
    /// Without it a header whose body cannot be encoded would leave its type's definition counted as sent.
    ///
    /// # Errors
    ///
    /// That of `write`.
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

/// The messages of one value.
///
/// The value inside an interface is written to a buffer of its own, because its length comes first. What Go's
/// encoder does with definitions there is the same at every level: finish what is in the buffer, with the
/// definition, as one counted piece of the level above. At the outermost level that piece is a message.
struct Messages<'e> {
    schema: &'e mut Schema,
    current: Vec<u8>,
    // Levels above the current one, outermost first.
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

    /// The value of an interface, behind the registered name.
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

    /// A value that is always written, even if it is zero.
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

    // Depth first, as Go does. A type is marked before its parts, so recursive types end.
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

    // Moves the current buffer, counted, to the level above.
    fn flush(&mut self) {
        let above = self.outer.last_mut().unwrap_or(self.out);
        put_uint(above, self.current.len() as u64);
        above.append(&mut self.current);
    }
}
