//! Passes over a value that is all there, which is most of what a plugin does with a Rollout.
//!
//! [`walk`](super::walk) can stop and go on where a message ends. This cannot, so it needs no frames of its own and
//! takes about half the time.

use super::walk::{array_len, concrete_type};
use crate::{
    definition::next_field,
    error::Fault,
    limits::Budget,
    types::{TypeRef, TypeTable, WireType},
    wire::Cursor,
};

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
