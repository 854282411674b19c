//! Entry point: parses the command line and the environment, nothing else.

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    appset_bin::run(&appset_bin::CommandLine::parse())
}
