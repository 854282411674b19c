//! `api_struct!`: a type of the API declared once, for gob and for JSON.

/// Declares structs with the names that their fields have in Go and in JSON.
///
/// Every field is optional when decoding, and null in JSON counts as absent, as it does in Go.
macro_rules! api_struct {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident as $go_name:literal {
            $(
                $(#[$field_attribute:meta])*
                pub $field:ident: $type:ty as $go_field:literal / $json_field:literal
            ),* $(,)?
            $(;
                $(#[$own_attribute:meta])*
                pub $own:ident: $own_type:ty $(,)?
            )?
        }
    )*) => {
        gob::gob_struct! {$(
            $(#[$attribute])*
            #[derive(Eq)]
            pub struct $name as $go_name {
                $(
                    $(#[$field_attribute])*
                    pub $field: $type as $go_field / $json_field
                ),*
                $(;
                    $(#[$own_attribute])*
                    pub $own: $own_type
                )?
            }
        )*}
    };
}

pub(crate) use api_struct;
