//! Go's `encoding/gob`, sans-io and through serde, in both directions.
//!
//! [`Decoder`] turns bytes into values, [`Encoder`] values into bytes; neither does I/O.

pub use bytes::Bytes;
pub use decode::Decoder;
pub use encode::Encoder;
pub use error::{DecodeError, EncodeError, Fault};
pub use limits::Limits;
pub use schema::{Describe, GobType, Schema, SchemaRef};
pub use time::Time;

mod bytes;
mod declare;
mod decode;
mod definition;
mod encode;
mod error;
mod limits;
mod schema;
mod time;
mod types;
mod wire;

// What the macros' expansion needs in a crate that does not depend on serde itself.
#[doc(hidden)]
pub mod __private {
    pub use serde;
}
