//! Tests of the running process, as Argo CD, the kubelet and an administrator use it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

mod argo_cd;
mod commands;
mod connections;
mod docs;
mod harness;
mod http;
mod image_digests;
mod objects;
mod refresh;
mod tenants;
