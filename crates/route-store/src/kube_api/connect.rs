//! The client: which cluster, with which credentials, and whether a proxy is in between.

use std::{fmt, path::PathBuf, time::Duration};

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::gate::RequestLimits;

/// How to reach the cluster that holds the RouteTables.
#[derive(Debug, Clone)]
pub struct KubeAccess {
    /// Path of a kubeconfig. Without one: the in-cluster service account, else `$KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Context within the kubeconfig, default its current one.
    pub context: Option<String>,
    /// Deadline of each API request.
    pub request_timeout: Duration,
    /// How many requests the API server gets.
    pub limits: RequestLimits,
}

/// The API server, as far as it is known before there is a client.
impl fmt::Display for KubeAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the API server")?;
        if let Some(path) = &self.kubeconfig {
            write!(f, " of kubeconfig {}", path.display())?;
        }
        match &self.context {
            Some(context) => write!(f, " (context {context})"),
            None => Ok(()),
        }
    }
}

/// Why no client could be made, as the source of [`StoreError::Unreachable`](crate::StoreError::Unreachable).
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No usable configuration.
    #[error("no usable cluster configuration: run inside a cluster or name a kubeconfig")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {path} cannot be used: correct it, or name another context")]
    Kubeconfig {
        /// The file, or `from the environment`.
        path: String,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The way to the API server leads through a proxy, and the feature `proxy` is off.
    #[error(
        "API server {server} would be asked through the proxy of HTTPS_PROXY or of the kubeconfig, which is not supported: add its host to NO_PROXY"
    )]
    Proxy {
        /// Its address.
        server: String,
    },
    /// The configuration asks for something this client does not do.
    #[error("no client for this cluster configuration: check its TLS and authentication settings")]
    Client(#[source] Box<kube::Error>),
}

pub(super) async fn connect(access: &KubeAccess) -> Result<Client, ConnectError> {
    let mut config = config(access).await?;
    let no_proxy = ["NO_PROXY", "no_proxy"].map(|name| std::env::var(name).ok());
    let no_proxy = no_proxy.into_iter().flatten().next().unwrap_or_default();
    if is_exempt(&config.cluster_url, &no_proxy) {
        config.proxy_url = None;
    }
    // `send` has its own rule, which knows how much time is left.
    config.default_retry = false;
    if config.proxy_url.is_some() && !cfg!(feature = "proxy") {
        let server = config.cluster_url.to_string();
        return Err(ConnectError::Proxy { server });
    }
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

/// Whether `NO_PROXY` has the host of `server`. The kube crate takes the proxy of the environment all the same.
pub(super) fn is_exempt(server: &Uri, no_proxy: &str) -> bool {
    let proxies = Matcher::builder().all("http://any").no(no_proxy).build();
    proxies.intercept(server).is_none()
}

async fn config(access: &KubeAccess) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions {
        context: access.context.clone(),
        ..KubeConfigOptions::default()
    };
    let unusable = |path: String| {
        move |source| ConnectError::Kubeconfig {
            path,
            source: Box::new(source),
        }
    };
    if let Some(path) = &access.kubeconfig {
        let shown = path.display().to_string();
        let kubeconfig = Kubeconfig::read_from(path).map_err(unusable(shown.clone()))?;
        return Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(unusable(shown));
    }
    if access.context.is_some() {
        return Config::from_kubeconfig(&options)
            .await
            .map_err(unusable("from the environment".into()));
    }
    Config::infer()
        .await
        .map_err(|error| ConnectError::Infer(Box::new(error)))
}
