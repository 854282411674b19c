//! A canary on a real Envoy, to watch and to break: starts a plugin, plays the controller, sends requests, serves a page.
//!
//! ```sh
//! cargo xtask demo --web
//! ```

mod counts;
mod rollout;
mod serve;
mod shop;
mod stage;
mod tables;
mod tail;
mod view;
mod web;

use std::path::PathBuf;

use clap::Parser;

/// Shows a canary on a page at 127.0.0.1. The Envoy is that of $ENVOY_BINARY.
#[derive(Parser)]
pub(crate) struct Flags {
    /// The plugin's program.
    plugin: PathBuf,
    /// Port of the page; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// End after this many seconds.
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    serve::run(Flags::parse()).await
}
