//! [`gob_struct!`](crate::gob_struct) and [`gob_interface!`](crate::gob_interface): a wire type declared once.

/// Declares structs with their Go names: the Rust type, its serde implementations and its
/// [`GobType`](crate::GobType).
///
/// Every field is optional when decoding, as gob leaves out what is zero. The structs are `Clone`, `Debug`,
/// `Default` and `PartialEq`; attributes, further derives among them, pass through. The crate must be known as
/// `gob` where the macro is used.
///
/// ```
/// use std::collections::BTreeMap;
///
/// gob::gob_struct! {
///     /// A list that refers to itself.
///     #[derive(Eq)]
///     pub struct Step as "CanaryStep" {
///         /// `*int32` in Go.
///         pub weight: Option<i32> as "SetWeight",
///         pub plugins: BTreeMap<String, gob::Bytes> as "Plugins",
///         pub next: Option<Box<Step>> as "Next",
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
                $field_visibility:vis $field:ident: $type:ty as $go_field:literal
            ),* $(,)?
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(
            Clone, Debug, Default, PartialEq,
            $crate::__private::serde::Serialize, $crate::__private::serde::Deserialize,
        )]
        #[serde(crate = "gob::__private::serde", default)]
        $visibility struct $name {
            $(
                $(#[$field_attribute])*
                #[serde(rename = $go_field)]
                $field_visibility $field: $type,
            )*
        }

        impl $crate::GobType for $name {
            fn describe(schema: &mut $crate::Schema) -> $crate::SchemaRef {
                schema.structure::<Self>(
                    $go_name,
                    &[$(($go_field, <$type as $crate::GobType>::describe)),*],
                )
            }
        }
    )*};
}

/// Declares a Go interface as an enum of its registered types. A field or argument of interface type is then an
/// `Option` of the enum; `None` is nil.
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
        #[derive(
            Clone, Debug, PartialEq,
            $crate::__private::serde::Serialize, $crate::__private::serde::Deserialize,
        )]
        #[serde(crate = "gob::__private::serde")]
        $visibility enum $name {
            $(
                $(#[$variant_attribute])*
                #[serde(rename = $registered)]
                $variant($type),
            )*
        }

        impl $crate::GobType for $name {
            fn describe(schema: &mut $crate::Schema) -> $crate::SchemaRef {
                schema.interface::<Self>(&[$(($registered, <$type as $crate::GobType>::describe)),*])
            }
        }
    )*};
}
