//! The plugin protocol of Argo Rollouts.

pub mod goplugin;
#[cfg(feature = "host")]
pub mod host;
pub mod rollout;
#[cfg(feature = "testing")]
pub mod testing;
pub mod traffic_router;

mod call;
mod from_wire;
mod netrpc;
mod to_wire;
mod wire;

pub use goplugin::env::PluginEnv;
pub use goplugin::serve::{ServeConfig, ServeError, announce_on_stdout, serve, serve_connection};
pub use goplugin::session::{SessionError, Shutdown};
pub use rollout::Rollout;
pub use to_wire::error_chain;
pub use traffic_router::{
    DesiredWeight, PodHashes, RouterError, TrafficRouter, Verification, WeightDestination,
};
