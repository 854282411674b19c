//! Streams that Go wrote (`tests/data/generate.go`): every value decodes correctly, in pieces of any size, and survives a round trip.

use std::{collections::BTreeMap, fmt::Debug};

use gob::{Bytes, DecodeError, Decoder, GobType, Time};
use serde::{Serialize, de::DeserializeOwned, de::IgnoredAny};

use crate::{go_types::*, support::*};

const SESSION: &[u8] = include_bytes!("../data/session.gob");
const ZEROS: &[u8] = include_bytes!("../data/zeros.gob");
const KINDS: &[u8] = include_bytes!("../data/kinds.gob");
const INTERFACES: &[u8] = include_bytes!("../data/interfaces.gob");
const RECURSIVE: &[u8] = include_bytes!("../data/recursive.gob");
const OPAQUE: &[u8] = include_bytes!("../data/opaque.gob");
const INVALID_UTF8: &[u8] = include_bytes!("../data/invalid_utf8.gob");

/// Checks the next value, and its round trip through the encoder.
#[track_caller]
fn expect<T: GobType + Serialize + DeserializeOwned + PartialEq + Debug>(
    decoder: &mut Decoder,
    expected: T,
) {
    assert_eq!(next::<T>(decoder), expected);
    check_round_trip(&expected);
}

#[track_caller]
fn expect_end(decoder: &mut Decoder) {
    assert_eq!(decoder.poll_value::<()>(), Ok(None));
    assert!(decoder.is_between_values());
}

fn request(method: &str, seq: u64) -> Request {
    Request {
        service_method: method.into(),
        seq,
    }
}

fn set_weight(
    rollout: Rollout,
    desired_weight: i32,
    destinations: Vec<WeightDestination>,
) -> Option<Argument> {
    Some(Argument::SetWeight(SetWeightArgs {
        rollout,
        desired_weight,
        additional_destinations: destinations,
    }))
}

#[test]
fn a_session_of_calls() {
    let mut decoder = decoder(SESSION);
    expect(&mut decoder, request("Plugin.InitPlugin", 0));
    expect(&mut decoder, None::<Argument>);
    expect(&mut decoder, request("Plugin.SetWeight", 1));
    expect(&mut decoder, set_weight(demo(), 20, vec![]));
    expect(&mut decoder, request("Plugin.SetWeight", 2));
    expect(&mut decoder, set_weight(demo(), 40, destinations()));
    expect(&mut decoder, request("Plugin.SetWeight", 3));
    expect(&mut decoder, set_weight(Rollout::default(), 0, vec![]));
    expect(&mut decoder, request("Plugin.UpdateHash", 4));
    let hashes = UpdateHashArgs {
        rollout: demo(),
        canary_hash: "c".into(),
        stable_hash: "s".into(),
        additional_destinations: vec![],
    };
    expect(&mut decoder, Some(Argument::UpdateHash(hashes)));
    expect_end(&mut decoder);
}

#[test]
fn zeros_are_omitted_as_in_go() {
    let mut decoder = decoder(ZEROS);
    let expected = Zeros {
        map_of_zero: Some(BTreeMap::from([("k".into(), 0)])),
        empty_map: Some(BTreeMap::new()),
        two_zeros: Some(vec![0, 0]),
        two_structs: Some(vec![Inner::default(), Inner::default()]),
        ptr_struct: Some(Inner::default()),
        ptr_time: Some(Time::default()),
        ptr_map: Some(BTreeMap::new()),
        last: "end".into(),
        ..Zeros::default()
    };
    expect(&mut decoder, expected.clone());
    expect_end(&mut decoder);

    // The encoder omits the same fields: the bytes are equal except for the type id.
    let sent = Zeros {
        empty_slice: Some(vec![]),
        empty_bytes: Some(Bytes::default()),
        ptr_number: Some(0),
        ptr_bool: Some(false),
        ptr_string: Some(String::new()),
        ptr_slice: Some(vec![]),
        ..expected
    };
    assert_eq!(value_bytes(&encode(&sent)), value_bytes(ZEROS));
}

/// Returns the last message of a stream, without its type id.
fn value_bytes(stream: &[u8]) -> &[u8] {
    let mut rest = stream;
    loop {
        let (length, payload) = match rest {
            [0xfe, high, low, payload @ ..] => {
                (usize::from(*high) << 8 | usize::from(*low), payload)
            }
            [0xff, length, payload @ ..] | [length, payload @ ..] => {
                (usize::from(*length), payload)
            }
            [] => panic!("no message"),
        };
        match payload.split_at(length) {
            ([0xff, _, value @ ..] | [_, value @ ..], []) => return value,
            (_, more) => rest = more,
        }
    }
}

#[test]
fn every_kind_of_value() {
    let mut decoder = decoder(KINDS);
    let flags = |flags: &[(&str, bool)]| {
        flags
            .iter()
            .map(|&(name, on)| (name.to_owned(), on))
            .collect()
    };
    let expected = Kinds {
        yes: true,
        small: -128,
        middle: 32767,
        large: -65,
        min: i64::MIN,
        max: i64::MAX,
        short: 65535,
        word: 128,
        huge: u64::MAX,
        single: 1.5,
        double: 17.0,
        infinite: f64::NEG_INFINITY,
        complex: (1.0, -2.0),
        text: "grüße".into(),
        raw: Bytes(vec![0, 255]),
        array: [1, 0, -1],
        matrix: vec![vec![1.0, 2.0], vec![], vec![3.0]],
        map: BTreeMap::from([(-1, "minus".into())]),
        nested: BTreeMap::from([("a".into(), vec![flags(&[("b", true)]), flags(&[])])]),
        pointer: Some(-7),
        anonymous: Anonymous { x: 9 },
        empty: (),
    };
    expect(&mut decoder, expected.clone());
    expect(&mut decoder, 42i64);
    expect(&mut decoder, 7u32);
    expect(&mut decoder, "hey".to_owned());
    expect(&mut decoder, Bytes(b"raw".to_vec()));
    expect(&mut decoder, 2.5f64);
    expect(&mut decoder, true);
    expect(&mut decoder, (0.0, 1.0));
    expect(&mut decoder, vec!["a".to_owned(), String::new()]);
    expect(&mut decoder, BTreeMap::from([("one".to_owned(), 1i64)]));
    expect(&mut decoder, [true, false]);
    expect(&mut decoder, ());
    expect(
        &mut decoder,
        Time {
            nanos: 5,
            ..Time::from_unix(1)
        },
    );
    expect_end(&mut decoder);
}

#[test]
fn definitions_in_nested_interface_values() {
    let leaf = |n, inner| {
        Any::Leaf(Leaf {
            n,
            inner: Option::map(inner, Box::new),
        })
    };
    let other = |text: &str, deep| {
        Any::Other(Other {
            text: text.into(),
            deep,
        })
    };
    let flags = Any::Flags(BTreeMap::from([("on".into(), true)]));
    let deep = vec![Some(leaf(3, None)), Some(Any::Numbers(vec![4, 5]))];
    let container = Container {
        before: 1,
        value: Some(leaf(2, Some(other("other", deep)))),
        after: "after".into(),
        list: vec![
            Some(leaf(6, Some(Any::Text("text".into())))),
            None,
            Some(Any::Int(42)),
            Some(flags),
            Some(other("x", vec![])),
        ],
        map: BTreeMap::from([("key".into(), Some(other("y", vec![None])))]),
    };
    let mut decoder = decoder(INTERFACES);
    expect(&mut decoder, container.clone());
    expect(&mut decoder, Some(leaf(7, Some(leaf(8, None)))));
    expect(&mut decoder, container);
    expect_end(&mut decoder);
}

#[test]
fn recursive_types() {
    let mut decoder = decoder(RECURSIVE);
    let tree = |name: &str, children| Tree {
        name: name.into(),
        children,
        next: None,
    };
    let children = vec![tree("a", vec![]), tree("b", vec![tree("", vec![])])];
    expect(
        &mut decoder,
        Tree {
            next: Some(Box::new(tree("next", vec![]))),
            ..tree("root", children)
        },
    );
    let pair = Nest(vec![Nest(vec![]), Nest(vec![])]);
    expect(&mut decoder, Nest(vec![Nest(vec![]), pair]));
    let left = |lefts: Vec<Left>| Left {
        right: Some(Box::new(Right { lefts })),
    };
    expect(&mut decoder, left(vec![Left::default(), left(vec![])]));
    expect_end(&mut decoder);
}

#[test]
fn gob_encoder_types() {
    let mut decoder = decoder(OPAQUE);
    let gobber = |text: &str| Gobber(Bytes(text.as_bytes().to_vec()));
    let may_sixth = |offset_seconds: i32| Time {
        offset_seconds: Some(offset_seconds),
        ..Time::from_unix(1_714_979_289 - i64::from(offset_seconds))
    };
    let expected = Opaque {
        gob: gobber("gob:g"),
        binary: Some(gobber("bin:m")),
        list: vec![gobber("bin:"), gobber("bin:n")],
        times: vec![
            Time::default(),
            Time::from_unix(0),
            may_sixth(0),
            Time {
                nanos: 123_456_789,
                ..may_sixth(19800)
            },
            may_sixth(-8 * 3600),
            may_sixth(90),
            may_sixth(-3630),
        ],
    };
    expect(&mut decoder, expected);
    expect_end(&mut decoder);
}

#[test]
fn a_string_that_is_not_utf8_fails_only_if_it_is_decoded_to_a_string() {
    let mut decoder = decoder(INVALID_UTF8);
    let error = decoder.poll_value::<Strings>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "gob value does not fit at Bytes: expected a UTF-8 string, found other bytes"
    );
    assert!(!error.is_fatal());
    assert_eq!(next::<Bytes>(&mut decoder), Bytes(vec![0xc3]));
    assert_eq!(next::<Strings>(&mut decoder).text, "more");

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Text {
        text: String,
    }
    let mut decoder = self::decoder(INVALID_UTF8);
    assert_eq!(next::<Text>(&mut decoder).text, "text");
}

/// Polls after every piece of input, skips the values and returns their number.
fn count_values(pieces: &[&[u8]]) -> Result<usize, DecodeError> {
    let mut decoder = Decoder::new(LIMITS);
    let mut values = 0;
    for piece in pieces {
        decoder.handle_input(piece)?;
        while decoder.poll_value::<IgnoredAny>()?.is_some() {
            values += 1;
        }
    }
    assert!(decoder.is_between_values());
    Ok(values)
}

#[test]
fn values_are_skipped_in_pieces_of_any_size() {
    let files = [
        (SESSION, 10),
        (ZEROS, 1),
        (KINDS, 13),
        (INTERFACES, 3),
        (RECURSIVE, 3),
        (OPAQUE, 1),
        (INVALID_UTF8, 3),
    ];
    for (file, values) in files {
        for cut in 0..=file.len() {
            let (left, right) = file.split_at(cut);
            assert_eq!(count_values(&[left, right]), Ok(values), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = file.chunks(1).collect();
        assert_eq!(count_values(&bytes), Ok(values), "byte by byte");
    }
}

#[test]
fn an_interface_value_is_complete_with_its_last_byte() {
    let mut decoder = Decoder::new(LIMITS);
    let mut seen = Vec::new();
    for (index, byte) in INTERFACES.iter().enumerate() {
        decoder.handle_input(&[*byte]).unwrap();
        let complete = match seen.len() {
            1 => decoder.poll_value::<Option<Any>>().unwrap().is_some(),
            _ => decoder.poll_value::<Container>().unwrap().is_some(),
        };
        if complete {
            seen.push(index + 1);
        }
    }
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[2], INTERFACES.len());
}
