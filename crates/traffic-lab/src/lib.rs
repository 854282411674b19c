//! A real Envoy with Pods, Services and clients on loopback.
//!
//! It shows what becomes of requests when a RouteTable is served by an Envoy, as in a gateway of Gloo. This is a **model**: the
//! routes come from `envoy-routes`, which is not Gloo, the Pods are tasks of this process, and how late the gateway hears of
//! routes and endpoints is up to the test.
//!
//! ```text
//! RouteTables -> envoy_routes::translate -> World --route delay-----> Gateway -> files -> Envoy <- Load <- answers
//! Pods of a Service ----------------------> World --endpoint delay--> Gateway                        |
//!   ^------------------------------------------------------------------------------------------------+
//! ```
//!
//! [`Envoy`] is the process and its files, [`Gateway`] what it serves, [`World`] how late it hears of it, [`Pod`] a small HTTP
//! server, [`Load`] the clients, and [`proof`] the statistics.

mod admin;
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
