//! The lessons are the example targets of this package, see `README.md`.
