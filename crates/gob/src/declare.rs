//! [`gob_struct!`](crate::gob_struct) and [`gob_interface!`](crate::gob_interface), which declare Rust types with their Go types.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

/// Declares structs with their Go names: the Rust types, their serde implementations and their [`GobType`](crate::GobType)s.
///
/// All fields are optional when decoding, because gob omits zero values. The structs implement `Clone`, `Debug`, `Default` and
/// `PartialEq`. Attributes are kept, including more derives.
///
/// A field may have a second name, under which it is read from other formats than gob; there, null counts as absent. Fields after a
/// semicolon are not serialized.
///
/// ```
/// use std::collections::BTreeMap;
///
/// gob::gob_struct! {
///     /// A list that refers to itself.
///     #[derive(Eq)]
///     pub struct Step as "CanaryStep" {
///         /// `*int32` in Go.
///         pub weight: Option<i32> as "SetWeight" / "setWeight",
///         pub plugins: BTreeMap<String, gob::Bytes> as "Plugins",
///         pub next: Option<Box<Step>> as "Next";
///         /// Not serialized.
///         pub was_read: bool,
///     }
/// }
/// ```
#[macro_export]
macro_rules! gob_struct {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident as $go_name:literal {
            $(
                $(#[$field_attribute:meta])*
                $field_visibility:vis $field:ident: $type:ty as $go_field:literal $(/ $alias:literal)?
            ),* $(,)?
            $(;
                $(
                    $(#[$own_attribute:meta])*
                    $own_visibility:vis $own:ident: $own_type:ty
                ),* $(,)?
            )?
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $visibility struct $name {
            $(
                $(#[$field_attribute])*
                $field_visibility $field: $type,
            )*
            $($(
                $(#[$own_attribute])*
                $own_visibility $own: $own_type,
            )*)?
        }

        impl $crate::GobType for $name {
            fn describe(schema: &mut $crate::Schema) -> $crate::SchemaRef {
                schema.structure::<Self>(
                    $go_name,
                    &[$(($go_field, <$type as $crate::GobType>::describe)),*],
                )
            }
        }

        impl $crate::__private::serde::Serialize for $name {
            fn serialize<S: $crate::__private::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::core::result::Result<S::Ok, S::Error> {
                use $crate::__private::serde::ser::SerializeStruct as _;
                const NAMES: &[&str] = &[$($go_field),*];
                #[allow(unused_mut)]
                let mut fields = serializer.serialize_struct(stringify!($name), NAMES.len())?;
                $(fields.serialize_field($go_field, &self.$field)?;)*
                fields.end()
            }
        }

        impl<'de> $crate::__private::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::__private::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::core::result::Result<Self, D::Error> {
                use $crate::__private::{Name, serde::de};

                #[allow(non_camel_case_types)]
                #[derive(Clone, Copy)]
                enum Field { $($field),* }

                struct Fields;

                impl<'de> de::Visitor<'de> for Fields {
                    type Value = $name;

                    fn expecting(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                        f.write_str(concat!("struct ", $go_name))
                    }

                    fn visit_map<A: de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> ::core::result::Result<$name, A::Error> {
                        const NAMES: &[(&str, Field)] =
                            &[$(($go_field, Field::$field), $(($alias, Field::$field),)?)*];
                        #[allow(unused_mut)]
                        let mut value = $name::default();
                        while let Some(field) = map.next_key_seed(Name(NAMES))? {
                            match field {
                                $(Some(Field::$field) => {
                                    let found: Option<$type> = map.next_value()?;
                                    value.$field = found.unwrap_or_default();
                                })*
                                None => { map.next_value::<de::IgnoredAny>()?; }
                            }
                        }
                        Ok(value)
                    }
                }

                deserializer.deserialize_struct(stringify!($name), &[$($go_field),*], Fields)
            }
        }
    )*};
}

/// Declares a Go interface as an enum of its registered types. The Rust type of a field of this interface is an `Option` of the enum;
/// `None` is nil.
///
/// ```
/// gob::gob_struct! {
///     pub struct UpdateHash as "UpdateHashArgs" {
///         pub canary: String as "CanaryHash",
///     }
/// }
///
/// gob::gob_interface! {
///     /// The argument of a call.
///     pub enum Argument {
///         UpdateHash(UpdateHash) as "UpdateHashArgs",
///         Name(String) as "string",
///     }
/// }
///
/// assert_eq!(Argument::Name("Ada".into()).registered_name(), "string");
/// ```
#[macro_export]
macro_rules! gob_interface {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $(
                $(#[$variant_attribute:meta])*
                $variant:ident($type:ty) as $registered:literal
            ),* $(,)?
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        $visibility enum $name {
            $(
                $(#[$variant_attribute])*
                $variant($type),
            )*
        }

        impl $name {
            /// Returns the name under which the Go program registered the type.
            #[allow(dead_code)]
            $visibility const fn registered_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $registered),* }
            }
        }

        impl $crate::GobType for $name {
            fn describe(schema: &mut $crate::Schema) -> $crate::SchemaRef {
                schema.interface::<Self>(&[$(($registered, <$type as $crate::GobType>::describe)),*])
            }
        }

        const _: () = {
            use $crate::__private::{Variant, serde, serde::de};

            #[derive(Clone, Copy)]
            enum Type { $($variant),* }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(
                    &self,
                    serializer: S,
                ) -> ::core::result::Result<S::Ok, S::Error> {
                    match self {
                        $(Self::$variant(value) => serializer.serialize_newtype_variant(
                            stringify!($name),
                            Type::$variant as u32,
                            $registered,
                            value,
                        ),)*
                    }
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> ::core::result::Result<Self, D::Error> {
                    deserializer.deserialize_enum(stringify!($name), NAMES, Types)
                }
            }

            const NAMES: &[&str] = &[$($registered),*];

            struct Types;

            impl<'de> de::Visitor<'de> for Types {
                type Value = $name;

                fn expecting(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.write_str("an interface value")
                }

                fn visit_enum<A: de::EnumAccess<'de>>(
                    self,
                    data: A,
                ) -> ::core::result::Result<$name, A::Error> {
                    let types = &[$(($registered, Type::$variant)),*];
                    match data.variant_seed(Variant { types, names: NAMES })? {
                        $((Type::$variant, value) => {
                            de::VariantAccess::newtype_variant(value).map($name::$variant)
                        })*
                    }
                }
            }
        };
    )*};
}

/// Deserializes the name of a field; `None` is an unknown field. For the macros' expansion.
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

/// Deserializes the name of a registered type. For the macros' expansion.
#[derive(Clone, Copy, Debug)]
pub struct Variant<'v, T> {
    /// The types, by name.
    pub types: &'v [(&'static str, T)],
    /// The names, for the error of an unknown name.
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
        f.write_str("the name of a registered type")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        let mut known = self.types.iter();
        let found = known.find(|(known, _)| *known == name);
        found
            .map(|(_, ty)| *ty)
            .ok_or_else(|| E::unknown_variant(name, self.names))
    }
}
