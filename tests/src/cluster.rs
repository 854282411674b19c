//! A cluster on loopback: etcd, kube-apiserver, the released Rollouts controller with the plugin, a stand-in kubelet.
//!
//! The controller has the rights that its release gives it and the README adds, and no others.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{array, env, fs};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rustix::process::{Pid, Signal};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::credentials::Credentials;
use crate::process::Process;
use crate::{eventually, kubelet, manifest};

/// What the ConfigMap calls the plugin, and Rollouts refer to.
pub const PLUGIN_NAME: &str = "solo-io/glooplatform";
/// Where the controller looks for its ConfigMap when it is not told another namespace.
const CONTROLLER_NAMESPACE: &str = "argo-rollouts";
const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");
const README: &str = include_str!("../../README.md");

/// A release of the Rollouts controller.
#[derive(Clone, Copy, Debug)]
pub enum Release {
    /// The first with plugins for traffic routing.
    V1_5,
    /// What most clusters run.
    V1_9,
    /// The first in which plugins may have mirror steps and ping-pong.
    V1_10,
}

impl Release {
    const fn version(self) -> &'static str {
        match self {
            Self::V1_5 => "1.5.1",
            Self::V1_9 => "1.9.1",
            Self::V1_10 => "1.10.1",
        }
    }

    /// What pins it, within `go/rollouts`.
    fn go_mod(self) -> String {
        match self {
            Self::V1_9 => "go.mod".to_owned(),
            Self::V1_5 | Self::V1_10 => format!("versions/{}.mod", self.version()),
        }
    }
}

/// A running cluster. Dropping it ends every process it started.
pub struct Cluster {
    client: Client,
    kubelet: JoinHandle<Result<()>>,
    /// In the order they were started.
    processes: Vec<Process>,
    credentials: Credentials,
    directory: TempDir,
}

impl Cluster {
    /// Starts a cluster whose controller has the plugin at `$PLUGIN_BINARY`, and installs the CRDs.
    ///
    /// # Errors
    /// Whatever keeps a program from starting, with the tail of the logs.
    pub async fn start(release: Release) -> Result<Self> {
        let plugin = PathBuf::from(env::var_os("PLUGIN_BINARY").unwrap_or_default());
        ensure!(
            plugin.is_absolute() && plugin.is_file(),
            "PLUGIN_BINARY must be the absolute path of the plugin, it is {plugin:?}"
        );
        let mut cluster = Self::start_without_controller(release).await?;
        match cluster.start_controller(release, &plugin).await {
            Ok(()) => Ok(cluster),
            Err(error) => bail!("{error:#}\n{}", cluster.logs()),
        }
    }

    /// Starts a cluster with the CRDs and roles of a release, in which nothing happens by itself.
    ///
    /// # Errors
    /// Whatever keeps a program from starting, with the tail of the logs.
    pub async fn start_without_controller(release: Release) -> Result<Self> {
        let cluster = Self::start_servers().await?;
        match cluster.install(release).await {
            Ok(()) => Ok(cluster),
            Err(error) => bail!("{error:#}\n{}", cluster.logs()),
        }
    }

    /// Starts a cluster in which nothing is installed.
    ///
    /// # Errors
    /// Whatever keeps a program from starting.
    pub async fn start_empty() -> Result<Self> {
        let cluster = Self::start_servers().await?;
        cluster.wait_until_ready().await?;
        Ok(cluster)
    }

    /// A client with every permission.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The kubeconfig of that client.
    pub fn kubeconfig(&self) -> &Path {
        &self.credentials.admin_kubeconfig
    }

    /// A kubeconfig with the rights of the controller, and so of a plugin.
    pub fn controller_kubeconfig(&self) -> &Path {
        &self.credentials.controller_kubeconfig
    }

    /// A client with the rights of the controller, and so of the plugin.
    ///
    /// # Errors
    /// There are no such credentials.
    pub async fn controller_client(&self) -> Result<Client> {
        client(&self.credentials.controller_kubeconfig, None).await
    }

    /// A client with the rights of `user`: none, unless a binding gives it some.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub async fn client_as(&self, user: &str) -> Result<Client> {
        client(&self.credentials.admin_kubeconfig, Some(user)).await
    }

    /// What the controller logs.
    pub(crate) fn controller_log(&self) -> PathBuf {
        self.directory.path().join("rollouts-controller.log")
    }

    /// The last lines that each program logged.
    pub fn logs(&self) -> String {
        let kubelet = if self.kubelet.is_finished() {
            "the stand-in kubelet has ended\n"
        } else {
            ""
        };
        self.processes
            .iter()
            .map(Process::log_tail)
            .chain([kubelet.to_owned()])
            .collect()
    }

    /// Kills the plugin, as the kernel does when memory runs out. The controller starts another.
    ///
    /// # Errors
    /// There is none.
    pub async fn kill_plugin(&self) -> Result<()> {
        let plugin = self.plugin()?.context("no plugin is running")?;
        let pid = Pid::from_raw(plugin).context("not a process id")?;
        rustix::process::kill_process(pid, Signal::KILL)?;
        eventually("the plugin is gone", async || {
            ensure!(self.plugin()? != Some(plugin), "{plugin} is running");
            Ok(())
        })
        .await
    }

    /// Kills the controller and waits for the plugin to notice and end.
    ///
    /// # Errors
    /// The plugin outlives the controller.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.processes.pop());
        eventually("the plugin ends with the controller", async || {
            let survivor = self.plugin()?;
            ensure!(survivor.is_none(), "{survivor:?} is running");
            Ok(())
        })
        .await
    }

    /// The id of the plugin's process.
    fn plugin(&self) -> Result<Option<i32>> {
        let executable = self.directory.path().join("plugin-bin").join(PLUGIN_NAME);
        let mut processes = fs::read_dir("/proc")?.filter_map(Result::ok);
        Ok(processes.find_map(|process| {
            let target = fs::read_link(process.path().join("exe")).ok()?;
            let pid = process.file_name().to_str()?.parse().ok()?;
            (target == executable).then_some(pid)
        }))
    }

    async fn start_servers() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("rollouts-").tempdir()?;
        let path = directory.path();
        let [etcd_clients, etcd_peers, api_server] = free_ports()?;
        let credentials = Credentials::generate(path, api_server)?;
        let processes = vec![
            etcd(path, etcd_clients, etcd_peers)?,
            kube_apiserver(path, etcd_clients, api_server, &credentials)?,
        ];
        let client = client(&credentials.admin_kubeconfig, None).await?;
        let kubelet = tokio::spawn(kubelet::run(client.clone()));
        Ok(Self {
            client,
            kubelet,
            processes,
            credentials,
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
        self.install_crds(release).await?;
        let mut roles = rollouts_manifests(release, "role")?;
        roles.extend(rollouts_manifests(release, "cluster-install")?);
        roles.extend(readme_roles()?);
        manifest::apply(&self.client, &roles).await
    }

    async fn start_controller(&mut self, release: Release, plugin: &Path) -> Result<()> {
        let plugins =
            json!([{ "name": PLUGIN_NAME, "location": format!("file://{}", plugin.display()) }]);
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": CONTROLLER_NAMESPACE },
        });
        let config = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "argo-rollouts-config", "namespace": CONTROLLER_NAMESPACE },
            "data": { "trafficRouterPlugins": plugins.to_string() },
        });
        for object in [namespace, config] {
            manifest::apply(&self.client, &[serde_json::from_value(object)?]).await?;
        }
        let controller = rollouts_controller(release, self.directory.path(), &self.credentials)?;
        self.processes.push(controller);
        Ok(())
    }

    async fn install_crds(&self, release: Release) -> Result<()> {
        let mut crds = rollouts_manifests(release, "crds")?;
        for crd in [
            gloo_types::crd::route_table(),
            gloo_types::crd::mirror_policy(),
        ] {
            crds.push(serde_json::from_value(crd)?);
        }
        manifest::apply(&self.client, &crds).await?;
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
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kubelet.abort();
        // Clients before the servers they would complain about.
        while let Some(process) = self.processes.pop() {
            drop(process);
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
        // Nobody misses the data after a power cut.
        .arg("--unsafe-no-fsync");
    Process::start("etcd", directory, &mut command)
}

fn kube_apiserver(
    directory: &Path,
    etcd: u16,
    port: u16,
    credentials: &Credentials,
) -> Result<Process> {
    let mut command = program("kube-apiserver")?;
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--secure-port={port}"))
        .arg(format!("--cert-dir={}", directory.join("certificates").display()))
        .arg(format!("--tls-cert-file={}", credentials.certificate.display()))
        .arg(format!("--tls-private-key-file={}", credentials.certificate_key.display()))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-signing-key-file={}", credentials.token_signing_key.display()))
        .arg(format!("--service-account-key-file={}", credentials.token_verifying_key.display()))
        .arg(format!("--token-auth-file={}", credentials.tokens.display()))
        .arg("--authorization-mode=RBAC")
        .arg("--service-cluster-ip-range=10.0.0.0/16")
        // Refuses a loopback address otherwise; nothing here looks for the server's endpoint.
        .arg("--endpoint-reconciler-type=none");
    Process::start("kube-apiserver", directory, &mut command)
}

fn rollouts_controller(
    release: Release,
    directory: &Path,
    credentials: &Credentials,
) -> Result<Process> {
    let sockets = directory.join("tmp");
    fs::create_dir(&sockets)?;
    let [metrics, health] = free_ports()?;
    let mut command = program(&format!("rollouts-controller-{}", release.version()))?;
    command
        .arg(format!("--kubeconfig={}", credentials.controller_kubeconfig.display()))
        .args(["--leader-elect=false", "--loglevel=info"])
        // Deprecated since 1.9, and the only name before.
        .arg(format!("--metricsport={metrics}"))
        .arg(format!("--healthzPort={health}"))
        // It copies the plugin below its working directory.
        .current_dir(directory)
        .env("TMPDIR", sockets)
        .env("POD_NAMESPACE", CONTROLLER_NAMESPACE)
        // The plugin finds the cluster as any client does.
        .env("KUBECONFIG", &credentials.controller_kubeconfig);
    Process::start("rollouts-controller", directory, &mut command)
}

/// A program that was built from the Go module, in `$GO_BIN_DIR`.
///
/// # Errors
/// When it was not.
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

/// A client of the cluster that a kubeconfig names, as its user or in the name of another.
async fn client(kubeconfig: &Path, in_the_name_of: Option<&str>) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = in_the_name_of.map(str::to_owned);
    Ok(Client::try_from(config)?)
}

/// The manifests in a folder of the release that its `go.mod` requires, read where Go keeps the module.
fn rollouts_manifests(release: Release, folder: &str) -> Result<Vec<DynamicObject>> {
    let output = Command::new("go")
        .args([
            "list",
            "-m",
            "-f",
            "{{.Dir}}",
            &format!("-modfile={}", release.go_mod()),
            "github.com/argoproj/argo-rollouts",
        ])
        .current_dir(Path::new(PACKAGE).join("go/rollouts"))
        .output()
        .context("cannot run go")?;
    ensure!(
        output.status.success(),
        "go list: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let module = Path::new(str::from_utf8(&output.stdout)?.trim());
    let mut objects = Vec::new();
    for entry in fs::read_dir(module.join("manifests").join(folder))? {
        let path = entry?.path();
        if !path.ends_with("kustomization.yaml") {
            objects.extend(manifest::parse(&fs::read_to_string(path)?)?);
        }
    }
    Ok(objects)
}

/// The ClusterRole and its binding as the README tells an administrator to apply them.
fn readme_roles() -> Result<Vec<DynamicObject>> {
    let mut roles = Vec::new();
    let blocks = README.split("```yaml\n").skip(1);
    for block in blocks.filter_map(|rest| rest.split("```").next()) {
        if block.contains("\nkind: ClusterRole\n") {
            roles.extend(manifest::parse(block)?);
        }
    }
    ensure!(!roles.is_empty(), "the README has no ClusterRole");
    Ok(roles)
}

/// Ports that were free a moment ago. All are held until the last is known, so they differ.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let held: [_; N] = array::from_fn(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        let listener = listener
            .as_ref()
            .map_err(|error| anyhow!("no free port: {error}"))?;
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
