//! Tests of the public API: bytes in, values out, and back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "clippy exempts #[test] functions, but not the helpers they share"
)]

mod go_types;
mod golden;
mod hostile;
mod mismatch;
mod random;
mod raw;
mod second_opinion;
mod support;
mod transaction;
mod vectors;
