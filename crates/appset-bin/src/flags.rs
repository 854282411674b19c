//! The flags of the server.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgGroup, Args};
use tracing::level_filters::LevelFilter;

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

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f32| *seconds >= 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f32(seconds).ok())
        .ok_or_else(|| "expected a number of seconds".to_owned())
}
