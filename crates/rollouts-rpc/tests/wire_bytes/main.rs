//! Sessions in exact bytes, compared with those of go-plugin and Go's net/rpc.
//!
//! The host reads and writes single frames, and shares no code with the plugin.

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
#[path = "../support/raw.rs"]
mod raw;
mod raw_host;
mod recorded;
mod session;
