//! Parses the command line and the environment, and runs the plugin.

use std::{env, process::ExitCode};

use mimalloc::MiMalloc;
use plugin_commands::CommandLine;
use rollouts_rpc::PluginEnv;

/// Replaces the allocator of musl: one lock for all threads takes most of the time of a pass that changes nothing.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match CommandLine::of_process() {
        Ok(line) => plugin_bin::run(&line, &PluginEnv::from_vars(env::vars_os())),
        Err(code) => code,
    }
}
