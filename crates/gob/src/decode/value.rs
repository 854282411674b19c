//! serde's `Deserializer` for one value, driven by the types that the peer defined.
//!
//! It reads *normalised* values: the definitions inside the value are already removed.

use std::{cell::RefCell, sync::Arc};

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny,
    IntoDeserializer, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
    value::{SeqDeserializer, StrDeserializer},
};

use super::walk::{array_len, concrete_type, skip};
use crate::{
    definition::{Field, TypeRef, TypeTable, WireType, next_field},
    error::{Fault, ValueError},
    limits::{Budget, Limits},
    wire::Cursor,
};

/// Reads one normalised value.
pub(crate) struct Reader<'de, 't> {
    pub(crate) cursor: Cursor<'de>,
    pub(crate) types: &'t Arc<TypeTable>,
    pub(crate) budget: Budget<'t>,
}

impl<'de, 't> Reader<'de, 't> {
    pub(crate) fn new(body: &'de [u8], types: &'t Arc<TypeTable>, budget: Budget<'t>) -> Self {
        Self {
            cursor: Cursor::new(body),
            types,
            budget,
        }
    }

    /// Decodes the value, which must be the whole body.
    pub(crate) fn only<T: DeserializeOwned>(&mut self, ty: TypeRef) -> Result<T, ValueError> {
        let value = T::deserialize(self.value(ty))?;
        if self.cursor.is_empty() {
            Ok(value)
        } else {
            Err(ValueError::custom(
                "value continues after the end of the expected type",
            ))
        }
    }

    /// Stores the value of type `ty` that starts at `begin` and ends here, for [`Captured::take`].
    fn capture(&self, ty: TypeRef, begin: &'de [u8]) -> Result<(), ValueError> {
        let length = begin.len().checked_sub(self.cursor.remaining());
        let body = length.and_then(|length| begin.get(..length));
        let body = body.ok_or(Fault::Misplaced)?.to_vec();
        // The value outlives the decoder, so it has its own types and limits.
        CAPTURED.set(Some(Captured {
            types: Arc::clone(self.types),
            ty,
            body,
            limits: self.budget.limits.clone(),
        }));
        Ok(())
    }

    pub(crate) fn value(&mut self, ty: TypeRef) -> ValueDeserializer<'_, 'de, 't> {
        ValueDeserializer { reader: self, ty }
    }

    fn utf8(&mut self) -> Result<&'de str, ValueError> {
        let bytes = self.cursor.counted()?;
        str::from_utf8(bytes)
            .map_err(|_| ValueError::custom("expected a UTF-8 string, found other bytes"))
    }
}

/// Name of the newtype struct that is decoded from the unit value while its bytes are captured.
pub(crate) const CAPTURE_ONLY: &str = "$gob::Raw";

/// Name of the newtype struct that is decoded as usual while its bytes are captured too: that of [`WithRaw`](crate::WithRaw).
const CAPTURE_TOO: &str = "$gob::WithRaw";

thread_local! {
    // serde's data model cannot carry a value with its types. The value waits here from the end of the visitor until the
    // `Deserialize` implementation that called the deserializer takes it.
    static CAPTURED: RefCell<Option<Captured>> = const { RefCell::new(None) };
}

/// One normalised value in bytes, with all that is needed to decode it later.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) types: Arc<TypeTable>,
    pub(crate) ty: TypeRef,
    pub(crate) body: Vec<u8>,
    pub(crate) limits: Limits,
}

impl Captured {
    /// Takes the value that this thread's last [`CAPTURE_ONLY`] or [`CAPTURE_TOO`] stored.
    pub(crate) fn take() -> Option<Self> {
        CAPTURED.take()
    }

    pub(crate) fn reader(&self) -> Reader<'_, '_> {
        Reader::new(&self.body, &self.types, Budget::new(&self.limits))
    }
}

/// A value at the position of the reader.
pub(crate) struct ValueDeserializer<'r, 'de, 't> {
    reader: &'r mut Reader<'de, 't>,
    ty: TypeRef,
}

impl<'de> Deserializer<'de> for ValueDeserializer<'_, 'de, '_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let Self { reader, ty } = self;
        let types = reader.types;
        match types.get(ty) {
            WireType::Bool => visitor.visit_bool(reader.cursor.uint()? != 0),
            WireType::Int => visitor.visit_i64(reader.cursor.int()?),
            WireType::Uint => visitor.visit_u64(reader.cursor.uint()?),
            WireType::Float => visitor.visit_f64(reader.cursor.float()?),
            WireType::Complex => {
                let parts = [reader.cursor.float()?, reader.cursor.float()?];
                visitor.visit_seq(SeqDeserializer::new(parts.into_iter()))
            }
            WireType::Bytes | WireType::Opaque { .. } => {
                visitor.visit_borrowed_bytes(reader.cursor.counted()?)
            }
            WireType::String => visitor.visit_borrowed_str(reader.utf8()?),
            WireType::Struct { fields } => {
                reader.budget.enter()?;
                let mut access = FieldsAccess {
                    reader,
                    fields,
                    next: 0,
                    pending: None,
                    ended: false,
                };
                let value = visitor.visit_map(&mut access)?;
                access.finish()?;
                Ok(value)
            }
            &WireType::Slice { elem } => {
                let left = reader.cursor.uint()?;
                elements(reader, elem, left, visitor)
            }
            &WireType::Array { elem, len } => {
                let left = array_len(len, &mut reader.cursor)?;
                elements(reader, elem, left, visitor)
            }
            &WireType::Map { key, elem } => {
                let left = reader.cursor.uint()?;
                reader.budget.take_elements(left)?;
                reader.budget.enter()?;
                let mut access = EntriesAccess {
                    reader,
                    key,
                    elem,
                    left,
                };
                let value = visitor.visit_map(&mut access)?;
                all_read(access.left)?;
                access.reader.budget.leave();
                Ok(value)
            }
            WireType::Interface => match InterfaceAccess::read(reader)? {
                Some(access) => visitor.visit_enum(access),
                None => visitor.visit_none(),
            },
            &WireType::Undefined { id } => Err(Fault::UndefinedType { id }.into()),
        }
    }

    // A present field is never nil, except an interface.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if self.ty == TypeRef::INTERFACE {
            let mut ahead = self.reader.cursor;
            if ahead.uint()? == 0 {
                self.reader.cursor = ahead;
                return visitor.visit_none();
            }
        }
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match self.reader.types.get(self.ty) {
            WireType::String => visitor.visit_enum(self.reader.utf8()?.into_deserializer()),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.reader.types.get(self.ty) {
            WireType::String => visitor.visit_borrowed_bytes(self.reader.cursor.counted()?),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.reader.types.get(self.ty) {
            WireType::Bytes => {
                // `[]byte` is a basic type in gob, and not a slice.
                let bytes = self.reader.cursor.counted()?;
                visitor.visit_seq(SeqDeserializer::new(bytes.iter().copied()))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    // A derived struct would also accept a map with the right keys, or a sequence of the right elements.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let found = match self.reader.types.get(self.ty) {
            WireType::Map { .. } => "a map",
            WireType::Slice { .. } => "a slice",
            WireType::Array { .. } => "an array",
            WireType::Complex => "a complex number",
            _ => return self.deserialize_any(visitor),
        };
        Err(ValueError::invalid_type(Unexpected::Other(found), &visitor))
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.reader.types.get(self.ty) {
            // `struct{}{}`, or any other struct that is not wanted.
            WireType::Struct { .. } => self.deserialize_ignored_any(visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let Self { reader, ty } = self;
        let begin = reader.cursor.rest();
        match name {
            CAPTURE_ONLY => {
                skip(ty, &mut reader.cursor, reader.types, &mut reader.budget)?;
                reader.capture(ty, begin)?;
                visitor.visit_unit()
            }
            CAPTURE_TOO => {
                let value = visitor.visit_newtype_struct(reader.value(ty))?;
                reader.capture(ty, begin)?;
                Ok(value)
            }
            _ => visitor.visit_newtype_struct(reader.value(ty)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let Reader {
            cursor,
            types,
            budget,
        } = self.reader;
        skip(self.ty, cursor, types, budget)?;
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
        tuple tuple_struct map identifier
    }
}

fn elements<'de, V: Visitor<'de>>(
    reader: &mut Reader<'de, '_>,
    elem: TypeRef,
    left: u64,
    visitor: V,
) -> Result<V::Value, ValueError> {
    // Before the visitor, which may allocate memory for as many elements as it is told.
    reader.budget.take_elements(left)?;
    reader.budget.enter()?;
    let mut access = ElementsAccess {
        reader,
        elem,
        index: 0,
        left,
    };
    let value = visitor.visit_seq(&mut access)?;
    all_read(access.left)?;
    access.reader.budget.leave();
    Ok(value)
}

// A visitor that stops early leaves the reader within the value.
fn all_read(left: u64) -> Result<(), ValueError> {
    match left {
        0 => Ok(()),
        _ => Err(ValueError::custom(format_args!(
            "{left} elements more than expected"
        ))),
    }
}

// Every element is at least one byte, so the input bounds what a visitor preallocates.
fn size_hint(left: u64, cursor: &Cursor<'_>) -> Option<usize> {
    Some(usize::try_from(left).map_or(cursor.remaining(), |left| left.min(cursor.remaining())))
}

struct FieldsAccess<'r, 'de, 't> {
    reader: &'r mut Reader<'de, 't>,
    fields: &'t [Field],
    next: usize,
    pending: Option<&'t Field>,
    ended: bool,
}

impl FieldsAccess<'_, '_, '_> {
    fn finish(&mut self) -> Result<(), ValueError> {
        if !self.ended {
            return Err(ValueError::custom("more fields than expected"));
        }
        self.reader.budget.leave();
        Ok(())
    }
}

impl<'de> MapAccess<'de> for &mut FieldsAccess<'_, 'de, '_> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ValueError> {
        let Some(number) = next_field(&mut self.reader.cursor, &mut self.next)? else {
            self.ended = true;
            return Ok(None);
        };
        let Some(field) = self.fields.get(number) else {
            return Err(Fault::FieldOutOfRange {
                fields: self.fields.len(),
            }
            .into());
        };
        self.pending = Some(field);
        let name: &str = &field.name;
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ValueError> {
        let field = self
            .pending
            .take()
            .ok_or_else(|| ValueError::custom("field value read before its name"))?;
        seed.deserialize(self.reader.value(field.ty))
            .map_err(|error: ValueError| error.in_field(&field.name))
    }
}

struct ElementsAccess<'r, 'de, 't> {
    reader: &'r mut Reader<'de, 't>,
    elem: TypeRef,
    index: u64,
    left: u64,
}

impl<'de> SeqAccess<'de> for &mut ElementsAccess<'_, 'de, '_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        let index = self.index;
        self.index += 1;
        let value = seed.deserialize(self.reader.value(self.elem));
        value
            .map(Some)
            .map_err(|error: ValueError| error.in_element(index))
    }

    fn size_hint(&self) -> Option<usize> {
        size_hint(self.left, &self.reader.cursor)
    }
}

struct EntriesAccess<'r, 'de, 't> {
    reader: &'r mut Reader<'de, 't>,
    key: TypeRef,
    elem: TypeRef,
    left: u64,
}

impl<'de> MapAccess<'de> for &mut EntriesAccess<'_, 'de, '_> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ValueError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(self.reader.value(self.key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ValueError> {
        seed.deserialize(self.reader.value(self.elem))
    }

    fn size_hint(&self) -> Option<usize> {
        size_hint(self.left, &self.reader.cursor)
    }
}

/// serde's access to a non-nil interface value after its registered name: an enum whose variant is the registered name.
struct InterfaceAccess<'r, 'de, 't> {
    reader: &'r mut Reader<'de, 't>,
    name: &'de [u8],
}

impl<'r, 'de, 't> InterfaceAccess<'r, 'de, 't> {
    /// Reads the registered name, or returns `None` for a nil interface.
    fn read(reader: &'r mut Reader<'de, 't>) -> Result<Option<Self>, ValueError> {
        let name = reader.cursor.counted()?;
        if name.is_empty() {
            return Ok(None);
        }
        // The name may become a part of an error text.
        reader.budget.check_name(name)?;
        reader.budget.enter_interface()?;
        Ok(Some(Self { reader, name }))
    }

    fn concrete<T>(
        self,
        read: impl FnOnce(ValueDeserializer<'_, 'de, 't>) -> Result<T, ValueError>,
    ) -> Result<T, ValueError> {
        let ty = concrete_type(&mut self.reader.cursor, self.reader.types)?;
        let value = read(self.reader.value(ty))?;
        self.reader.budget.leave_interface();
        Ok(value)
    }
}

impl<'de> EnumAccess<'de> for InterfaceAccess<'_, 'de, '_> {
    type Error = ValueError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self), ValueError> {
        let name = str::from_utf8(self.name).map_err(|_| {
            ValueError::custom("registered name of an interface value is not UTF-8")
        })?;
        let variant = seed.deserialize(StrDeserializer::<ValueError>::new(name))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for InterfaceAccess<'_, 'de, '_> {
    type Error = ValueError;

    fn unit_variant(self) -> Result<(), ValueError> {
        self.concrete(|value| value.deserialize_ignored_any(IgnoredAny))
            .map(drop)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, ValueError> {
        self.concrete(|value| seed.deserialize(value))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.concrete(|value| value.deserialize_tuple(len, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.concrete(|value| value.deserialize_struct("", fields, visitor))
    }
}
