//! Argo Rollouts plugins in Rust: the protocol, the [`Rollout`] that a plugin receives, and a trait for each kind of plugin.
//!
//! | kind | trait | serve with |
//! |---|---|---|
//! | traffic router | [`TrafficRouter`] | [`Router`] |
//! | metric provider | [`MetricProvider`] | [`Metrics`] |
//! | step (controller 1.8 and later) | [`StepPlugin`] | [`Step`] |
//!
//! The controller uses HashiCorp's go-plugin: Go's `net/rpc` with Go's `gob` over yamux. This crate implements these protocols, so an
//! unmodified controller (1.5 and later) loads a Rust binary. A session:
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
//!     |  id 1                                    |           the id expires in 5 s
//!     |<-----------------------------------------|
//!     |  yamux stream 7: id 1 | id 1 back        |
//!     |<========================================>|
//!     |  7: Plugin.InitPlugin, Type, SetWeight   |   netrpc: gob header + gob argument
//!     |----------------------------------------->|   call: concurrent, each with a deadline
//!     |  7: header + RpcError, in any order      |   one writer per stream
//!     |<-----------------------------------------|
//!     |  1: Control.Ping before every reconcile  |
//!     |<---------------------------------------->|
//!     |  1: Control.Quit; reply; close           |
//!     |<---------------------------------------->|   exit 0 within 2 s
//! ```
//!
//! # One session
//!
//! A router implements [`TrafficRouter`], in which only `set_weight` has no default. This example serves one over a pipe, calls it with
//! the [`host`] half, and records the bytes of stream 7.
//!
//! ```
//! use rollouts_rpc::host::HostSession;
//! use rollouts_rpc::{
//!     DesiredWeight, Result, Rollout, Router, ServeConfig, Shutdown, TrafficRouter, WeightDestination, serve_connection,
//! };
//!
//! struct Cautious;
//!
//! impl TrafficRouter for Cautious {
//!     async fn set_weight(&self, rollout: &Rollout, desired: DesiredWeight, _: &[WeightDestination]) -> Result {
//!         if desired.value > 50 {
//!             return Err(format!("{}: too much", rollout.metadata.name).into());
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
//! # use tokio::task::JoinHandle;
//! # /// Forwards yamux frames, and returns the data of stream 7.
//! # async fn write_down(mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>) -> Vec<u8> {
//! #     let mut seen = Vec::new();
//! #     let mut header = [0; 12];
//! #     while from.read_exact(&mut header).await.is_ok() {
//! #         let [_, kind, .., stream, a, b, c, d] = header;
//! #         let length = if kind == 0 { u32::from_be_bytes([a, b, c, d]) } else { 0 };
//! #         let mut data = vec![0; length as usize];
//! #         let read = from.read_exact(&mut data).await;
//! #         if read.is_err() || to.write_all(&header).await.is_err() || to.write_all(&data).await.is_err() {
//! #             break;
//! #         }
//! #         if kind == 0 && stream == 7 {
//! #             seen.extend(data);
//! #         }
//! #     }
//! #     seen
//! # }
//! # fn pipe() -> (DuplexStream, DuplexStream, JoinHandle<Vec<u8>>, JoinHandle<Vec<u8>>) {
//! #     let ((host, a), (b, plugin)) = (duplex(1 << 16), duplex(1 << 16));
//! #     let ((from_host, to_host), (from_plugin, to_plugin)) = (split(a), split(b));
//! #     let from_host = tokio::spawn(write_down(from_host, to_plugin));
//! #     let from_plugin = tokio::spawn(write_down(from_plugin, to_host));
//! #     (host, plugin, from_host, from_plugin)
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (host, plugin, from_host, from_plugin) = pipe();
//! let plugin = tokio::spawn(async {
//!     serve_connection(&ServeConfig::new(), plugin, Router(Cautious)).await
//! });
//!
//! // The host opens streams 1, 3 and 5, dispenses the router on stream 1, and opens stream 7 with the returned id.
//! let host = HostSession::open(host).await?;
//! let router = host.dispense_router().await?;
//!
//! let rollout = Rollout::named("shop", "demo");
//! router.set_weight(&rollout, 20, &[]).await?;
//! let refused = router.set_weight(&rollout, 80, &[]).await.unwrap_err();
//! assert_eq!(refused.to_string(), "demo: too much");
//!
//! host.quit().await?;
//! assert_eq!(plugin.await??, Shutdown::HostQuit);
//! drop(host);
//!
//! // The host's direction: the id, little-endian, and then each call as a header and an argument in gob. A type is defined
//! // before its first value, so later calls are much shorter.
//! let from_host = from_host.await?;
//! assert_eq!(from_host[..4], [1, 0, 0, 0]);
//! assert_eq!(&from_host[11..18], b"Request");
//!
//! // The plugin's direction.
//! let expect = [
//!     &[1, 0, 0, 0][..],                                 // the id again: the plugin accepts the stream
//!     b"\x3a\xff\x81\x03\x01\x01\x08Response\x01\xff\x82\0\x01\x03", // -65: type 65 is a struct of three fields:
//!     b"\x01\x0dServiceMethod\x01\x0c\0",                 // a string
//!     b"\x01\x03Seq\x01\x06\0",                           // an unsigned integer
//!     b"\x01\x05Error\x01\x0c\0\0\0",                     // a string
//!     b"\x15\xff\x82\x01\x10Plugin.SetWeight\0",           // a Response; Seq and Error are zero and omitted
//!     b"\x26\xff\x83\x03\x01\x01\x08RpcError\x01\xff\x84\0\x01\x01\x01\x0bErrorString\x01\x0c\0\0\0",
//!     b"\x03\xff\x84\0",                                  // an RpcError without a text: success
//!     b"\x17\xff\x82\x01\x10Plugin.SetWeight\x01\x01\0",   // the second Response: Seq is 1
//!     b"\x13\xff\x84\x01\x0edemo: too much\0",            // an RpcError with a text
//! ]
//! .concat();
//! assert_eq!(from_plugin.await?, expect);
//! # Ok(())
//! # }
//! ```
//!
//! [`main`] serves a plugin as a program, and [`serve`] one with its own flags, runtime or log.
//!
//! # Guarantees
//!
//! They are the same for all kinds of plugin.
//!
//! - Every call ends within [`ServeConfig::call_deadline`]. The time begins when the call was read, also if it waits for others then: 256
//!   calls with small arguments run at once.
//! - A panic in a call is an error of this call only.
//! - An error text is one line without `%`.
//! - If `VerifyWeight` fails for any reason, the reply is "not verified".
//! - A measurement, metadata or a step's result above [`MAX_RESULT`] is an error.
//! - Bytes that are not valid end the session with an error. The process exits, and the controller restarts it.
//!
//! A plugin must not write to stdout. A call may block its thread, see [`serve`].
//!
//! # Features
//!
//! `host` adds the controller's half, `testing` adds a session in memory, and `grpc` adds go-plugin's gRPC protocol, for hosts other than
//! the controller.
#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("rollouts-rpc needs Unix: the controller connects to a plugin over a Unix socket");

pub mod error;
pub mod goplugin;
#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(feature = "host")]
pub mod host;
pub mod metric_provider;
pub mod step_plugin;
#[cfg(feature = "testing")]
pub mod testing;
pub mod traffic_router;

mod call;
mod kind;
mod methods;
mod netrpc;
mod program;
mod wire;
mod workers;
mod write_deadline;

pub use call::{Metrics, Plugin, Router, Step};
pub use error::{MAX_ERROR, MAX_RESULT, PluginError, Result, error_chain, error_line, escaped};
pub use goplugin::env::PluginEnv;
pub use goplugin::serve::{ServeConfig, ServeError, announce_on_stdout, serve, serve_connection};
pub use goplugin::session::{SessionError, Shutdown};
pub use methods::RouterCall;
pub use metric_provider::{
    AnalysisPhase, AnalysisRun, AnalysisRunSpec, AnalysisRunStatus, Argument, Measurement, Metric,
    MetricProvider, MetricResult, Provider,
};
pub use program::{LOG_LEVEL_VARIABLE, main, main_with};
/// The types of a Rollout.
pub use rollout_types as rollout;
pub use rollout_types::{ConfigError, Rollout, WeightDestination};
pub use step_plugin::{StepContext, StepPhase, StepPlugin, StepResult};
pub use traffic_router::{DesiredWeight, PodHashes, RouterError, TrafficRouter, Verification};
