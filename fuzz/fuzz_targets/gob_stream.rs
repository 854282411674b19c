//! Any gob stream: decoded in one piece and in several, skipped and decoded into types, and encoded again.

#![no_main]

use std::fmt::Debug;

use gob::{DecodeError, Decoder, Encoder, GobType, Limits};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use go_types::{Argument, Container, Kinds, Left, Nest, Opaque, Strings, Tree, Zeros};

#[allow(dead_code, reason = "only the tests use its values")]
#[path = "../../crates/gob/tests/it/go_types.rs"]
mod go_types;

const LIMITS: Limits = Limits {
    message_bytes: 1 << 20,
    value_messages: 1000,
    types: 1000,
    definition_bytes: 1 << 20,
    fields: 100,
    name_bytes: 1000,
    depth: 64,
    interface_depth: 4,
    elements: 10_000,
    ..Limits::STRICT
};

fuzz_target!(|input: &[u8]| {
    fuzz::within_memory(|| {
        let skipped = decode::<IgnoredAny>(input, input.len());
        let (values, error) = &skipped;
        let by_pieces = decode::<IgnoredAny>(input, 1 + input.len() % 7);
        assert_eq!((values.len(), error), (by_pieces.0.len(), &by_pieces.1));
        check::<Option<Argument>>(input, &skipped);
        check::<Container>(input, &skipped);
        check::<Kinds>(input, &skipped);
        check::<Zeros>(input, &skipped);
        check::<Opaque>(input, &skipped);
        check::<Strings>(input, &skipped);
        check::<Tree>(input, &skipped);
        check::<Left>(input, &skipped);
        check::<Nest>(input, &skipped);
        check::<Vec<String>>(input, &skipped);
        check::<i64>(input, &skipped);
    });
});

/// The values of a stream (`None` for one that does not fit the type), and the error that ended the stream.
type Decoded<T> = (Vec<Option<T>>, Option<DecodeError>);

fn decode<T: DeserializeOwned>(input: &[u8], piece: usize) -> Decoded<T> {
    let mut decoder = Decoder::new(LIMITS);
    let mut values = Vec::new();
    for piece in input.chunks(piece.max(1)) {
        if let Err(error) = decoder.handle_input(piece) {
            return (values, Some(error));
        }
        loop {
            match decoder.poll_value() {
                Ok(Some(value)) => values.push(Some(value)),
                Ok(None) => break,
                Err(DecodeError::Mismatch { .. }) => values.push(None),
                Err(error) => return (values, Some(error)),
            }
        }
    }
    (values, None)
}

/// Decodes the stream into `T`. The number of values and the error must not depend on the type. Encoding the values,
/// decoding the result and encoding it again must give the same bytes.
fn check<T>(input: &[u8], skipped: &Decoded<IgnoredAny>)
where
    T: DeserializeOwned + Serialize + GobType + Debug,
{
    let (values, error) = decode::<T>(input, input.len());
    assert_eq!((values.len(), &error), (skipped.0.len(), &skipped.1));
    let bytes = encode(values.into_iter().flatten());
    let (again, error) = decode::<T>(&bytes, bytes.len());
    assert_eq!(error, None);
    assert_eq!(
        encode(again.into_iter().map(|value| value.expect("fits"))),
        bytes
    );
}

fn encode<T: Serialize + GobType>(values: impl Iterator<Item = T>) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let mut bytes = Vec::new();
    for value in values {
        encoder
            .encode(&value, &mut bytes)
            .expect("decoded from gob");
    }
    bytes
}
