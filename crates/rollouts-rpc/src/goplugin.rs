//! The go-plugin layer: how a host starts a plugin process, finds its socket and asks it for a
//! plugin.

pub mod env;
pub mod handshake;
pub mod log;
pub mod serve;

pub(crate) mod broker;
pub(crate) mod control;
pub(crate) mod frame_guard;
pub mod session;
pub(crate) mod tls;
pub(crate) mod write_deadline;
