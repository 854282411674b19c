//! serde's `Serializer` for one value of a described type.
//!
//! Its result is whether the value was written. A struct field with a zero value is omitted, and the delta of the next field grows. The
//! rules for omission are from Go's `encoding/gob` (encode.go, `encOpFor`).

use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple,
    SerializeTupleStruct, Serializer,
};

use super::Messages;
use crate::{
    error::EncodeError,
    schema::{SchemaRef, Shape},
    wire::{put_counted, put_float, put_int, put_uint},
};

/// The position of a value, which decides whether it can be omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A struct field, with the delta that precedes it.
    Field { delta: u64 },
    /// A struct field behind a pointer.
    Pointee { delta: u64 },
    /// An element, a key or a top-level value: never omitted.
    Element,
}

/// Serializes one value.
pub(crate) struct ValueSerializer<'m, 'e> {
    pub(crate) messages: &'m mut Messages<'e>,
    pub(crate) ty: SchemaRef,
    pub(crate) place: Place,
}

impl<'m, 'e> ValueSerializer<'m, 'e> {
    fn shape(&self) -> Result<&Shape, EncodeError> {
        self.messages.schema.shape(self.ty)
    }

    fn mismatch(&self, given: &'static str) -> EncodeError {
        match self.shape() {
            Ok(shape) => EncodeError::Mismatch {
                given,
                expected: shape.kind(),
            },
            Err(error) => error,
        }
    }

    fn can_be_omitted(&self) -> bool {
        self.place != Place::Element
    }

    // Writes the delta, if the value is a field, and returns the buffer.
    fn begin(&mut self) -> &mut Vec<u8> {
        let out = &mut self.messages.current;
        if let Place::Field { delta } | Place::Pointee { delta } = self.place {
            put_uint(out, delta);
        }
        out
    }

    fn scalar(
        mut self,
        is_zero: bool,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, EncodeError> {
        if is_zero && self.can_be_omitted() {
            return Ok(false);
        }
        put(self.begin());
        Ok(true)
    }

    fn counted(mut self, len: usize, elem: SchemaRef) -> ElementsWriter<'m, 'e> {
        put_uint(self.begin(), len as u64);
        ElementsWriter {
            messages: self.messages,
            elem,
            left: len,
            written: true,
            complex: None,
        }
    }
}

// gob has one type for the numbers of each kind.
macro_rules! widened {
    ($($serialize:ident($number:ty): $as_wide:ident),* $(,)?) => {$(
        fn $serialize(self, value: $number) -> Result<bool, EncodeError> {
            self.$as_wide(value.into())
        }
    )*};
}

impl<'m, 'e> Serializer for ValueSerializer<'m, 'e> {
    type Ok = bool;
    type Error = EncodeError;
    type SerializeSeq = ElementsWriter<'m, 'e>;
    type SerializeTuple = ElementsWriter<'m, 'e>;
    type SerializeTupleStruct = ElementsWriter<'m, 'e>;
    type SerializeTupleVariant = Impossible<bool, EncodeError>;
    type SerializeMap = EntriesWriter<'m, 'e>;
    type SerializeStruct = FieldsWriter<'m, 'e>;
    type SerializeStructVariant = Impossible<bool, EncodeError>;

    fn serialize_bool(self, value: bool) -> Result<bool, EncodeError> {
        match self.shape()? {
            Shape::Bool => self.scalar(!value, |out| put_uint(out, value.into())),
            _ => Err(self.mismatch("a bool")),
        }
    }

    widened! {
        serialize_i8(i8): serialize_i64, serialize_i16(i16): serialize_i64, serialize_i32(i32): serialize_i64,
        serialize_u8(u8): serialize_u64, serialize_u16(u16): serialize_u64, serialize_u32(u32): serialize_u64,
        serialize_f32(f32): serialize_f64,
    }

    fn serialize_i64(self, value: i64) -> Result<bool, EncodeError> {
        match self.shape()? {
            Shape::Int => self.scalar(value == 0, |out| put_int(out, value)),
            _ => Err(self.mismatch("a signed integer")),
        }
    }

    fn serialize_u64(self, value: u64) -> Result<bool, EncodeError> {
        match self.shape()? {
            Shape::Uint => self.scalar(value == 0, |out| put_uint(out, value)),
            _ => Err(self.mismatch("an unsigned integer")),
        }
    }

    fn serialize_f64(self, value: f64) -> Result<bool, EncodeError> {
        match self.shape()? {
            Shape::Float => self.scalar(value == 0.0, |out| put_float(out, value)),
            _ => Err(self.mismatch("a float")),
        }
    }

    fn serialize_char(self, _: char) -> Result<bool, EncodeError> {
        Err(self.mismatch("a char"))
    }

    fn serialize_str(self, value: &str) -> Result<bool, EncodeError> {
        match self.shape()? {
            Shape::String => {
                self.scalar(value.is_empty(), |out| put_counted(out, value.as_bytes()))
            }
            _ => Err(self.mismatch("a string")),
        }
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<bool, EncodeError> {
        let is_zero = match self.shape()? {
            Shape::Bytes => value.is_empty(),
            // A pointer to a zero time.Time is sent, unlike a pointer to any other zero value.
            Shape::GobEncoder { zero, .. } => {
                value == *zero && matches!(self.place, Place::Field { .. })
            }
            _ => return Err(self.mismatch("bytes")),
        };
        self.scalar(is_zero, |out| put_counted(out, value))
    }

    fn serialize_none(self) -> Result<bool, EncodeError> {
        match (self.place, self.shape()?) {
            (Place::Field { .. } | Place::Pointee { .. }, _) => Ok(false),
            (Place::Element, Shape::Interface { .. }) => self.scalar(true, |out| put_uint(out, 0)),
            (Place::Element, _) => Err(EncodeError::Nil),
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Result<bool, EncodeError> {
        if let Place::Field { delta } = self.place {
            self.place = Place::Pointee { delta };
        }
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<bool, EncodeError> {
        self.serialize_struct("", 0)?.end()
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<bool, EncodeError> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<bool, EncodeError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<bool, EncodeError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<bool, EncodeError> {
        let Shape::Interface { variants } = self.shape()? else {
            return Err(self.mismatch("an interface value"));
        };
        let Some((name, describe)) = variants.iter().find(|(name, _)| *name == variant) else {
            return Err(EncodeError::UnknownVariant { variant });
        };
        put_counted(self.begin(), name.as_bytes());
        let concrete = describe(self.messages.schema);
        self.messages.concrete(concrete, value)?;
        Ok(true)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<ElementsWriter<'m, 'e>, EncodeError> {
        let &Shape::Slice { elem } = self.shape()? else {
            return Err(self.mismatch("a sequence"));
        };
        match len {
            None => Err(EncodeError::Length),
            Some(0) if self.can_be_omitted() => Ok(ElementsWriter {
                messages: self.messages,
                elem,
                left: 0,
                written: false,
                complex: None,
            }),
            Some(len) => Ok(self.counted(len, elem)),
        }
    }

    fn serialize_tuple(mut self, len: usize) -> Result<ElementsWriter<'m, 'e>, EncodeError> {
        match *self.shape()? {
            Shape::Array {
                elem,
                len: expected,
            } if len == expected => Ok(self.counted(len, elem)),
            Shape::Complex if len == 2 => {
                let field_at = self.messages.current.len();
                let value_at = self.begin().len();
                let complex = self
                    .can_be_omitted()
                    .then_some(ComplexField { field_at, value_at });
                let elem = SchemaRef::FLOAT;
                Ok(ElementsWriter {
                    messages: self.messages,
                    elem,
                    left: len,
                    written: true,
                    complex,
                })
            }
            _ => Err(self.mismatch("a tuple of this length")),
        }
    }

    fn serialize_tuple_struct(
        self,
        _name: &'static str,
        len: usize,
    ) -> Result<ElementsWriter<'m, 'e>, EncodeError> {
        self.serialize_tuple(len)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeTupleVariant, EncodeError> {
        Err(self.mismatch("an enum variant of several values"))
    }

    fn serialize_map(mut self, len: Option<usize>) -> Result<EntriesWriter<'m, 'e>, EncodeError> {
        let &Shape::Map { key, elem } = self.shape()? else {
            return Err(self.mismatch("a map"));
        };
        let left = len.ok_or(EncodeError::Length)?;
        // Go sends an empty map that is not nil; here it is a map in an Option.
        let written = left > 0 || !matches!(self.place, Place::Field { .. });
        if written {
            put_uint(self.begin(), left as u64);
        }
        Ok(EntriesWriter {
            messages: self.messages,
            key,
            elem,
            left,
            written,
        })
    }

    fn serialize_struct(
        mut self,
        _name: &'static str,
        _len: usize,
    ) -> Result<FieldsWriter<'m, 'e>, EncodeError> {
        let Shape::Struct { .. } = self.shape()? else {
            return Err(self.mismatch("a struct"));
        };
        self.begin();
        Ok(FieldsWriter {
            messages: self.messages,
            ty: self.ty,
            next: 0,
            written: 0,
        })
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeStructVariant, EncodeError> {
        Err(self.mismatch("an enum variant with fields"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// A slice, an array or the two parts of a complex number.
pub(crate) struct ElementsWriter<'m, 'e> {
    messages: &'m mut Messages<'e>,
    elem: SchemaRef,
    left: usize,
    written: bool,
    complex: Option<ComplexField>,
}

/// The position of a complex number in a struct field. Only after both parts is it known whether it is zero and must be omitted.
struct ComplexField {
    field_at: usize,
    value_at: usize,
}

impl ElementsWriter<'_, '_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.left = self.left.checked_sub(1).ok_or(EncodeError::Length)?;
        self.messages.element(self.elem, value)
    }

    fn finish(self) -> Result<bool, EncodeError> {
        if self.left > 0 {
            return Err(EncodeError::Length);
        }
        if let Some(ComplexField { field_at, value_at }) = self.complex
            && self.messages.current.get(value_at..) == Some(&[0, 0])
        {
            self.messages.current.truncate(field_at);
            return Ok(false);
        }
        Ok(self.written)
    }
}

// serde has the same methods for a slice, an array and a tuple struct in three traits.
macro_rules! serialize_elements {
    ($($serialize:ident: $element:ident),*) => {$(
        impl $serialize for ElementsWriter<'_, '_> {
            type Ok = bool;
            type Error = EncodeError;

            fn $element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
                self.element(value)
            }

            fn end(self) -> Result<bool, EncodeError> {
                self.finish()
            }
        }
    )*};
}

serialize_elements! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field
}

/// A map.
pub(crate) struct EntriesWriter<'m, 'e> {
    messages: &'m mut Messages<'e>,
    key: SchemaRef,
    elem: SchemaRef,
    left: usize,
    written: bool,
}

impl SerializeMap for EntriesWriter<'_, '_> {
    type Ok = bool;
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        self.left = self.left.checked_sub(1).ok_or(EncodeError::Length)?;
        self.messages.element(self.key, key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.messages.element(self.elem, value)
    }

    fn end(self) -> Result<bool, EncodeError> {
        if self.left > 0 {
            Err(EncodeError::Length)
        } else {
            Ok(self.written)
        }
    }
}

/// A struct.
pub(crate) struct FieldsWriter<'m, 'e> {
    messages: &'m mut Messages<'e>,
    ty: SchemaRef,
    // The first described field that is not serialized yet.
    next: usize,
    // One above the last field written.
    written: usize,
}

impl SerializeStruct for FieldsWriter<'_, '_> {
    type Ok = bool;
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        let Shape::Struct {
            name: go_type,
            fields,
        } = self.messages.schema.shape(self.ty)?
        else {
            return Err(EncodeError::Mismatch {
                given: "a field",
                expected: "something else",
            });
        };
        // Fields that serde skips are omitted.
        let Some((number, (_, ty))) = fields
            .iter()
            .enumerate()
            .skip(self.next)
            .find(|(_, (field, _))| *field == key)
        else {
            return Err(EncodeError::UnknownField {
                go_type,
                field: key,
            });
        };
        let (number, ty) = (number + 1, *ty);
        self.next = number;
        let place = Place::Field {
            delta: (number - self.written) as u64,
        };
        if value.serialize(ValueSerializer {
            messages: self.messages,
            ty,
            place,
        })? {
            self.written = number;
        }
        Ok(())
    }

    fn end(self) -> Result<bool, EncodeError> {
        put_uint(&mut self.messages.current, 0);
        Ok(true)
    }
}
