//! Values that hold others, while serde hands over one part after the other.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
};

use super::{
    Messages,
    value::{Place, ValueSerializer},
};
use crate::{
    error::EncodeError,
    schema::{SchemaRef, Shape},
    wire::put_uint,
};

/// A slice, an array or the two parts of a complex number.
pub(crate) struct Elements<'m, 'e> {
    pub(super) messages: &'m mut Messages<'e>,
    pub(super) elem: SchemaRef,
    pub(super) left: usize,
    pub(super) written: bool,
    pub(super) complex: Option<ComplexField>,
}

/// Where a complex number stands that is a struct field: whether it is zero is only known behind both parts.
pub(crate) struct ComplexField {
    pub(super) field_at: usize,
    pub(super) value_at: usize,
}

impl Elements<'_, '_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.left = self.left.checked_sub(1).ok_or(EncodeError::Length)?;
        let serializer = ValueSerializer {
            messages: self.messages,
            ty: self.elem,
            place: Place::Element,
        };
        value.serialize(serializer).map(drop)
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

impl SerializeSeq for Elements<'_, '_> {
    type Ok = bool;
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.element(value)
    }

    fn end(self) -> Result<bool, EncodeError> {
        self.finish()
    }
}

impl SerializeTuple for Elements<'_, '_> {
    type Ok = bool;
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.element(value)
    }

    fn end(self) -> Result<bool, EncodeError> {
        self.finish()
    }
}

impl SerializeTupleStruct for Elements<'_, '_> {
    type Ok = bool;
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.element(value)
    }

    fn end(self) -> Result<bool, EncodeError> {
        self.finish()
    }
}

/// A map.
pub(crate) struct Entries<'m, 'e> {
    pub(super) messages: &'m mut Messages<'e>,
    pub(super) key: SchemaRef,
    pub(super) elem: SchemaRef,
    pub(super) left: usize,
    pub(super) written: bool,
}

impl SerializeMap for Entries<'_, '_> {
    type Ok = bool;
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        self.left = self.left.checked_sub(1).ok_or(EncodeError::Length)?;
        let serializer = ValueSerializer {
            messages: self.messages,
            ty: self.key,
            place: Place::Element,
        };
        key.serialize(serializer).map(drop)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let serializer = ValueSerializer {
            messages: self.messages,
            ty: self.elem,
            place: Place::Element,
        };
        value.serialize(serializer).map(drop)
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
pub(crate) struct Fields<'m, 'e> {
    pub(super) messages: &'m mut Messages<'e>,
    pub(super) ty: SchemaRef,
    // The first described field not serialized yet.
    pub(super) next: usize,
    // One above the last field written.
    pub(super) written: usize,
}

impl SerializeStruct for Fields<'_, '_> {
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
        // Fields that serde skips are skipped here too.
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
