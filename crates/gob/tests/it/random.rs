//! Properties: encoded values decode to the same values, and no input makes the decoder panic.

use std::collections::BTreeMap;

use gob::{Bytes, DecodeError, Decoder, Encoder};
use proptest::{collection, option, prelude::*};
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::{go_types::*, support::LIMITS};

const STREAMS: [&[u8]; 5] = [
    include_bytes!("../data/session.gob"),
    include_bytes!("../data/zeros.gob"),
    include_bytes!("../data/interfaces.gob"),
    include_bytes!("../data/recursive.gob"),
    include_bytes!("../data/opaque.gob"),
];

fn any_value() -> impl Strategy<Value = Any> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Any::Int),
        ".{0,5}".prop_map(Any::Text),
        collection::vec(any::<i64>(), 0..4).prop_map(Any::Numbers),
        collection::btree_map("[a-c]", any::<bool>(), 0..3).prop_map(Any::Flags),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (any::<i64>(), option::of(inner.clone())).prop_map(|(n, inner)| Any::Leaf(Leaf {
                n,
                inner: inner.map(Box::new)
            })),
            (".{0,3}", collection::vec(option::of(inner), 0..3))
                .prop_map(|(text, deep)| Any::Other(Other { text, deep })),
        ]
    })
}

fn container() -> impl Strategy<Value = Container> {
    let values = (
        option::of(any_value()),
        collection::vec(option::of(any_value()), 0..3),
        collection::btree_map(".{0,2}", option::of(any_value()), 0..3),
    );
    (any::<i64>(), values, ".{0,200}").prop_map(|(before, (value, list, map), after)| Container {
        before,
        value,
        after,
        list,
        map,
    })
}

fn rollout() -> impl Strategy<Value = Rollout> {
    // gob drops a zero behind a pointer.
    let number = || option::of(any::<i32>().prop_filter("gob drops it", |&number| number != 0));
    let step = (number(), option::of(number())).prop_map(|(set_weight, duration)| CanaryStep {
        set_weight,
        pause: duration.map(|duration| RolloutPause { duration }),
    });
    let plugins = collection::btree_map(
        ".{0,8}",
        collection::vec(any::<u8>(), 0..300).prop_map(Bytes),
        0..4,
    );
    let routing = (plugins, number()).prop_map(|(plugins, max_traffic_weight)| TrafficRouting {
        plugins,
        max_traffic_weight,
    });
    (
        any::<bool>(),
        collection::vec(step, 0..5),
        option::of(routing),
    )
        .prop_map(|(paused, steps, traffic_routing)| Rollout {
            spec: RolloutSpec {
                paused,
                steps,
                traffic_routing,
                ..demo().spec
            },
            ..demo()
        })
}

/// Decodes the stream in pieces of this length and collects the outcomes up to the first fatal error.
fn outcomes<T: DeserializeOwned>(stream: &[u8], piece: usize) -> Vec<Result<(), DecodeError>> {
    let mut decoder = Decoder::new(LIMITS);
    let mut outcomes = Vec::new();
    for piece in stream.chunks(piece) {
        if decoder.handle_input(piece).is_err() {
            break;
        }
        loop {
            match decoder.poll_value::<T>() {
                Ok(None) => break,
                Ok(Some(_)) => outcomes.push(Ok(())),
                Err(error) if error.is_fatal() => {
                    outcomes.push(Err(error));
                    break;
                }
                // A value that does not fit T.
                Err(_) => outcomes.push(Ok(())),
            }
        }
    }
    outcomes
}

/// Checks that decoding and skipping have the same outcomes, in pieces of any size.
fn check_outcomes(stream: &[u8], piece: usize) -> Result<(), TestCaseError> {
    let skipped = outcomes::<IgnoredAny>(stream, usize::MAX);
    prop_assert_eq!(&outcomes::<IgnoredAny>(stream, piece), &skipped);
    prop_assert_eq!(&outcomes::<Container>(stream, piece), &skipped);
    prop_assert_eq!(&outcomes::<Option<Argument>>(stream, piece), &skipped);
    prop_assert_eq!(&outcomes::<Zeros>(stream, piece), &skipped);
    prop_assert_eq!(&outcomes::<Nest>(stream, piece), &skipped);
    prop_assert_eq!(&outcomes::<Opaque>(stream, piece), &skipped);
    prop_assert_eq!(
        &outcomes::<BTreeMap<String, Bytes>>(stream, piece),
        &skipped
    );
    Ok(())
}

proptest! {
    #[test]
    fn values_survive_a_shared_stream(
        containers in collection::vec(container(), 1..4),
        rollouts in collection::vec(rollout(), 1..4),
        piece in 1usize..50,
    ) {
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new(LIMITS);
        for (container, rollout) in containers.into_iter().zip(rollouts) {
            let mut stream = Vec::new();
            encoder.encode(&container, &mut stream).unwrap();
            encoder.encode(&rollout, &mut stream).unwrap();
            for piece in stream.chunks(piece) {
                decoder.handle_input(piece).unwrap();
            }
            prop_assert_eq!(decoder.poll_value::<Container>().unwrap(), Some(container));
            prop_assert_eq!(decoder.poll_value::<Rollout>().unwrap(), Some(rollout));
            prop_assert!(decoder.is_between_values());
        }
    }

    #[test]
    fn random_bytes(stream in collection::vec(any::<u8>(), 0..200), piece in 1usize..50) {
        check_outcomes(&stream, piece)?;
    }

    #[test]
    fn small_random_bytes(stream in collection::vec(0u8..12, 0..200), piece in 1usize..50) {
        check_outcomes(&stream, piece)?;
    }

    #[test]
    fn altered_streams(
        stream in prop::sample::select(&STREAMS[..]),
        edits in collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        piece in 1usize..50,
    ) {
        let mut stream = stream.to_vec();
        for (index, byte) in edits {
            let index = index.index(stream.len());
            stream[index] = byte;
        }
        check_outcomes(&stream, piece)?;
    }

    #[test]
    fn spliced_streams(
        stream in prop::sample::select(&STREAMS[..]),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        piece in 1usize..50,
    ) {
        let (head, tail) = (from.index(stream.len()), to.index(stream.len()));
        let spliced = [&stream[..head], &stream[tail..]].concat();
        check_outcomes(&spliced, piece)?;
    }
}
