//! Streams in exact bytes, encoded and decoded.

use std::{collections::BTreeMap, fmt::Debug, net::Ipv4Addr};

use gob::{Bytes, Decoder, Encoder, GobType, Schema, SchemaRef, Time, gob_struct};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{go_types::*, support::*};

const DEFINE_REQUEST: &str = r#"
    2f ff81 03 01 01 07 "Request" 01 ff82 00 01 02 01 0d "ServiceMethod" 01 0c 00 01 03 "Seq" 01 06 00 00 00"#;
const DEFINE_RESPONSE: &str = r#"
    3a ff81 03 01 01 08 "Response" 01 ff82 00 01 03 01 0d "ServiceMethod" 01 0c 00 01 03 "Seq" 01 06 00
    01 05 "Error" 01 0c 00 00 00"#;
const DEFINE_EMPTY: &str = "0a ff83 03 01 02 ff84 00 00 00";
const DEFINE_RPC_ERROR: &str =
    r#"26 ff85 03 01 01 08 "RpcError" 01 ff86 00 01 01 01 0b "ErrorString" 01 0c 00 00 00"#;
const DEFINE_VERIFY: &str = r#"
    38 ff87 03 01 01 14 "VerifyWeightResponse" 01 ff88 00 01 02 01 08 "Verified" 01 04 00
    01 03 "Err" 01 ff86 00 00 00"#;

/// Both ends of a stream, for several values in a row.
struct Stream {
    encoder: Encoder,
    decoder: Decoder,
}

impl Stream {
    fn new() -> Self {
        Self {
            encoder: Encoder::new(),
            decoder: Decoder::new(LIMITS),
        }
    }

    /// Checks that the next value on the stream is encoded to these bytes and decoded from them.
    #[track_caller]
    fn check<T>(&mut self, value: T, bytes: &str)
    where
        T: GobType + Serialize + DeserializeOwned + PartialEq + Debug,
    {
        let mut encoded = Vec::new();
        self.encoder.encode(&value, &mut encoded).unwrap();
        assert_eq!(
            encoded,
            hex(bytes),
            "{value:?} is\n{encoded:02x?}, not\n{:02x?}",
            hex(bytes)
        );
        self.decoder.handle_input(&encoded).unwrap();
        assert_eq!(next::<T>(&mut self.decoder), value);
        assert!(self.decoder.is_between_values());
    }
}

/// Checks the bytes of a value on a new stream.
#[track_caller]
fn check<T: GobType + Serialize + DeserializeOwned + PartialEq + Debug>(value: T, bytes: &str) {
    Stream::new().check(value, bytes);
}

fn request(method: &str, seq: u64) -> Request {
    Request {
        service_method: method.into(),
        seq,
    }
}

fn response(method: &str, seq: u64, error: &str) -> Response {
    Response {
        service_method: method.into(),
        seq,
        error: error.into(),
    }
}

#[test]
fn net_rpc_requests() {
    let mut host = Stream::new();
    host.check(
        request("Plugin.InitPlugin", 0),
        &format!(r#"{DEFINE_REQUEST} 16 ff82 01 11 "Plugin.InitPlugin" 00"#),
    );
    host.check(None::<Argument>, "03 10 00 00");
    host.check(
        request("Plugin.SetWeight", 1),
        r#"17 ff82 01 10 "Plugin.SetWeight" 01 01 00"#,
    );
    host.check(
        request("Control.Ping", 2),
        r#"13 ff82 01 0c "Control.Ping" 01 02 00"#,
    );
    host.check(true, "03 02 00 01");
    host.check(
        "RpcTrafficRouterPlugin".to_owned(),
        r#"19 0c 00 16 "RpcTrafficRouterPlugin""#,
    );
}

#[test]
fn net_rpc_replies() {
    let mut plugin = Stream::new();
    plugin.check(
        response("Plugin.Type", 2, ""),
        &format!(r#"{DEFINE_RESPONSE} 12 ff82 01 0b "Plugin.Type" 01 02 00"#),
    );
    plugin.check("Foo".to_owned(), "06 0c 00 03 466f6f");
    plugin.check(String::new(), "03 0c 00 00");
    plugin.check(response("", 0, ""), "03 ff82 00");
    plugin.check((), &format!("{DEFINE_EMPTY} 03 ff84 00"));
    plugin.check((), "03 ff84 00");
    plugin.check(
        response("Plugin.SetWeight", 5, "bad"),
        r#"1c ff82 01 10 "Plugin.SetWeight" 01 05 01 03 "bad" 00"#,
    );
    plugin.check(
        RpcError::default(),
        &format!("{DEFINE_RPC_ERROR} 03 ff86 00"),
    );
    plugin.check(
        RpcError {
            error_string: "boom".into(),
        },
        r#"09 ff86 01 04 "boom" 00"#,
    );
    let verified = |verified, error: &str| VerifyWeightResponse {
        verified,
        err: RpcError {
            error_string: error.into(),
        },
    };
    plugin.check(
        verified(1, ""),
        &format!("{DEFINE_VERIFY} 07 ff88 01 02 01 00 00"),
    );
    plugin.check(verified(2, ""), "07 ff88 01 04 01 00 00");
    plugin.check(verified(0, ""), "05 ff88 02 00 00");
    plugin.check(verified(0, "no"), r#"09 ff88 02 01 02 "no" 00 00"#);
    plugin.check(1u32, "03 06 00 01");
    plugin.check(0i32, "03 04 00 00");
    plugin.check(false, "03 02 00 00");
    plugin.check(true, "03 02 00 01");
}

#[test]
fn integers_and_floats() {
    let ints = [
        (0, "03 04 00 00"),
        (1, "03 04 00 02"),
        (-1, "03 04 00 01"),
        (63, "03 04 00 7e"),
        (-64, "03 04 00 7f"),
        (64, "04 04 00 ff80"),
        (-65, "04 04 00 ff81"),
        (-129, "05 04 00 fe0101"),
        (i64::MIN, "0b 04 00 f8ffffffffffffffff"),
        (i64::MAX, "0b 04 00 f8fffffffffffffffe"),
    ];
    for (value, bytes) in ints {
        check(value, bytes);
    }
    let uints = [
        (127, "03 06 00 7f"),
        (128, "04 06 00 ff80"),
        (256, "05 06 00 fe0100"),
        (u64::MAX, "0b 06 00 f8ffffffffffffffff"),
    ];
    for (value, bytes) in uints {
        check(value, bytes);
    }
    for (value, bytes) in [
        (17.0, "05 08 00 fe3140"),
        (0.0, "03 08 00 00"),
        (-1.0, "05 08 00 fef0bf"),
    ] {
        check(value, bytes);
    }
    check((17.0, -1.0), "08 0e 00 fe3140 fef0bf");
}

#[test]
fn numbers_with_leading_zero_bytes_are_accepted() {
    assert_eq!(decode::<i64>(&hex("05 04 00 fe0002")), Ok(1));
    assert_eq!(decode::<u64>(&hex("ff05 06 00 fe0007")), Ok(7));
}

#[test]
fn any_bool_that_is_not_zero_is_true() {
    assert_eq!(decode::<bool>(&hex("03 02 00 07")), Ok(true));
}

#[test]
fn the_last_of_two_equal_map_keys_is_kept() {
    let stream = hex("0e ff81 04 01 02 ff82 00 01 04 01 04 00 00  08 ff82 00 02 02 02 02 04");
    assert_eq!(
        decode::<BTreeMap<i64, i64>>(&stream),
        Ok(BTreeMap::from([(1, 2)]))
    );
}

#[test]
fn interface_values_of_basic_types() {
    check(Some(Any::Int(42)), r#"0a 10 00 03 "int" 04 02 00 54"#);
    check(
        Some(Any::Text("hey".into())),
        r#"10 10 00 06 "string" 0c 05 00 03 "hey""#,
    );
}

#[test]
fn definitions_of_collections() {
    check(
        vec![1i64],
        "0c ff81 02 01 02 ff82 00 01 04 00 00  05 ff82 00 01 02",
    );
    check(
        [0i64; 3],
        "0e ff81 01 01 02 ff82 00 01 04 01 06 00 00  07 ff82 00 03 00 00 00",
    );
    check(
        BTreeMap::from([("k".to_owned(), Bytes(vec![7]))]),
        r#"0e ff81 04 01 02 ff82 00 01 0c 01 0a 00 00  08 ff82 00 01 01 "k" 01 07"#,
    );
}

/// A Go type whose values are a few known strings.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Phase {
    Running,
}

impl GobType for Phase {
    fn describe(schema: &mut Schema) -> SchemaRef {
        String::describe(schema)
    }
}

#[test]
fn a_variant_without_value_is_its_name() {
    check(Phase::Running, r#"0a 0c 00 07 "Running""#);
}

/// A type with one form for readers and another one for programs.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Address(Ipv4Addr);

impl GobType for Address {
    fn describe(schema: &mut Schema) -> SchemaRef {
        <[u64; 4]>::describe(schema)
    }
}

#[test]
fn a_value_has_its_form_for_programs() {
    check(
        Address(Ipv4Addr::new(1, 2, 3, 4)),
        "0e ff81 01 01 02 ff82 00 01 06 01 08 00 00  08 ff82 00 04 01 02 03 04",
    );
}

#[test]
fn bytes_are_shown_as_text() {
    let bytes = Bytes(b"{\"a\":\xff}".to_vec());
    assert_eq!(format!("{bytes:?}"), r#"b"{\"a\":\xff}""#);
}

#[test]
fn an_empty_map_in_a_field_is_gos_nil_map() {
    gob_struct! {
        struct Counts as "Counts" {
            by_name: BTreeMap<String, i64> as "ByName",
        }
    }
    let bytes = encode(&Counts::default());
    assert!(bytes.ends_with(&hex("03 ff82 00")), "{bytes:02x?}");
}

#[test]
fn a_rollout_as_interface_value() {
    const NAME: &str = r#"1c "SetWeightAndVerifyWeightArgs""#;
    const ROLLOUT: &str = r#"01 01 01 04 "demo" 01 0f 01 000000 0edd ca78 d900 0000 00ff ff 00 01 01 0a 03 03 01 28 00
        02 00 00 00 01 01 01 04 "ns/p" 07 "{" 22 "a" 22 ":1}" 00 00 00"#;
    let argument = |rollout, desired_weight, additional_destinations| {
        Some(Argument::SetWeight(SetWeightArgs {
            rollout,
            desired_weight,
            additional_destinations,
        }))
    };
    let mut host = Stream::new();
    host.check(request("", 0), &format!("{DEFINE_REQUEST} 03 ff82 00"));
    // As Go sends it, except the names of slices and maps, which no decoder reads.
    let first = format!(
        r#"ff84 10 00 {NAME}
              ff83 03 01 01 {NAME} 01 ff84 00 01 03 01 07 "Rollout" 01 ff86 00
              01 0d "DesiredWeight" 01 04 00 01 16 "AdditionalDestinations" 01 ff9a 00 00 00
        2f ff85 03 01 01 07 "Rollout" 01 ff86 00 01 02 01 0a "ObjectMeta" 01 ff88 00 01 04 "Spec" 01 ff8c 00 00 00
        38 ff87 03 01 01 0a "ObjectMeta" 01 ff88 00 01 02 01 04 "Name" 01 0c 00
              01 11 "CreationTimestamp" 01 ff8a 00 00 00
        10 ff89 05 01 01 04 "Time" 01 ff8a 00 00 00
        5f ff8b 03 01 01 0b "RolloutSpec" 01 ff8c 00 01 05 01 08 "Replicas" 01 04 00 01 06 "Paused" 01 02 00
              01 09 "RestartAt" 01 ff8a 00 01 05 "Steps" 01 ff92 00 01 0e "TrafficRouting" 01 ff94 00 00 00
        0d ff91 02 01 02 ff92 00 01 ff8e 00 00
        31 ff8d 03 01 01 0a "CanaryStep" 01 ff8e 00 01 02 01 09 "SetWeight" 01 04 00 01 05 "Pause" 01 ff90 00 00 00
        27 ff8f 03 01 01 0c "RolloutPause" 01 ff90 00 01 01 01 08 "Duration" 01 04 00 00 00
        45 ff93 03 01 01 15 "RolloutTrafficRouting" 01 ff94 00 01 02 01 07 "Plugins" 01 ff96 00
              01 10 "MaxTrafficWeight" 01 04 00 00 00
        0e ff95 04 01 02 ff96 00 01 0c 01 0a 00 00
        0d ff99 02 01 02 ff9a 00 01 ff98 00 00
        4e ff97 03 01 01 11 "WeightDestination" 01 ff98 00 01 03 01 06 "Weight" 01 04 00
              01 0b "ServiceName" 01 0c 00 01 0f "PodTemplateHash" 01 0c 00 00 00
        3f ff84 3c {ROLLOUT} 01 28 00"#
    );
    host.check(argument(demo(), 20, vec![]), &first);
    host.check(
        argument(demo(), 40, destinations()),
        &format!(r#"67 10 00 {NAME} ff84 45 {ROLLOUT} 01 50 01 02 00 01 0a 01 01 "s" 00 00"#),
    );
    host.check(
        argument(Rollout::default(), 0, vec![]),
        &format!("29 10 00 {NAME} ff84 07 01 01 00 01 00 00 00"),
    );
}

#[test]
fn the_same_rollout_in_gos_bytes() {
    // With Go's names for slices and maps, and an unused definition (78, the embedded time.Time).
    let stream = hex(&format!(
        r#"{DEFINE_REQUEST} 03 ff82 00
        ff84 10 00 1c "SetWeightAndVerifyWeightArgs" ff83 03 01 01 1c "SetWeightAndVerifyWeightArgs" 01 ff84 00
              01 03 01 07 "Rollout" 01 ff86 00 01 0d "DesiredWeight" 01 04 00
              01 16 "AdditionalDestinations" 01 ff9a 00 00 00
        2f ff85 03 01 01 07 "Rollout" 01 ff86 00 01 02 01 0a "ObjectMeta" 01 ff88 00 01 04 "Spec" 01 ff8c 00 00 00
        38 ff87 03 01 01 0a "ObjectMeta" 01 ff88 00 01 02 01 04 "Name" 01 0c 00
              01 11 "CreationTimestamp" 01 ff8a 00 00 00
        10 ff89 05 01 01 04 "Time" 01 ff8a 00 00 00
        10 ff9b 05 01 01 04 "Time" 01 ff9c 00 00 00
        5f ff8b 03 01 01 0b "RolloutSpec" 01 ff8c 00 01 05 01 08 "Replicas" 01 04 00 01 06 "Paused" 01 02 00
              01 09 "RestartAt" 01 ff8a 00 01 05 "Steps" 01 ff92 00 01 0e "TrafficRouting" 01 ff94 00 00 00
        20 ff91 02 01 01 11 "[]main.CanaryStep" 01 ff92 00 01 ff8e 00 00
        31 ff8d 03 01 01 0a "CanaryStep" 01 ff8e 00 01 02 01 09 "SetWeight" 01 04 00 01 05 "Pause" 01 ff90 00 00 00
        27 ff8f 03 01 01 0c "RolloutPause" 01 ff90 00 01 01 01 08 "Duration" 01 04 00 00 00
        45 ff93 03 01 01 15 "RolloutTrafficRouting" 01 ff94 00 01 02 01 07 "Plugins" 01 ff96 00
              01 10 "MaxTrafficWeight" 01 04 00 00 00
        2a ff95 04 01 01 1a "map[string]main.RawMessage" 01 ff96 00 01 0c 01 0a 00 00
        27 ff99 02 01 01 18 "[]main.WeightDestination" 01 ff9a 00 01 ff98 00 00
        4e ff97 03 01 01 11 "WeightDestination" 01 ff98 00 01 03 01 06 "Weight" 01 04 00
              01 0b "ServiceName" 01 0c 00 01 0f "PodTemplateHash" 01 0c 00 00 00
        3f ff84 3c 01 01 01 04 64656d6f 01 0f 01 0000000eddca78d9 00000000 ffff 00 01 01 0a 03 03 01 28 00 02 00 00
              00 01 01 01 04 6e732f70 07 7b2261223a317d 00 00 00 01 28 00"#
    ));
    let mut decoder = decoder(&stream);
    assert_eq!(next::<Request>(&mut decoder), request("", 0));
    let argument = SetWeightArgs {
        rollout: demo(),
        desired_weight: 20,
        additional_destinations: vec![],
    };
    assert_eq!(
        next::<Option<Argument>>(&mut decoder),
        Some(Argument::SetWeight(argument))
    );
    assert!(decoder.is_between_values());
}

#[test]
fn definitions_in_nested_interface_values_are_pieces_with_a_count() {
    // The inner definition ends the first piece; the rest of the outer value has its own count.
    let bytes = encode(&Some(Any::Leaf(Leaf {
        n: 7,
        inner: Some(Box::new(Any::Other(Other::default()))),
    })));
    let expected = hex(r#"
        29 10 00 04 "Leaf" ff81 03 01 01 04 "Leaf" 01 ff82 00 01 02 01 01 "N" 01 04 00 01 05 "Inner" 01 10 00 00 00
        45 ff82 2f 01 0e 01 05 "Other" ff83 03 01 01 05 "Other" 01 ff84 00
                    01 02 01 04 "Text" 01 0c 00 01 04 "Deep" 01 ff86 00 00 00
                0c ff85 02 01 02 ff86 00 01 10 00 00
                05 ff84 01 00 00"#);
    assert_eq!(bytes, expected, "\n{bytes:02x?}\n{expected:02x?}");
}

#[test]
fn times() {
    #[track_caller]
    fn check_time(time: Time, bytes: &str) {
        let payload = hex(bytes);
        let length = payload.len();
        check(
            time,
            &format!(
                r#"10 ff81 05 01 01 04 "Time" 01 ff82 00 00 00 {:02x} ff82 00 {length:02x} {bytes}"#,
                length + 4
            ),
        );
    }
    let at = |unix_seconds, nanos, offset_seconds| Time {
        unix_seconds,
        nanos,
        offset_seconds,
    };
    check_time(Time::default(), "01 0000000000000000 00000000 ffff");
    check_time(Time::from_unix(0), "01 0000000e7791f700 00000000 ffff");
    check_time(at(0, 0, Some(0)), "01 0000000e7791f700 00000000 0000");
    check_time(
        Time::from_unix(1_714_979_289),
        "01 0000000eddca78d9 00000000 ffff",
    );
    check_time(
        at(1_714_959_489, 123_456_789, Some(19800)),
        "01 0000000eddca2b81 075bcd15 014a",
    );
    check_time(
        at(0, 0, Some(-8 * 3600)),
        "01 0000000e7791f700 00000000 fe20",
    );
    check_time(at(0, 0, Some(30)), "02 0000000e7791f700 00000000 0000 1e");
}
