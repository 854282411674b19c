//! Argo Rollouts plugins in Rust: the protocol, the [`Rollout`] a plugin sees, and a trait for each
//! kind of plugin.
//!
//! | kind | trait | serve with |
//! |---|---|---|
//! | traffic router | [`TrafficRouter`] | [`serve`], [`ServeConfig::TRAFFIC_ROUTER`] |
//! | metric provider | [`MetricProvider`] | [`serve_metric_provider`], [`ServeConfig::METRIC_PROVIDER`] |
//! | step (controller 1.8 and later) | [`StepPlugin`] | [`serve_step_plugin`], [`ServeConfig::STEP`] |
//!
//! The controller speaks HashiCorp go-plugin: Go's `net/rpc` with Go's `gob` over yamux. This crate
//! speaks it natively, so an unmodified controller (1.5 and later) loads a Rust binary. A session,
//! from start to end:
//!
//! ```text
//! controller                                   plugin
//!     |  exec, cookie and PLUGIN_* in env        |   goplugin::env, ::handshake
//!     |----------------------------------------->|   listen on a private socket
//!     |  stdout: 1|1|unix|/tmp/pluginXyz|netrpc| |   then stdout is /dev/null
//!     |<-----------------------------------------|
//!     |  connect; yamux streams 1, 3, 5          |   goplugin::session
//!     |=========================================>|   control, stdout, stderr: each acknowledged
//!     |  1: Dispenser.Dispense(RpcTraffic...)    |   goplugin::control
//!     |----------------------------------------->|
//!     |  id 1                                    |   goplugin::broker: waits 5 s
//!     |<-----------------------------------------|
//!     |  yamux stream 7: id 1 | id 1 back        |
//!     |<========================================>|
//!     |  7: Plugin.InitPlugin, Type, SetWeight   |   netrpc: gob header + gob argument
//!     |----------------------------------------->|   call: many at once, each with a deadline
//!     |  7: header + RpcError, in any order      |   one writer per stream
//!     |<-----------------------------------------|
//!     |  1: Control.Ping before every reconcile  |
//!     |<---------------------------------------->|
//!     |  1: Control.Quit; reply; hang up         |
//!     |<---------------------------------------->|   exit 0 within 2 s
//! ```
//!
//! A router is a type with seven async methods, of which two have defaults:
//!
//! ```no_run
//! use rollouts_rpc::goplugin::log::{self, LogFormat};
//! use rollouts_rpc::{
//!     DesiredWeight, PluginEnv, PodHashes, Rollout, RouterError, ServeConfig, TrafficRouter,
//!     Verification, WeightDestination,
//! };
//!
//! struct Dry;
//!
//! impl TrafficRouter for Dry {
//!     fn type_name(&self) -> &str {
//!         "Dry"
//!     }
//!     async fn init(&self) -> Result<(), RouterError> {
//!         Ok(())
//!     }
//!     async fn update_hash(&self, _: &Rollout, _: &PodHashes, _: &[WeightDestination]) -> Result<(), RouterError> {
//!         Ok(())
//!     }
//!     async fn set_weight(
//!         &self,
//!         rollout: &Rollout,
//!         desired: DesiredWeight,
//!         _: &[WeightDestination],
//!     ) -> Result<(), RouterError> {
//!         let services = rollout.services().ok_or("the rollout is no canary")?;
//!         tracing::info!(weight = desired.value, of = desired.max, to = services.canary, "would send");
//!         Ok(())
//!     }
//!     async fn verify_weight(
//!         &self,
//!         _: &Rollout,
//!         _: DesiredWeight,
//!         _: &[WeightDestination],
//!     ) -> Result<Verification, RouterError> {
//!         Ok(Verification::NotImplemented)
//!     }
//!     async fn remove_managed_routes(&self, _: &Rollout) -> Result<(), RouterError> {
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     log::install(tracing::level_filters::LevelFilter::INFO, LogFormat::Json)?;
//!     let env = PluginEnv::from_vars(std::env::vars_os());
//!     rollouts_rpc::serve(&ServeConfig::TRAFFIC_ROUTER, &env, rollouts_rpc::announce_on_stdout, Dry).await?;
//!     Ok(())
//! }
//! ```
//!
//! The other two kinds are served alike. What a plugin may rely on: every call is bounded by [`ServeConfig::call_deadline`]; a panic in a
//! call is that call's error; an error becomes one line without `%`; bytes that make no sense end
//! the session with an error, upon which the controller starts the process again. What it must not
//! do: write to stdout, or block a thread.
//!
//! Feature `host` adds the controller's half, feature `testing` an in-memory session.

pub mod error;
pub mod goplugin;
#[cfg(feature = "host")]
pub mod host;
pub mod metric_provider;
pub mod rollout;
pub mod step_plugin;
#[cfg(feature = "testing")]
pub mod testing;
pub mod traffic_router;

mod call;
mod from_wire;
mod netrpc;
mod to_wire;
mod wire;

pub use call::RouterCall;
pub use error::PluginError;
pub use goplugin::env::PluginEnv;
pub use goplugin::serve::{
    ServeConfig, ServeError, announce_on_stdout, serve, serve_connection, serve_metric_provider,
    serve_step_plugin,
};
pub use goplugin::session::{SessionError, Shutdown};
pub use metric_provider::{
    AnalysisPhase, AnalysisRun, Measurement, Metric, MetricProvider, MetricResult,
};
pub use rollout::Rollout;
pub use step_plugin::{StepContext, StepPhase, StepPlugin, StepResult};
pub use to_wire::error_chain;
pub use traffic_router::{
    DesiredWeight, PodHashes, RouterError, TrafficRouter, Verification, WeightDestination,
};
