//! Macros that declare the parts of the API: [`views!`] for objects, and [`open_enum!`] for strings.

/// Declares views of objects, in which every field is optional, since unset fields of an object are absent.
macro_rules! views {
    ($($(#[$attribute:meta])* pub struct $name:ident { $($fields:tt)* })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
        #[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase", default)]
        #[non_exhaustive]
        pub struct $name { $($fields)* }
    )*};
}

/// Declares a string enum with an `Other` variant for unknown values.
///
/// The variant marked `default` is the one that proto3 omits in JSON.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(#[$default_meta:meta])* default $default:ident = $default_text:literal,
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
        #[serde(from = "String")]
        pub enum $name {
            #[default]
            $(#[$default_meta])* $default,
            $($(#[$variant_meta])* $variant,)*
            /// An unknown value.
            Other(String),
        }

        impl $name {
            /// The value in JSON.
            pub fn as_str(&self) -> &str {
                match self {
                    Self::$default => $default_text,
                    $(Self::$variant => $text,)*
                    Self::Other(text) => text,
                }
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                match text.as_str() {
                    // proto3 cannot distinguish the default from an empty string.
                    "" | $default_text => Self::$default,
                    $($text => Self::$variant,)*
                    _ => Self::Other(text),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        #[cfg(feature = "crd")]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$default_text, $($text),*] })
            }
        }
    };
}

pub(crate) use {open_enum, views};
