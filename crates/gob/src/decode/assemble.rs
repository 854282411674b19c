//! Puts messages together into values, and learns the types they define on the way.
//!
//! Most values are one message. An interface value whose concrete type is new to the stream is not: Go has
//! already buffered the value's beginning when it finds out, and flushes it together with the first
//! definition (`encoder.go`, `sendTypeDescriptor`):
//!
//! ```text
//! message 1     interface id, registered name, first definition
//! message 2..k  one definition each
//! message k+1   concrete type id, byte count, value
//! ```
//!
//! Such a value is collected in a buffer of its own, without the definitions, so that serde sees the same
//! bytes as when all types had been known before.

use serde::de::{DeserializeOwned, Error};

use super::{
    skip::{Progress, Skipper},
    value::Reader,
};
use crate::{
    definition,
    error::{Fault, ValueError},
    limits::{Budget, Limits, Used, at_most},
    types::{TypeRef, TypeTable, WireType},
    wire::Cursor,
};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Assembler {
    limits: Limits,
    types: TypeTable,
    skipper: Skipper,
    pending: Option<Pending>,
    // Of the pending or the last collected value. Kept for its allocation.
    body: Vec<u8>,
}

/// A value that continues in the next message. The skipper knows where it stopped.
#[derive(Debug)]
struct Pending {
    ty: TypeRef,
    messages: usize,
    used: Used,
}

/// A complete value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// The rest of the current message, not looked at yet.
    InPlace(TypeRef),
    /// In the buffer, known to be sound.
    Collected(TypeRef),
}

/// Why a complete value could not be decoded.
#[derive(Debug)]
pub(crate) enum Failure {
    Mismatch(ValueError),
    Corrupt(Fault),
}

impl Assembler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            types: TypeTable::new(),
            skipper: Skipper::default(),
            pending: None,
            body: Vec::new(),
        }
    }

    pub(crate) fn max_message_bytes(&self) -> usize {
        self.limits.message_bytes
    }

    /// True when no value waits for more messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_none()
    }

    /// Takes one message. Returns the value it completes, if it completes one.
    pub(crate) fn message(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Found>, Fault> {
        if let Some(pending) = self.pending.take() {
            let begin = cursor.rest();
            return self.collect(pending, begin, cursor);
        }
        let id = cursor.int()?;
        if id < 0 {
            definition::read(id, cursor, &mut self.types, &self.limits)?;
            return no_bytes_left(cursor).map(|()| None);
        }
        let ty = self.types.of_value(id)?;
        if !matches!(self.types.get(ty), WireType::Struct { .. }) {
            cursor.singleton_marker()?;
        }
        if self.ends_with_message(ty, *cursor) {
            return Ok(Some(Found::InPlace(ty)));
        }
        self.body.clear();
        let begin = cursor.rest();
        let mut budget = Budget::new(&self.limits);
        self.skipper.begin(ty, cursor, &self.types, &mut budget)?;
        let used = budget.used();
        self.collect(
            Pending {
                ty,
                messages: 0,
                used,
            },
            begin,
            cursor,
        )
    }

    /// Decodes a complete value. After [`Failure::Corrupt`] the cursor stands at the fault.
    pub(crate) fn decode<T: DeserializeOwned>(
        &mut self,
        found: Found,
        cursor: &mut Cursor<'_>,
    ) -> Result<T, Failure> {
        let (ty, body) = match found {
            Found::InPlace(ty) => (ty, cursor.rest()),
            Found::Collected(ty) => (ty, self.body.as_slice()),
        };
        let mut reader = Reader::new(
            body,
            &self.types,
            Budget::new(&self.limits),
            &mut self.skipper,
        );
        let error = match T::deserialize(reader.value(ty)) {
            Ok(value) if reader.cursor.is_empty() => return Ok(value),
            Ok(_) => ValueError::custom("value goes on after the expected type ends"),
            Err(error) => error,
        };
        // Walking over the value tells whether it is corrupt or only unsuitable for T.
        if let Found::InPlace(_) = found {
            let mut budget = Budget::new(&self.limits);
            self.skipper
                .begin(ty, cursor, &self.types, &mut budget)
                .and_then(|()| self.skipper.run(cursor, &self.types, &mut budget))
                .and_then(|_| no_bytes_left(cursor))
                .map_err(Failure::Corrupt)?;
        }
        Err(Failure::Mismatch(error))
    }

    // Walks over the rest of a message and keeps it from `begin` on, except for definitions.
    fn collect<'c>(
        &mut self,
        mut pending: Pending,
        mut begin: &'c [u8],
        cursor: &mut Cursor<'c>,
    ) -> Result<Option<Found>, Fault> {
        pending.messages += 1;
        at_most(
            pending.messages,
            self.limits.value_messages,
            "messages in one value",
        )?;
        let mut budget = Budget::resume(&self.limits, pending.used);
        loop {
            let progress = self.skipper.run(cursor, &self.types, &mut budget)?;
            let piece = begin
                .get(..begin.len() - cursor.remaining())
                .unwrap_or_default();
            at_most(
                self.body.len() + piece.len(),
                self.limits.message_bytes,
                "bytes in one value",
            )?;
            self.body.extend_from_slice(piece);
            match progress {
                Progress::Done => {
                    return no_bytes_left(cursor).map(|()| Some(Found::Collected(pending.ty)));
                }
                Progress::NeedMessage => {
                    pending.used = budget.used();
                    self.pending = Some(pending);
                    return Ok(None);
                }
                Progress::Definition => {
                    let id = cursor.int()?;
                    definition::read(id, cursor, &mut self.types, &self.limits)?;
                    // Inside another interface's value the rest is counted anew. Go ignores the count.
                    if !cursor.is_empty() {
                        cursor.uint()?;
                    }
                    begin = cursor.rest();
                }
            }
        }
    }

    // Sufficient, not necessary: without interface types no value can introduce types, and an interface
    // value whose concrete type id follows its name at once does not.
    fn ends_with_message(&self, ty: TypeRef, mut ahead: Cursor<'_>) -> bool {
        if self.types.mentions_interface() {
            return false;
        }
        ty != TypeRef::INTERFACE
            || match ahead.counted() {
                Ok([]) => true,
                Ok(_) => ahead
                    .int()
                    .is_ok_and(|id| id >= 0 && self.types.of_value(id) != Ok(TypeRef::INTERFACE)),
                Err(_) => false,
            }
    }
}

fn no_bytes_left(cursor: &Cursor<'_>) -> Result<(), Fault> {
    match cursor.remaining() {
        0 => Ok(()),
        count => Err(Fault::TrailingBytes { count }),
    }
}
