//! The session byte by byte, against what go-plugin and Go's net/rpc put on the wire.
//!
//! The host here writes its frames by hand, so that it shares nothing with the code under test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/calls.rs"]
mod calls;
mod hostile;
#[path = "../support/notation.rs"]
mod notation;
#[path = "../support/raw.rs"]
mod raw;
mod raw_host;
mod recorded;
mod session;
