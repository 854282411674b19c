//! Entry point: parses the command line and the environment, nothing else.

use std::{env, process::ExitCode};

use clap::Parser as _;
use dlmalloc::GlobalDlmalloc;
use plugin_bin::CommandLine;
use rollouts_rpc::PluginEnv;

/// In place of musl's, which takes half of a steady pass.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    plugin_bin::run(&CommandLine::parse(), &PluginEnv::from_vars(env::vars_os()))
}
