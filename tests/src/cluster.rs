//! A cluster on loopback: etcd, kube-apiserver, the released Rollouts controller with the plugin, and a stand-in kubelet.
//!
//! The controller has exactly the permissions of its release and of `deploy`.

mod controller;
mod credentials;
pub(crate) mod kubelet;
pub(crate) mod manifest;
pub(crate) mod process;
mod proxy;
mod suite;

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{array, env, iter};

use anyhow::{Context as _, Result, anyhow, ensure};
use http::Request;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub use controller::{Controller, Release, SHORT_ELECTION, Setup};
pub(crate) use controller::{METRICS_ADDRESS, plugins_below};
pub use credentials::{bind_reader, grant};
pub use proxy::{ApiServerFault, Proxy, RecordedRequest};
pub use suite::Suite;

use self::credentials::Credentials;
use self::process::Process;
use crate::{eventually, plugin_binary};

/// The name of the plugin in the ConfigMap and in Rollouts.
pub const PLUGIN_NAME: &str = "solo-io/glooplatform";
/// The controller's default namespace, in which it reads its ConfigMap.
pub(crate) const CONTROLLER_NAMESPACE: &str = "argo-rollouts";
/// Index of the API server in [`Cluster::servers`], after etcd.
const API_SERVER: usize = 1;
const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");
/// The additional permissions that the plugin needs.
const RIGHTS: [&str; 2] = [
    include_str!("../../deploy/kustomize/rights/cluster-role.yaml"),
    include_str!("../../deploy/kustomize/rights/cluster-role-binding.yaml"),
];

/// A running cluster. Dropping it ends all its processes.
pub struct Cluster {
    client: Client,
    kubelet: JoinHandle<Result<()>>,
    /// Etcd and the API server, in the order of their start.
    servers: Vec<Process>,
    controllers: Vec<Controller>,
    /// The client port of etcd.
    etcd: u16,
    credentials: Credentials,
    /// Further flags of the API server.
    flags: &'static [&'static str],
    directory: TempDir,
}

impl Cluster {
    /// Starts a cluster whose controller has the plugin at `$PLUGIN_BINARY`, and installs the CRDs.
    ///
    /// # Errors
    /// Returns `Err` with the end of the logs if a program does not start.
    pub async fn start(release: Release) -> Result<Self> {
        Self::start_with(release, Setup::default()).await
    }

    /// Starts a cluster whose controller runs with `setup`.
    ///
    /// # Errors
    /// See [`Cluster::start`].
    pub async fn start_with(release: Release, setup: Setup<'_>) -> Result<Self> {
        let mut cluster = Self::start_without_controller(release).await?;
        match cluster.register_and_start(release, setup).await {
            Ok(()) => Ok(cluster),
            Err(error) => Err(cluster.with_logs(error)),
        }
    }

    /// Starts a cluster in which only the plugin's requests go through a proxy, not the controller's.
    ///
    /// # Errors
    /// See [`Cluster::start`].
    pub async fn start_behind_proxy(release: Release) -> Result<(Self, Proxy)> {
        let mut cluster = Self::start_without_controller(release).await?;
        let proxy = Proxy::start(&cluster).await?;
        let setup = Setup {
            variables: &[("KUBECONFIG", proxy.kubeconfig())],
            ..Setup::default()
        };
        match cluster.register_and_start(release, setup).await {
            Ok(()) => Ok((cluster, proxy)),
            Err(error) => Err(cluster.with_logs(error)),
        }
    }

    /// Starts a cluster with the CRDs and roles of a release, but without a controller.
    ///
    /// # Errors
    /// Returns `Err` with the end of the logs if a program does not start.
    pub async fn start_without_controller(release: Release) -> Result<Self> {
        Self::start_with_flags(release, &[]).await
    }

    /// Starts a cluster without a controller, whose API server has these further flags.
    ///
    /// # Errors
    /// See [`Cluster::start_without_controller`].
    pub async fn start_with_flags(
        release: Release,
        flags: &'static [&'static str],
    ) -> Result<Self> {
        let cluster = Self::start_servers(flags).await?;
        match cluster.install(release).await {
            Ok(()) => Ok(cluster),
            Err(error) => Err(cluster.with_logs(error)),
        }
    }

    /// Starts a cluster without CRDs and roles.
    ///
    /// # Errors
    /// Returns `Err` if a program does not start.
    pub async fn start_empty() -> Result<Self> {
        let cluster = Self::start_servers(&[]).await?;
        cluster.wait_until_ready().await?;
        Ok(cluster)
    }

    /// A client with every permission.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A kubeconfig with every permission.
    pub fn kubeconfig(&self) -> &Path {
        &self.credentials.admin_kubeconfig
    }

    /// A kubeconfig with the permissions of the controller and the plugin.
    pub fn controller_kubeconfig(&self) -> &Path {
        &self.credentials.controller_kubeconfig
    }

    /// Creates a client with the permissions of the controller and the plugin.
    ///
    /// # Errors
    /// Returns `Err` if the credentials are invalid.
    pub async fn controller_client(&self) -> Result<Client> {
        client(&self.credentials.controller_kubeconfig, None).await
    }

    /// Creates a client that impersonates `user`, who only has permissions by bindings.
    ///
    /// # Errors
    /// Returns `Err` if the credentials are invalid.
    pub async fn client_as(&self, user: &str) -> Result<Client> {
        client(&self.credentials.admin_kubeconfig, Some(user)).await
    }

    /// Creates a client like that of [`Self::client_as`], which returns every answer: it does not send a request again that the
    /// API server refused with 429.
    ///
    /// # Errors
    /// Returns `Err` if the credentials are invalid.
    pub async fn client_as_without_retries(&self, user: &str) -> Result<Client> {
        client_without_retries(&self.credentials.admin_kubeconfig, Some(user)).await
    }

    /// The directory with the files of all programs.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the end of each program's log.
    pub fn logs(&self) -> String {
        let kubelet = if self.kubelet.is_finished() {
            "the stand-in kubelet has ended\n"
        } else {
            ""
        };
        let controllers = self.controllers.iter().map(Controller::log_tail);
        self.servers
            .iter()
            .map(Process::log_tail)
            .chain(controllers)
            .chain([kubelet.to_owned()])
            .collect()
    }

    /// Puts the end of each program's log in front of an error, because the end of an output is read first.
    #[must_use]
    pub fn with_logs(&self, error: anyhow::Error) -> anyhow::Error {
        anyhow!("{}{error:#}", self.logs())
    }

    /// Returns the controller that was started first.
    ///
    /// # Errors
    /// Returns `Err` if there is no controller or no plugin.
    pub fn controller(&self) -> Result<&Controller> {
        self.controllers.first().context("there is no controller")
    }

    /// Returns all controllers, in the order of their start.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// Removes the controller that was started first from the cluster, and returns it.
    ///
    /// # Errors
    /// Returns `Err` if there is no controller or no plugin.
    pub fn take_controller(&mut self) -> Result<Controller> {
        ensure!(!self.controllers.is_empty(), "there is no controller");
        Ok(self.controllers.remove(0))
    }

    /// Kills the plugin, like the kernel when memory runs out. The controller starts another one.
    ///
    /// # Errors
    /// Returns `Err` if there is no controller or no plugin.
    pub async fn kill_plugin(&self) -> Result<()> {
        self.controller()?.kill_plugin().await
    }

    /// Runs a test in the cluster and stops the cluster.
    ///
    /// # Errors
    /// Returns the error of the test with the end of the logs, or see [`Cluster::stop`].
    pub async fn run(mut self, test: impl AsyncFnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if let Err(error) = test(&mut self).await {
            return Err(self.with_logs(error));
        }
        self.stop().await
    }

    /// Kills the controllers, and waits until their plugins have ended.
    ///
    /// # Errors
    /// Returns `Err` if a plugin outlives its controller.
    pub async fn stop(mut self) -> Result<()> {
        for controller in std::mem::take(&mut self.controllers) {
            controller.stop().await?;
        }
        Ok(())
    }

    /// The client port of etcd on loopback, without TLS.
    pub fn etcd(&self) -> u16 {
        self.etcd
    }

    /// Ends the stand-in kubelet, for a test that runs Pods itself.
    pub fn stop_kubelet(&self) {
        self.kubelet.abort();
    }

    /// Kills the API server.
    pub fn stop_api_server(&mut self) {
        drop(self.servers.remove(API_SERVER));
    }

    /// Starts the API server again, with the same address and objects.
    ///
    /// # Errors
    /// Returns `Err` if it does not become ready.
    pub async fn start_api_server(&mut self) -> Result<()> {
        let started = kube_apiserver(
            self.directory.path(),
            self.etcd,
            &self.credentials,
            self.flags,
        )?;
        self.servers.insert(API_SERVER, started);
        self.wait_until_ready().await
    }

    /// Returns the id of the plugin's process; `None` if there is none.
    ///
    /// # Errors
    /// Returns `Err` if the processes cannot be listed.
    pub fn plugin(&self) -> Result<Option<i32>> {
        Ok(plugins_below(self.directory.path())?.pop())
    }

    async fn start_servers(flags: &'static [&'static str]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("rollouts-").tempdir()?;
        let path = directory.path();
        let [etcd_clients, etcd_peers, api_server] = free_ports()?;
        let credentials = Credentials::generate(path, api_server)?;
        let servers = vec![
            etcd(path, etcd_clients, etcd_peers)?,
            kube_apiserver(path, etcd_clients, &credentials, flags)?,
        ];
        let client = client(&credentials.admin_kubeconfig, None).await?;
        let kubelet = tokio::spawn(kubelet::run(client.clone()));
        Ok(Self {
            client,
            kubelet,
            servers,
            controllers: Vec::new(),
            etcd: etcd_clients,
            credentials,
            flags,
            directory,
        })
    }

    async fn wait_until_ready(&self) -> Result<()> {
        eventually("the API server is ready", async || {
            Ok(self
                .client
                .request_text(Request::get("/readyz").body(Vec::new())?)
                .await?)
        })
        .await?;
        Ok(())
    }

    async fn install(&self, release: Release) -> Result<()> {
        self.wait_until_ready().await?;
        let mut objects = Vec::new();
        for folder in ["crds", "role", "cluster-install"] {
            objects.extend(release.objects(folder)?);
        }
        for rights in RIGHTS {
            objects.extend(manifest::parse(rights)?);
        }
        self.install_with_gloo(objects).await
    }

    /// Applies `objects` and the CRDs of Gloo, and waits until every CRD is served.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects an object.
    pub async fn install_with_gloo(&self, mut objects: Vec<DynamicObject>) -> Result<()> {
        for crd in [
            gloo_types::crd::route_table(),
            gloo_types::crd::mirror_policy(),
        ] {
            objects.push(serde_json::from_value(crd)?);
        }
        manifest::apply(&self.client, &objects).await?;
        eventually("the CRDs are established", async || {
            let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
            for crd in crds.list(&ListParams::default()).await? {
                let conditions = crd
                    .status
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                let established = conditions
                    .iter()
                    .any(|it| it.type_ == "Established" && it.status == "True");
                ensure!(established, "{:?}: {conditions:?}", crd.metadata.name);
            }
            Ok(())
        })
        .await
    }

    /// Registers the plugin at `$PLUGIN_BINARY` in the ConfigMap, and starts a controller.
    ///
    /// # Errors
    /// Returns `Err` if the program does not exist.
    pub async fn register_and_start(&mut self, release: Release, setup: Setup<'_>) -> Result<()> {
        let program = match setup.program {
            Some(program) => program.to_owned(),
            None => plugin_binary()?,
        };
        let location = format!("file://{}", program.display());
        let plugins = setup
            .plugins
            .iter()
            .map(|(name, args)| json!({ "name": name, "location": location, "args": args }));
        let plugins = json!(plugins.collect::<Vec<_>>());
        let config = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "argo-rollouts-config", "namespace": CONTROLLER_NAMESPACE },
            "data": { "trafficRouterPlugins": plugins.to_string() },
        });
        self.create_controller_namespace().await?;
        manifest::apply(&self.client, &[serde_json::from_value(config)?]).await?;
        self.add_controller(release, setup)
    }

    /// Creates the namespace of the controller.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn create_controller_namespace(&self) -> Result<()> {
        self.create_namespace(CONTROLLER_NAMESPACE).await
    }

    /// Creates a namespace if it does not exist.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        manifest::apply(&self.client, &[serde_json::from_value(namespace)?]).await
    }

    /// Starts another controller of a release, with the plugins in the cluster's ConfigMap.
    ///
    /// # Errors
    /// Returns `Err` if the program does not exist.
    pub fn add_controller(&mut self, release: Release, setup: Setup<'_>) -> Result<()> {
        let own = self.credentials.controller_kubeconfig.clone();
        self.start_controller(release, setup.kubeconfig.unwrap_or(&own), setup)
    }

    /// Starts another controller as the user of a kubeconfig.
    pub(crate) fn start_controller(
        &mut self,
        release: Release,
        kubeconfig: &Path,
        setup: Setup<'_>,
    ) -> Result<()> {
        let controller = Controller::start(release, self.directory.path(), kubeconfig, setup)?;
        self.controllers.push(controller);
        Ok(())
    }

    /// Waits until the controller that was started first has exited, and returns the end of its log.
    ///
    /// # Errors
    /// Returns `Err` if it keeps running.
    pub async fn controller_exits(&mut self) -> Result<String> {
        let mut controller = self.take_controller()?;
        controller.exits().await?;
        Ok(controller.log_tail())
    }

    /// Requests a token of a service account, and returns a kubeconfig with it.
    ///
    /// # Errors
    /// Returns `Err` if the account does not exist.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        account: &str,
    ) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest::default();
        let token = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        let token = token.status.and_then(|status| status.token);
        let token = token.context("no token")?;
        let path = self.directory.path().join(format!("{account}.kubeconfig"));
        self.credentials.write_kubeconfig(&path, account, &token)?;
        Ok(path)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kubelet.abort();
        // Clients end before their servers, so that they do not log connection errors.
        self.controllers.clear();
        while let Some(server) = self.servers.pop() {
            drop(server);
        }
    }
}

fn etcd(directory: &Path, clients: u16, peers: u16) -> Result<Process> {
    let (clients, peers) = (
        format!("http://127.0.0.1:{clients}"),
        format!("http://127.0.0.1:{peers}"),
    );
    let mut command = program("etcd")?;
    command
        .arg(format!("--data-dir={}", directory.join("etcd").display()))
        .arg(format!("--listen-client-urls={clients}"))
        .arg(format!("--advertise-client-urls={clients}"))
        .arg(format!("--listen-peer-urls={peers}"))
        .arg(format!("--initial-advertise-peer-urls={peers}"))
        .arg(format!("--initial-cluster=default={peers}"))
        // The data does not have to survive a power failure.
        .arg("--unsafe-no-fsync");
    Process::start("etcd", directory, &mut command)
}

fn kube_apiserver(
    directory: &Path,
    etcd: u16,
    credentials: &Credentials,
    flags: &[&str],
) -> Result<Process> {
    let mut command = program("kube-apiserver")?;
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--secure-port={}", credentials.api_server_port))
        .arg(format!("--cert-dir={}", directory.join("certificates").display()))
        .arg(format!("--tls-cert-file={}", credentials.certificate.display()))
        .arg(format!("--tls-private-key-file={}", credentials.certificate_key.display()))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-signing-key-file={}", credentials.token_signing_key.display()))
        .arg(format!("--service-account-key-file={}", credentials.token_verifying_key.display()))
        .arg(format!("--token-auth-file={}", credentials.tokens.display()))
        .arg("--authorization-mode=RBAC")
        .arg("--service-cluster-ip-range=10.0.0.0/16")
        // Other reconcilers reject a loopback address, and nothing here needs the server's endpoint.
        .arg("--endpoint-reconciler-type=none")
        .args(flags);
    Process::start("kube-apiserver", directory, &mut command)
}

/// Returns a command for a program in `$GO_BIN_DIR` that was built from a Go module.
///
/// # Errors
/// Returns `Err` if it was not built.
pub fn program(name: &str) -> Result<Command> {
    let directory = env::var_os("GO_BIN_DIR").map_or_else(
        || Path::new(PACKAGE).join("../target/go/bin"),
        PathBuf::from,
    );
    let path = directory.join(name);
    ensure!(
        path.is_file(),
        "there is no {}; tests/README.md says how it is built",
        path.display()
    );
    Ok(Command::new(path))
}

/// Creates a client with a kubeconfig, as its user or impersonating another one.
pub(crate) async fn client(kubeconfig: &Path, impersonated: Option<&str>) -> Result<Client> {
    let config = config(kubeconfig, impersonated).await?;
    Ok(Client::try_from(config)?)
}

/// Creates a client that returns every answer. That of [`client`] sends a request again after 429, 503 and 504.
pub(crate) async fn client_without_retries(
    kubeconfig: &Path,
    impersonated: Option<&str>,
) -> Result<Client> {
    let mut config = config(kubeconfig, impersonated).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn config(kubeconfig: &Path, impersonated: Option<&str>) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = impersonated.map(str::to_owned);
    Ok(config)
}

/// Ports that the kernel gives to nobody who asks for any port (by default it gives those from 32768 on).
const PORTS: Range<u16> = 12_000..32_000;

/// Holds a free port for a process that is started later, until the listener is dropped. A port that the kernel chooses would be given
/// to another process meanwhile: test files that run at the same time open hundreds.
///
/// # Errors
/// Returns `Err` if no port is free.
pub fn hold_port() -> Result<TcpListener> {
    let mut tries = iter::repeat_with(|| (Ipv4Addr::LOCALHOST, fastrand::u16(PORTS))).take(100);
    let free = tries.find_map(|address| TcpListener::bind(address).ok());
    free.context("no free port")
}

/// Returns different free ports.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let held: [_; N] = array::from_fn(|_| hold_port());
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        let listener = listener.as_ref().map_err(|error| anyhow!("{error}"))?;
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
