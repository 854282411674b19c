//! The Go types of Rust values. gob sends the definition of a type before its first value, and `Serialize` has no types.
//!
//! A [`Schema`] belongs to one stream. It is a list of types that refer to each other by index, so a type may refer to itself. For the
//! type
//!
//! ```text
//! gob_struct! {
//!     struct Tree as "Tree" { value: i64 as "Value", children: Vec<Tree> as "Children" }
//! }
//! ```
//!
//! the first `encode` of a `Tree` adds two types after the eight basic types of every schema:
//!
//! ```text
//! index  id  shape                                   sent
//!     2   2  int                                     needs no definition
//!     8  65  struct Tree { Value: 2, Children: 9 }   first
//!     9  66  slice of 8                              second, because type 65 refers to it
//! ```
//!
//! `describe` of `Tree` first reserves index 8 for Rust's `TypeId` and then describes its fields. `Vec<Tree>` describes `Tree` again, gets
//! the reserved index, and the recursion ends. The definitions that a value needs are sent before the value, and `sent` lists the
//! types that the peer has. If the value cannot be encoded, its definitions count as not sent again, because their bytes are dropped.

use std::{
    any::TypeId,
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    Bytes, Time,
    definition::{Definition, Kind},
    error::EncodeError,
};

/// A Rust type with a Go type.
///
/// [`gob_struct!`](crate::gob_struct) implements it for structs and [`gob_interface!`](crate::gob_interface) for interfaces. This crate
/// implements it for basic types and collections: `Vec<T>` is a slice, `[T; N]` an array, `BTreeMap` a map, `Option<T>` and `Box<T>` are
/// pointers (which are not visible in gob), [`Bytes`] is a `[]byte`, `(f64, f64)` a complex number and `()` an empty struct.
///
/// `u8` has no implementation, so that a `Vec<u8>` is not sent as a slice of numbers by mistake.
pub trait GobType: 'static {
    /// Adds the type to the schema of a stream, if the schema does not have it yet.
    fn describe(schema: &mut Schema) -> SchemaRef;
}

/// [`GobType::describe`] of some type. It is a function and not its result, so that a type can refer to itself.
pub type Describe = fn(&mut Schema) -> SchemaRef;

/// A type in a [`Schema`]. Other schemas refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaRef {
    index: usize,
    /// Number of its schema, or [`EVERY_SCHEMA`] for a basic type.
    owner: u64,
}

/// The types of an encoder's stream, and which of them the peer has.
#[derive(Debug)]
pub struct Schema {
    types: Vec<Described>,
    known: HashMap<TypeId, SchemaRef>,
    next_id: i64,
    number: u64,
    /// The types that the peer has, in the order in which they were sent.
    sent: Vec<SchemaRef>,
}

/// The number of the next schema of this process.
static SCHEMAS: AtomicU64 = AtomicU64::new(EVERY_SCHEMA + 1);

/// The owner of the basic types.
const EVERY_SCHEMA: u64 = 0;

// The id of the first user type is 65 up to Go 1.19, and 64 in later versions. All decoders accept 65.
const FIRST_ID: i64 = 65;

const INTERFACE_ID: i64 = 8;

#[derive(Debug)]
struct Described {
    // The id on the wire.
    id: i64,
    shape: Shape,
    sent: bool,
}

/// The form of the values of a type.
#[derive(Debug)]
pub(crate) enum Shape {
    Bool,
    Int,
    Uint,
    Float,
    Bytes,
    String,
    Complex,
    Interface {
        variants: &'static [(&'static str, Describe)],
    },
    Array {
        elem: SchemaRef,
        len: usize,
    },
    Slice {
        elem: SchemaRef,
    },
    Struct {
        name: &'static str,
        fields: Vec<(&'static str, SchemaRef)>,
    },
    Map {
        key: SchemaRef,
        elem: SchemaRef,
    },
    GobEncoder {
        name: &'static str,
        zero: &'static [u8],
    },
}

impl Shape {
    /// Returns the name of the shape for error texts.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Float => "float",
            Self::Bytes => "bytes",
            Self::String => "string",
            Self::Complex => "complex",
            Self::Interface { .. } => "interface",
            Self::Array { .. } => "array",
            Self::Slice { .. } => "slice",
            Self::Struct { .. } => "struct",
            Self::Map { .. } => "map",
            Self::GobEncoder { .. } => "GobEncoder",
        }
    }
}

// The index of a basic type is its id.
const BASIC: [Shape; 8] = [
    Shape::Bool,
    Shape::Bool,
    Shape::Int,
    Shape::Uint,
    Shape::Float,
    Shape::Bytes,
    Shape::String,
    Shape::Complex,
];

impl Schema {
    pub(crate) fn new() -> Self {
        let types = BASIC
            .into_iter()
            .zip(0..)
            .map(|(shape, id)| Described {
                id,
                shape,
                sent: true,
            })
            .collect();
        Self {
            types,
            known: HashMap::new(),
            next_id: FIRST_ID,
            number: SCHEMAS.fetch_add(1, Ordering::Relaxed),
            sent: Vec::new(),
        }
    }

    /// Describes `T` as the Go struct `name` with these fields, in the order in which `T` serializes them.
    pub fn structure<T: 'static>(
        &mut self,
        name: &'static str,
        fields: &[(&'static str, Describe)],
    ) -> SchemaRef {
        if let Some(ty) = self.known::<T>() {
            return ty;
        }
        let ty = self.add::<T>(Shape::Struct {
            name,
            fields: Vec::new(),
        });
        for &(field, describe) in fields {
            let field = (field, describe(self));
            if let Some(Described {
                shape: Shape::Struct { fields, .. },
                ..
            }) = self.types.get_mut(ty.index)
            {
                fields.push(field);
            }
        }
        ty
    }

    /// Describes `T`, an enum of newtype variants, as a Go interface. The serde names of the variants are the names under which the Go
    /// program registered the concrete types (`gob.RegisterName`).
    pub fn interface<T: 'static>(
        &mut self,
        variants: &'static [(&'static str, Describe)],
    ) -> SchemaRef {
        match self.known::<T>() {
            Some(ty) => ty,
            None => self.add_as::<T>(INTERFACE_ID, Shape::Interface { variants }),
        }
    }

    /// Describes `T` as the Go type `name` that implements `GobEncoder`. `T` serializes as bytes. A struct field is omitted if its bytes are
    /// `zero`, the encoding of Go's zero value.
    pub fn gob_encoder<T: 'static>(
        &mut self,
        name: &'static str,
        zero: &'static [u8],
    ) -> SchemaRef {
        match self.known::<T>() {
            Some(ty) => ty,
            None => self.add::<T>(Shape::GobEncoder { name, zero }),
        }
    }

    // Go assigns the id of a slice, array or map after those of its elements. The elements may refer to it, so its index is reserved first.
    fn collection<T: 'static>(&mut self, shape: impl FnOnce(&mut Self) -> Shape) -> SchemaRef {
        if let Some(ty) = self.known::<T>() {
            return ty;
        }
        let ty = self.add_as::<T>(0, Shape::Bytes);
        let shape = shape(self);
        if let Some(described) = self.types.get_mut(ty.index) {
            *described = Described {
                id: self.next_id,
                shape,
                sent: false,
            };
            self.next_id += 1;
        }
        ty
    }

    fn known<T: 'static>(&self) -> Option<SchemaRef> {
        self.known.get(&TypeId::of::<T>()).copied()
    }

    fn add<T: 'static>(&mut self, shape: Shape) -> SchemaRef {
        let id = self.next_id;
        self.next_id += 1;
        self.add_as::<T>(id, shape)
    }

    fn add_as<T: 'static>(&mut self, id: i64, shape: Shape) -> SchemaRef {
        let ty = SchemaRef {
            index: self.types.len(),
            owner: self.number,
        };
        self.types.push(Described {
            id,
            shape,
            sent: false,
        });
        self.known.insert(TypeId::of::<T>(), ty);
        ty
    }

    fn get(&self, ty: SchemaRef) -> Result<&Described, EncodeError> {
        let is_ours = ty.owner == EVERY_SCHEMA || ty.owner == self.number;
        let known = self.types.get(ty.index).filter(|_| is_ours);
        known.ok_or(EncodeError::ForeignType)
    }

    /// Returns the id of the type on the wire.
    pub(crate) fn id(&self, ty: SchemaRef) -> Result<i64, EncodeError> {
        Ok(self.get(ty)?.id)
    }

    pub(crate) fn shape(&self, ty: SchemaRef) -> Result<&Shape, EncodeError> {
        Ok(&self.get(ty)?.shape)
    }

    pub(crate) fn is_struct(&self, ty: SchemaRef) -> Result<bool, EncodeError> {
        Ok(matches!(self.shape(ty)?, Shape::Struct { .. }))
    }

    /// Marks the type as sent. Returns false if it was sent before.
    pub(crate) fn send(&mut self, ty: SchemaRef) -> Result<bool, EncodeError> {
        if self.get(ty)?.sent {
            return Ok(false);
        }
        if let Some(described) = self.types.get_mut(ty.index) {
            described.sent = true;
            self.sent.push(ty);
        }
        Ok(true)
    }

    /// Returns the number of sent types, for [`unsend`](Self::unsend).
    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Marks all types after the first `count` sent ones as not sent.
    pub(crate) fn unsend(&mut self, count: usize) {
        for ty in self.sent.split_off(count.min(self.sent.len())) {
            if let Some(described) = self.types.get_mut(ty.index) {
                described.sent = false;
            }
        }
    }

    /// Returns the definition of a type and the types that it refers to, or `None` for a type that needs no definition.
    pub(crate) fn definition(
        &self,
        ty: SchemaRef,
    ) -> Result<Option<(Definition<'_>, Vec<SchemaRef>)>, EncodeError> {
        let id = |&ty: &SchemaRef| self.id(ty);
        let mut fields = Vec::new();
        let (kind, name, numbers, parts) = match self.shape(ty)? {
            Shape::Array { elem, len } => {
                let len = i64::try_from(*len).map_err(|_| EncodeError::Length)?;
                (Kind::Array, "", vec![id(elem)?, len], vec![*elem])
            }
            Shape::Slice { elem } => (Kind::Slice, "", vec![id(elem)?], vec![*elem]),
            Shape::Map { key, elem } => {
                let numbers = vec![id(key)?, id(elem)?];
                (Kind::Map, "", numbers, vec![*key, *elem])
            }
            Shape::GobEncoder { name, .. } => (Kind::GobEncoder, *name, Vec::new(), Vec::new()),
            Shape::Struct { name, fields: all } => {
                for (name, ty) in all {
                    fields.push((*name, id(ty)?));
                }
                let parts = all.iter().map(|(_, ty)| *ty).collect();
                (Kind::Struct, *name, Vec::new(), parts)
            }
            _ => return Ok(None),
        };
        let definition = Definition {
            kind,
            name,
            numbers,
            fields,
        };
        Ok(Some((definition, parts)))
    }
}

impl SchemaRef {
    const BOOL: Self = Self::basic(1);
    const INT: Self = Self::basic(2);
    const UINT: Self = Self::basic(3);
    pub(crate) const FLOAT: Self = Self::basic(4);
    const BYTES: Self = Self::basic(5);
    const STRING: Self = Self::basic(6);
    const COMPLEX: Self = Self::basic(7);

    /// Returns the index of the type in its schema.
    pub(crate) const fn index(self) -> usize {
        self.index
    }

    const fn basic(index: usize) -> Self {
        Self {
            index,
            owner: EVERY_SCHEMA,
        }
    }
}

macro_rules! basic_types {
    ($($rust:ty => $basic:ident),* $(,)?) => {
        $(impl GobType for $rust {
            fn describe(_: &mut Schema) -> SchemaRef {
                SchemaRef::$basic
            }
        })*
    };
}

basic_types! {
    bool => BOOL,
    i8 => INT, i16 => INT, i32 => INT, i64 => INT,
    u16 => UINT, u32 => UINT, u64 => UINT,
    f32 => FLOAT, f64 => FLOAT,
    Bytes => BYTES,
    String => STRING,
    (f64, f64) => COMPLEX,
}

impl GobType for Time {
    fn describe(schema: &mut Schema) -> SchemaRef {
        schema.gob_encoder::<Self>("Time", &Self::ZERO_BYTES)
    }
}

impl GobType for () {
    fn describe(schema: &mut Schema) -> SchemaRef {
        schema.structure::<Self>("", &[])
    }
}

impl<T: GobType> GobType for Option<T> {
    fn describe(schema: &mut Schema) -> SchemaRef {
        T::describe(schema)
    }
}

impl<T: GobType> GobType for Box<T> {
    fn describe(schema: &mut Schema) -> SchemaRef {
        T::describe(schema)
    }
}

impl<T: GobType> GobType for Vec<T> {
    fn describe(schema: &mut Schema) -> SchemaRef {
        schema.collection::<Self>(|schema| Shape::Slice {
            elem: T::describe(schema),
        })
    }
}

impl<T: GobType, const N: usize> GobType for [T; N] {
    fn describe(schema: &mut Schema) -> SchemaRef {
        schema.collection::<Self>(|schema| Shape::Array {
            elem: T::describe(schema),
            len: N,
        })
    }
}

impl<K: GobType, V: GobType> GobType for BTreeMap<K, V> {
    fn describe(schema: &mut Schema) -> SchemaRef {
        schema.collection::<Self>(|schema| Shape::Map {
            key: K::describe(schema),
            elem: V::describe(schema),
        })
    }
}
