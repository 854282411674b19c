//! The service around [`appset_generator`]: HTTP, tokens, deadlines, registries and objects of clusters.
//!
//! ```text
//! serve, connection: connections, TLS, drain
//!   -> api, shares, compute: one call, bounded and logged; what one token may hold; work on the processors
//!     -> appset_generator: resolve the request to a query
//!     -> sources, with registries and objects: look up what the query needs
//!     -> appset_generator: compute the answer
//! ```

mod api;
mod by_key;
mod commands;
mod compute;
mod connection;
mod ledger;
mod listen;
mod live;
mod metrics;
mod objects;
mod refresh;
mod registries;
mod serve;
mod service;
mod shares;
mod sources;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use commands::{CommandLine, Flags};
use route_store::{KubeAccess, KubeRouteStore};
use service::Service;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::serve::{Bounds, Handler, Server};

/// The version of the package. In a release `cargo xtask dist` sets it to the version and the commit.
const VERSION: &str = match option_env!("RELEASE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The User-Agent of each request.
fn user_agent() -> String {
    route_store::user_agent(env!("CARGO_PKG_NAME"), VERSION)
}

/// Makes a store for a cluster without connecting to it.
fn store(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    request_timeout: Duration,
) -> KubeRouteStore {
    KubeRouteStore::new(KubeAccess {
        kubeconfig,
        context,
        user_agent: user_agent(),
        request_timeout,
        ..KubeAccess::default()
    })
}

/// Runs a command, or the server until SIGTERM or SIGINT. The server then waits for running calls.
pub fn run(line: &CommandLine) -> ExitCode {
    let flags = match (&line.command, &line.flags) {
        (Some(command), _) => return commands::run(command),
        (None, Some(flags)) => flags,
        (None, None) => return commands::print_error("--config is missing: see --help", 2),
    };
    let Ok(_log) = start_logging(flags.log_level) else {
        return ExitCode::FAILURE;
    };
    let served = Runtime::new().map_err(anyhow::Error::from);
    let served = served.and_then(|runtime| {
        let served = runtime.block_on(serve(flags));
        // A read of a file may take forever.
        runtime.shutdown_background();
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The number of records that wait to be written. Others are dropped: a log that nobody reads must not stop calls and probes.
const RECORDS: usize = 10_000;

/// Starts the log, which is written until the returned value is dropped.
fn start_logging(level: LevelFilter) -> anyhow::Result<WorkerGuard> {
    let (stderr, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(RECORDS)
        .finish(std::io::stderr());
    // kube logs every failed request, while the informers log the reason once.
    let but_kube = Targets::new().with_target("kube_client", LevelFilter::OFF);
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_max_level(level)
        .with_writer(stderr)
        .finish()
        .with(but_kube.with_default(LevelFilter::TRACE))
        .try_init()?;
    Ok(guard)
}

async fn serve(flags: &Flags) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let hangup = signal(SignalKind::hangup())?;
    let service = Arc::new(Service::new(flags)?);

    let api = flags.listen.listen("api")?;
    let ops = flags.ops_listen.listen("ops")?;
    let metrics = &service.metrics;
    let router = api::ops_router(Arc::clone(&service));
    let handler = Handler::new(router, Bounds::OPS, metrics, "ops");
    let ops = Server::start(ops, None, handler);
    let router = api::router(Arc::clone(&service));
    let handler = Handler::new(router, Bounds::api(flags), metrics, "api");
    let api = Server::start(api, service.certificate.clone(), handler);

    let reloads = tokio::spawn(reload(Arc::clone(&service), hangup));
    let refreshes = tokio::spawn(refresh::run(Arc::clone(&service)));
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("draining");
    refreshes.abort();
    service.metrics.draining.set(1);
    tokio::time::sleep(flags.shutdown_delay).await;
    // Running calls end at their deadline at the latest.
    api.finish().await;
    ops.finish().await;
    reloads.abort();
    tracing::info!("drained");
    Ok(())
}

/// The time between two reads of the files that may change.
const RELOAD: Duration = Duration::from_secs(1);

/// The time after which reading the files is reported.
const SLOW: Duration = Duration::from_secs(10);

/// Reads the files that may change once a second, and at once at SIGHUP.
async fn reload(service: Arc<Service>, mut hangup: Signal) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RELOAD) => {}
            _ = hangup.recv() => tracing::info!("SIGHUP: reading all files"),
        }
        let of_reads = Arc::clone(&service);
        // A large configuration takes a while.
        let mut reads = spawn_blocking(move || of_reads.reload());
        let mut read = timeout(SLOW, &mut reads).await;
        if read.is_err() {
            tracing::error!("reading the files takes long: no change takes effect until it ends");
            service.stuck.store(true, Ordering::Relaxed);
            read = Ok(reads.await);
            service.stuck.store(false, Ordering::Relaxed);
        }
        if !matches!(read, Ok(Ok(()))) {
            tracing::error!("reading the files panicked: report this as a bug");
        }
    }
}
