//! The process as Argo CD, the kubelet and an administrator see it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

mod bounds;
mod commands;
mod docs;
mod document;
mod generator;
mod http;
mod image_digests;
mod informers;
mod objects;
mod proxies;
mod recordings;
mod refresh;
mod registry;
mod tls;
