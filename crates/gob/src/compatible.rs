//! Go's rule for which types of a peer decode to which types of the program.
//!
//! Go compares the types when the first value of a type arrives, before it reads the value, and fails if they differ. Serde looks only
//! at the values: it accepts a bool that is sent for a struct which it ignores, and an unsigned number for a signed one.
//!
//! Sources: Go `encoding/gob` decode.go, `compatibleType`, `compileDec` and `decodeValue`.

use std::collections::HashSet;

use serde::de::Error as _;

use crate::{
    GobType,
    definition::{TypeRef, TypeTable, WireType},
    error::ValueError,
    schema::{Schema, SchemaRef, Shape},
};

/// Checks that Go decodes values of the peer's type to the Go type of `T`. It does not look into interface values.
pub(crate) fn check<T: GobType>(peer: TypeRef, peers: &TypeTable) -> Result<(), ValueError> {
    let mut ours = Schema::new();
    let local = T::describe(&mut ours);
    let mut comparison = Comparison {
        ours: &ours,
        peers,
        compared: HashSet::new(),
    };
    comparison.types(local, peer)?;
    comparison.has_common_field(local, peer)
}

struct Comparison<'a> {
    ours: &'a Schema,
    peers: &'a TypeTable,
    /// Pairs of types that were compared or are being compared, because types can refer to themselves.
    compared: HashSet<(usize, TypeRef)>,
}

impl Comparison<'_> {
    fn types(&mut self, local: SchemaRef, peer: TypeRef) -> Result<(), ValueError> {
        if !self.compared.insert((local.index(), peer)) {
            return Ok(());
        }
        let shape = self.ours.shape(local).map_err(ValueError::custom)?;
        match (shape, self.peers.get(peer)) {
            (Shape::Bool, WireType::Bool)
            | (Shape::Int, WireType::Int)
            | (Shape::Uint, WireType::Uint)
            | (Shape::Float, WireType::Float)
            | (Shape::Bytes, WireType::Bytes)
            | (Shape::String, WireType::String)
            | (Shape::Complex, WireType::Complex)
            | (Shape::Interface { .. }, WireType::Interface)
            | (Shape::GobEncoder { .. }, WireType::Opaque { is_gob: true }) => Ok(()),
            (
                Shape::Array { elem, len },
                WireType::Array {
                    elem: theirs,
                    len: found,
                },
            ) if u64::try_from(*len) == Ok(*found) => self.types(*elem, *theirs),
            (Shape::Slice { elem }, WireType::Slice { elem: theirs }) => self.types(*elem, *theirs),
            (
                Shape::Map { key, elem },
                WireType::Map {
                    key: their_key,
                    elem: theirs,
                },
            ) => {
                self.types(*key, *their_key)?;
                self.types(*elem, *theirs)
            }
            (Shape::Struct { fields, .. }, WireType::Struct { fields: theirs }) => {
                for field in theirs {
                    let ours = fields.iter().find(|(name, _)| *name == &*field.name);
                    if let Some((name, ty)) = ours {
                        let compared = self.types(*ty, field.ty);
                        compared.map_err(|error| error.in_field(name))?;
                    }
                }
                Ok(())
            }
            (ours, theirs) => Err(ValueError::custom(format_args!(
                "expected the type {}, the peer defines {}",
                ours.kind(),
                theirs.kind()
            ))),
        }
    }

    /// Checks that two structs with fields have one in common. Go checks only the type of the value itself.
    fn has_common_field(&self, local: SchemaRef, peer: TypeRef) -> Result<(), ValueError> {
        let shape = self.ours.shape(local).map_err(ValueError::custom)?;
        let (Shape::Struct { name, fields }, theirs) = (shape, self.peers.fields(peer)) else {
            return Ok(());
        };
        let is_ours = |name: &str| fields.iter().any(|(ours, _)| *ours == name);
        let none = !theirs.iter().any(|field| is_ours(&field.name));
        if none && !fields.is_empty() && !theirs.is_empty() {
            let reason = format_args!("the peer's struct has no field of {name}");
            return Err(ValueError::custom(reason));
        }
        Ok(())
    }
}
