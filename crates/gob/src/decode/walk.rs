//! Walks over a value by its wire type without building anything. It takes no memory, so elements are not
//! counted: each takes a byte at least.
//!
//! The walk keeps its own stack instead of recursing, so it can stop where a message ends in the middle
//! of an interface value and go on when the next message is there.

use std::mem;

use crate::{
    definition::{TypeRef, TypeTable, WireType, next_field},
    error::Fault,
    limits::Budget,
    wire::Cursor,
};

/// Where a walk has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Behind the value.
    Done,
    /// Before a type definition inside an interface value. The caller consumes it.
    Definition,
    /// At the end of a message, inside an interface value that continues in the next one.
    NeedMessage,
}

/// The state of a walk that waits for more bytes. Empty outside of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walker {
    stack: Vec<Frame>,
}

#[derive(Debug)]
enum Frame {
    Struct {
        ty: TypeRef,
        next: usize,
    },
    // Elements of a slice or array, or keys and values of a map in turn: each is followed by one of `then`.
    Elements {
        elem: TypeRef,
        then: TypeRef,
        left: u64,
    },
    // An interface value behind the registered name: definitions, then the concrete type id.
    TypeSequence,
    // An interface value whose concrete value is being walked over.
    Interface,
}

/// What comes next.
enum Step {
    /// A value inside the one whose frame this is.
    Into(TypeRef),
    /// The end of the one whose frame this is.
    Out,
    /// Something the caller has to do.
    Stop(Progress),
}

impl Walker {
    /// Begins a walk over a value of type `ty`. [`run`](Self::run) continues it.
    pub(crate) fn begin(
        &mut self,
        ty: TypeRef,
        cursor: &mut Cursor<'_>,
        types: &TypeTable,
        budget: &mut Budget<'_>,
    ) -> Result<(), Fault> {
        self.stack.clear();
        self.stack.extend(head(ty, cursor, types, budget)?);
        Ok(())
    }

    /// Walks as far as the bytes go.
    pub(crate) fn run(
        &mut self,
        cursor: &mut Cursor<'_>,
        types: &TypeTable,
        budget: &mut Budget<'_>,
    ) -> Result<Progress, Fault> {
        while let Some(frame) = self.stack.last_mut() {
            match frame.step(cursor, types, budget)? {
                Step::Into(ty) => {
                    if let Some(inner) = head(ty, cursor, types, budget)? {
                        self.stack.push(inner);
                    }
                }
                Step::Out => drop(self.stack.pop()),
                Step::Stop(progress) => return Ok(progress),
            }
        }
        Ok(Progress::Done)
    }
}

impl Frame {
    #[inline]
    fn step(
        &mut self,
        cursor: &mut Cursor<'_>,
        types: &TypeTable,
        budget: &mut Budget<'_>,
    ) -> Result<Step, Fault> {
        match self {
            Self::Struct { ty, next } => {
                let Some(number) = next_field(cursor, next)? else {
                    budget.leave();
                    return Ok(Step::Out);
                };
                let fields = types.fields(*ty);
                let field = fields.get(number).ok_or(Fault::FieldOutOfRange {
                    fields: fields.len(),
                })?;
                Ok(Step::Into(field.ty))
            }
            Self::Elements { elem, then, left } => {
                let Some(less) = left.checked_sub(1) else {
                    budget.leave();
                    return Ok(Step::Out);
                };
                *left = less;
                mem::swap(elem, then);
                Ok(Step::Into(*then))
            }
            Self::TypeSequence => {
                if cursor.is_empty() {
                    return Ok(Step::Stop(Progress::NeedMessage));
                }
                if Cursor::clone(cursor).int()? < 0 {
                    return Ok(Step::Stop(Progress::Definition));
                }
                let ty = concrete_type(cursor, types)?;
                *self = Self::Interface;
                Ok(Step::Into(ty))
            }
            Self::Interface => {
                budget.leave_interface();
                Ok(Step::Out)
            }
        }
    }
}

// Passes over a scalar, or over the beginning of a value that holds others and then returns its frame.
#[inline]
fn head(
    ty: TypeRef,
    cursor: &mut Cursor<'_>,
    types: &TypeTable,
    budget: &mut Budget<'_>,
) -> Result<Option<Frame>, Fault> {
    let frame = match types.get(ty) {
        WireType::Bool | WireType::Int | WireType::Uint | WireType::Float => {
            return cursor.uint().map(|_| None);
        }
        WireType::Bytes | WireType::String | WireType::Opaque => {
            return cursor.counted().map(|_| None);
        }
        WireType::Complex => {
            cursor.uint()?;
            return cursor.uint().map(|_| None);
        }
        WireType::Struct { .. } => Frame::Struct { ty, next: 0 },
        &WireType::Slice { elem } => {
            let left = cursor.uint()?;
            Frame::Elements {
                elem,
                then: elem,
                left,
            }
        }
        &WireType::Array { elem, len } => {
            let left = array_len(len, cursor)?;
            Frame::Elements {
                elem,
                then: elem,
                left,
            }
        }
        &WireType::Map { key, elem } => {
            let left = cursor.uint()?.saturating_mul(2);
            Frame::Elements {
                elem: key,
                then: elem,
                left,
            }
        }
        WireType::Interface => {
            let name = cursor.counted()?;
            if name.is_empty() {
                return Ok(None);
            }
            budget.check_name(name)?;
            budget.enter_interface()?;
            return Ok(Some(Frame::TypeSequence));
        }
        &WireType::Undefined { id } => return Err(Fault::UndefinedType { id }),
    };
    budget.enter()?;
    Ok(Some(frame))
}

/// Reads the count of an array, which its type already says.
pub(crate) fn array_len(expected: u64, cursor: &mut Cursor<'_>) -> Result<u64, Fault> {
    let found = cursor.uint()?;
    if found == expected {
        Ok(found)
    } else {
        Err(Fault::ArrayLength { expected, found })
    }
}

/// Reads the head of an interface value from the concrete type id on.
pub(crate) fn concrete_type(cursor: &mut Cursor<'_>, types: &TypeTable) -> Result<TypeRef, Fault> {
    let ty = types.of_value(cursor.int()?)?;
    // A byte count Go ignores too: with definitions nested inside the value it covers only a part of it.
    cursor.uint()?;
    if !matches!(types.get(ty), WireType::Struct { .. }) {
        cursor.singleton_marker()?;
    }
    Ok(ty)
}

/// Moves the cursor behind a value of type `ty`. Recursion ends at the limit on depth.
pub(crate) fn skip(
    ty: TypeRef,
    cursor: &mut Cursor<'_>,
    types: &TypeTable,
    budget: &mut Budget<'_>,
) -> Result<(), Fault> {
    match types.get(ty) {
        WireType::Bool | WireType::Int | WireType::Uint | WireType::Float => {
            cursor.uint().map(drop)
        }
        WireType::Bytes | WireType::String | WireType::Opaque => cursor.counted().map(drop),
        WireType::Complex => {
            cursor.uint()?;
            cursor.uint().map(drop)
        }
        WireType::Struct { fields } => {
            budget.enter()?;
            let mut next = 0;
            while let Some(number) = next_field(cursor, &mut next)? {
                let field = fields.get(number).ok_or(Fault::FieldOutOfRange {
                    fields: fields.len(),
                })?;
                skip(field.ty, cursor, types, budget)?;
            }
            budget.leave();
            Ok(())
        }
        &WireType::Slice { elem } => {
            let count = cursor.uint()?;
            elements(count, elem, cursor, types, budget)
        }
        &WireType::Array { elem, len } => {
            let count = array_len(len, cursor)?;
            elements(count, elem, cursor, types, budget)
        }
        &WireType::Map { key, elem } => {
            budget.enter()?;
            for _ in 0..cursor.uint()? {
                skip(key, cursor, types, budget)?;
                skip(elem, cursor, types, budget)?;
            }
            budget.leave();
            Ok(())
        }
        WireType::Interface => {
            let name = cursor.counted()?;
            if name.is_empty() {
                return Ok(());
            }
            budget.check_name(name)?;
            budget.enter_interface()?;
            skip(concrete_type(cursor, types)?, cursor, types, budget)?;
            budget.leave_interface();
            Ok(())
        }
        &WireType::Undefined { id } => Err(Fault::UndefinedType { id }),
    }
}

fn elements(
    count: u64,
    elem: TypeRef,
    cursor: &mut Cursor<'_>,
    types: &TypeTable,
    budget: &mut Budget<'_>,
) -> Result<(), Fault> {
    budget.enter()?;
    for _ in 0..count {
        skip(elem, cursor, types, budget)?;
    }
    budget.leave();
    Ok(())
}
