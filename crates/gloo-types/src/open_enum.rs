//! Enums of the API that keep a value they do not know.

/// Declares a string enum with an `Other` variant for values newer than this crate.
///
/// The variant marked `default` is what proto3 leaves out of the JSON.
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
            /// A value this crate does not know, as written.
            Other(String),
        }

        impl $name {
            /// The value as the API writes it.
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
                    // proto3 cannot tell the default from an empty string.
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

            // No `enum` list: a newer Gloo may know more values than we do.
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string" })
            }
        }
    };
}

pub(crate) use open_enum;
