//! The command line, and the commands for people and CI: ask without a server, and check a configuration.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use appset_generator::{Config, Failure, Request};
use clap::{Args, Parser, Subcommand};
use tokio::time::{Instant, sleep};

use crate::Flags;
use crate::flags::seconds;
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
        Command::Ask(args) => crate::start_logging(tracing::level_filters::LevelFilter::ERROR)
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
