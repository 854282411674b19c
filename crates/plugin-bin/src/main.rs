//! Entry point: parses the command line and the environment, nothing else.

use std::{env, process::ExitCode};

use clap::Parser as _;
use plugin_bin::CommandLine;
use rollouts_rpc::PluginEnv;

fn main() -> ExitCode {
    plugin_bin::run(&CommandLine::parse(), &PluginEnv::from_vars(env::vars_os()))
}
