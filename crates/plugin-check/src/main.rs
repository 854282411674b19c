//! `rollouts-plugin-check BINARY --kind router|metric|step`: see the library.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    rollouts_plugin_check::main(rollouts_plugin_check::Args::parse())
}
