//! Entry point: parses the command line and the environment, nothing else.

fn main() -> std::process::ExitCode {
    appset_bin::run(&appset_bin::CommandLine::read())
}
