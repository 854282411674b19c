//! Values that do not fit their Rust type or cannot be encoded: the value fails, and the stream continues.

use std::{collections::BTreeMap, fmt::Debug, sync::OnceLock};

use gob::{
    Bytes, EncodeError, Encoder, GobType, Schema, SchemaRef, Time, gob_interface, gob_struct,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};

use crate::{go_types::*, support::*};

/// Checks that `value` does not decode as `T`, for this reason, and that the stream continues with all types of `value` known.
#[track_caller]
fn check<T: DeserializeOwned + Debug>(value: &(impl GobType + Serialize), expected: &str) {
    let mut encoder = Encoder::new();
    let mut bytes = Vec::new();
    encoder.encode(value, &mut bytes).unwrap();
    encoder.encode(value, &mut bytes).unwrap();
    encoder.encode(&42i64, &mut bytes).unwrap();

    let mut decoder = decoder(&bytes);
    for _ in 0..2 {
        let error = decoder.poll_value::<T>().unwrap_err();
        assert_eq!(chain(&error), expected);
        assert!(!error.is_fatal());
    }
    assert_eq!(next::<i64>(&mut decoder), 42);
}

#[test]
fn wrong_kind_of_value() {
    check::<String>(
        &7i64,
        "gob value does not fit: expected a string, found integer `7`",
    );
    check::<i64>(
        &"7".to_owned(),
        "gob value does not fit: expected an int64, found a string",
    );
    check::<bool>(
        &7i64,
        "gob value does not fit: expected a bool, found integer `7`",
    );
    check::<RpcError>(
        &7i64,
        "gob value does not fit: expected struct RpcError, found integer `7`",
    );
    check::<RpcError>(
        &vec![String::new()],
        "gob value does not fit: expected struct RpcError, found a slice",
    );
    check::<RpcError>(
        &BTreeMap::from([("ErrorString".to_owned(), String::new())]),
        "gob value does not fit: expected struct RpcError, found a map",
    );
    check::<RpcError>(
        &[0i64; 2],
        "gob value does not fit: expected struct RpcError, found an array",
    );
    check::<RpcError>(
        &(1.0f64, 2.0f64),
        "gob value does not fit: expected struct RpcError, found a complex number",
    );
    check::<Vec<String>>(
        &RpcError::default(),
        "gob value does not fit: expected a slice, found a struct or a map",
    );
    check::<Argument>(
        &RpcError::default(),
        "gob value does not fit: expected an interface value, found a struct or a map",
    );
    check::<Bytes>(
        &7i64,
        "gob value does not fit: expected bytes, found integer `7`",
    );
    check::<Time>(
        &RpcError::default(),
        "gob value does not fit: expected a Go time.Time, found a struct or a map",
    );
}

#[test]
fn integers_out_of_range() {
    check::<i32>(
        &(1i64 << 31),
        "gob value does not fit: expected an int32, found integer `2147483648`",
    );
    check::<u32>(
        &-1i64,
        "gob value does not fit: expected a uint32, found integer `-1`",
    );
    check::<i64>(
        &u64::MAX,
        "gob value does not fit: expected an int64, found integer `18446744073709551615`",
    );
}

#[test]
fn the_path_leads_to_the_field() {
    gob_struct! {
        struct WideStep as "CanaryStep" {
            set_weight: i64 as "SetWeight",
        }

        struct WideSpec as "Spec" {
            steps: Vec<WideStep> as "Steps",
        }

        struct WideRollout as "Rollout" {
            spec: WideSpec as "Spec",
            after: String as "After",
        }
    }
    let wide = WideRollout {
        spec: WideSpec {
            steps: vec![
                WideStep::default(),
                WideStep {
                    set_weight: 1 << 40,
                },
            ],
        },
        after: "more".into(),
    };
    check::<Rollout>(
        &wide,
        "gob value does not fit at Spec.Steps[1].SetWeight: expected an int32, found integer `1099511627776`",
    );
    check::<Vec<Vec<i8>>>(
        &vec![vec![1i64], vec![2, 300]],
        "gob value does not fit at [1][1]: expected an int8, found integer `300`",
    );
}

#[test]
fn a_field_without_default_is_missing() {
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Strict {
        #[expect(dead_code, reason = "the test reads only the error")]
        error_string: String,
    }
    check::<Strict>(
        &RpcError::default(),
        "gob value does not fit: missing field `ErrorString`",
    );
}

#[test]
fn interface_values_of_unknown_types() {
    gob_interface! {
        enum Foreign {
            Run(Rollout) as "step.RunArgs",
        }
    }
    // The definitions are inside the first value, and known for the second one.
    check::<Option<Argument>>(
        &Some(Foreign::Run(demo())),
        "gob value does not fit: unknown variant `step.RunArgs`, expected \
         `SetWeightAndVerifyWeightArgs` or `UpdateHashArgs`",
    );
    check::<Argument>(
        &None::<Argument>,
        "gob value does not fit: expected an interface value, found nil",
    );
    gob_interface! {
        enum Lookalike {
            SetWeight(WeightDestination) as "UpdateHashArgs",
            Number(i64) as "SetWeightAndVerifyWeightArgs",
        }
    }
    check::<Option<Argument>>(
        &Some(Lookalike::Number(7)),
        "gob value does not fit: expected struct SetWeightAndVerifyWeightArgs, found integer `7`",
    );
}

#[test]
fn a_slice_of_the_wrong_length() {
    check::<(i64, i64)>(
        &vec![1i64, 2, 3],
        "gob value does not fit: 1 elements more than expected",
    );
    check::<(i64, i64)>(
        &vec![1i64],
        "gob value does not fit: invalid length 1, expected a tuple of size 2",
    );
}

#[test]
fn a_visitor_that_stops_early_is_an_error() {
    /// Reads only the first field or entry.
    #[derive(Debug)]
    struct First;
    impl<'de> Deserialize<'de> for First {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Self)
        }
    }
    impl<'de> Visitor<'de> for First {
        type Value = Self;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("anything")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
            map.next_entry::<String, IgnoredAny>()?;
            Ok(self)
        }
    }
    let map = BTreeMap::from([("a".to_owned(), 1i64), ("b".to_owned(), 2)]);
    check::<Vec<First>>(
        &vec![map],
        "gob value does not fit at [0]: 1 elements more than expected",
    );
    let destination = WeightDestination {
        weight: 1,
        service_name: "s".into(),
        ..WeightDestination::default()
    };
    check::<Vec<First>>(
        &vec![destination],
        "gob value does not fit at [0]: more fields than expected",
    );
}

#[test]
fn invalid_times() {
    #[derive(Clone, Serialize)]
    struct FakeTime(Bytes);
    impl GobType for FakeTime {
        fn describe(schema: &mut Schema) -> SchemaRef {
            schema.gob_encoder::<Self>("Time", b"")
        }
    }
    for bytes in [
        "",
        "01",
        "03 0000000e7791f700 00000000 ffff",
        "01 0000000e7791f700 00000000 ffff 00",
        "02 0000000e7791f700 00000000 ffff",
        "01 8000000000000000 00000000 ffff",
        "01 0000000e7791f700 3b9aca00 ffff",
    ] {
        check::<Time>(
            &FakeTime(Bytes(hex(bytes))),
            "gob value does not fit: expected a Go time.Time, found bytes",
        );
    }
}

#[test]
fn an_error_contains_no_text_of_the_value() {
    let secret = || "hunter2".to_owned();
    for error in [
        decode::<i64>(&encode(&secret())).unwrap_err(),
        decode::<i64>(&encode(&Bytes(secret().into_bytes()))).unwrap_err(),
        decode::<RpcError>(&encode(&BTreeMap::from([(secret(), secret())]))).unwrap_err(),
    ] {
        assert!(
            !format!("{error:?} {}", chain(&error)).contains("hunter2"),
            "{error}"
        );
    }
}

#[test]
fn an_error_is_one_line_of_limited_length() {
    let name = "x\ny".repeat(100);
    let stream = hex(&format!(
        r#"fe {:04x} 10 00 fe 012c "{name}" 06 02 00 07"#,
        2 + 3 + name.len() + 4
    ));
    let error = decode::<Option<Argument>>(&stream).unwrap_err();
    assert!(!error.is_fatal());
    assert!(!error.to_string().contains('\n'));
    assert!(error.to_string().len() < 400, "{error}");
}

#[test]
fn a_value_that_gob_cannot_represent_leaves_the_stream_unchanged() {
    let mut encoder = Encoder::new();
    let mut bytes = b"before".to_vec();
    // The encoder has written the definitions of Other and its slice when it meets the None.
    gob_struct! {
        struct Holes as "Holes" {
            any: Option<Any> as "Any",
            holes: Vec<Option<i64>> as "Holes",
        }
    }
    let mut value = Holes {
        any: Some(Any::Other(Other::default())),
        holes: vec![Some(1), None],
    };
    assert_eq!(encoder.encode(&value, &mut bytes), Err(EncodeError::Nil));
    assert_eq!(bytes, b"before");

    bytes.clear();
    value.holes.pop();
    encoder.encode(&value, &mut bytes).unwrap();
    assert_eq!(decode::<Holes>(&bytes), Ok(value));
}

#[test]
fn serialize_and_description_disagree() {
    #[derive(Serialize)]
    struct Liar<T>(T);
    impl<T: 'static> GobType for Liar<T> {
        fn describe(schema: &mut Schema) -> SchemaRef {
            schema.structure::<Self>("Liar", &[("A", i64::describe)])
        }
    }
    #[track_caller]
    fn check_error(value: &(impl GobType + Serialize), expected: &str) {
        assert_eq!(
            Encoder::new()
                .encode(value, &mut Vec::new())
                .unwrap_err()
                .to_string(),
            expected
        );
    }
    #[derive(Serialize)]
    enum Shape {
        Pair(i64, i64),
        Named { width: i64 },
    }
    check_error(&Liar(7i64), "a signed integer cannot be sent as gob struct");
    check_error(&Liar('x'), "a char cannot be sent as gob struct");
    check_error(
        &Liar(Shape::Pair(1, 2)),
        "an enum variant of several values cannot be sent as gob struct",
    );
    check_error(
        &Liar(Shape::Named { width: 1 }),
        "an enum variant with fields cannot be sent as gob struct",
    );
    check_error(&Liar(Inner::default()), "gob struct Liar has no field X");
    check_error(
        &None::<Inner>,
        "gob cannot send nil here: only a struct field or an interface can be nil",
    );
    check_error(
        &Time {
            nanos: 1_000_000_000,
            ..Time::default()
        },
        "nanoseconds exceed one second",
    );
    check_error(
        &Time {
            offset_seconds: Some(-60),
            ..Time::default()
        },
        "an offset of minus one minute means UTC to Go",
    );
}

fn header(seq: u64) -> Request {
    Request {
        service_method: "Plugin.Run".to_owned(),
        seq,
    }
}

/// A time that Go cannot represent.
fn broken() -> Time {
    let mut time = Time::from_unix(1);
    time.nanos = 2_000_000_000;
    time
}

#[test]
fn a_header_is_removed_if_its_body_cannot_be_encoded() {
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

/// A type that keeps the reference of the first schema, which is not allowed.
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
fn a_type_of_another_encoder_is_an_error() {
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
