//! The configuration of the client: cluster, credentials and proxy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io, time::Duration};

use http::header::USER_AGENT;
use http::{HeaderName, HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError},
};

use tower::util::MapErrLayer;
use tower::{BoxError, service_fn};

use super::client_error::{ClientError, NoAnswerFrom};
use super::gate::Gate;
use super::layer::behind;
use crate::{FIELD_MANAGER, RequestLimits};

/// How to reach a cluster, and the limits of its requests.
#[derive(Debug, Clone)]
pub struct KubeAccess {
    /// Path of a kubeconfig. Default: the in-cluster service account, else `$KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig. Default: its current context.
    pub context: Option<String>,
    /// The header `User-Agent` of each request, see [`user_agent`].
    pub user_agent: String,
    /// The field manager of the writes in `metadata.managedFields`.
    pub field_manager: String,
    /// Timeout of each API request.
    pub request_timeout: Duration,
    /// Rate limit of the API server. Default: none.
    pub limits: Option<RequestLimits>,
}

/// The cluster in which the program runs, or the current context of the kubeconfig.
impl Default for KubeAccess {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            user_agent: user_agent(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
            field_manager: FIELD_MANAGER.to_owned(),
            request_timeout: Duration::from_secs(3),
            limits: None,
        }
    }
}

/// Writes the name of the API server in log records.
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

/// Why the client could not be created: the source of a [`StoreError::Unreachable`](crate::StoreError::Unreachable).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no usable configuration.
    #[error(
        "no cluster is configured: run inside a cluster, or set KUBECONFIG to a file with a current context ({0})"
    )]
    Infer(String),
    /// The kubeconfig is invalid.
    #[error("kubeconfig {path}: {reason}: correct it, or name another context")]
    Kubeconfig {
        /// The file, or `from the environment`.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A proxy is configured for the API server, and the feature `proxy` is off.
    #[error(
        "API server {server} would be asked through the proxy of HTTPS_PROXY or of the kubeconfig, which is not supported: add its host to NO_PROXY"
    )]
    Proxy {
        /// The address of the API server.
        server: String,
    },
    /// The configuration needs something that this client does not support.
    #[error("no client for this cluster configuration: check its TLS and authentication settings")]
    Client(#[source] ClientError),
}

/// Says what is wrong with a kubeconfig.
fn reason(error: &KubeconfigError) -> String {
    let unreadable = |error: &io::Error, path: &Path| {
        let error = error.to_string();
        let error = error.split(" (os error").next().unwrap_or_default();
        format!("{} cannot be read: {error}", path.display())
    };
    let data = |what: &str, error: &LoadDataError| match error {
        LoadDataError::DecodeBase64(_) => format!("its {what} is not base64"),
        LoadDataError::ReadFile(error, path) => unreadable(error, path),
        LoadDataError::NoBase64DataOrFile => format!("its {what} is missing"),
    };
    match error {
        KubeconfigError::CurrentContextNotSet => "it has no current context".to_owned(),
        KubeconfigError::LoadContext(name) => format!("it has no context {name}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("it has no cluster {name}"),
        KubeconfigError::FindPath => "there is none".to_owned(),
        KubeconfigError::ReadConfig(error, path) => unreadable(error, path),
        KubeconfigError::Parse(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            format!("invalid YAML: {}", line.trim_start_matches("error: "))
        }
        KubeconfigError::MissingClusterUrl => "its cluster has no server".to_owned(),
        KubeconfigError::ParseClusterUrl(_) => "the server of its cluster is not a URL".to_owned(),
        KubeconfigError::ParseProxyUrl(_) => "its proxy-url is not a URL".to_owned(),
        KubeconfigError::LoadCertificateAuthority(error) => data("certificate-authority", error),
        KubeconfigError::LoadClientCertificate(error) => data("client-certificate", error),
        KubeconfigError::LoadClientKey(error) => data("client-key", error),
        KubeconfigError::ParseCertificates(_) => "its certificates are not in PEM".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the User-Agent of a program in the form of Kubernetes' own clients: `program/version (os/arch) commit`. The words are
/// Go's, as in their audit logs. `version` is followed by the commit in parentheses if it is known.
#[must_use]
pub fn user_agent(program: &str, version: &str) -> String {
    let (version, commit) = version.split_once(" (").unwrap_or((version, ""));
    let commit = commit.trim_end_matches(')');
    let commit = if commit.is_empty() { "unknown" } else { commit };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let os = std::env::consts::OS;
    format!("{program}/{version} ({os}/{arch}) {commit}")
}

/// Returns the header with this User-Agent, unless it is empty or cannot be a header.
pub fn user_agent_header(user_agent: &str) -> Option<(HeaderName, HeaderValue)> {
    let value = HeaderValue::from_str(user_agent).ok()?;
    (!user_agent.is_empty()).then_some((USER_AGENT, value))
}

/// Returns the client and the address of its API server.
pub(super) async fn connect(
    access: &KubeAccess,
    gate: &Arc<Gate>,
) -> Result<(Client, String), ConnectError> {
    let mut config = config(access).await?;
    let no_proxy = ["NO_PROXY", "no_proxy"].map(|name| std::env::var(name).ok());
    let no_proxy = no_proxy.into_iter().flatten().next().unwrap_or_default();
    if is_exempt(&config.cluster_url, &no_proxy) {
        config.proxy_url = None;
    }
    config.headers.extend(user_agent_header(&access.user_agent));
    // `send` retries with its own rule, which depends on the time left.
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    if config.proxy_url.is_some() && !cfg!(feature = "proxy") {
        return Err(ConnectError::Proxy { server });
    }
    let client =
        ClientBuilder::try_from(config).map_err(|error| ConnectError::Client(error.into()))?;
    let at = server.clone();
    let name_server = MapErrLayer::new(move |error: BoxError| match error.downcast() {
        // The errors of kube itself are not about the connection, and `layer` tells them by their type.
        Ok(own) => BoxError::from(own as Box<kube::Error>),
        Err(error) => NoAnswerFrom(at.clone(), error).into(),
    });
    Ok((
        client
            .with_layer(&name_server)
            .with_layer(&behind(gate))
            .build(),
        server,
    ))
}

/// Returns the client behind the gate.
pub(super) fn wrapped(client: &Client, gate: &Arc<Gate>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let client = service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await }
    });
    let builder = ClientBuilder::new(client, namespace);
    builder.with_layer(&behind(gate)).build()
}

/// Returns whether `NO_PROXY` exempts the host of `server`. The kube crate ignores `NO_PROXY`.
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
        move |error| {
            let reason = reason(&error).replace(&format!("{path} cannot"), "it cannot");
            ConnectError::Kubeconfig { path, reason }
        }
    };
    if let Some(path) = &access.kubeconfig {
        let config = async {
            let kubeconfig = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        };
        return config.await.map_err(unusable(path.display().to_string()));
    }
    if access.context.is_some() {
        let config = Config::from_kubeconfig(&options).await;
        return config.map_err(unusable("from the environment".into()));
    }
    Config::infer().await.map_err(|error| {
        let kubeconfig = std::error::Error::source(&error).and_then(|it| it.downcast_ref());
        ConnectError::Infer(kubeconfig.map_or_else(|| error.to_string(), reason))
    })
}
