//! Go's `wireType`: how a stream describes its own types, in both directions.
//!
//! A definition is an ordinary gob struct of which exactly one field is set, so these functions are a
//! struct decoder and encoder for one fixed set of structs. Source: Go `encoding/gob` type.go, `wireType`.

use crate::{
    error::Fault,
    limits::{Limits, at_most},
    types::{Field, TypeRef, TypeTable, WireType},
    wire::{Cursor, put_counted, put_int, put_uint},
};

/// Reads a definition and adds it to the table. `negative` is the id in front of it: that of the type, negated.
pub(crate) fn read(
    negative: i64,
    cursor: &mut Cursor<'_>,
    types: &mut TypeTable,
    limits: &Limits,
) -> Result<(), Fault> {
    let before = cursor.remaining();
    let mut reader = Reader { types, limits };
    let wire = reader.wire_type(cursor)?;
    types.define(
        negative.saturating_neg(),
        wire,
        before - cursor.remaining(),
        limits,
    )
}

struct Reader<'t> {
    types: &'t mut TypeTable,
    limits: &'t Limits,
}

// Field numbers are those of the Go structs, the embedded CommonType being field 0.
impl Reader<'_> {
    fn wire_type(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let mut wire = None;
        fields(cursor, |cursor, field| {
            let variant = match field {
                0 => self.array(cursor)?,
                1 => self.slice(cursor)?,
                2 => self.structure(cursor)?,
                3 => self.map(cursor)?,
                4..=6 => self.opaque(cursor)?,
                _ => return Err(unknown_field()),
            };
            match wire.replace(variant) {
                None => Ok(()),
                Some(_) => Err(Fault::BadDefinition {
                    problem: "sets more than one kind of type",
                }),
            }
        })?;
        wire.ok_or(Fault::BadDefinition {
            problem: "sets no kind of type",
        })
    }

    fn array(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let (mut elem, mut len) = (0, 0);
        self.with_common(cursor, |cursor, field| match field {
            1 => cursor.int().map(|id| elem = id),
            2 => cursor.int().map(|value| len = value),
            _ => Err(unknown_field()),
        })?;
        let len = u64::try_from(len).map_err(|_| Fault::BadDefinition {
            problem: "has a negative length",
        })?;
        Ok(WireType::Array {
            elem: self.mention(elem)?,
            len,
        })
    }

    fn slice(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let mut elem = 0;
        self.with_common(cursor, |cursor, field| match field {
            1 => cursor.int().map(|id| elem = id),
            _ => Err(unknown_field()),
        })?;
        Ok(WireType::Slice {
            elem: self.mention(elem)?,
        })
    }

    fn map(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let (mut key, mut elem) = (0, 0);
        self.with_common(cursor, |cursor, field| match field {
            1 => cursor.int().map(|id| key = id),
            2 => cursor.int().map(|id| elem = id),
            _ => Err(unknown_field()),
        })?;
        Ok(WireType::Map {
            key: self.mention(key)?,
            elem: self.mention(elem)?,
        })
    }

    fn opaque(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        self.with_common(cursor, |_, _| Err(unknown_field()))?;
        Ok(WireType::Opaque)
    }

    fn structure(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let mut list = Vec::new();
        fields(cursor, |cursor, field| match field {
            0 => self.common(cursor),
            1 => {
                let count = cursor.uint()?;
                at_most(
                    usize::try_from(count).unwrap_or(usize::MAX),
                    self.limits.fields,
                    "fields in one struct",
                )?;
                for _ in 0..count {
                    list.push(self.field(cursor)?);
                }
                Ok(())
            }
            _ => Err(unknown_field()),
        })?;
        Ok(WireType::Struct { fields: list })
    }

    fn field(&mut self, cursor: &mut Cursor<'_>) -> Result<Field, Fault> {
        let (mut name, mut ty) = ("", 0);
        fields(cursor, |cursor, field| match field {
            0 => self.name(cursor).map(|value| name = value),
            1 => cursor.int().map(|id| ty = id),
            _ => Err(unknown_field()),
        })?;
        if name.is_empty() {
            return Err(Fault::BadDefinition {
                problem: "has a field without a name",
            });
        }
        Ok(Field {
            name: name.into(),
            ty: self.mention(ty)?,
        })
    }

    fn with_common<'c>(
        &mut self,
        cursor: &mut Cursor<'c>,
        mut read: impl FnMut(&mut Cursor<'c>, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        fields(cursor, |cursor, field| {
            if field == 0 {
                self.common(cursor)
            } else {
                read(cursor, field)
            }
        })
    }

    // Go's decoder ignores both name and id here: the id that counts is the one in front of the definition.
    fn common(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        fields(cursor, |cursor, field| match field {
            0 => self.name(cursor).map(drop),
            1 => cursor.int().map(drop),
            _ => Err(unknown_field()),
        })
    }

    fn name<'c>(&self, cursor: &mut Cursor<'c>) -> Result<&'c str, Fault> {
        let name = cursor.counted()?;
        at_most(name.len(), self.limits.name_bytes, "bytes in one name")?;
        str::from_utf8(name).map_err(|_| Fault::BadDefinition {
            problem: "has a name that is not UTF-8",
        })
    }

    fn mention(&mut self, id: i64) -> Result<TypeRef, Fault> {
        self.types.mention(id, self.limits)
    }
}

/// Calls `read` for each field present in a struct value, with the field's number.
fn fields<'c>(
    cursor: &mut Cursor<'c>,
    mut read: impl FnMut(&mut Cursor<'c>, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut next = 0;
    while let Some(field) = next_field(cursor, &mut next)? {
        read(cursor, field)?;
    }
    Ok(())
}

/// Reads a field delta: the number of the field that follows, or `None` at the end of the struct.
/// `next` is one above the last field read.
#[inline]
pub(crate) fn next_field(
    cursor: &mut Cursor<'_>,
    next: &mut usize,
) -> Result<Option<usize>, Fault> {
    let delta = cursor.uint()?;
    if delta == 0 {
        return Ok(None);
    }
    let delta = usize::try_from(delta).unwrap_or(usize::MAX);
    // A number this large is beyond any definition; the caller's bounds check refuses it.
    let field = next.saturating_add(delta - 1);
    *next = field.saturating_add(1);
    Ok(Some(field))
}

fn unknown_field() -> Fault {
    Fault::BadDefinition {
        problem: "has a field Go's wireType does not have",
    }
}

/// A type to be sent. Ids are those of the stream.
pub(crate) enum Definition<'a> {
    Array {
        elem: i64,
        len: i64,
    },
    Slice {
        elem: i64,
    },
    Struct {
        name: &'a str,
        fields: Vec<(&'a str, i64)>,
    },
    Map {
        key: i64,
        elem: i64,
    },
    GobEncoder {
        name: &'a str,
    },
}

/// Appends the definition of type `id`: its negative id and a `wireType` value.
pub(crate) fn write(out: &mut Vec<u8>, id: i64, definition: &Definition<'_>) {
    put_int(out, -id);
    match definition {
        Definition::Array { elem, len } => {
            open(out, 0, "", id);
            int_field(out, *elem);
            if *len != 0 {
                int_field(out, *len);
            }
        }
        Definition::Slice { elem } => {
            open(out, 1, "", id);
            int_field(out, *elem);
        }
        Definition::Struct { name, fields } => {
            open(out, 2, name, id);
            if !fields.is_empty() {
                put_uint(out, 1);
                put_uint(out, fields.len() as u64);
                for (name, ty) in fields {
                    name_and_id(out, name, *ty);
                }
            }
        }
        Definition::Map { key, elem } => {
            open(out, 3, "", id);
            int_field(out, *key);
            int_field(out, *elem);
        }
        Definition::GobEncoder { name } => open(out, 4, name, id),
    }
    // End of the arrayType, sliceType, ... and of the wireType.
    out.extend([0, 0]);
}

// The delta to one field of wireType, and the CommonType inside it.
fn open(out: &mut Vec<u8>, variant: u64, name: &str, id: i64) {
    put_uint(out, variant + 1);
    put_uint(out, 1);
    name_and_id(out, name, id);
}

// CommonType and fieldType have the same layout.
fn name_and_id(out: &mut Vec<u8>, name: &str, id: i64) {
    if name.is_empty() {
        put_uint(out, 2);
    } else {
        put_uint(out, 1);
        put_counted(out, name.as_bytes());
        put_uint(out, 1);
    }
    put_int(out, id);
    put_uint(out, 0);
}

fn int_field(out: &mut Vec<u8>, value: i64) {
    put_uint(out, 1);
    put_int(out, value);
}
