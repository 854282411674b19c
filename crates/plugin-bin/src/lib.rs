//! The program: the plugin (flags, logging, the store and the router wired together), and the commands for people.
//!
//! Decisions are `route-planner`'s, access is `route-store`'s, the protocol is `rollouts-rpc`'s.

mod collect;
mod commands;
mod error;
mod events;
mod fights;
mod flags;
mod from_rpc;
mod metrics;
mod report;
mod resident;
mod router;
mod standing;

use std::{process::ExitCode, sync::Arc};

use futures::future::{join, join4};
use rollouts_rpc::{
    PluginEnv, Router, ServeConfig, announce_on_stdout,
    goplugin::{
        handshake::{HandshakeConfig, HandshakeError, PluginKind, negotiate},
        log,
    },
};
use route_store::event_sink::EventSink;
use route_store::{
    CachedRouteStore, Clusters, Controller, DirRouteStore, FIELD_MANAGER, KubeRouteStore, Store,
};

pub use commands::{CommandLine, Permission, permissions};
pub use error::{Failure, Failures, ShiftError};
use events::Events;
use flags::Protocol;
pub use flags::{Flags, LogLevel};
pub use from_rpc::{Policy, admissible};
use metrics::{Metered, Metrics};
use resident::{leadership::LeaseFence, reporter::Reporter};
pub use route_planner::DEFAULT_PLUGIN_NAMES;
pub use router::GlooRouter;

/// The package's version; in a release also the commit it was built from, which `cargo xtask dist` tells the compiler.
pub(crate) const VERSION: &str = match option_env!("RELEASE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Stack of a worker thread. The future of a call is large where nothing is optimised.
const THREAD_STACK: usize = 16 << 20;

/// Carries out the command of a person, or serves the controller that started this process.
#[must_use]
pub fn run(line: &CommandLine, env: &PluginEnv) -> ExitCode {
    match &line.command {
        Some(command) => commands::run(command),
        None => run_plugin(&line.flags, env),
    }
}

/// Serves the controller until one of the two ends.
///
/// Without a controller it says so on stderr. The exit code is 0 when the controller asked for the
/// end or went away, otherwise 1.
fn run_plugin(flags: &Flags, env: &PluginEnv) -> ExitCode {
    if let Err(error) = negotiate(&HandshakeConfig::of(PluginKind::TrafficRouter), env) {
        #[expect(
            clippy::print_stderr,
            reason = "a person reads this, or a controller that cannot be served"
        )]
        {
            eprintln!("{error}");
            if matches!(error, HandshakeError::NotStartedByHost(_)) {
                eprintln!("\n{}", commands::HINT);
            }
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
    flags.check()?;
    let policy = flags.policy();
    let metrics = Metrics::new(flags.metrics_per_rollout);
    match &flags.route_tables_dir {
        Some(dir) => {
            let router = GlooRouter::new(Arc::new(DirRouteStore::new(dir)), policy);
            let router = configured(router, flags);
            serve_router(flags, env, router, metrics, async {})
        }
        None => {
            let clusters = clusters(flags, &metrics);
            let sink = || EventSink::new(FIELD_MANAGER, metrics.count_events());
            let of_rollouts = sink();
            let of_tables = (!clusters.is_one()).then(sink);
            let events = Events::to(
                of_rollouts.clone(),
                of_tables.clone().unwrap_or_else(|| of_rollouts.clone()),
            );
            let cached = Arc::new(CachedRouteStore::new(
                clusters.clone(),
                router::table_keeper(policy.clone()),
                router::rollout_keeper(policy.clone()),
                policy.route_table_namespaces.clone(),
            ));
            follow(&metrics, &cached);
            let reporter = Arc::new(Reporter::new(metrics.clone(), events));
            let router = GlooRouter::new(cached.clone(), policy).with_observer(reporter.clone());
            let router = configured(router, flags);
            let (settings, timeout) = (flags.between_the_calls(), flags.request_timeout());
            let fence = LeaseFence::new(
                clusters.local.clone(),
                Controller::of_this_process(),
                timeout,
            );
            let mut fence = fence.telling(reporter.clone());
            let attending = router.clone();
            let background = async move {
                let _following = Following(cached.clone());
                let between = async {
                    fence.meet(attending.between().instance().await).await;
                    resident::run(settings, &attending, cached.clone(), fence, reporter).await;
                };
                let posting = async {
                    let posting = of_rollouts.post_to(&*clusters.local);
                    match of_tables {
                        Some(of_tables) => {
                            join(posting, of_tables.post_to(&*clusters.tables)).await;
                        }
                        None => posting.await,
                    }
                };
                join4(posting, cached.run(), attending.attend(), between).await;
            };
            serve_router(flags, env, router, metrics, background)
        }
    }
}

/// The cluster at hand, and the management cluster if there is one.
fn clusters(flags: &Flags, metrics: &Arc<Metrics>) -> Clusters {
    let store = |access, name| {
        Arc::new(KubeRouteStore::new(access).with_observer(metrics.requests_to(name)))
    };
    let (local, tables) = flags.kube_access();
    let clusters = Clusters::one(store(local, "local"));
    match tables {
        Some(tables) => Clusters {
            tables: store(tables, "tables"),
            ..clusters
        },
        None => clusters,
    }
}

fn configured<S: Store>(router: GlooRouter<S>, flags: &Flags) -> Arc<GlooRouter<S>> {
    let router = router
        .with_call_timeout(flags.call_timeout)
        .with_promotion_guard(flags.has_promotion_guard());
    Arc::new(router)
}

/// Ends the watches of a store when it is dropped.
struct Following(Arc<CachedRouteStore>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.follow_nothing();
    }
}

/// Shows how the objects of each kind are followed.
fn follow(metrics: &Metrics, store: &Arc<CachedRouteStore>) {
    let [tables, rollouts, policies] = [store.clone(), store.clone(), store.clone()];
    let of_tables = if store.live().is_one() {
        "local"
    } else {
        "tables"
    };
    metrics.follow(of_tables, "RouteTable", move || tables.tables().status());
    metrics.follow("local", "Rollout", move || rollouts.rollouts().status());
    metrics.follow(of_tables, "MirrorPolicy", move || {
        policies.mirror_policies().status()
    });
}

/// Serves `router`, and runs `background` until it is stopped.
fn serve_router<S: Store>(
    flags: &Flags,
    env: &PluginEnv,
    router: Arc<GlooRouter<S>>,
    metrics: Arc<Metrics>,
    background: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(THREAD_STACK)
        .build()?;
    {
        let _entered = runtime.enter();
        router.between().spawn(background);
    }
    let router = Metered::new(router, metrics.clone());
    if let Some(address) = flags.metrics_address {
        runtime.spawn(metrics::serve(address, metrics));
    }
    let config = ServeConfig::new().with_call_deadline(flags.call_timeout);
    match flags.protocol {
        Protocol::Netrpc => {
            let serving = rollouts_rpc::serve(&config, env, announce_on_stdout, Router(router));
            runtime.block_on(serving)?;
        }
        #[cfg(feature = "grpc")]
        Protocol::Grpc => {
            let serving =
                rollouts_rpc::grpc::serve(&config, env, announce_on_stdout, Router(router));
            runtime.block_on(serving)?;
        }
    }
    Ok(())
}
