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

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{
    value::Reader,
    walk::{Progress, Walker},
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
pub(crate) enum Failure {
    Mismatch(ValueError),
    Corrupt(Fault),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Corrupt(fault)
    }
}

impl Assembler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            types: Arc::new(TypeTable::new()),
            walker: Walker::default(),
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

    /// Takes one message. Returns the value it completes, if it completes one. After [`Failure::Corrupt`] the cursor
    /// stands at the fault.
    pub(crate) fn message<T: DeserializeOwned>(
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
