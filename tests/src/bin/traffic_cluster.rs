//! The web page of `cargo xtask demo --web --cluster`: the released controller calls the plugin at `$PLUGIN_BINARY`.

use clap::Parser as _;
use e2e_tests::traffic::ClusterStage;

/// Shows a canary in a cluster on a web page at 127.0.0.1. $ENVOY_BINARY is the path of Envoy.
#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    page: traffic_page::PageFlags,
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "prints the address of the page")]
async fn main() -> anyhow::Result<()> {
    let Flags { page } = Flags::parse();
    let open = async { Ok(ClusterStage::open().await?) };
    let served = traffic_page::serve(page, open, |address| {
        println!("http://{address}/  shows a canary in a cluster. Ctrl-C ends it.");
    });
    Ok(served.await?)
}
