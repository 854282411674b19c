//! Tests of the whole crate.

mod messages;
