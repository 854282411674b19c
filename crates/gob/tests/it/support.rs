//! Functions that all tests use.

use std::fmt::Debug;

use gob::{DecodeError, Decoder, Encoder, GobType, Limits};
use serde::{Serialize, de::DeserializeOwned};

/// Sufficient for all streams in these tests.
pub(crate) const LIMITS: Limits = Limits {
    value_messages: 1000,
    types: 1000,
    definition_bytes: 1 << 20,
    fields: 100,
    name_bytes: 1000,
    interface_depth: 8,
    elements: 10_000,
    ..Limits::STRICT
};

/// Parses bytes in hex digits and `"text"`; spaces are ignored.
#[track_caller]
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        if index % 2 == 1 {
            bytes.extend(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part
            .chars()
            .filter_map(|digit| digit.to_digit(16))
            .map(|digit| digit as u8)
            .collect();
        assert_eq!(digits.len() % 2, 0, "odd number of digits in {part:?}");
        bytes.extend(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]));
    }
    bytes
}

/// Returns a decoder with these bytes as input.
pub(crate) fn decoder(bytes: &[u8]) -> Decoder {
    let mut decoder = Decoder::new(LIMITS);
    decoder.handle_input(bytes).unwrap();
    decoder
}

/// Returns the next value, which must be complete.
#[track_caller]
pub(crate) fn next<T: DeserializeOwned>(decoder: &mut Decoder) -> T {
    decoder.poll_value().unwrap().expect("a complete value")
}

/// Decodes the only value of a stream.
#[track_caller]
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut decoder = decoder(bytes);
    let value = decoder.poll_value()?.expect("a complete value");
    assert!(decoder.is_between_values());
    Ok(value)
}

/// Encodes a value on a new stream.
#[track_caller]
pub(crate) fn encode<T: GobType + Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::new().encode(value, &mut bytes).unwrap();
    bytes
}

/// Checks that a value survives encoding and decoding.
#[track_caller]
pub(crate) fn check_round_trip<T: GobType + Serialize + DeserializeOwned + PartialEq + Debug>(
    value: &T,
) {
    assert_eq!(decode::<T>(&encode(value)).as_ref(), Ok(value));
}

/// Returns the text of an error with its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
