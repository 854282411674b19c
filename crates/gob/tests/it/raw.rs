//! Values that are kept in wire format.

use gob::{Decoder, Encoder, LazyVec, Limits, Raw, WithRaw, gob_struct};
use serde::{Deserialize, de::IgnoredAny};

use crate::support::*;

gob_struct! {
    struct Look as "Look" {
        at: i64 as "At",
        tags: Vec<String> as "Tags",
    }

    struct History as "History" {
        name: String as "Name",
        looks: Vec<Look> as "Looks",
    }

    struct Lazy as "History" {
        name: String as "Name",
        looks: LazyVec<Look> as "Looks",
    }

    struct Odd as "History" {
        looks: LazyVec<String> as "Looks",
    }
}

fn look(at: i64) -> Look {
    Look {
        at,
        tags: vec![at.to_string()],
    }
}

fn history(count: i64) -> History {
    History {
        name: "h".to_owned(),
        looks: (0..count).map(look).collect(),
    }
}

#[test]
fn a_list_of_any_length_is_read_element_by_element() {
    let bytes = encode(&history(20_000));
    assert!(decode::<History>(&bytes).is_err());
    let lazy: Lazy = decode(&bytes).unwrap();
    assert_eq!((lazy.name.as_str(), lazy.looks.len()), ("h", 20_000));
    assert!(
        lazy.looks
            .iter()
            .zip(0..)
            .all(|(found, at)| found == Ok(look(at)))
    );
    assert_eq!(lazy.looks.iter().count(), 20_000);
    // It is encoded to the same bytes.
    assert_eq!(encode(&lazy), bytes);
    let owned = LazyVec::from(history(20_000).looks);
    assert_eq!(lazy.looks, owned);
    assert_ne!(lazy.looks, LazyVec::from(history(19_999).looks));
    assert!(!lazy.looks.is_empty());
    let mut other = history(20_000).looks;
    other[19_999].at = 0;
    assert_ne!(lazy.looks, LazyVec::from(other));
    // Not the elements, which may be many.
    assert_eq!(format!("{:?}", lazy.looks), "LazyVec(20000 elements)");
}

#[test]
fn an_empty_list_is_empty() {
    let lazy: Lazy = decode(&encode(&history(0))).unwrap();
    assert!(lazy.looks.is_empty());
    assert_eq!(lazy.looks.iter().count(), 0);
}

/// An async function may read a list across its awaits, and its future is then `Send` only if the iterator is.
#[test]
fn a_list_can_be_read_by_a_task_that_changes_its_thread() {
    let read = async |looks: LazyVec<Look>| {
        for look in looks.iter() {
            std::future::ready(look).await.unwrap();
        }
    };
    fn check(_: impl Send) {}
    check(read(LazyVec::default()));
}

#[test]
fn each_element_that_does_not_fit_is_an_error() {
    let odd: Odd = decode(&encode(&history(2))).unwrap();
    let errors: Vec<String> = odd
        .looks
        .iter()
        .map(|found| found.unwrap_err().to_string())
        .collect();
    assert_eq!(
        errors,
        [
            "gob value does not fit at [0]: expected a string, found a struct or a map",
            "gob value does not fit at [1]: expected a string, found a struct or a map",
        ]
    );
}

#[test]
fn the_elements_after_one_that_does_not_fit_are_read() {
    let numbers: LazyVec<i8> = decode(&encode(&vec![1i64, 300, 2])).unwrap();
    let found: Vec<_> = numbers.iter().map(Result::ok).collect();
    assert_eq!(found, [Some(1), None, Some(2)]);
}

#[test]
fn a_raw_value_outlives_its_stream() {
    let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
    encoder.encode(&history(2), &mut bytes).unwrap();
    let mut stream = decoder(&bytes);
    let raw: Raw = next(&mut stream);
    let mut more = Vec::new();
    encoder
        .encode(&crate::go_types::RpcError::default(), &mut more)
        .unwrap();
    stream.handle_input(&more).unwrap();
    next::<IgnoredAny>(&mut stream);
    drop(stream);
    assert_eq!(raw.decode::<History>(), Ok(history(2)));
    assert!(raw.decode::<i64>().is_err());
    let text: Raw = decode(&encode(&"four".to_owned())).unwrap();
    assert_eq!(
        (text.size(), format!("{text:?}")),
        (5, "Raw(5 bytes)".to_owned())
    );
}

#[test]
fn a_value_with_its_wire_format() {
    #[derive(Deserialize)]
    struct Named {
        #[serde(rename = "Name")]
        name: String,
    }
    let with: WithRaw<Named> = decode(&encode(&history(3))).unwrap();
    assert_eq!(with.value.name, "h");
    assert_eq!(with.raw.unwrap().decode::<History>(), Ok(history(3)));
}

#[test]
fn values_with_their_wire_format_are_compared_without_it() {
    let decoded: WithRaw<i64> = decode(&encode(&7i64)).unwrap();
    let with = |value| WithRaw { value, raw: None };
    assert_eq!(decoded, with(7));
    assert_ne!(decoded, with(8));
}

#[test]
fn the_limits_apply_to_raw_values() {
    let bytes = encode(&history(2));
    let mut stream = Decoder::new(Limits { depth: 3, ..LIMITS });
    stream.handle_input(&bytes).unwrap();
    assert!(stream.poll_value::<Raw>().unwrap_err().is_fatal());
}
