//! Decoding with Go's comparison of types, which does not accept all that serde accepts.

use std::collections::BTreeMap;
use std::fmt::Debug;

use gob::{Bytes, Encoder, GobType, Time, gob_struct};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{
    go_types::{Nest, RpcError, Tree},
    support::*,
};

gob_struct! {
    struct Empty as "" {}

    struct Verified as "VerifyWeightResponse" {
        verified: i32 as "Verified",
        error: RpcError as "Err",
    }

    struct Unsigned as "VerifyWeightResponse" {
        verified: u32 as "Verified",
        error: RpcError as "Err",
    }

    struct WithText as "VerifyWeightResponse" {
        verified: i32 as "Verified",
        error: Text as "Err",
        more: Vec<i64> as "More",
    }

    struct Text as "RpcError" {
        text: Bytes as "ErrorString",
    }

    struct OtherName as "RpcError" {
        text: String as "Error",
    }

    struct Loop as "Tree" {
        children: Vec<String> as "Children",
    }
}

/// Encodes a value, and decodes it as another type.
fn sent<T: DeserializeOwned + GobType>(value: &(impl GobType + Serialize)) -> Result<T, String> {
    let mut bytes = Vec::new();
    Encoder::new().encode(value, &mut bytes).unwrap();
    let decoded = decoder(&bytes).poll_like_go::<T>();
    decoded.map(Option::unwrap).map_err(|error| chain(&error))
}

#[track_caller]
fn check<T: DeserializeOwned + GobType + Debug>(value: &(impl GobType + Serialize), expect: &str) {
    assert_eq!(
        sent::<T>(value).unwrap_err(),
        format!("gob value does not fit{expect}")
    );
}

#[test]
fn the_type_of_a_value_must_be_the_same() {
    assert_eq!(sent::<Empty>(&RpcError::default()), Ok(Empty {}));
    check::<Empty>(&true, ": expected the type struct, the peer defines bool");
    check::<u32>(&1_i32, ": expected the type uint, the peer defines int");
    check::<i64>(&1_u32, ": expected the type int, the peer defines uint");
    check::<String>(
        &Bytes::default(),
        ": expected the type string, the peer defines bytes",
    );
    check::<BTreeMap<String, String>>(
        &RpcError::default(),
        ": expected the type map, the peer defines struct",
    );
    check::<BTreeMap<String, String>>(
        &BTreeMap::from([(1_i64, String::new())]),
        ": expected the type string, the peer defines int",
    );
    check::<[i64; 2]>(
        &[0_i64; 3],
        ": expected the type array, the peer defines array",
    );
    check::<Vec<i64>>(
        &[0_i64; 3],
        ": expected the type slice, the peer defines array",
    );
    check::<Bytes>(
        &Time::default(),
        ": expected the type bytes, the peer defines GobEncoder",
    );
}

/// A zero field is absent from the value, but Go knows its type.
#[test]
fn the_type_of_a_zero_field_must_be_the_same() {
    assert!(sent::<WithText>(&WithText::default()).is_ok());
    check::<Verified>(
        &Unsigned::default(),
        " at Verified: expected the type int, the peer defines uint",
    );
    check::<Verified>(
        &WithText::default(),
        " at Err.ErrorString: expected the type string, the peer defines bytes",
    );
}

#[test]
fn a_struct_must_have_a_known_field_unless_it_is_in_another_one() {
    gob_struct! {
        struct Other as "VerifyWeightResponse" {
            verified: i32 as "Verified",
            error: OtherName as "Err",
        }
    }
    check::<RpcError>(
        &OtherName::default(),
        ": the peer's struct has no field of RpcError",
    );
    assert!(sent::<RpcError>(&Empty {}).is_ok());
    assert!(sent::<Verified>(&Other::default()).is_ok());
}

#[test]
fn types_that_refer_to_themselves_are_compared_once() {
    let nest = Nest(vec![Nest(Vec::new())]);
    assert!(sent::<Nest>(&nest).is_ok());
    assert!(sent::<Tree>(&Tree::default()).is_ok());
    check::<Loop>(
        &Tree::default(),
        " at Children: expected the type string, the peer defines struct",
    );
}

/// The stream goes on: the caller decides whether it ends.
#[test]
fn a_value_of_another_type_is_consumed() {
    let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
    encoder.encode(&1_i64, &mut bytes).unwrap();
    encoder.encode(&"next".to_owned(), &mut bytes).unwrap();
    let mut decoder = decoder(&bytes);
    assert!(!decoder.poll_like_go::<u64>().unwrap_err().is_fatal());
    assert_eq!(
        decoder.poll_like_go::<String>(),
        Ok(Some("next".to_owned()))
    );
    assert_eq!(decoder.poll_like_go::<String>(), Ok(None));
}
