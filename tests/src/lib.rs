//! What the cluster tests stand on: a Kubernetes API server with the released Rollouts controller, on loopback.
//!
//! [`Cluster`] starts the programs, [`Suite`] runs the tests of a file in one of them, [`Canary`] is one Rollout with its
//! RouteTable in a namespace of its own, and [`eventually`] is the only way to wait. The programs are built from the Go modules in `go`; see `README.md`.

mod appset_installation;
mod appset_manifests;
mod browser;
mod canary;
mod cluster;
mod command;
mod controller;
mod credentials;
mod demo;
mod download;
mod endpoints;
mod eventually;
mod generator;
mod grant;
mod kubelet;
mod kustomize;
mod manifest;
mod passes;
mod pod;
mod process;
mod proxy;
mod release;
mod suite;
mod terminal;
pub mod traffic;
mod volume;
pub mod walks;

pub use appset_installation::{Installed, PluginConfig};
pub use appset_manifests::{appset_chart, appset_kustomization};
pub use browser::{Browser, Screen, chromium_binary};
pub use canary::{Canary, History, split};
pub use cluster::{Cluster, PLUGIN_NAME, program};
pub use command::{Answer, plugin_binary, run, run_typing};
pub use controller::{Controller, Setup};
pub use demo::{Demo, Events, Response};
pub use download::Download;
pub use endpoints::Endpoints;
pub use eventually::eventually;
pub use generator::{Generator, Reply};
pub use grant::{bind_reader, grant};
pub use kustomize::render;
pub use manifest::{apply, delete, parse};
pub use passes::{Passes, count};
pub use proxy::{Proxy, Seen, Sickness};
pub use release::Release;
pub use suite::Suite;
pub use terminal::END_OF_INPUT;
