//! Invalid streams and exceeded limits: the error is permanent, and no allocation depends on a length that the peer only announced.

use gob::{DecodeError, Decoder, GobType, Limits};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

use crate::{go_types::*, support::*};

#[track_caller]
fn drain<T: DeserializeOwned>(limits: Limits, stream: &[u8]) -> Result<(), DecodeError> {
    let mut decoder = Decoder::new(limits);
    decoder.handle_input(stream)?;
    loop {
        match decoder.poll_value::<T>() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(error) => {
                if error.is_fatal() {
                    assert_eq!(decoder.poll_value::<IgnoredAny>().unwrap_err(), error);
                    assert_eq!(decoder.handle_input(b"more").unwrap_err(), error);
                }
                return Err(error);
            }
        }
    }
}

/// Checks that the stream is corrupt at this position and for this reason, whether its values are decoded or skipped.
#[track_caller]
fn check<T: DeserializeOwned>(stream: &str, expected: &str) {
    for error in [
        drain::<T>(LIMITS, &hex(stream)),
        drain::<IgnoredAny>(LIMITS, &hex(stream)),
    ] {
        let error = error.unwrap_err();
        assert!(error.is_fatal());
        assert_eq!(
            chain(&error),
            format!("gob stream is corrupt at byte {expected}")
        );
    }
}

/// Checks that the value needs exactly `needed` of a limit, whether it is decoded or skipped.
#[track_caller]
fn check_limit<T: GobType + Serialize + DeserializeOwned>(
    value: &T,
    limit: fn(&mut Limits) -> &mut usize,
    needed: usize,
    what: &str,
) {
    let stream = encode(value);
    let mut limits = LIMITS;
    *limit(&mut limits) = needed;
    assert_eq!(drain::<T>(limits.clone(), &stream), Ok(()));
    assert_eq!(drain::<IgnoredAny>(limits.clone(), &stream), Ok(()));
    *limit(&mut limits) = needed - 1;
    for error in [
        drain::<T>(limits.clone(), &stream),
        drain::<IgnoredAny>(limits, &stream),
    ] {
        let error = error.unwrap_err();
        assert!(error.is_fatal());
        let reason = format!(": more than {} {what}", needed - 1);
        assert!(chain(&error).ends_with(&reason), "{}", chain(&error));
    }
}

#[test]
fn framing() {
    check::<i64>("00", "0: message is empty");
    check::<i64>("80", "0: 0x80 is not the first byte of an integer");
    check::<i64>("f7", "0: 0xf7 is not the first byte of an integer");
    check::<i64>("03 04 00 02 00", "4: message is empty");
    check::<i64>("fc 7fffffff", "0: more than 1048576 bytes in one message");
    check::<i64>(
        "f8 ffffffffffffffff",
        "0: more than 1048576 bytes in one message",
    );
}

#[test]
fn truncated_values() {
    check::<i64>("01 04", "2: message ends inside a value");
    check::<i64>("02 04 00", "3: message ends inside a value");
    check::<i64>("03 04 00 ff", "3: message ends inside a value");
    check::<String>("05 0c 00 03 6162", "4: message ends inside a value");
    check::<String>(
        "0b 0c 00 f8ffffffffffffffff",
        "12: message ends inside a value",
    );
    check::<f64>("04 08 00 fe31", "3: message ends inside a value");
    check::<(f64, f64)>("03 0e 00 00", "4: message ends inside a value");
    check::<Option<Any>>("05 10 00 04 \"Le\"", "4: message ends inside a value");
}

#[test]
fn trailing_bytes() {
    check::<i64>("05 04 00 02 0000", "4: 2 bytes follow a complete value");
    check::<Option<Any>>("04 10 00 00 00", "4: 1 bytes follow a complete value");
    check::<()>(
        "0a ff81 03 01 02 ff82 00 00 00 04 ff82 00 00",
        "15: 1 bytes follow a complete value",
    );
}

#[test]
fn values_without_the_zero_byte() {
    check::<i64>("03 04 01 02", "3: value is not preceded by a zero byte");
    check::<Option<Any>>(
        r#"0a 10 00 03 "int" 04 02 01 54"#,
        "10: value is not preceded by a zero byte",
    );
}

#[test]
fn type_ids() {
    check::<i64>("02 00 00", "2: type id 0 is reserved or out of range");
    check::<i64>("02 12 00", "2: type id 9 is reserved or out of range");
    check::<i64>("02 20 00", "2: type id 16 is reserved or out of range");
    check::<i64>("03 ff82 00", "3: type id 65 is not defined");
    // A type that is defined twice.
    check::<i64>(
        "0a ff81 03 01 02 ff82 00 00 00 0a ff81 03 01 02 ff82 00 00 00",
        "22: type id 65 is defined twice",
    );
    // Definitions with the id of a basic type, of gob's own types, and above 32 bits.
    check::<i64>(
        "08 0f 03 01 02 10 00 00 00",
        "9: type id 8 is reserved or out of range",
    );
    check::<i64>(
        "08 7d 03 01 02 7e 00 00 00",
        "9: type id 63 is reserved or out of range",
    );
    check::<i64>(
        "0d fb 0100000001 03 01 02 02 00 00 00",
        "14: type id 2147483649 is reserved or out of range",
    );
    check::<i64>(
        "10 f8 ffffffffffffffff 03 01 02 02 00 00 00",
        "17: type id 9223372036854775807 is reserved or out of range",
    );
    // A slice whose element type is reserved, absent or undefined.
    check::<i64>(
        "0c ff81 02 01 02 ff82 00 01 24 00 00",
        "12: type id 18 is reserved or out of range",
    );
    check::<i64>(
        "0a ff81 02 01 02 ff82 00 00 00",
        "10: type id 0 is reserved or out of range",
    );
    check::<Vec<i64>>(
        "0d ff81 02 01 02 ff82 00 01 ff84 00 00  05 ff82 00 01 02",
        "19: type id 66 is not defined",
    );
}

#[test]
fn definitions() {
    check::<i64>("03 ff81 00", "4: type definition sets no kind of type");
    check::<i64>(
        "12 ff81 02 01 02 ff82 00 01 04 00 03 01 02 02 00 00 00",
        "18: type definition sets more than one kind of type",
    );
    check::<i64>(
        "04 ff81 08 00",
        "4: type definition has a field Go's wireType does not have",
    );
    check::<i64>(
        "0f ff81 03 01 02 ff82 00 01 01 02 04 00 00 00",
        "14: type definition has a field without a name",
    );
    check::<i64>(
        "0e ff81 01 01 02 ff82 00 01 04 01 01 00 00",
        "14: type definition has a negative length",
    );
    check::<i64>(
        "0c ff81 03 01 01 01 ff 01 ff82 00 00 00",
        "8: type definition has a name that is not UTF-8",
    );
    check::<i64>(
        "0b ff81 03 01 02 ff82 00 00 00 00",
        "11: 1 bytes follow a complete value",
    );
}

#[test]
fn struct_fields() {
    const DEFINE: &str = r#"12 ff81 03 01 02 ff82 00 01 01 01 01 "X" 01 04 00 00 00"#;
    let check =
        |value: &str, expected: &str| check::<Inner>(&format!("{DEFINE} {value}"), expected);
    check(
        "05 ff82 01 02 02",
        "25: struct value has more fields than its type, which has 1",
    );
    check(
        "04 ff82 02 02",
        "23: struct value has more fields than its type, which has 1",
    );
    check(
        "0b ff82 f8ffffffffffffffff",
        "31: struct value has more fields than its type, which has 1",
    );
    // Go accepts the end of a message as the end of a struct; this decoder does not.
    check("04 ff82 01 02", "24: message ends inside a value");
}

#[test]
fn counts() {
    check::<[i64; 3]>(
        "0e ff81 01 01 02 ff82 00 01 04 01 06 00 00  06 ff82 00 02 00 00",
        "20: array value has 2 elements, its type 3",
    );
    const SLICE_OF_EMPTY: &str =
        "0a ff83 03 01 02 ff84 00 00 00  0d ff81 02 01 02 ff82 00 01 ff84 00 00";
    check::<Vec<()>>(
        &format!("{SLICE_OF_EMPTY} 0c ff82 00 f8ffffffffffffffff"),
        "38: message ends inside a value",
    );
    check::<Vec<()>>(
        &format!("{SLICE_OF_EMPTY} 05 ff82 00 02 00"),
        "31: message ends inside a value",
    );
    check::<std::collections::BTreeMap<i64, i64>>(
        "0e ff81 04 01 02 ff82 00 01 04 01 04 00 00  06 ff82 00 02 02 02",
        "22: message ends inside a value",
    );
}

#[test]
fn a_slice_of_itself_that_is_too_deep() {
    let mut stream = hex("0d ff81 02 01 02 ff82 00 01 ff82 00 00  fe 03eb ff82 00");
    stream.resize(stream.len() + 1000, 1);
    for error in [
        drain::<Nest>(LIMITS, &stream),
        drain::<IgnoredAny>(LIMITS, &stream),
    ] {
        let error = error.unwrap_err();
        assert!(error.is_fatal());
        assert!(chain(&error).ends_with("more than 64 levels in one value"));
    }
}

#[test]
fn an_announced_message_is_not_allocated_before_it_arrives() {
    let mut decoder = decoder(&hex("fd 0fffff"));
    assert_eq!(decoder.poll_value::<i64>(), Ok(None));
    assert!(!decoder.is_between_values());
}

#[test]
fn limits_are_exact() {
    check_limit(
        &"x".repeat(100),
        |limits| &mut limits.message_bytes,
        103,
        "bytes in one message",
    );
    // Rollout, ObjectMeta, Time, RolloutSpec, []CanaryStep, CanaryStep, RolloutPause, TrafficRouting, the map.
    check_limit(
        &demo(),
        |limits| &mut limits.types,
        9,
        "types on one stream",
    );
    check_limit(
        &RpcError::default(),
        |limits| &mut limits.definition_bytes,
        36,
        "bytes of type definitions",
    );
    check_limit(
        &Zeros::default(),
        |limits| &mut limits.fields,
        22,
        "fields in one struct",
    );
    check_limit(
        &RpcError::default(),
        |limits| &mut limits.name_bytes,
        11,
        "bytes in one name",
    );
    // Rollout, Spec, Steps, CanaryStep, Pause.
    check_limit(
        &demo(),
        |limits| &mut limits.depth,
        5,
        "levels in one value",
    );
}

/// Checks that the value needs `needed` elements. With a lower limit only this value fails, and it can still be skipped.
#[track_caller]
fn check_elements<T: GobType + Serialize + DeserializeOwned>(value: &T, needed: usize) {
    let limits = |elements| Limits { elements, ..LIMITS };
    let stream = [encode(value), encode(&7i64)].concat();
    assert_eq!(drain::<T>(limits(needed), &encode(value)), Ok(()));
    assert_eq!(drain::<IgnoredAny>(limits(0), &stream), Ok(()));

    let mut decoder = Decoder::new(limits(needed - 1));
    decoder.handle_input(&stream).unwrap();
    let error = decoder.poll_value::<T>().map(drop).unwrap_err();
    assert!(!error.is_fatal());
    let reason = format!(": more than {} elements in one value", needed - 1);
    assert!(chain(&error).ends_with(&reason), "{}", chain(&error));
    assert_eq!(decoder.poll_value(), Ok(Some(7i64)));
}

#[test]
fn only_decoded_elements_are_limited() {
    check_elements(&vec![1i64, 2, 3], 3);
    // Three steps and a map entry.
    check_elements(&demo(), 4);
}

#[test]
fn limits_of_interface_values() {
    let nested = |depth: i64| {
        (0..depth).fold(None, |inner: Option<Any>, n| {
            Some(Any::Leaf(Leaf {
                n,
                inner: inner.map(Box::new),
            }))
        })
    };
    check_limit(
        &nested(3),
        |limits| &mut limits.interface_depth,
        3,
        "interface values inside one another",
    );
    check_limit(
        &nested(3),
        |limits| &mut limits.depth,
        6,
        "levels in one value",
    );
    check_limit(
        &nested(1),
        |limits| &mut limits.name_bytes,
        5,
        "bytes in one name",
    );
    check_limit(
        &Some(Any::Int(1)),
        |limits| &mut limits.name_bytes,
        3,
        "bytes in one name",
    );
    // One message ends with the definition of Leaf, and one has the rest of the value.
    check_limit(
        &nested(1),
        |limits| &mut limits.value_messages,
        2,
        "messages in one value",
    );
}

#[test]
fn the_messages_of_one_value_share_a_limit() {
    // Each of two messages is longer than 60 bytes, and together they exceed 120.
    let list = vec![
        Some(Any::Numbers(vec![1; 60])),
        Some(Any::Flags([("x".repeat(60), true)].into())),
    ];
    let drain = |message_bytes| {
        let limits = Limits {
            message_bytes,
            ..LIMITS
        };
        drain::<IgnoredAny>(limits, &encode(&list))
    };
    assert_eq!(drain(160), Ok(()));
    let error = drain(120).unwrap_err();
    assert!(error.is_fatal());
    assert!(
        chain(&error).ends_with(": more than 120 bytes in one value"),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_long_registered_name() {
    let name = "x".repeat(1001);
    let stream = format!(
        r#"fe {:04x} 10 00 fe 03e9 "{name}" 04 02 00 54"#,
        2 + 3 + 1001 + 4
    );
    check::<Option<Any>>(&stream, "1009: more than 1000 bytes in one name");
}
