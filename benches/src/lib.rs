//! Nothing: the package owns `tests/allocations.rs`, which needs crates of several rows of the picture.
