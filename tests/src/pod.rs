//! Stands in for the kubelet that runs the controller's Pod: volumes are directories, and a path of a container is one
//! below them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, PodSpec};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::process::Command;

use crate::cluster::CONTROLLER_NAMESPACE;
use crate::{Cluster, Release, plugin_binary};

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
        let spec = deployment.spec.template.spec.context("no Pod")?;
        let account = spec.service_account_name.clone().context("no account")?;
        let pod = Pod {
            spec,
            volumes: self.directory().join("volumes"),
        };
        pod.run_init_containers().await?;
        self.look_into(&pod).await?;
        let kubeconfig = self.service_account_kubeconfig(&account).await?;
        self.start_controller(release, &kubeconfig, variables)
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
