//! The types a peer has declared so far on one stream.
//!
//! A definition may refer to types that are defined later, or to itself. So a reference is a [`TypeRef`]
//! into the table, and what it points to is looked at only when a value needs it.

use std::collections::HashMap;

use crate::{
    error::Fault,
    limits::{Limits, at_most},
};

/// Lowest id a user type can have (Go `type.go`, `firstUserId`).
pub(crate) const FIRST_USER_ID: i64 = 64;

/// A type in a [`TypeTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TypeRef(usize);

impl TypeRef {
    pub(crate) const INTERFACE: Self = Self(8);
}

/// How values of a type look on the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WireType {
    /// Referred to, but not defined yet.
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
    /// Bytes made by the type's own `GobEncode`, `MarshalBinary` or `MarshalText`.
    Opaque,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    pub(crate) ty: TypeRef,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct TypeTable {
    // The basic types stand at their own ids 1 to 8, user types follow in order of first mention.
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

    #[inline]
    pub(crate) fn get(&self, ty: TypeRef) -> &WireType {
        const UNDEFINED: &WireType = &WireType::Undefined { id: 0 };
        self.types.get(ty.0).unwrap_or(UNDEFINED)
    }

    /// The fields of a struct type. None for any other.
    pub(crate) fn fields(&self, ty: TypeRef) -> &[Field] {
        match self.get(ty) {
            WireType::Struct { fields } => fields,
            _ => &[],
        }
    }

    /// The type of a value that begins with `id`.
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

    /// The type a definition refers to by `id`, which may come later.
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

    /// Stores the definition of `id`, which took `size` bytes.
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
