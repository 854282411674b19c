//! A value that cannot be encoded leaves no trace in its stream.

use std::sync::OnceLock;

use gob::{EncodeError, Encoder, GobType, Schema, SchemaRef, Time};
use serde::{Serialize, Serializer};

use crate::{go_types::*, support::*};

fn header(seq: u64) -> Request {
    Request {
        service_method: "Plugin.Run".to_owned(),
        seq,
    }
}

/// Go knows no such time.
fn broken() -> Time {
    let mut time = Time::from_unix(1);
    time.nanos = 2_000_000_000;
    time
}

#[test]
fn a_header_is_taken_back_with_the_body_that_cannot_be_encoded() {
    let (mut encoder, mut bytes) = (Encoder::new(), b"before".to_vec());
    let failed = encoder.atomically(&mut bytes, |encoder, bytes| {
        encoder.encode(&header(0), bytes)?;
        encoder.encode(&broken(), bytes)
    });
    assert!(matches!(failed, Err(EncodeError::Custom(_))), "{failed:?}");
    assert_eq!(bytes, b"before");

    let mut bytes = Vec::new();
    encoder.encode(&header(1), &mut bytes).unwrap();
    assert_eq!(decode::<Request>(&bytes), Ok(header(1)));
}

/// Keeps the reference that the first schema gave it, which no type may do.
#[derive(Debug)]
struct Kept;

impl Serialize for Kept {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RpcError::default().serialize(serializer)
    }
}

impl GobType for Kept {
    fn describe(schema: &mut Schema) -> SchemaRef {
        static FIRST: OnceLock<SchemaRef> = OnceLock::new();
        *FIRST.get_or_init(|| RpcError::describe(schema))
    }
}

#[test]
fn a_type_of_another_encoder_is_an_error_and_no_corrupt_stream() {
    let mut first = Encoder::new();
    first.encode(&Kept, &mut Vec::new()).unwrap();
    for known in [false, true] {
        let (mut other, mut bytes) = (Encoder::new(), Vec::new());
        if known {
            other.encode(&header(0), &mut bytes).unwrap();
        }
        let before = bytes.len();
        let refused = other.encode(&Kept, &mut bytes);
        assert_eq!(refused, Err(EncodeError::ForeignType));
        assert_eq!(bytes.len(), before);
    }
}
