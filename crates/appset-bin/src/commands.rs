//! The command line: the flags of the server, and the commands `ask` and `validate`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use appset_generator::{Config, Failure, Request};
use clap::{ArgGroup, Args, Parser, Subcommand};
use tokio::time::{Instant, sleep};
use tracing::level_filters::LevelFilter;

use crate::service::Service;

const EXIT_CODES: &str = "Exit codes: 0 answered, or the configuration is right; 1 refused, or it is wrong; \
2 the command line is wrong; 3 an input cannot be read.";
/// How long to wait before looking again whether a cluster's objects are known.
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
    /// What to do instead of serving.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// How to serve.
    #[command(flatten)]
    pub(crate) flags: Option<Flags>,
}

/// How to serve.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("tokens").required(true))]
pub struct Flags {
    /// The configuration; a change counts from the next request.
    #[arg(long, env = "GLOO_APPSET_CONFIG", value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// A directory with one file per token, such as a mounted Secret; a change counts from the next request.
    #[arg(
        long,
        env = "GLOO_APPSET_TOKENS_DIR",
        value_name = "DIR",
        group = "tokens"
    )]
    pub(crate) tokens_dir: Option<PathBuf>,

    /// A file with the only token, such as /var/run/argo/token; a change counts from the next request.
    #[arg(
        long,
        env = "GLOO_APPSET_TOKEN_FILE",
        value_name = "FILE",
        group = "tokens"
    )]
    pub(crate) token_file: Option<PathBuf>,

    /// Where Argo CD asks.
    #[arg(
        long,
        env = "GLOO_APPSET_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080"
    )]
    pub(crate) listen: SocketAddr,

    /// Where /livez, /readyz and /metrics are.
    #[arg(
        long,
        env = "GLOO_APPSET_OPS_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8081"
    )]
    pub(crate) ops_listen: SocketAddr,

    /// Certificates to answer https with, PEM, the server's own first; a change counts from the next connection.
    #[arg(
        long,
        env = "GLOO_APPSET_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate, PEM.
    #[arg(
        long,
        env = "GLOO_APPSET_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// Kubeconfig of the cluster whose objects are read, when it is not the one at hand.
    #[arg(long, env = "GLOO_APPSET_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context within the kubeconfig.
    #[arg(long, env = "GLOO_APPSET_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Take objects from the YAML files of this directory instead of a cluster.
    #[arg(long, env = "GLOO_APPSET_OBJECTS_DIR", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub(crate) objects_dir: Option<PathBuf>,

    /// Longest time for an answer, in seconds. Argo CD waits 30 by default.
    #[arg(long, env = "GLOO_APPSET_DEADLINE", value_name = "SECONDS", default_value = "25", value_parser = seconds)]
    pub(crate) deadline: Duration,

    /// How long new connections are still answered after SIGTERM, in seconds: until the cluster has heard of it.
    #[arg(long, env = "GLOO_APPSET_SHUTDOWN_DELAY", value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) shutdown_delay: Duration,

    /// Calls that may run at the same time.
    #[arg(
        long,
        env = "GLOO_APPSET_MAX_CONCURRENT",
        value_name = "NUMBER",
        default_value = "64"
    )]
    pub(crate) max_concurrent: usize,

    /// The least severe records to log, on stderr: error, warn, info, debug or trace.
    #[arg(
        long,
        env = "GLOO_APPSET_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub(crate) log_level: LevelFilter,
}

/// What to do instead of serving.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Print what a request is answered, and end.
    #[command(after_help = EXIT_CODES)]
    Ask(Ask),
    /// Check a configuration, and end.
    #[command(after_help = EXIT_CODES)]
    Validate(Validate),
}

/// `ask`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Ask {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// The profile to ask, whichever tokens it is for.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// Kubeconfig of the cluster whose objects are read, when it is not the one at hand.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context within the kubeconfig.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Take objects from the YAML files of this directory instead of a cluster.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    objects_dir: Option<PathBuf>,

    /// Longest time for an answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "25", value_parser = seconds)]
    deadline: Duration,

    /// The body that Argo CD would send: its text, a file, or - for stdin.
    #[arg(value_name = "BODY")]
    body: String,
}

/// `validate`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Validate {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// What a command found out.
enum Found {
    /// Text for stdout.
    Yes(Vec<u8>),
    /// Why not.
    No(String),
}

/// Carries out a command; the exit code is as `--help` says.
pub(crate) fn run(command: &Command) -> ExitCode {
    let found = match command {
        Command::Ask(args) => crate::start_logging(LevelFilter::ERROR)
            .and_then(|()| crate::runtime()?.block_on(ask(args))),
        Command::Validate(args) => validate(args),
    };
    match found {
        Ok(Found::Yes(text)) => {
            let mut stdout = std::io::stdout();
            // The reader may have closed the pipe.
            let _ = stdout
                .write_all(&text)
                .and_then(|()| stdout.write_all(b"\n"));
            ExitCode::SUCCESS
        }
        Ok(Found::No(why)) => complain(&why, 1),
        Err(error) => complain(&format!("{error:#}"), 3),
    }
}

fn complain(why: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {}", why.replace('\n', " "));
    ExitCode::from(code)
}

fn validate(args: &Validate) -> anyhow::Result<Found> {
    Ok(match Config::from_yaml(&read(&args.config)?) {
        Ok(_) => Found::Yes(b"the configuration is right".to_vec()),
        Err(error) => Found::No(format!("{}: {error}", args.config.display())),
    })
}

async fn ask(args: &Ask) -> anyhow::Result<Found> {
    let body = match args.body.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("stdin cannot be read")?;
            text
        }
        text if text.trim_start().starts_with('{') => text.to_owned(),
        file => read(Path::new(file))?,
    };
    if let Err(error) = Config::from_yaml(&read(&args.config)?) {
        return Ok(Found::No(format!("{}: {error}", args.config.display())));
    }
    let flags = Flags {
        kubeconfig: args.kubeconfig.clone(),
        context: args.context.clone(),
        objects_dir: args.objects_dir.clone(),
        deadline: args.deadline,
        ..Flags::for_one_call(&args.config)
    };
    let service = Service::new(&flags)?;
    let until = Instant::now() + args.deadline;
    loop {
        let answered = answer(&service, args.profile.as_deref(), body.as_bytes()).await;
        match answered {
            // The objects of a cluster are being listed.
            Err(Failure::NotReady(_)) if Instant::now() + PAUSE < until => sleep(PAUSE).await,
            Err(failure) => return Ok(Found::No(format!("{} ({})", failure, failure.code().name))),
            Ok(body) => return Ok(Found::Yes(body)),
        }
    }
}

async fn answer(service: &Service, profile: Option<&str>, body: &[u8]) -> Result<Vec<u8>, Failure> {
    let request = Request::from_body(body)?;
    let query = service.query(profile, None, &request).await?;
    service.answer(query).await?.to_body()
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

impl Flags {
    /// Those of a command that answers one call, without tokens and ports.
    pub(crate) fn for_one_call(config: &Path) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            config: config.to_owned(),
            tokens_dir: None,
            token_file: None,
            listen: nowhere,
            ops_listen: nowhere,
            tls_cert: None,
            tls_key: None,
            kubeconfig: None,
            context: None,
            objects_dir: None,
            deadline: Duration::from_secs(25),
            shutdown_delay: Duration::ZERO,
            max_concurrent: 1,
            log_level: LevelFilter::ERROR,
        }
    }

    /// The directory with the tokens, or the file with the only one.
    pub(crate) fn tokens(&self) -> &Path {
        let given = self.tokens_dir.as_deref().or(self.token_file.as_deref());
        // One of the two is required.
        given.unwrap_or(Path::new(""))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f32| *seconds >= 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f32(seconds).ok())
        .ok_or_else(|| "expected a number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// `--log-level` is `GLOO_APPSET_LOG_LEVEL`.
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
