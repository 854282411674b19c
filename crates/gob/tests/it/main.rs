//! Tests of the public API.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "clippy exempts #[test] functions, but not the functions they share"
)]

mod compatible;
mod go_types;
mod golden;
mod hostile;
mod mismatch;
mod random;
mod raw;
mod second_opinion;
mod support;
mod vectors;
