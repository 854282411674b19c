//! A conformance kit for Argo Rollouts plugins in any language.
//!
//! It starts the plugin as the controller does, makes recorded and invalid calls, and reports its findings. A failed check of level `must`
//! breaks a controller, a rollout or a call. A controller survives a failed check of level `should`, such as a log line that is
//! hard to read.
//!
//! ```text
//! checks          subject
//! by-hand.*       start without a controller
//! announce.*      handshake line and environment
//! session.*       streams, ping, dispense, unknown methods
//! call.*          the recorded calls of released controllers
//! load.*          concurrent calls, large arguments, memory
//! configured.*    calls with the plugin's own configuration: success, effect, pings meanwhile, a restart
//! argument.*      every method with nil, another type and an empty argument, which no controller sends
//! life.*          idle session, quit, closed connection, kill, signals, log lines
//! ```
#![doc = include_str!("../README.md")]

mod calls;
mod configured;
mod life;
mod process;
mod report;
mod session;
mod start;

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use rollouts_rpc::goplugin::handshake::PluginKind;

pub use report::{Finding, Level, Outcome, Report};

/// The version, and in a release also the commit.
const VERSION: &str = match option_env!("RELEASE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The plugin to check, and the timeouts.
#[derive(Clone, Debug, clap::Parser)]
#[non_exhaustive]
#[command(
    version = VERSION,
    about = "Checks an Argo Rollouts plugin: starts and calls it as the controller does"
)]
pub struct Args {
    /// Path of the plugin.
    pub binary: PathBuf,
    /// Kind of the plugin.
    #[arg(long)]
    pub kind: Kind,
    /// Arguments of the plugin, as in the controller's ConfigMap.
    #[arg(last = true)]
    pub arguments: Vec<OsString>,
    /// Configuration of the plugin, for the calls of the checks "configured": its name, and JSON as a Rollout or a metric has it.
    #[arg(long, value_name = "NAME=JSON")]
    pub config: Option<Config>,
    /// YAML of the Rollout that these calls have. The default is the Rollout of the recorded calls, shop/demo.
    #[arg(long, value_name = "FILE")]
    pub rollout: Option<PathBuf>,
    /// Shell command that prints where a router sends traffic. It must print different things for different weights.
    #[arg(long, value_name = "COMMAND")]
    pub probe: Option<String>,
    /// Print the checks that the plugin passes too.
    #[arg(long)]
    pub verbose: bool,
    /// Print the findings as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Length of the idle session, in seconds. A controller closes a session if a stream is not acknowledged within 75 s.
    #[arg(long, value_name = "SECONDS", default_value_t = 80)]
    pub idle: u64,
    /// Longest time of a call, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 40)]
    pub patience: u64,
    /// Most memory of the plugin after all calls, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub memory: u64,
    /// Run only the checks whose names start with this.
    #[arg(long, value_name = "PREFIX")]
    pub only: Vec<String>,
}

/// The configuration of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The plugin's name in the controller's ConfigMap.
    pub name: String,
    /// The plugin's own fields.
    pub json: serde_json::Value,
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, json) = text.split_once('=').ok_or("give it as NAME=JSON")?;
        let json = serde_json::from_str(json).map_err(|error| format!("{name}: {error}"))?;
        let name = name.to_owned();
        Ok(Self { name, json })
    }
}

/// A kind of plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A traffic router.
    Router,
    /// A metric provider.
    Metric,
    /// A step plugin.
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

/// Runs the checks and prints the report. The exit code is 1 if the plugin fails a check of level `must` or such a check did not run, 2 if no
/// check can run, and 130 after an interrupt.
#[must_use]
#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the report is the output of the program"
)]
pub fn main(args: Args) -> ExitCode {
    let json = args.json;
    if let Err(error) = is_program(&args.binary) {
        eprintln!("{}: {error}", args.binary.display());
        return ExitCode::from(2);
    }
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
    if report.findings.is_empty() {
        eprintln!("no check has a name that starts with --only");
        return ExitCode::from(2);
    }
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

/// Returns why a path is not that of a program.
fn is_program(path: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    let is_executable = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    match is_executable {
        true => Ok(()),
        false => Err(io::Error::other("it is not an executable file")),
    }
}

/// Runs the checks. It installs a handler of SIGINT, so afterwards an interrupt does not end this process.
pub async fn check(args: Args) -> Report {
    let mut report = Report::new(&args);
    if report.wants(&["by-hand", "other-kind"]) {
        start::by_hand(&args, &mut report).await;
    }
    start::announcement(&args, &mut report).await;
    if report.starts("session") {
        session::checks(&args, &mut report).await;
    }
    calls::recorded(&args, &mut report).await;
    if report.starts("load") {
        calls::load(&args, &mut report).await;
    }
    if (args.config.is_some() || args.rollout.is_some()) && report.starts("configured") {
        configured::checks(&args, &mut report).await;
    }
    if report.starts("argument") {
        calls::arguments(&args, &mut report).await;
    }
    if report.starts("life") {
        life::checks(&args, &mut report).await;
    }
    report
}
