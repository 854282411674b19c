//! Support code of the tests: a Kubernetes API server with the released Rollouts controller, on loopback.
//!
//! [`Cluster`] starts the programs, [`Suite`] runs the tests of a file in one cluster, [`Canary`] is one Rollout with its
//! RouteTable in a separate namespace, and [`eventually`] is the only way to wait. The programs are built from the Go modules
//! in `go`; see `README.md`.

mod appset_installation;
mod browser;
mod canary;
mod cluster;
mod command;
mod demo;
mod eventually;
mod generator;
pub mod gloo;
mod install;
pub mod meaning;
pub mod traffic;

pub use appset_installation::{
    Installed, PluginConfig, appset_chart, appset_kustomization, appset_kustomization_in,
};
pub use browser::{Browser, Screen, chromium_binary};
pub use canary::{AbortEnd, Canary, Endpoints, History, Passes, count, split, updates};
pub use cluster::manifest::{apply, delete, parse};
pub use cluster::{
    ApiServerFault, Cluster, Controller, PLUGIN_NAME, Proxy, RecordedRequest, Release,
    SHORT_ELECTION, Setup, Suite, bind_reader, grant, hold_port, program,
};
use cluster::{kubelet, manifest, process};
pub use command::{Answer, END_OF_INPUT, plugin_binary, run, run_typing};
pub use demo::{Demo, Events, Response};
pub use eventually::{DEADLINE, eventually};
pub use generator::{Generator, Reply};
pub use install::{Download, follow_install_page, management_account, render, render_in};
