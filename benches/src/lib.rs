//! An empty library. The package exists for `tests/allocations.rs`, which measures several crates.
