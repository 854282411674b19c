//! Stands in for the kubelet that runs a Pod: volumes are directories, and a path of a container is one below them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, PodSpec, PodTemplateSpec, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::process::Command;

use super::volume;
use crate::cluster::CONTROLLER_NAMESPACE;
use crate::{Cluster, Generator, Release, Setup, plugin_binary};

const CONFIG: &str = "argo-rollouts-config";

impl Cluster {
    /// Runs what the cluster's Deployment of the controller says, as its service account.
    ///
    /// `variables` are environment variables beside those of the Pod.
    ///
    /// # Errors
    /// The Deployment, its account or its ConfigMap is not there, or an init container fails.
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
        let setup = Setup {
            variables,
            ..Setup::default()
        };
        self.start_controller(release, &kubeconfig, setup)
    }

    /// Runs what the Deployment `name` of the generator says: its arguments, its volumes, its service account if it has a
    /// token of it.
    ///
    /// # Errors
    /// The Deployment or something that its Pod needs is not there, or the generator does not start.
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

    /// Lets files of the ConfigMap be where the controller's container has them on this machine.
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

    /// Whether the containers could speak for the account: a Pod's word counts more than its account's.
    async fn has_account_token(&self, client: &Client, namespace: &str) -> Result<bool> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let account = accounts.get(self.account()?).await?;
        let own = self.spec.automount_service_account_token;
        Ok(own
            .or(account.automount_service_account_token)
            .unwrap_or(true))
    }

    /// Writes what the ConfigMaps and Secrets have that are volumes.
    async fn mount_files(&self, client: &Client, namespace: &str) -> Result<()> {
        for volume in self.spec.volumes.iter().flatten() {
            let directory = self.volumes.join(&volume.name);
            fs::create_dir_all(&directory)?;
            for (name, content) in volume::files(volume, client, namespace).await? {
                fs::write(directory.join(name), content)?;
            }
        }
        Ok(())
    }

    /// `--flag=/path/in/the/container` with the path on this machine.
    fn argument(&self, container: &Container, arg: &str) -> Result<String> {
        let Some((flag, path)) = arg.split_once('=').filter(|(_, it)| it.starts_with('/')) else {
            return Ok(arg.to_owned());
        };
        let outside = self.outside(container, path);
        let outside = outside.with_context(|| format!("there is no volume at {path}"))?;
        Ok(format!("{flag}={}", outside.display()))
    }

    /// Every image of an init container is taken for the plugin's, of which the binary is the entry point.
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

    /// Where a path of a container is on this machine, if it is in one of its volumes.
    fn outside(&self, container: &Container, path: &str) -> Option<PathBuf> {
        container.volume_mounts.iter().flatten().find_map(|mount| {
            let below = Path::new(path).strip_prefix(&mount.mount_path).ok()?;
            Some(self.volumes.join(&mount.name).join(below))
        })
    }
}
