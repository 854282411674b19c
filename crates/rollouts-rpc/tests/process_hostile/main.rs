//! What bad input and hostile hosts do to a plugin's process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    dead_code,
    reason = "a test fails by panicking, says what it measured, and uses a part of what supports all"
)]

mod bad_input;
#[path = "../support/calls.rs"]
mod calls;
mod memory;
#[path = "../support/notation.rs"]
mod notation;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/raw.rs"]
mod raw;
