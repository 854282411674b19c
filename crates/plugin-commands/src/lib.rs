//! The commands of the plugin for people and pipelines, and the flags that they share with the plugin. They run the router on a
//! copy of the tables, and show its decisions before anything is written.
//!
//! Each command first builds a report, a plain value, and then prints it in the requested format.

mod call;
mod controller;
mod doctor;
mod flags;
mod input;
mod install;
mod invalid_spec;
mod node;
mod output;
mod plan;
mod restore;
mod routes;
mod simulate;
mod status;
mod trial;
mod update;
mod validate;
mod world;

pub use controller::{AbortDelay, ControllerRelease};
pub use doctor::{Permissions, permissions};
pub use flags::{Flags, Protocol};

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use rollouts_rpc::error_line;

/// The name of the program.
const PROGRAM: &str = "rollouts-plugin-trafficrouter-glooplatform";

/// The version of the program. In a release also the commit that it was built from, which `cargo xtask dist` sets at compile
/// time.
pub const VERSION: &str = match option_env!("RELEASE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The User-Agent of each request.
fn user_agent() -> String {
    route_store::user_agent(PROGRAM, VERSION)
}

/// Shown to a person who runs the plugin without a command.
pub const HINT: &str =
    "Commands for people: plan, simulate, validate, status, restore and doctor; see --help.";

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 a problem was found, or the controller or the plugin would refuse; \
2 the command line is wrong, or names what does not exist; 3 an input or the cluster cannot be read.";

/// Argo Rollouts traffic router for Solo.io Gloo Platform.
///
/// Without a command this is the plugin, which the Rollouts controller starts: register it in the ConfigMap
/// `argo-rollouts-config` under `trafficRouterPlugins`, with its flags as `args`. The commands are for people.
#[derive(Debug, Clone, Parser)]
#[command(
    name = PROGRAM,
    version = VERSION,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = EXIT_CODES
)]
pub struct CommandLine {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    Plan(plan::Args),
    Simulate(simulate::Args),
    Validate(validate::Args),
    Status(status::Args),
    Restore(restore::Args),
    Doctor(doctor::Args),
    Install(install::Args),
    /// Print a script that completes this command line in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// A mistake of the command line that only the objects show.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// Why no call would be made, or would succeed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Returns a [`Misuse`] with this text as the error of the function.
macro_rules! misuse {
    ($($text:tt)*) => {
        return Err(crate::Misuse(format!($($text)*)).into())
    };
}
use misuse;

impl CommandLine {
    /// Parses the command line of this process. Returns the exit code if there is nothing else to do: after `--help`, or if the
    /// line is wrong.
    ///
    /// # Errors
    /// See above.
    pub fn of_process() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|answer| {
            if answer.use_stderr() {
                // If stderr is closed, the message is lost.
                let _ = answer.print();
                return ExitCode::from(2);
            }
            match output::print(&answer.render().ansi().to_string()) {
                Ok(_) => ExitCode::SUCCESS,
                Err(error) => failed(&error),
            }
        })
    }

    /// Runs the command that the line names, or `plugin` if it names none. `--help` lists the exit codes.
    pub fn run(&self, plugin: impl FnOnce(&Flags) -> ExitCode) -> ExitCode {
        let Some(command) = &self.command else {
            return plugin(&self.flags);
        };
        match answer(command) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(error) => failed(&error),
        }
    }
}

/// Prints an error and returns its exit code.
fn failed(error: &anyhow::Error) -> ExitCode {
    output::print_error(&one_line(error));
    ExitCode::from(match error {
        _ if error.is::<Refused>() => 1,
        _ if error.is::<Misuse>() => 2,
        _ => 3,
    })
}

/// Formats an error and its causes as one line.
fn one_line(error: &anyhow::Error) -> String {
    without_os_number(&error_line(error.as_ref()))
}

/// Removes the number that the operating system gives an error.
fn without_os_number(text: &str) -> String {
    let text = text.split(" (os error").next();
    text.unwrap_or_default().to_owned()
}

/// Runs a command. Returns `false` if it has found a problem, or has not done what was asked.
fn answer(command: &Command) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Command::Plan(args) => plan::run(args).await,
            Command::Simulate(args) => simulate::run(args).await,
            Command::Validate(args) => validate::run(args).await,
            Command::Status(args) => status::run(args).await,
            Command::Restore(args) => restore::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Install(args) => install::run(args),
            Command::Completions { shell } => {
                let mut command = CommandLine::command();
                let name = command.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut command, name, &mut script);
                output::print(&String::from_utf8_lossy(&script))?;
                Ok(true)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }
}
