//! An installation from rendered manifests: a released file on an HTTPS server, and a stand-in kubelet that runs the Pods.
//! Volumes are directories, and paths of a container are mapped to them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, KeyToPath, PodSpec, PodTemplateSpec, Secret, ServiceAccount, Volume,
};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, KeyPair};
use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::cluster::CONTROLLER_NAMESPACE;
use crate::{Cluster, Generator, Release, Setup, manifest, plugin_binary, program};

const COMPONENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kustomize");
const MANAGEMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/management-cluster");

/// Renders the installation of a controller release with components of `deploy/kustomize`. `base` are directories of the
/// release's manifests.
///
/// Placeholders of the components are replaced, as in a release of the plugin.
///
/// # Errors
/// Returns `Err` if kustomize fails.
pub fn render(
    release: Release,
    base: &[&str],
    components: &[&str],
    fill_in: &[(&str, &str)],
) -> Result<Vec<DynamicObject>> {
    render_in(CONTROLLER_NAMESPACE, release, base, components, fill_in)
}

/// Renders as [`render`] does, for a controller in another namespace.
///
/// # Errors
/// See [`render`].
pub fn render_in(
    namespace: &str,
    release: Release,
    base: &[&str],
    components: &[&str],
    fill_in: &[(&str, &str)],
) -> Result<Vec<DynamicObject>> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    symlink(release.manifests()?, root.join("argo-rollouts"))?;
    copy_filled_in(Path::new(COMPONENTS), &root.join("plugin"), fill_in)?;
    let in_folder = |folder: &str, names: &[&str]| {
        let names = names.iter().map(|name| format!("{folder}/{name}"));
        names.collect::<Vec<_>>().join(", ")
    };
    let kustomization = format!(
        "namespace: {namespace}\nresources: [{}]\ncomponents: [{}]\n",
        in_folder("argo-rollouts", base),
        in_folder("plugin", components)
    );
    fs::write(root.join("kustomization.yaml"), kustomization)?;
    build(root)
}

/// The page that users follow.
const INSTALL_PAGE: &str = include_str!("../../docs/install.md");

/// Installs Argo Rollouts and the plugin as the section about kustomize in docs/install.md says: its `kustomization.yaml`, beside
/// the directory of the plugin's release, and its commands in their order. The release of Argo Rollouts is read from a file
/// instead of its URL.
///
/// # Errors
/// Returns `Err` if a command fails, if the page has a command that is not known here, or if it installs another release.
pub async fn follow_install_page(
    cluster: &Cluster,
    release: Release,
    fill_in: &[(&str, &str)],
) -> Result<()> {
    let mut sections = INSTALL_PAGE.split("\n## ");
    let section = sections.find(|section| section.starts_with("With kustomize\n"));
    let section = section.context("the page has no section about kustomize")?;
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    copy_filled_in(
        Path::new(COMPONENTS),
        &root.join("gloo-plugin/kustomize"),
        fill_in,
    )?;
    let url = format!(
        "https://github.com/argoproj/argo-rollouts/releases/download/v{}/install.yaml",
        release.version()
    );
    let kustomization = blocks(section, "yaml").next().unwrap_or_default();
    ensure!(kustomization.contains(&url), "no {url} in {kustomization}");
    let manifests = fs::read(release.manifests()?.join("install.yaml"))?;
    fs::write(root.join("install.yaml"), manifests)?;
    let kustomization = kustomization.replace(&url, "install.yaml");
    fs::write(root.join("kustomization.yaml"), kustomization)?;
    for command in blocks(section, "sh").flat_map(str::lines) {
        let words: Vec<&str> = command.split(' ').collect();
        match words.as_slice() {
            ["kubectl", "create", "namespace", name] => cluster.create_namespace(name).await?,
            ["kubectl", "kustomize", ".", "|", "less"] => drop(build(root)?),
            ["kubectl", "apply", "--server-side", "-k", "."] => {
                manifest::apply(cluster.client(), &build(root)?).await?;
            }
            _ => bail!("this test does not know the command: {command}"),
        }
    }
    Ok(())
}

/// The code blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &'static str) -> impl Iterator<Item = &'a str> {
    let fenced = page.split("```").skip(1).step_by(2);
    fenced.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

/// Renders the account of `deploy/management-cluster` for a workload cluster of this name, as the documentation does.
///
/// # Errors
/// Returns `Err` if kustomize fails.
pub fn management_account(cluster: &str) -> Result<Vec<DynamicObject>> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    copy_filled_in(Path::new(MANAGEMENT), &root.join("account"), &[])?;
    let overlay = root.join(cluster);
    fs::create_dir(&overlay)?;
    let kustomization = format!("resources: [../account]\nnameSuffix: -{cluster}\n");
    fs::write(overlay.join("kustomization.yaml"), kustomization)?;
    build(&overlay)
}

/// Renders the kustomization of a directory.
pub(crate) fn build(root: &Path) -> Result<Vec<DynamicObject>> {
    let output = program("kustomize")?.arg("build").arg(root).output()?;
    ensure!(
        output.status.success(),
        "kustomize: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    manifest::parse(str::from_utf8(&output.stdout)?)
}

/// Copies a directory of manifests, and replaces placeholders as in a release.
pub(crate) fn copy_filled_in(from: &Path, to: &Path, fill_in: &[(&str, &str)]) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_filled_in(&from, &to, fill_in)?;
            continue;
        }
        let mut text = fs::read_to_string(from)?;
        for (word, value) in fill_in {
            text = text.replace(word, value);
        }
        fs::write(to, text)?;
    }
    Ok(())
}

/// An HTTPS server with one file. Dropping it ends the server.
#[derive(Debug)]
pub struct Download {
    url: String,
    sha256: String,
    /// Contains the certificate.
    directory: TempDir,
    server: JoinHandle<Result<()>>,
}

impl Download {
    /// Serves a file under any path that ends with `name`.
    ///
    /// # Errors
    /// Returns `Err` if the file cannot be read, or there is no free port.
    pub async fn serve(file: &Path, name: &str) -> Result<Self> {
        let bytes = fs::read(file)?;
        let sha256 = digest(&SHA256, &bytes);
        let sha256 = sha256.as_ref().iter().map(|byte| format!("{byte:02x}"));
        let sha256 = sha256.collect();

        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?;
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("ca.crt"), certificate.pem())?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let name = format!("/{name} ");
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                // An error of one client must not end the server.
                drop(answer(&acceptor, stream, &name, &bytes).await);
            }
        });
        Ok(Self {
            url,
            sha256,
            directory,
            server,
        })
    }

    /// The base URL of the file.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The SHA-256 checksum of the file in lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The file with the certificate that a client must trust, in PEM.
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Answers one request and closes the connection.
async fn answer(acceptor: &TlsAcceptor, stream: TcpStream, name: &str, bytes: &[u8]) -> Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let line = String::from_utf8(request)?;
    let line = line.lines().next().unwrap_or_default();
    let (status, body) = if line.starts_with("GET ") && line.contains(name) {
        ("200 OK", bytes)
    } else {
        ("404 Not Found", [].as_slice())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    Ok(stream.shutdown().await?)
}

const CONFIG: &str = "argo-rollouts-config";

impl Cluster {
    /// Runs the controller of the cluster's Deployment, with its service account.
    ///
    /// `variables` are additional environment variables.
    ///
    /// # Errors
    /// Returns `Err` if the Deployment, its account or its ConfigMap does not exist, or an init container fails.
    pub async fn start_deployed_controller(
        &mut self,
        release: Release,
        variables: &[(&str, &Path)],
    ) -> Result<()> {
        let deployments: Api<Deployment> =
            Api::namespaced(self.client().clone(), CONTROLLER_NAMESPACE);
        let deployment = deployments.get("argo-rollouts").await?;
        let pod = Pod::new(deployment.spec.template, self.directory().join("volumes"))?;
        pod.run_init_containers().await?;
        self.look_into(&pod).await?;
        let kubeconfig = self
            .service_account_kubeconfig(CONTROLLER_NAMESPACE, pod.account()?)
            .await?;
        let args = pod.spec.containers.first().and_then(|it| it.args.as_ref());
        let mut flags: Vec<&str> = args.into_iter().flatten().map(String::as_str).collect();
        // A Pod knows its namespace from its service account.
        let namespace = format!("--namespace={CONTROLLER_NAMESPACE}");
        flags.push(&namespace);
        let setup = Setup {
            flags: &flags,
            variables,
            ..Setup::default()
        };
        self.start_controller(release, &kubeconfig, setup)
    }

    /// Runs the generator of the Deployment `name`, with its arguments and volumes, and its service account if the Pod mounts
    /// a token.
    ///
    /// # Errors
    /// Returns `Err` if the Deployment or an object that its Pod needs does not exist, or the generator does not start.
    pub async fn start_deployed_generator(&self, namespace: &str, name: &str) -> Result<Generator> {
        let client = self.client();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let deployment = deployments.get(name).await?;
        let volumes = tempfile::tempdir_in(self.directory())?.keep();
        let pod = Pod::new(deployment.spec.template, volumes)?;
        pod.mount_files(client, namespace).await?;

        let container = pod.spec.containers.first().context("no container")?;
        let args = container.args.iter().flatten();
        let args = args.map(|arg| pod.argument(container, arg));
        let args = args.collect::<Result<Vec<_>>>()?;
        let account = pod.account()?;
        let kubeconfig = self.service_account_kubeconfig(namespace, account).await?;
        let variable = ("KUBECONFIG", kubeconfig.as_path());
        let has_token = pod.has_account_token(client, namespace).await?;
        Generator::start(&args, has_token.then_some(variable).as_slice()).await
    }

    /// Changes the plugin's location in the ConfigMap from the container's path to the path on this machine.
    async fn look_into(&self, pod: &Pod) -> Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client().clone(), CONTROLLER_NAMESPACE);
        let map = maps.get(CONFIG).await?;
        let data = map.data.unwrap_or_default();
        let text = data.get("trafficRouterPlugins").context("no plugins")?;
        let Some((_, location)) = text.split_once("file://") else {
            return Ok(());
        };
        let inside = location.lines().next().unwrap_or_default();
        let containers = pod.spec.containers.iter();
        let mut outside = containers.filter_map(|container| pod.outside(container, inside));
        let outside = outside
            .next()
            .with_context(|| format!("the controller's container has no volume at {inside}"))?;
        let text = text.replace(inside, &outside.display().to_string());
        let patch = Patch::Merge(json!({ "data": { "trafficRouterPlugins": text } }));
        maps.patch(CONFIG, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

struct Pod {
    spec: PodSpec,
    volumes: PathBuf,
}

impl Pod {
    fn new(template: PodTemplateSpec, volumes: PathBuf) -> Result<Self> {
        let spec = template.spec.context("no Pod")?;
        Ok(Self { spec, volumes })
    }

    fn account(&self) -> Result<&str> {
        let name = self.spec.service_account_name.as_deref();
        name.context("no account")
    }

    /// Returns whether the Pod mounts a token of its account. The Pod's setting overrides the account's.
    async fn has_account_token(&self, client: &Client, namespace: &str) -> Result<bool> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let account = accounts.get(self.account()?).await?;
        let own = self.spec.automount_service_account_token;
        Ok(own
            .or(account.automount_service_account_token)
            .unwrap_or(true))
    }

    /// Writes the files of the volumes from ConfigMaps and Secrets.
    async fn mount_files(&self, client: &Client, namespace: &str) -> Result<()> {
        for volume in self.spec.volumes.iter().flatten() {
            let directory = self.volumes.join(&volume.name);
            fs::create_dir_all(&directory)?;
            for (name, content) in files(volume, client, namespace).await? {
                fs::write(directory.join(name), content)?;
            }
        }
        Ok(())
    }

    /// Replaces the path in `--flag=/path/in/the/container` by the path on this machine.
    fn argument(&self, container: &Container, arg: &str) -> Result<String> {
        let Some((flag, path)) = arg.split_once('=').filter(|(_, it)| it.starts_with('/')) else {
            return Ok(arg.to_owned());
        };
        let outside = self.outside(container, path);
        let outside = outside.with_context(|| format!("there is no volume at {path}"))?;
        Ok(format!("{flag}={}", outside.display()))
    }

    /// Runs the init containers. Each is expected to have the plugin's image, whose entry point is the binary.
    async fn run_init_containers(&self) -> Result<()> {
        for volume in self.spec.volumes.iter().flatten() {
            fs::create_dir_all(self.volumes.join(&volume.name))?;
        }
        for container in self.spec.init_containers.iter().flatten() {
            let args = container.args.iter().flatten();
            let args = args.map(|arg| {
                let outside = self.outside(container, arg);
                outside.unwrap_or_else(|| PathBuf::from(arg))
            });
            let output = Command::new(plugin_binary()?).args(args).output().await?;
            ensure!(
                output.status.success(),
                "init container {}: {}",
                container.name,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    }

    /// Returns the path on this machine of a path in a container; `None` if it is not in a volume.
    fn outside(&self, container: &Container, path: &str) -> Option<PathBuf> {
        container.volume_mounts.iter().flatten().find_map(|mount| {
            let below = Path::new(path).strip_prefix(&mount.mount_path).ok()?;
            Some(self.volumes.join(&mount.name).join(below))
        })
    }
}

/// File contents by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Returns the files of a volume; none if it is optional and its source does not exist.
pub(crate) async fn files(volume: &Volume, client: &Client, namespace: &str) -> Result<Files> {
    let (data, items, optional) = if let Some(source) = &volume.config_map {
        let data = config_map(client, namespace, &source.name).await?;
        (data, source.items.as_deref(), source.optional)
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().context("no name")?;
        let data = secret(client, namespace, name).await?;
        (data, source.items.as_deref(), source.optional)
    } else {
        bail!("volume {} has an unsupported type", volume.name);
    };
    match data {
        Some(data) => chosen(data, items)
            .with_context(|| format!("volume {} refers to a missing key", volume.name)),
        None if optional == Some(true) => Ok(Files::new()),
        None => bail!("the source of volume {} does not exist", volume.name),
    }
}

async fn config_map(client: &Client, namespace: &str, name: &str) -> Result<Option<Files>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(name).await?;
    Ok(map.map(|map| {
        let data = map.data.unwrap_or_default();
        data.into_iter()
            .map(|(key, text)| (key, text.into_bytes()))
            .collect()
    }))
}

async fn secret(client: &Client, namespace: &str, name: &str) -> Result<Option<Files>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get_opt(name).await?;
    Ok(secret.map(|secret| {
        let data = secret.data.unwrap_or_default();
        data.into_iter()
            .map(|(key, bytes)| (key, bytes.0))
            .collect()
    }))
}

/// Returns all keys, or only `items` with their paths as names.
fn chosen(mut data: Files, items: Option<&[KeyToPath]>) -> Option<Files> {
    let Some(items) = items else {
        return Some(data);
    };
    let items = items.iter();
    items
        .map(|item| Some((item.path.clone(), data.remove(&item.key)?)))
        .collect()
}
