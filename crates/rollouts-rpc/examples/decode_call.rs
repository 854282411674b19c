//! Counts the allocations of decoding a recorded call after earlier calls, and measures the same in gobwire. `cargo xtask bench` runs
//! it. `decode_time` in `crates/plugin-bin` measures how long the plugin takes for the same call.
//!
//! Arguments: the recording, and the start and end of the call in it. It prints the allocations of this crate, including the conversion
//! to domain types, and then the nanoseconds and allocations of gobwire for its dynamic value.

#![allow(clippy::print_stdout, reason = "it prints its measurements")]

use std::hint::black_box;
use std::time::Instant;

use gobwire::{Gob, Interface, Progress};
use rollouts_rpc::RouterCall;
use rollouts_rpc::testing::CallStream;

const TIMES: u32 = 5000;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().ok_or("three arguments are needed");
    let stream = std::fs::read(argument()?)?;
    let (begin, end) = (argument()?.parse()?, argument()?.parse()?);
    let before = stream.get(..begin).ok_or("the recording is shorter")?;
    let call = stream.get(begin..end).ok_or("the recording is shorter")?;

    let mut calls = CallStream::default();
    calls.decode(before)?;
    let ours = allocations(|| match calls.decode(call)?.as_slice() {
        [RouterCall::SetWeight(..)] => Ok(()),
        _ => Err("the call is not SetWeight".into()),
    })?;
    println!("{ours}");

    let mut values = gobwire::Decoder::new();
    decode_with_gobwire(&mut values, before)?;
    let mut decode = || decode_with_gobwire(&mut values, call);
    let theirs = allocations(&mut decode)?;
    let started = Instant::now();
    for _ in 0..TIMES {
        decode()?;
    }
    println!("{} {theirs}", (started.elapsed() / TIMES).as_nanos());
    Ok(())
}

#[derive(Gob, Default)]
struct Request {
    #[gob(name = "ServiceMethod")]
    service_method: String,
    #[gob(name = "Seq")]
    seq: u64,
}

fn decode_with_gobwire(values: &mut gobwire::Decoder, mut bytes: &[u8]) -> Result<(), Error> {
    let mut header = true;
    while let Some((width, length)) = gobwire::parse_length_prefix(bytes)? {
        let (message, rest) = bytes
            .split_at_checked(width + length)
            .ok_or("the call is cut short")?;
        bytes = rest;
        if values.push_message(message.get(width..).unwrap_or_default())? != Progress::Ready {
            continue;
        }
        if header {
            black_box(values.decode::<Request>()?);
        } else {
            black_box(values.decode::<Option<Interface>>()?);
        }
        header = !header;
    }
    Ok(())
}

/// Returns the allocations of the second decoding.
fn allocations(mut decode: impl FnMut() -> Result<(), Error>) -> Result<u64, Error> {
    decode()?;
    let mut outcome = Ok(());
    let allocations = allocation_counter::measure(|| outcome = decode()).count_total;
    outcome?;
    Ok(allocations)
}
