//! The plugin as a program: flags, logging, the store and the router wired together.
//!
//! Decisions are `route-planner`'s, access is `route-store`'s, the protocol is `rollouts-rpc`'s.

mod error;
mod flags;
mod from_rpc;
mod router;
#[cfg(feature = "testing")]
pub mod testing;

use std::process::ExitCode;

use rollouts_rpc::{
    PluginEnv, ServeConfig, TrafficRouter, announce_on_stdout,
    goplugin::{
        handshake::{HandshakeConfig, negotiate},
        log,
    },
};
use route_store::{DirRouteStore, KubeRouteStore};

pub use error::{ShiftError, TableError, TableErrors};
pub use flags::{DEFAULT_PLUGIN_NAMES, Flags, LogLevel};
pub use from_rpc::Policy;
pub use router::GlooRouter;

/// Serves the controller that started this process, until one of the two ends.
///
/// Without a controller it says so on stderr. The exit code is 0 when the controller asked for the
/// end or went away, otherwise 1.
#[must_use]
pub fn run(flags: &Flags, env: &PluginEnv) -> ExitCode {
    if let Err(error) = negotiate(&HandshakeConfig::TRAFFIC_ROUTER, env) {
        #[expect(
            clippy::print_stderr,
            reason = "a person reads this, or a controller that cannot be served"
        )]
        {
            eprintln!("{error}");
        }
        return ExitCode::FAILURE;
    }
    match serve(flags, env) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(flags: &Flags, env: &PluginEnv) -> anyhow::Result<()> {
    log::install(flags.log_level.into(), flags.log_format())?;
    let policy = Policy {
        plugin_names: flags.plugin_names(),
        route_table_namespaces: flags.allowed_route_table_namespaces.clone(),
        destination_namespaces: flags.allowed_destination_namespaces.clone(),
    };
    match &flags.route_tables_dir {
        Some(dir) => serve_router(env, GlooRouter::new(DirRouteStore::new(dir), policy)),
        None => serve_router(
            env,
            GlooRouter::new(KubeRouteStore::new(flags.kube_access()), policy),
        ),
    }
}

fn serve_router(env: &PluginEnv, router: impl TrafficRouter) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let serving = rollouts_rpc::serve(
        &ServeConfig::TRAFFIC_ROUTER,
        env,
        announce_on_stdout,
        router,
    );
    runtime.block_on(serving)?;
    Ok(())
}
