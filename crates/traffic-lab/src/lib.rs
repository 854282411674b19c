//! A real Envoy with Pods, Services and clients on loopback.
//!
//! It shows the effect of a RouteTable on requests when an Envoy serves it, as in a gateway of Gloo. This is a **model**: the
//! routes come from `envoy-routes`, which is not Gloo, the Pods are tasks of this process, and the test sets the delays after
//! which the gateway receives routes and endpoints.
//!
//! ```text
//! RouteTables -> envoy_routes::translate -> World --route delay-----> Gateway -> files -> Envoy <- Load <- answers
//! Pods of a Service ----------------------> World --endpoint delay--> Gateway                        |
//!   ^------------------------------------------------------------------------------------------------+
//! ```
//!
//! [`Envoy`] owns the process and its files, [`Gateway`] its configuration, [`World`] the delays, [`Pod`] is a small HTTP
//! server, [`Load`] sends requests, and [`proof`] has the statistics.

mod envoy;
mod error;
mod gateway;
mod load;
mod pod;
pub mod proof;
mod world;

pub use envoy::{Envoy, envoy_binary};
pub use error::LabError;
pub use gateway::{Endpoint, Gateway, Part, ServiceName};
pub use load::{Answer, Load, Sent, Target};
pub use pod::{Pod, TakenIds};
pub use world::{Delays, World};
