//! `rollouts-plugin-check BINARY --kind router|metric|step`; the library has all the code.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    rollouts_plugin_check::main(rollouts_plugin_check::Args::parse())
}
