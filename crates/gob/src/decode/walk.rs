//! Moves over a value by its wire type, without decoding it.
//!
//! [`Walker`] can stop where a message ends within an interface value, and continue in the next message. It has a stack of frames
//! instead of recursion. [`skip`] needs the complete value, and takes about half the time. Neither counts elements against the limit:
//! they allocate nothing per element, and each element is at least one byte of input.

use std::mem;

use crate::{
    definition::{TypeRef, TypeTable, WireType, next_field},
    error::Fault,
    limits::Budget,
    wire::Cursor,
};

/// Where a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// After the value.
    Done,
    /// Before a type definition inside an interface value. The caller must consume the definition.
    Definition,
    /// At the end of a message, inside an interface value that continues in the next one.
    NeedMessage,
}

/// The state of a walk; empty between walks.
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
    // The elements of a slice or array, or the keys and values of a map. `elem` and `then` are swapped after each.
    Elements {
        elem: TypeRef,
        then: TypeRef,
        left: u64,
    },
    // An interface value after its registered name: definitions, then the id of the concrete type.
    TypeSequence,
    // An interface value during the walk over its concrete value.
    Interface,
}

/// The next step of a walk.
enum Step {
    /// Enter a value inside this frame.
    Into(TypeRef),
    /// Leave this frame.
    Out,
    /// Return to the caller.
    Stop(Progress),
}

impl Walker {
    /// Starts a walk over a value of type `ty`, which [`run`](Self::run) continues.
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

    /// Walks to the end of the value or of the bytes, or to a definition.
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
                // A negative id precedes a definition. The caller reads it again.
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

// Moves over a scalar, or over the start of a compound value, whose frame it returns.
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
        WireType::Bytes | WireType::String | WireType::Opaque { .. } => {
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

/// Reads the length of an array and compares it with the length in its type.
pub(crate) fn array_len(expected: u64, cursor: &mut Cursor<'_>) -> Result<u64, Fault> {
    let found = cursor.uint()?;
    if found == expected {
        Ok(found)
    } else {
        Err(Fault::ArrayLength { expected, found })
    }
}

/// Reads the start of an interface value, from the id of the concrete type to the value itself.
pub(crate) fn concrete_type(cursor: &mut Cursor<'_>, types: &TypeTable) -> Result<TypeRef, Fault> {
    let ty = types.of_value(cursor.int()?)?;
    // The byte count, which Go ignores too: with definitions nested in the value, it counts only a part.
    cursor.uint()?;
    if !matches!(types.get(ty), WireType::Struct { .. }) {
        cursor.singleton_marker()?;
    }
    Ok(ty)
}

/// Moves the cursor to the end of a value of type `ty`. The limit on depth bounds the recursion.
pub(crate) fn skip(
    ty: TypeRef,
    cursor: &mut Cursor<'_>,
    types: &TypeTable,
    budget: &mut Budget<'_>,
) -> Result<(), Fault> {
    match head(ty, cursor, types, budget)? {
        None | Some(Frame::Interface) => {}
        Some(Frame::Struct { ty, mut next }) => {
            let fields = types.fields(ty);
            while let Some(number) = next_field(cursor, &mut next)? {
                let field = fields.get(number).ok_or(Fault::FieldOutOfRange {
                    fields: fields.len(),
                })?;
                skip(field.ty, cursor, types, budget)?;
            }
            budget.leave();
        }
        Some(Frame::Elements {
            mut elem,
            mut then,
            left,
        }) => {
            for _ in 0..left {
                skip(elem, cursor, types, budget)?;
                mem::swap(&mut elem, &mut then);
            }
            budget.leave();
        }
        Some(Frame::TypeSequence) => {
            skip(concrete_type(cursor, types)?, cursor, types, budget)?;
            budget.leave_interface();
        }
    }
    Ok(())
}
