//! Entry point: parses the command line and the environment, nothing else.

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    appset_bin::run(&appset_bin::Flags::parse())
}
