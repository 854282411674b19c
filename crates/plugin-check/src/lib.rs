//! A conformance kit for plugins of Argo Rollouts, whatever they are written in.
//!
//! It starts the plugin as the controller does, calls it with what released controllers have sent, and writes down what it
//! finds. A check of level `must` is about something that breaks a controller, a rollout or a call; `should` is about
//! something that a controller survives, such as a log line that is hard to read.
//!
//! ```text
//! checks          what
//! by-hand.*       started without a controller
//! announce.*      the handshake line, and the environment it depends on
//! session.*       streams, ping, dispense, unknown methods
//! call.*          every method: with nil, another type, an empty argument, and what released controllers sent
//! load.*          calls at once, big arguments, memory
//! life.*          idle, quit, hang-up, kill, signals, log lines
//! ```

mod calls;
mod life;
mod process;
mod replies;
mod report;
mod session;
mod sniffer;
mod start;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rollouts_rpc::goplugin::handshake::PluginKind;

pub use report::{Finding, Level, Outcome, Report};

/// What to check, and how long to wait.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    version,
    about = "Checks a plugin of Argo Rollouts as the controller would use it"
)]
pub struct Args {
    /// The plugin.
    pub binary: PathBuf,
    /// What the controller would use it as.
    #[arg(long)]
    pub kind: Kind,
    /// Arguments of the plugin, as in the controller's ConfigMap.
    #[arg(last = true)]
    pub arguments: Vec<OsString>,
    /// Print the findings as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Seconds without a call: a controller gives up on a stream that is not acknowledged within 75.
    #[arg(long, value_name = "SECONDS", default_value_t = 80)]
    pub idle: u64,
    /// Seconds that a call may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 40)]
    pub patience: u64,
    /// MiB that the plugin may have in memory after all calls.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub memory: u64,
    /// Only checks whose name begins with this.
    #[arg(long, value_name = "PREFIX")]
    pub only: Vec<String>,
}

/// A kind of plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A traffic router.
    Router,
    /// A metric provider.
    Metric,
    /// A step.
    Step,
}

impl Kind {
    pub(crate) fn plugin(self) -> PluginKind {
        match self {
            Self::Router => PluginKind::TrafficRouter,
            Self::Metric => PluginKind::MetricProvider,
            Self::Step => PluginKind::Step,
        }
    }
}

impl Args {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

/// Runs the checks and prints what they found. The exit code is 1 if a plugin fails what it must, 2 if the checks cannot
/// run, and 130 after an interrupt.
#[must_use]
#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a person or a program reads it"
)]
pub fn main(args: Args) -> ExitCode {
    let json = args.json;
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::from(2);
        }
    };
    let report = runtime.block_on(async {
        tokio::select! {
            report = check(args) => Some(report),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    let Some(report) = report else {
        return ExitCode::from(130);
    };
    if json {
        println!("{}", report.to_json());
    } else {
        println!("{report}");
    }
    if report.is_conformant() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the checks. From then on an interrupt does not end this process by itself.
pub async fn check(args: Args) -> Report {
    let mut report = Report::new(&args);
    if report.wants(&["by-hand", "other-kind"]) {
        start::by_hand(&args, &mut report).await;
    }
    if start::announcement(&args, &mut report).await {
        if report.wants(&["session"]) {
            session::checks(&args, &mut report).await;
        }
        if report.wants(&["call", "load"]) {
            calls::checks(&args, &mut report).await;
        }
        if report.wants(&["life"]) {
            life::checks(&args, &mut report).await;
        }
    }
    report
}
