//! Walks over a value by its wire type without building anything.
//!
//! The walk keeps its own stack instead of recursing, so it can stop where a message ends in the middle
//! of an interface value and go on when the next message is there.

use crate::{
    definition::next_field,
    error::Fault,
    limits::Budget,
    types::{TypeRef, TypeTable, WireType},
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

/// A walk under way. Empty when there is none.
#[derive(Debug, Default)]
pub(crate) struct Skipper {
    stack: Vec<Frame>,
}

#[derive(Debug)]
enum Frame {
    Struct {
        ty: TypeRef,
        next: usize,
    },
    Elements {
        elem: TypeRef,
        left: u64,
    },
    Entries {
        key: TypeRef,
        elem: TypeRef,
        left: u64,
    },
    // The value that belongs to the key just walked.
    Entry {
        elem: TypeRef,
    },
    // Behind the registered name: definitions, then the concrete type id.
    TypeSequence,
    // Behind the value of an interface.
    Interface,
}

impl Skipper {
    /// Begins a walk over a value of type `ty`. [`run`](Self::run) continues it.
    pub(crate) fn begin(
        &mut self,
        ty: TypeRef,
        cursor: &mut Cursor<'_>,
        types: &TypeTable,
        budget: &mut Budget<'_>,
    ) -> Result<(), Fault> {
        self.stack.clear();
        self.value(ty, cursor, types, budget)
    }

    /// Walks as far as the bytes go.
    pub(crate) fn run(
        &mut self,
        cursor: &mut Cursor<'_>,
        types: &TypeTable,
        budget: &mut Budget<'_>,
    ) -> Result<Progress, Fault> {
        while let Some(frame) = self.stack.last_mut() {
            let ty = match frame {
                Frame::Struct { ty, next } => match (next_field(cursor, next)?, types.get(*ty)) {
                    (Some(field), WireType::Struct { fields }) => match fields.get(field) {
                        Some(field) => Some(field.ty),
                        None => {
                            return Err(Fault::FieldOutOfRange {
                                fields: fields.len(),
                            });
                        }
                    },
                    _ => None,
                },
                Frame::Elements { elem, left } => left.checked_sub(1).map(|rest| {
                    *left = rest;
                    *elem
                }),
                Frame::Entries { key, elem, left } => match left.checked_sub(1) {
                    Some(rest) => {
                        *left = rest;
                        let (key, elem) = (*key, *elem);
                        self.stack.push(Frame::Entry { elem });
                        self.value(key, cursor, types, budget)?;
                        continue;
                    }
                    None => None,
                },
                Frame::Entry { elem } => {
                    let elem = *elem;
                    self.stack.pop();
                    self.value(elem, cursor, types, budget)?;
                    continue;
                }
                Frame::TypeSequence => {
                    if cursor.is_empty() {
                        return Ok(Progress::NeedMessage);
                    }
                    if Cursor::clone(cursor).int()? < 0 {
                        return Ok(Progress::Definition);
                    }
                    *frame = Frame::Interface;
                    Some(concrete_type(cursor, types)?)
                }
                Frame::Interface => {
                    budget.leave_interface();
                    self.stack.pop();
                    continue;
                }
            };
            match ty {
                Some(ty) => self.value(ty, cursor, types, budget)?,
                None => {
                    budget.leave();
                    self.stack.pop();
                }
            }
        }
        Ok(Progress::Done)
    }

    // Walks a whole scalar, or the head of anything that holds other values.
    #[inline]
    fn value(
        &mut self,
        ty: TypeRef,
        cursor: &mut Cursor<'_>,
        types: &TypeTable,
        budget: &mut Budget<'_>,
    ) -> Result<(), Fault> {
        let frame = match types.get(ty) {
            WireType::Bool | WireType::Int | WireType::Uint | WireType::Float => {
                return cursor.uint().map(drop);
            }
            WireType::Complex => {
                cursor.uint()?;
                return cursor.uint().map(drop);
            }
            WireType::Bytes | WireType::String | WireType::Opaque => {
                return cursor.counted().map(drop);
            }
            WireType::Struct { .. } => Frame::Struct { ty, next: 0 },
            &WireType::Slice { elem } => Frame::Elements {
                elem,
                left: count(cursor, budget)?,
            },
            &WireType::Array { elem, len } => Frame::Elements {
                elem,
                left: array_len(len, cursor, budget)?,
            },
            &WireType::Map { key, elem } => Frame::Entries {
                key,
                elem,
                left: count(cursor, budget)?,
            },
            WireType::Interface => {
                let name = cursor.counted()?;
                if !name.is_empty() {
                    budget.check_name(name)?;
                    budget.enter_interface()?;
                    self.stack.push(Frame::TypeSequence);
                }
                return Ok(());
            }
            &WireType::Undefined { id } => return Err(Fault::UndefinedType { id }),
        };
        budget.enter()?;
        self.stack.push(frame);
        Ok(())
    }
}

/// Reads an element or entry count.
pub(crate) fn count(cursor: &mut Cursor<'_>, budget: &mut Budget<'_>) -> Result<u64, Fault> {
    let count = cursor.uint()?;
    budget.take_elements(count)?;
    Ok(count)
}

/// Reads the count of an array, which its type already says.
pub(crate) fn array_len(
    expected: u64,
    cursor: &mut Cursor<'_>,
    budget: &mut Budget<'_>,
) -> Result<u64, Fault> {
    let found = count(cursor, budget)?;
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
