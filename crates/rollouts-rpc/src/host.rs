//! The host half: starts and calls a plugin as the Argo Rollouts controller does, for demos and tests.
//!
//! [`PluginProcess`] starts a plugin and reads its handshake line. [`HostSession`] is the yamux session with its three initial
//! streams. [`RouterClient`], [`MetricClient`] and [`StepClient`] call a dispensed plugin of their kind.

mod clients;
mod process;
mod session;

pub use crate::netrpc::client::CallError;
pub use clients::{MetricClient, RouterClient, StepClient};
pub use process::{Ended, LineError, PluginProcess, StartError, announced_socket};
pub use session::{AnyClient, HostSession};
