//! [`main`]: a plugin as a complete program.

use std::io::{self, Write as _};
use std::process::ExitCode;

use tokio::runtime::Builder;
use tracing::level_filters::LevelFilter;
use tracing::{error, warn};

use crate::call::Plugin;
use crate::error::error_chain;
use crate::goplugin::env::PluginEnv;
use crate::goplugin::handshake::{HandshakeError, Protocol};
use crate::goplugin::log::{self, LogFormat};
use crate::goplugin::serve::{
    Announced, ServeConfig, ServeError, SessionRuntime, Signals, announce_on_stdout,
    serve_announced,
};
use crate::goplugin::session::Shutdown;

/// The variable with the log level of a plugin: `off`, `error`, `warn`, `info` (the default), `debug` or `trace`.
pub const LOG_LEVEL_VARIABLE: &str = "ROLLOUTS_PLUGIN_LOG_LEVEL";

/// Serves `plugin` and returns the exit code of the process. A program needs nothing else in its `main`.
///
/// It logs to stderr in the host's format, with the level in [`LOG_LEVEL_VARIABLE`], and serves the controller that started the process
/// until the controller or a signal ends it. If a person starts the program by hand, it explains how to install it. A program
/// that needs its own flags, runtime or log calls [`serve`](crate::serve) instead.
///
/// ```no_run
/// use std::process::ExitCode;
/// # use rollouts_rpc::{DesiredWeight, Result, Rollout, Router, TrafficRouter, WeightDestination};
/// # struct MyRouter;
/// # impl TrafficRouter for MyRouter {
/// #     async fn set_weight(&self, _: &Rollout, _: DesiredWeight, _: &[WeightDestination]) -> Result {
/// #         Ok(())
/// #     }
/// # }
///
/// fn main() -> ExitCode {
///     rollouts_rpc::main(Router(MyRouter))
/// }
/// ```
#[must_use]
pub fn main(plugin: impl Plugin) -> ExitCode {
    main_with(ServeConfig::new(), plugin)
}

/// Does the same as [`main`] with other time limits.
///
/// ```no_run
/// use std::{process::ExitCode, time::Duration};
/// # use rollouts_rpc::{DesiredWeight, Result, Rollout, Router, ServeConfig, TrafficRouter, WeightDestination};
/// # struct MyRouter;
/// # impl TrafficRouter for MyRouter {
/// #     async fn set_weight(&self, _: &Rollout, _: DesiredWeight, _: &[WeightDestination]) -> Result {
/// #         Ok(())
/// #     }
/// # }
///
/// fn main() -> ExitCode {
///     let config = ServeConfig::new().with_call_deadline(Duration::from_secs(20));
///     rollouts_rpc::main_with(config, Router(MyRouter))
/// }
/// ```
#[must_use]
pub fn main_with(config: ServeConfig, plugin: impl Plugin) -> ExitCode {
    let level = std::env::var(LOG_LEVEL_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let env = PluginEnv::from_vars(std::env::vars_os());
    let parsed: Result<LevelFilter, _> = level.parse();
    // A program that installed its own subscriber keeps it.
    let _kept = log::install(
        *parsed.as_ref().unwrap_or(&LevelFilter::INFO),
        LogFormat::Json,
    );
    if parsed.is_err() && env.cookie.is_some() {
        warn!(level, "{LOG_LEVEL_VARIABLE} is not a log level");
    }
    match run(config, plugin, &env) {
        Ok(_) => ExitCode::SUCCESS,
        Err(ServeError::Handshake(for_people @ HandshakeError::NotStartedByHost(_))) => {
            // The text is for the person who started the program, so it is not an hclog record.
            let _ = writeln!(io::stderr(), "{for_people}");
            ExitCode::FAILURE
        }
        Err(error) => {
            error!(error = error_chain(&error), "cannot serve");
            ExitCode::FAILURE
        }
    }
}

fn run<P: Plugin>(config: ServeConfig, plugin: P, env: &PluginEnv) -> Result<Shutdown, ServeError> {
    let session = SessionRuntime::start()?;
    let _entered = session.handle.enter();
    let signals = Signals::handle()?;
    let announced = Announced::new(env, (P::KIND, Protocol::NetRpc), announce_on_stdout)?;
    // The controller waits for the handshake line, so the threads of the author's tasks start after it.
    let calls = Builder::new_multi_thread().enable_all().build();
    let calls = calls.map_err(ServeError::Runtime)?;
    let serving = serve_announced(config, calls.handle().clone(), signals, announced, plugin);
    let ended = session.handle.block_on(serving);
    calls.shutdown_background();
    ended
}
