//! The names of fields and registered types, as the macros' expansion looks them up.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

/// Reads the name of a field; `None` for one that the struct does not have.
#[derive(Clone, Copy, Debug)]
pub struct Name<F: 'static>(pub &'static [(&'static str, F)]);

impl<'de, F: Copy> DeserializeSeed<'de> for Name<F> {
    type Value = Option<F>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<F>, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<F: Copy> Visitor<'_> for Name<F> {
    type Value = Option<F>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<F>, E> {
        let mut known = self.0.iter();
        let found = known.find(|(known, _)| *known == name);
        Ok(found.map(|(_, field)| *field))
    }
}

/// Reads the name of a registered type.
#[derive(Clone, Copy, Debug)]
pub struct Variant<'v, T> {
    /// The types by name.
    pub types: &'v [(&'static str, T)],
    /// The names, for the error.
    pub names: &'static [&'static str],
}

impl<'de, T: Copy> DeserializeSeed<'de> for Variant<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<T: Copy> Visitor<'_> for Variant<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("variant identifier")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        let mut known = self.types.iter();
        let found = known.find(|(known, _)| *known == name);
        found
            .map(|(_, ty)| *ty)
            .ok_or_else(|| E::unknown_variant(name, self.names))
    }
}
