//! The demo of a canary on a real Envoy: starts a plugin, plays the controller, sends requests, and serves a web page.
//!
//! ```sh
//! cargo xtask demo --web
//! ```

mod rollout;
mod shop;
mod stage;

use std::path::PathBuf;

use anstream::println;
use clap::Parser as _;

/// Shows a canary on a web page at 127.0.0.1. $ENVOY_BINARY is the path of Envoy.
#[derive(clap::Parser)]
struct Flags {
    /// Path of the plugin.
    plugin: PathBuf,
    #[command(flatten)]
    page: traffic_page::PageFlags,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Flags { plugin, page } = Flags::parse();
    let open = async { Ok(stage::FileStage::open(&plugin).await?) };
    let served = traffic_page::serve(page, open, |address| {
        println!("http://{address}/  shows a canary on Envoy. Ctrl-C ends it.");
    });
    Ok(served.await?)
}
