//! The go-plugin protocol: handshake, session, Dispense, logging and shutdown.

pub mod env;
pub mod frames;
pub mod handshake;
pub mod log;
pub mod serve;

pub(crate) mod control;
pub(crate) mod frame_guard;
pub mod session;
