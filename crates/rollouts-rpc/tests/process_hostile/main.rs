//! A plugin's process with invalid input and hostile hosts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    dead_code,
    reason = "a test fails by panicking, prints its measurement, and uses a part of the shared support"
)]

mod bad_input;
#[path = "../support/calls.rs"]
mod calls;
mod memory;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/raw.rs"]
mod raw;
