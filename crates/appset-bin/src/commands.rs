//! The command line: the flags of the server, and the commands `ask` and `validate`.

use std::fs;
use std::io::{ErrorKind as IoErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use appset_generator::{Config, ConfigError, Failure};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgGroup, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};
use tracing::level_filters::LevelFilter;

use crate::listen::Address;
use crate::metrics::Metrics;
use crate::objects::ObjectFlags;
use crate::sources::Sources;

const EXIT_CODES: &str = "Exit codes: 0 success; 1 the request is refused, or the configuration is invalid; \
2 the command line is invalid; 3 an input cannot be read, or the output \
cannot be written.";
/// The time between two attempts of `ask` while the objects of a cluster are unknown.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers the plugin generators of Argo CD's ApplicationSets.
#[derive(Debug, Clone, Parser)]
#[command(
    version = crate::VERSION,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct CommandLine {
    /// The command to run instead of the server.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// The flags of the server.
    #[command(flatten)]
    pub(crate) flags: Option<Flags>,
}

impl CommandLine {
    /// Reads the command line and the environment, or prints what is wrong with them and exits.
    #[must_use]
    pub fn read() -> Self {
        // A command does not use the flags of the server, so their variables must not affect it.
        let line = Self::command().mut_args(|flag| flag.env(None::<&str>));
        let command = line.try_get_matches().ok();
        let command = command.filter(|it| it.subcommand_name().is_some());
        let read = command.and_then(|it| Self::from_arg_matches(&it).ok());
        read.unwrap_or_else(|| Self::try_parse().unwrap_or_else(|error| explained(error).exit()))
    }
}

/// Adds to an error about flags that exclude each other which of them the environment may have set.
fn explained(mut error: clap::Error) -> clap::Error {
    let line = CommandLine::command();
    let variables = line.get_arguments().filter_map(|flag| flag.get_env());
    let set = variables.filter(|it| std::env::var_os(it).is_some());
    let set: Vec<_> = set.map(|it| it.to_string_lossy()).collect();
    if error.kind() == ErrorKind::ArgumentConflict && !set.is_empty() {
        let tip = format!("the environment sets {}", set.join(", ")).into();
        let tip = ContextValue::StyledStrs(vec![tip]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// The flags of the server.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("tokens").args(["tokens_dir", "token_file"]).required(true))]
// clap leaves the group of a struct with nested ones empty, and takes an empty group for absent flags.
#[group(args = ["config"])]
pub struct Flags {
    /// The configuration file; a change takes effect within a second, or at SIGHUP.
    #[arg(long, env = "GLOO_APPSET_CONFIG", value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// A directory with one file per token, such as a mounted Secret; a change takes effect within a second, or at SIGHUP.
    #[arg(long, env = "GLOO_APPSET_TOKENS_DIR", value_name = "DIR")]
    pub(crate) tokens_dir: Option<PathBuf>,

    /// A file with the only token, such as /var/run/argo/token; a change takes effect within a second, or at SIGHUP.
    #[arg(long, env = "GLOO_APPSET_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// The address for requests of Argo CD. Without a host, every address of the machine, with IPv4 and IPv6.
    #[arg(long, env = "GLOO_APPSET_LISTEN", value_name = "ADDRESS")]
    #[arg(default_value = ":8080")]
    pub(crate) listen: Address,

    /// The address of /livez, /readyz and /metrics.
    #[arg(long, env = "GLOO_APPSET_OPS_LISTEN", value_name = "ADDRESS")]
    #[arg(default_value = ":8081")]
    pub(crate) ops_listen: Address,

    /// The certificates for https in PEM, the server's own first; a change takes effect within a second, or at SIGHUP.
    #[arg(long, env = "GLOO_APPSET_TLS_CERT", value_name = "FILE")]
    #[arg(requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The private key of the certificate in PEM.
    #[arg(long, env = "GLOO_APPSET_TLS_KEY", value_name = "FILE")]
    #[arg(requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) objects: ObjectFlags,

    /// The deadline of a call in seconds, from 0.1 to 600. Argo CD waits 30 seconds by default.
    #[arg(long, env = "GLOO_APPSET_DEADLINE", value_name = "SECONDS")]
    #[arg(default_value = "25", value_parser = deadline)]
    pub(crate) deadline: Duration,

    /// The time in seconds, at most 600, for which new connections are accepted after SIGTERM, until the cluster has removed the
    /// endpoint.
    #[arg(long, env = "GLOO_APPSET_SHUTDOWN_DELAY", value_name = "SECONDS")]
    #[arg(default_value = "5", value_parser = seconds)]
    pub(crate) shutdown_delay: Duration,

    /// The maximum number of concurrent calls; with several tokens, each may have half of them.
    #[arg(long, env = "GLOO_APPSET_MAX_CONCURRENT", value_name = "NUMBER")]
    #[arg(default_value = "64", value_parser = number(1, 10_000))]
    pub(crate) max_concurrent: usize,

    /// The maximum size of an answer in MiB.
    #[arg(long, env = "GLOO_APPSET_MAX_ANSWER", value_name = "MIB")]
    #[arg(default_value = "16", value_parser = number(1, 1024))]
    pub(crate) max_answer: usize,

    /// The memory in MiB for the bodies of requests and the answers in progress; with several tokens, each may use half of it.
    #[arg(long, env = "GLOO_APPSET_MEMORY", value_name = "MIB")]
    #[arg(default_value = "96", value_parser = number(4, 65_536))]
    pub(crate) memory: usize,

    /// The least severe level that is logged to stderr: error, warn, info, debug or trace.
    #[arg(long, env = "GLOO_APPSET_LOG_LEVEL", value_name = "LEVEL")]
    #[arg(default_value = "info", value_parser = level)]
    pub(crate) log_level: LevelFilter,
}

/// A command that runs instead of the server.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Print the answer to a request and exit.
    #[command(after_help = EXIT_CODES)]
    Ask(Ask),
    /// Check a configuration and exit.
    #[command(after_help = EXIT_CODES)]
    Validate {
        /// The configuration file.
        #[arg(long, env = "GLOO_APPSET_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
}

/// The arguments of `ask`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Ask {
    /// The configuration file.
    #[arg(long, env = "GLOO_APPSET_CONFIG", value_name = "FILE")]
    config: PathBuf,

    /// The profile to use. No token is needed.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    #[command(flatten)]
    objects: ObjectFlags,

    /// The deadline in seconds.
    #[arg(long, env = "GLOO_APPSET_DEADLINE", value_name = "SECONDS")]
    #[arg(default_value = "25", value_parser = deadline)]
    deadline: Duration,

    /// The body that Argo CD would send: the text, a file, or - for stdin.
    #[arg(value_name = "BODY")]
    body: String,
}

/// The outcome of a command whose inputs could be read: the text for stdout, or the reason for stderr.
type Printed = Result<Vec<u8>, String>;

/// Runs a command. Returns one of the [`EXIT_CODES`].
pub(crate) fn run(command: &Command) -> ExitCode {
    let outcome = match command {
        Command::Ask(args) => crate::start_logging(LevelFilter::ERROR)
            .and_then(|_log| Runtime::new()?.block_on(ask(args))),
        Command::Validate { config } => validate(config),
    };
    match outcome {
        Ok(Ok(text)) => {
            let mut stdout = std::io::stdout();
            let written = stdout.write_all(&[&text, b"\n".as_slice()].concat());
            match written.and_then(|()| stdout.flush()) {
                // The reader needs no more.
                Err(error) if error.kind() == IoErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(error) => print_error(&format!("stdout cannot be written: {error}"), 3),
                Ok(()) => ExitCode::SUCCESS,
            }
        }
        Ok(Err(why)) => print_error(&why, 1),
        Err(error) => print_error(&format!("{error:#}"), 3),
    }
}

/// Prints an error to stderr, and returns the exit code.
pub(crate) fn print_error(why: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {}", why.replace('\n', " "));
    ExitCode::from(code)
}

fn validate(file: &Path) -> anyhow::Result<Printed> {
    let config = Config::from_yaml(&read(file)?);
    let config = config.map_err(|error| format!("{}: {error}", file.display()));
    Ok(config.map(|config| {
        for warning in config.warnings() {
            let _ = writeln!(std::io::stderr(), "warning: {warning}");
        }
        b"the configuration is valid".to_vec()
    }))
}

async fn ask(args: &Ask) -> anyhow::Result<Printed> {
    let body = match args.body.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("stdin cannot be read")?,
        text if text.trim_start().starts_with('{') => text.to_owned(),
        file => read(Path::new(file))?,
    };
    if let Some(dir) = &args.objects.objects_dir {
        fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    }
    let metrics = Metrics::new();
    // The file may be a pipe, which can be read once.
    let sources = match Sources::new(&args.config, &args.objects, args.deadline, &metrics) {
        Err(why) if why.is::<ConfigError>() => return Ok(Err(format!("{why:#}"))),
        sources => sources?,
    };
    let until = Instant::now() + args.deadline;
    loop {
        let asked = sources.ask(args.profile.as_deref(), body.as_bytes());
        match asked.await {
            Ok(body) => return Ok(Ok(body)),
            // The objects of the cluster are still being listed.
            Err(Failure::NotReady(_)) if Instant::now() + PAUSE < until => {
                sleep(PAUSE).await;
                sources.follow_config();
            }
            Err(failure) => {
                let code = failure.code().name;
                return Ok(Err(match failure {
                    // The message speaks of the `baseUrl` that Argo CD has.
                    Failure::UnknownProfile(name) => format!(
                        "unknown profile {name}: set --profile to one of {} ({code})",
                        sources
                            .config
                            .current()
                            .profiles()
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                    failure => format!("{failure} ({code})"),
                }));
            }
        }
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

/// The longest time that a flag may have, in seconds.
const LONGEST: f32 = 600.0;

/// Parses a level. `tracing` also reads numbers, and an empty text as no level.
fn level(text: &str) -> Result<LevelFilter, String> {
    let level = text.parse::<LevelFilter>().ok();
    let level =
        level.filter(|it| it.to_string().eq_ignore_ascii_case(text) && *it != LevelFilter::OFF);
    level.ok_or_else(|| "expected error, warn, info, debug or trace".to_owned())
}

/// Parses a number of seconds, which may have a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|it| (0.0..=LONGEST).contains(it));
    seconds
        .map(Duration::from_secs_f32)
        .ok_or_else(|| format!("expected a number of seconds, at most {LONGEST}"))
}

/// Parses a deadline. Without any time every call would fail.
fn deadline(text: &str) -> Result<Duration, String> {
    let deadline = seconds(text).ok().filter(|it| it.as_millis() >= 100);
    deadline.ok_or_else(|| format!("expected a number of seconds from 0.1 to {LONGEST}"))
}

/// Returns a parser of whole numbers.
fn number(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|it| (least..=most).contains(it));
        number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_range() {
        for text in ["0.1", "25", "600"] {
            assert!(deadline(text).is_ok(), "{text}");
        }
        for text in ["0", "0.09", "601", "99999999", "-1", "NaN", "inf", "x", ""] {
            assert!(deadline(text).is_err(), "{text}");
        }
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(number(1, 10)("10"), Ok(10));
        let refused = Err("expected a whole number from 1 to 10".to_owned());
        for text in ["0", "11", "-1", "1.5"] {
            assert_eq!(number(1, 10)(text), refused, "{text}");
        }
    }

    #[test]
    fn a_level_has_a_name() {
        for text in ["error", "warn", "info", "DEBUG", "trace"] {
            assert!(level(text).is_ok(), "{text}");
        }
        for text in ["", "off", "3", "all"] {
            assert!(level(text).is_err(), "{text}");
        }
    }

    /// For example, the variable of `--log-level` is `GLOO_APPSET_LOG_LEVEL`.
    #[test]
    fn every_flag_has_a_variable_named_after_it() {
        CommandLine::command().debug_assert();
        for flag in CommandLine::command().get_arguments() {
            let name = flag.get_long().unwrap().to_uppercase().replace('-', "_");
            let variable = format!("GLOO_APPSET_{name}");
            assert_eq!(flag.get_env().unwrap(), variable.as_str());
        }
    }
}
