//! The host half: what the Argo Rollouts controller does with a plugin, for demos and tests.
//!
//! [`PluginProcess`] starts a plugin and reads its handshake line; [`HostSession`] is the yamux
//! session with its three initial streams; [`RouterClient`], [`MetricClient`] and [`StepClient`] call
//! a dispensed plugin of their kind.

mod dispensed;
mod handshake;
mod metric_client;
mod process;
mod router_client;
mod session;
mod step_client;

pub use crate::netrpc::client::CallError;
pub use handshake::{Announced, LineError};
pub use metric_client::MetricClient;
pub use process::{Ended, PluginProcess, StartError};
pub use router_client::RouterClient;
pub use session::{AnyClient, HostSession};
pub use step_client::StepClient;
