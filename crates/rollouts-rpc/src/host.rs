//! The host half: what the Argo Rollouts controller does with a plugin, for demos and tests.
//!
//! [`PluginProcess`] starts a plugin and reads its handshake line; [`HostSession`] is the yamux
//! session with its three initial streams; [`RouterClient`] calls a dispensed traffic router.

mod handshake;
mod process;
mod router_client;
mod session;

pub use crate::netrpc::client::CallError;
pub use handshake::{Announced, LineError};
pub use process::{Ended, PluginProcess, StartError};
pub use router_client::RouterClient;
pub use session::HostSession;
