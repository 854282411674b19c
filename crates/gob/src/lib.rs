//! Go's `encoding/gob` for serde.
//!
//! A [`Decoder`] decodes bytes to values, and an [`Encoder`] encodes values to bytes. Neither does I/O. The decoder's [`Limits`] bound
//! everything that a peer controls.
//!
//! A gob stream is self-describing: the definition of a type precedes its first value, with an id that each value of the type repeats.
//! Values contain no field names, only the distance to the next field that is not zero.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use gob::{Decoder, Encoder, Limits};
//!
//! gob::gob_struct! {
//!     pub struct RpcError as "RpcError" {
//!         pub error_string: String as "ErrorString",
//!     }
//! }
//!
//! let mut bytes = Vec::new();
//! Encoder::new().encode(&RpcError { error_string: "boom".into() }, &mut bytes)?;
//!
//! let definition = [
//!     b"\x26" as &[u8],                     // a message of 38 bytes
//!     b"\xff\x81",                          // id -65: the definition of type 65
//!     b"\x03",                              // a wireType with field 2 set, StructT
//!     b"\x01\x01\x08RpcError\x01\xff\x82\0", //   its name and its id again
//!     b"\x01\x01",                          //   its fields, one element:
//!     b"\x01\x0bErrorString\x01\x0c\0",     //     name, and type 6: string
//!     b"\0\0",                              //   end of StructT, end of wireType
//! ];
//! let value = [
//!     b"\x09" as &[u8], // a message of 9 bytes
//!     b"\xff\x82",      // id 65: a value of type 65
//!     b"\x01\x04boom",  // one field ahead, from -1 to 0: a string of 4 bytes
//!     b"\0",            // no more fields
//! ];
//! assert_eq!(bytes, [definition.concat(), value.concat()].concat());
//!
//! let mut decoder = Decoder::new(Limits::STRICT);
//! let (first, rest) = bytes.split_at(40);
//! decoder.handle_input(first)?;
//! assert!(decoder.poll_value::<RpcError>()?.is_none());
//! decoder.handle_input(rest)?;
//! let error = decoder.poll_value::<RpcError>()?;
//! assert_eq!(error.map(|error| error.error_string).as_deref(), Some("boom"));
//! # Ok(())
//! # }
//! ```
//!
//! Sources: Go's `encoding/gob` (doc.go, encode.go, decode.go, type.go) and the output of Go 1.26. Where doc.go and the code differ,
//! this crate follows the code: the zero byte of a top-level value that is not a struct precedes the value.
#![doc = include_str!("../README.md")]

pub use decode::Decoder;
pub use encode::Encoder;
pub use error::{DecodeError, EncodeError, Fault};
pub use limits::Limits;
pub use raw::{LazyVec, Raw, WithRaw};
pub use schema::{Describe, GobType, Schema, SchemaRef};
pub use values::{Bytes, Time};

mod compatible;
mod declare;
mod decode;
mod definition;
mod encode;
mod error;
mod limits;
mod raw;
mod schema;
mod values;
mod wire;

// For the expansion of the macros in a crate that does not depend on serde.
#[doc(hidden)]
pub mod __private {
    pub use serde;

    pub use crate::declare::{Name, Variant};
}
