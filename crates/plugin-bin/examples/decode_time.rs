//! Measures how long the plugin takes to decode a recorded call that follows others; `cargo xtask bench` runs it.
//!
//! It is in this package so that it is compiled and linked as the plugin is, with the same allocator. Arguments: the
//! recording, and begin and end of the call in it. Prints nanoseconds per call.

#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::Instant;

use anyhow::Context as _;
use mimalloc::MiMalloc;
use rollouts_rpc::RouterCall;
use rollouts_rpc::testing::CallStream;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const TIMES: u32 = 5000;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().context("three arguments are needed");
    let stream = std::fs::read(argument()?)?;
    let (begin, end) = (argument()?.parse::<usize>()?, argument()?.parse()?);
    let (Some(before), Some(call)) = (stream.get(..begin), stream.get(begin..end)) else {
        anyhow::bail!("the recording is shorter");
    };

    let mut calls = CallStream::default();
    calls.decode(before)?;
    let started = Instant::now();
    for _ in 0..TIMES {
        let decoded = calls.decode(call)?;
        anyhow::ensure!(
            matches!(decoded.as_slice(), [RouterCall::SetWeight(..)]),
            "the call is no SetWeight"
        );
    }
    println!("{}", (started.elapsed() / TIMES).as_nanos());
    Ok(())
}
