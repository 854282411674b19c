//! The stream of a dispensed router: the calls do not depend on how the bytes are split, and each is answered exactly once.

#![no_main]

use fuzz::{Host, exchange, router, within_memory};
use gob::{DecodeError, Decoder};
use libfuzzer_sys::fuzz_target;
use rollouts_rpc::testing::{CallStream, LIMITS, serve_stream};
use rollouts_rpc::{RouterCall, ServeConfig, SessionError};
use serde::de::{DeserializeOwned, IgnoredAny};

gob::gob_struct! {
    struct Request as "Request" {
        service_method: String as "ServiceMethod",
        seq: u64 as "Seq",
    }

    struct Response as "Response" {
        service_method: String as "ServiceMethod",
        seq: u64 as "Seq",
        error: String as "Error",
    }
}

fuzz_target!(|input: &[u8]| {
    within_memory(|| {
        let (requests, error) = pairs::<Request>(input);
        let whole = calls(input, input.len());
        let pieces = calls(input, 1 + input.len() / 3);
        assert_eq!(whole.as_ref().err(), error.as_ref());
        assert_eq!(whole, pieces);

        let serve = |io| serve_stream(ServeConfig::new(), io, router());
        let (ended, replies) = exchange(input, Host::Reads, serve);
        let is_corrupt = matches!(ended, Err(SessionError::CorruptStream { .. }));
        assert_eq!(is_corrupt, error.is_some(), "{ended:?}, {error:?}");
        let (mut responses, error) = pairs::<Response>(&replies);
        assert_eq!(error, None);
        if ended.is_ok() {
            let mut seqs: Vec<u64> = requests.iter().map(|request| request.seq).collect();
            seqs.sort_unstable();
            responses.sort_by_key(|response| response.seq);
            assert!(responses.iter().map(|response| response.seq).eq(seqs));
        }
        for Response { error, .. } in &responses {
            assert!(!error.contains(['%', '\n']), "{error}");
        }
    });
});

/// The calls of a stream that arrives in pieces of this length.
fn calls(input: &[u8], piece: usize) -> Result<Vec<RouterCall>, DecodeError> {
    let mut stream = CallStream::default();
    let mut calls = Vec::new();
    for piece in input.chunks(piece.max(1)) {
        calls.extend(stream.decode(piece)?);
    }
    Ok(calls)
}

/// The headers that have a body, and the error that ended the stream.
fn pairs<H: DeserializeOwned>(stream: &[u8]) -> (Vec<H>, Option<DecodeError>) {
    let mut decoder = Decoder::new(LIMITS);
    decoder.handle_input(stream).expect("a new decoder");
    let mut headers = Vec::new();
    let mut next = || -> Result<Option<H>, DecodeError> {
        let Some(header) = decoder.poll_value()? else {
            return Ok(None);
        };
        Ok(decoder.poll_value()?.map(|IgnoredAny| header))
    };
    loop {
        match next() {
            Ok(Some(header)) => headers.push(header),
            Ok(None) => return (headers, None),
            Err(error) => return (headers, Some(error)),
        }
    }
}
