//! The plugin program: it connects flags, logging, the store and the router, and serves the controller. It also has the
//! commands for people.
//!
//! Decisions are in `route-planner`, access to the cluster in `route-store`, and the protocol in `rollouts-rpc`.

mod metrics;
mod reporter;

use std::{process::ExitCode, sync::Arc};

use futures::future::join;
use gloo_router::background::between_calls;
use gloo_router::{GlooRouter, rollout_keeper, table_keeper};
use plugin_commands::{CommandLine, Flags, HINT, Protocol};
use rollouts_rpc::{
    PluginEnv, Router, ServeConfig, Shutdown, announce_on_stdout,
    goplugin::{
        handshake::{HandshakeError, PluginKind, negotiate},
        log,
    },
};
use route_store::event_sink::EventSink;
use route_store::{
    CachedRouteStore, Clusters, Controller, DirRouteStore, FIELD_MANAGER, KubeRouteStore, Store,
};

use metrics::{Metered, Metrics};
use reporter::{Events, Reporter};

/// Stack size of a worker thread. Without optimisation, the future of a call is large.
const THREAD_STACK: usize = 16 << 20;

/// Runs the command that the command line names, or serves the controller that started this process.
#[must_use]
pub fn run(line: &CommandLine, env: &PluginEnv) -> ExitCode {
    line.run(|flags| run_plugin(flags, env))
}

/// Serves the controller until it sends Quit or disconnects.
///
/// Without a controller it prints an explanation to stderr. The exit code is 0 if the controller sent Quit or disconnected,
/// otherwise 1.
fn run_plugin(flags: &Flags, env: &PluginEnv) -> ExitCode {
    if let Err(error) = negotiate(PluginKind::TrafficRouter, env) {
        #[expect(
            clippy::print_stderr,
            reason = "a person reads this, or a controller that cannot be served"
        )]
        {
            eprintln!("{error}");
            if matches!(error, HandshakeError::NotStartedByHost(_)) {
                eprintln!("\n{HINT}");
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
    log::install(flags.log_level, flags.log_format)?;
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
            if let Some(warning) = flags.long_requests() {
                tracing::warn!("{warning}");
            }
            let clusters = clusters(flags, &metrics);
            let sink = || EventSink::new(FIELD_MANAGER, metrics.count_events());
            let rollout_events = sink();
            let table_events = (!clusters.is_one()).then(sink);
            let events = Events::to(
                rollout_events.clone(),
                table_events
                    .clone()
                    .unwrap_or_else(|| rollout_events.clone()),
            );
            let cached = Arc::new(CachedRouteStore::new(
                clusters.clone(),
                table_keeper(policy.clone()),
                rollout_keeper(policy.clone()),
                policy.route_table_namespaces.clone(),
            ));
            export_watches(&metrics, &cached);
            let reporter = Arc::new(Reporter::new(metrics.clone(), events));
            let router = GlooRouter::new(cached.clone(), policy).with_observer(reporter.clone());
            let router = configured(router, flags);
            let settings = flags.background_settings();
            let shared = Arc::clone(&router);
            let background = async move {
                let posting = async {
                    let posting = rollout_events.post_to(&*clusters.local);
                    match table_events {
                        Some(table_events) => {
                            join(posting, table_events.post_to(&*clusters.tables)).await;
                        }
                        None => posting.await,
                    }
                };
                let controller = Controller::of_this_process();
                join(posting, between_calls(shared, settings, controller)).await;
            };
            serve_router(flags, env, router, metrics, background)
        }
    }
}

/// Returns the local cluster, and the management cluster if `--kubeconfig` names one.
fn clusters(flags: &Flags, metrics: &Arc<Metrics>) -> Clusters {
    let store = |access, name| KubeRouteStore::new(access).with_observer(metrics.requests_to(name));
    let (local, tables) = flags.kube_access();
    let tables = tables.map(|tables| store(tables, "tables"));
    Clusters::new(store(local, "local"), tables)
}

fn configured<S: Store>(router: GlooRouter<S>, flags: &Flags) -> Arc<GlooRouter<S>> {
    let router = router
        .with_call_timeout(flags.call_timeout)
        .with_promotion_guard(flags.promotion_guard);
    Arc::new(router)
}

/// Exports the state of the watch of each kind as metrics.
fn export_watches(metrics: &Metrics, store: &Arc<CachedRouteStore>) {
    let [tables, rollouts, policies] = [store.clone(), store.clone(), store.clone()];
    let tables_cluster = if store.live.is_one() {
        "local"
    } else {
        "tables"
    };
    metrics.export_watch(tables_cluster, "RouteTable", move || tables.tables.status());
    metrics.export_watch("local", "Rollout", move || rollouts.rollouts.status());
    metrics.export_watch(tables_cluster, "MirrorPolicy", move || {
        policies.policies.status()
    });
}

/// Serves `router`, and runs `background` until the session ends.
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
        router.spawn(background);
    }
    let router = Metered::new(router, metrics.clone());
    if let Some(address) = flags.metrics_address {
        runtime.spawn(metrics::serve(address, metrics));
    }
    let config = ServeConfig::new().with_call_deadline(flags.call_timeout);
    let ended: anyhow::Result<Shutdown> = match flags.protocol {
        Protocol::Netrpc => {
            let serving = rollouts_rpc::serve(&config, env, announce_on_stdout, Router(router));
            runtime.block_on(serving).map_err(Into::into)
        }
        #[cfg(feature = "grpc")]
        Protocol::Grpc => {
            let serving =
                rollouts_rpc::grpc::serve(&config, env, announce_on_stdout, Router(router));
            runtime.block_on(serving).map_err(Into::into)
        }
    };
    // A name that is being looked up must not delay the end.
    runtime.shutdown_background();
    ended.map(drop)
}
