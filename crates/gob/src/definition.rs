//! Type definitions (Go's `wireType`): reads them to a table of the peer's types, and writes them.
//!
//! A definition is a gob struct with exactly one field set, so these functions decode and encode one fixed set of structs. Source: Go
//! `encoding/gob` type.go, `wireType`.
//!
//! A definition may refer to types that are defined later, or to itself. So a reference is a [`TypeRef`], an index in the table, and
//! the type at this index is looked up when a value needs it.

use std::collections::HashMap;

use crate::{
    error::Fault,
    limits::{Limits, at_most},
    wire::{Cursor, put_counted, put_int, put_uint},
};

/// Lowest id of a user type (Go `type.go`, `firstUserId`).
pub(crate) const FIRST_USER_ID: i64 = 64;

/// A type in a [`TypeTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeRef(usize);

impl TypeRef {
    pub(crate) const INTERFACE: Self = Self(8);
}

/// The form of the values of a type on the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WireType {
    /// Referred to but not defined yet.
    Undefined {
        id: i64,
    },
    Bool,
    Int,
    Uint,
    Float,
    Bytes,
    String,
    Complex,
    Interface,
    Array {
        elem: TypeRef,
        len: u64,
    },
    Slice {
        elem: TypeRef,
    },
    Struct {
        fields: Vec<Field>,
    },
    Map {
        key: TypeRef,
        elem: TypeRef,
    },
    /// Bytes of the type's own `GobEncode`, `MarshalBinary` or `MarshalText`.
    Opaque {
        /// Whether it is `GobEncode`.
        is_gob: bool,
    },
}

impl WireType {
    /// Returns the name of the type's form for error texts.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined { .. } => "nothing",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Float => "float",
            Self::Bytes => "bytes",
            Self::String => "string",
            Self::Complex => "complex",
            Self::Interface => "interface",
            Self::Array { .. } => "array",
            Self::Slice { .. } => "slice",
            Self::Struct { .. } => "struct",
            Self::Map { .. } => "map",
            Self::Opaque { is_gob: true } => "GobEncoder",
            Self::Opaque { is_gob: false } => "a type with an encoding of its own",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    pub(crate) ty: TypeRef,
}

/// The types that the peer has defined on one stream.
#[derive(Clone, Debug)]
pub(crate) struct TypeTable {
    // The index of a basic type is its id, 1 to 8. User types follow in the order of their first mention.
    types: Vec<WireType>,
    user: HashMap<i64, TypeRef>,
    definition_bytes: usize,
}

impl TypeTable {
    pub(crate) fn new() -> Self {
        let types = vec![
            WireType::Undefined { id: 0 },
            WireType::Bool,
            WireType::Int,
            WireType::Uint,
            WireType::Float,
            WireType::Bytes,
            WireType::String,
            WireType::Complex,
            WireType::Interface,
        ];
        Self {
            types,
            user: HashMap::new(),
            definition_bytes: 0,
        }
    }

    /// Returns the bytes of all definitions.
    pub(crate) fn definition_bytes(&self) -> usize {
        self.definition_bytes
    }

    #[inline]
    pub(crate) fn get(&self, ty: TypeRef) -> &WireType {
        const UNDEFINED: &WireType = &WireType::Undefined { id: 0 };
        self.types.get(ty.0).unwrap_or(UNDEFINED)
    }

    /// Returns the fields of a struct type; any other type has none.
    pub(crate) fn fields(&self, ty: TypeRef) -> &[Field] {
        match self.get(ty) {
            WireType::Struct { fields } => fields,
            _ => &[],
        }
    }

    /// Returns the type of a value that starts with `id`.
    pub(crate) fn of_value(&self, id: i64) -> Result<TypeRef, Fault> {
        match id {
            1..=8 => Ok(basic(id)),
            FIRST_USER_ID.. => match self.user.get(&id) {
                Some(&ty) if !matches!(self.get(ty), WireType::Undefined { .. }) => Ok(ty),
                _ => Err(Fault::UndefinedType { id }),
            },
            _ => Err(Fault::BadTypeId { id }),
        }
    }

    /// Returns the type that a definition refers to by `id`, which may be defined later.
    pub(crate) fn mention(&mut self, id: i64, limits: &Limits) -> Result<TypeRef, Fault> {
        match id {
            1..=8 => Ok(basic(id)),
            FIRST_USER_ID..=0x7fff_ffff => {
                if let Some(&known) = self.user.get(&id) {
                    return Ok(known);
                }
                at_most(self.user.len() + 1, limits.types, "types on one stream")?;
                let ty = TypeRef(self.types.len());
                self.types.push(WireType::Undefined { id });
                self.user.insert(id, ty);
                Ok(ty)
            }
            _ => Err(Fault::BadTypeId { id }),
        }
    }

    /// Stores the definition of `id`, which has `size` bytes.
    pub(crate) fn define(
        &mut self,
        id: i64,
        wire: WireType,
        size: usize,
        limits: &Limits,
    ) -> Result<(), Fault> {
        self.definition_bytes = self.definition_bytes.saturating_add(size);
        at_most(
            self.definition_bytes,
            limits.definition_bytes,
            "bytes of type definitions",
        )?;
        if id < FIRST_USER_ID {
            return Err(Fault::BadTypeId { id });
        }
        let TypeRef(index) = self.mention(id, limits)?;
        match self.types.get_mut(index) {
            Some(slot @ WireType::Undefined { .. }) => *slot = wire,
            _ => return Err(Fault::DuplicateType { id }),
        }
        Ok(())
    }
}

// Only called with 1 to 8.
fn basic(id: i64) -> TypeRef {
    TypeRef(usize::try_from(id).unwrap_or_default())
}

/// Reads a definition and adds it to the table. `negative` is the number before it: the negated id of the type.
pub(crate) fn read(
    negative: i64,
    cursor: &mut Cursor<'_>,
    types: &mut TypeTable,
    limits: &Limits,
) -> Result<(), Fault> {
    let before = cursor.remaining();
    let mut reader = DefinitionReader { types, limits };
    let wire = reader.wire_type(cursor)?;
    types.define(
        negative.saturating_neg(),
        wire,
        before - cursor.remaining(),
        limits,
    )
}

struct DefinitionReader<'t> {
    types: &'t mut TypeTable,
    limits: &'t Limits,
}

// Field numbers are those of the Go structs, where the embedded CommonType is field 0.
impl DefinitionReader<'_> {
    fn wire_type(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let mut wire = None;
        fields(cursor, |cursor, field| {
            let variant = match field {
                0 => self.array(cursor)?,
                1 => self.slice(cursor)?,
                2 => self.structure(cursor)?,
                3 => self.map(cursor)?,
                4..=6 => self.opaque(cursor, field == 4)?,
                _ => return Err(unknown_field()),
            };
            match wire.replace(variant) {
                None => Ok(()),
                Some(_) => Err(bad("sets more than one kind of type")),
            }
        })?;
        wire.ok_or(bad("sets no kind of type"))
    }

    fn array(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let [elem, len] = self.numbers(cursor)?;
        let len = u64::try_from(len).map_err(|_| bad("has a negative length"))?;
        let elem = self.mention(elem)?;
        Ok(WireType::Array { elem, len })
    }

    fn slice(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let [elem] = self.numbers(cursor)?;
        let elem = self.mention(elem)?;
        Ok(WireType::Slice { elem })
    }

    fn map(&mut self, cursor: &mut Cursor<'_>) -> Result<WireType, Fault> {
        let [key, elem] = self.numbers(cursor)?;
        let (key, elem) = (self.mention(key)?, self.mention(elem)?);
        Ok(WireType::Map { key, elem })
    }

    fn opaque(&mut self, cursor: &mut Cursor<'_>, is_gob: bool) -> Result<WireType, Fault> {
        let [] = self.numbers(cursor)?;
        Ok(WireType::Opaque { is_gob })
    }

    // Reads a struct of a CommonType and numbers. An absent number is 0.
    fn numbers<const N: usize>(&mut self, cursor: &mut Cursor<'_>) -> Result<[i64; N], Fault> {
        let mut numbers = [0; N];
        fields(cursor, |cursor, field| {
            let Some(index) = field.checked_sub(1) else {
                return self.common(cursor);
            };
            *numbers.get_mut(index).ok_or_else(unknown_field)? = cursor.int()?;
            Ok(())
        })?;
        Ok(numbers)
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
            return Err(bad("has a field without a name"));
        }
        Ok(Field {
            name: name.into(),
            ty: self.mention(ty)?,
        })
    }

    // Like Go's decoder, this ignores name and id: the id before the definition is the right one.
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
        str::from_utf8(name).map_err(|_| bad("has a name that is not UTF-8"))
    }

    fn mention(&mut self, id: i64) -> Result<TypeRef, Fault> {
        self.types.mention(id, self.limits)
    }
}

/// Calls `read` with the number of each field in a struct value.
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

/// Reads a field delta and returns the number of the next field, or `None` at the end of the struct. `next` is one above the last field.
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
    // The bounds check of the caller refuses a number that is too large.
    let field = next.saturating_add(delta - 1);
    *next = field.saturating_add(1);
    Ok(Some(field))
}

fn unknown_field() -> Fault {
    bad("has a field Go's wireType does not have")
}

fn bad(problem: &'static str) -> Fault {
    Fault::BadDefinition { problem }
}

/// A definition to write, with the ids of the stream.
pub(crate) struct Definition<'a> {
    pub(crate) kind: Kind,
    /// The name of a struct or a GobEncoder.
    pub(crate) name: &'a str,
    /// The numbers after the CommonType: the element and the length of an array, the element of a slice, or the key and the
    /// element of a map.
    pub(crate) numbers: Vec<i64>,
    /// The fields of a struct.
    pub(crate) fields: Vec<(&'a str, i64)>,
}

/// The field of `wireType` that a definition sets.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Array,
    Slice,
    Struct,
    Map,
    GobEncoder,
}

/// Appends the definition of type `id`: its negative id and a `wireType` value.
pub(crate) fn write(out: &mut Vec<u8>, id: i64, definition: &Definition<'_>) {
    put_int(out, -id);
    put_uint(out, definition.kind as u64 + 1);
    put_uint(out, 1);
    name_and_id(out, definition.name, id);
    // As any field, a length of 0 is omitted.
    for number in definition.numbers.iter().filter(|number| **number != 0) {
        put_uint(out, 1);
        put_int(out, *number);
    }
    if !definition.fields.is_empty() {
        put_uint(out, 1);
        put_uint(out, definition.fields.len() as u64);
        for (name, ty) in &definition.fields {
            name_and_id(out, name, *ty);
        }
    }
    // Ends the arrayType, sliceType, ... and the wireType.
    out.extend([0, 0]);
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
