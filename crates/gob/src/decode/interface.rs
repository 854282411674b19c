//! An interface value as serde sees it: an enum whose variant is the registered name of the concrete type.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, VariantAccess, Visitor,
    value::StrDeserializer,
};

use super::{
    value::{Reader, ValueDeserializer},
    walk::concrete_type,
};
use crate::error::ValueError;

/// An interface value that is not nil, its registered name already read.
pub(crate) struct InterfaceAccess<'r, 'de, 't> {
    reader: &'r mut Reader<'de, 't>,
    name: &'de [u8],
}

impl<'r, 'de, 't> InterfaceAccess<'r, 'de, 't> {
    /// Reads the registered name. `None` is the nil interface.
    pub(crate) fn read(reader: &'r mut Reader<'de, 't>) -> Result<Option<Self>, ValueError> {
        let name = reader.cursor.counted()?;
        if name.is_empty() {
            return Ok(None);
        }
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
        self.concrete(|value| value.deserialize_ignored_any(serde::de::IgnoredAny))
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
