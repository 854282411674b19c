//! A real Envoy serves the plugin's tables: the host half of `rollouts-rpc` calls the plugin, and requests are counted.

mod stage;
mod under_load;
mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, ensure};
use envoy_routes::{DefaultRetries, Objects, Translation, translate};
use gloo_types::{MirrorPolicyDoc, RouteTableDoc};
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::{PluginProcess, RouterClient};
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{PodHashes, Rollout, WeightDestination};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use traffic_lab::proof::Tally;
use traffic_lab::{Envoy, Gateway, Load, Pod, ServiceName, Target, envoy_binary};

use crate::plugin_binary;

pub use stage::ClusterStage;
pub use under_load::{LoadedRollout, RolloutKind, UnderLoad, open_gateway};
pub use workloads::{Replicas, Workloads};

/// The host of the tables.
pub const HOST: &str = "shop.example.com";
/// The namespace of all objects.
pub const NAMESPACE: &str = "shop";
/// Requests per second: a third of what the slowest test machine handles.
const RATE: u32 = 1000;

/// RouteTables in files, a plugin that edits them, and an Envoy that serves them.
pub struct Shop {
    tables: PathBuf,
    owners: String,
    plugin: PluginProcess,
    router: RouterClient,
    gateway: Gateway,
    /// Pods by the name of their Service.
    pods: BTreeMap<String, Vec<Pod>>,
    _directory: TempDir,
}

impl Shop {
    /// Starts a plugin and an Envoy over the tables, with a Pod for each Service, whose version is the Service's name.
    ///
    /// # Errors
    /// Returns `Err` if one of them does not start.
    pub async fn open(tables: &str, services: &[&str]) -> Result<Self> {
        let mut shop = Self::without_pods(tables).await?;
        for service in services {
            shop.add_pods(service, &[(service, BTreeMap::new())])
                .await?;
        }
        shop.serve().await?;
        Ok(shop)
    }

    /// Starts a plugin and an Envoy without Pods.
    ///
    /// # Errors
    /// See [`Shop::open`].
    pub async fn without_pods(tables: &str) -> Result<Self> {
        let directory = TempDir::new()?;
        let file = directory.path().join("tables.yaml");
        fs::write(&file, tables)?;
        let mut command = Command::new(plugin_binary()?);
        command
            .args(["--log-level", "warn", "--route-tables-dir"])
            .arg(directory.path());
        let plugin = PluginProcess::start(command, PluginKind::TrafficRouter, drop).await?;
        let router = plugin.session().dispense_router().await?;
        router.init_plugin().await?;
        Ok(Self {
            tables: file,
            owners: tables.to_owned(),
            plugin,
            router,
            gateway: Gateway::new(Envoy::start(&envoy_binary()?).await?),
            pods: BTreeMap::new(),
            _directory: directory,
        })
    }

    /// Starts Pods behind a Service, of these versions and with these labels.
    ///
    /// # Errors
    /// Returns `Err` if no port can be opened, or Envoy rejects the endpoints.
    pub async fn add_pods(
        &mut self,
        service: &str,
        versions: &[(&str, BTreeMap<String, String>)],
    ) -> Result<()> {
        let pods = self.pods.entry(service.to_owned()).or_default();
        for (version, labels) in versions {
            pods.push(Pod::start(version, labels.clone()).await?);
        }
        let endpoints = pods.iter().map(Pod::endpoint).collect();
        let service = ServiceName::new(NAMESPACE, service);
        Ok(self.gateway.set_endpoints(&service, endpoints).await?)
    }

    /// Returns the first Pod of a Service.
    ///
    /// # Errors
    /// Returns `Err` if the Service has no Pod.
    pub fn pod(&self, service: &str) -> Result<&Pod> {
        let pods = self.pods.get(service).and_then(|pods| pods.first());
        pods.with_context(|| format!("{service} has no Pod"))
    }

    /// Ends the Pods of a Service, but keeps its endpoints.
    ///
    /// # Errors
    /// Returns `Err` if the Service has no Pods.
    pub async fn end_pods(&mut self, service: &str) -> Result<()> {
        let pods = self.pods.remove(service);
        for pod in pods.with_context(|| format!("{service} has no Pods"))? {
            pod.end().await;
        }
        Ok(())
    }

    /// Calls UpdateHash, SetWeight and VerifyWeight like the controller, and serves the changed tables.
    ///
    /// # Errors
    /// Returns `Err` if the plugin returns an error, or Envoy rejects the routes.
    pub async fn set_weight(
        &mut self,
        rollout: &Rollout,
        weight: i32,
        additional: &[WeightDestination],
    ) -> Result<()> {
        let hashes = PodHashes {
            canary: rollout.status.current_pod_hash.clone(),
            stable: rollout.status.stable_rs.clone(),
        };
        self.router
            .update_hash(rollout, &hashes, additional)
            .await?;
        self.router.set_weight(rollout, weight, additional).await?;
        self.router
            .verify_weight(rollout, weight, additional)
            .await?;
        self.serve().await
    }

    /// Calls SetHeaderRoute, and serves the changed tables.
    ///
    /// # Errors
    /// Returns `Err` if the plugin returns an error, or Envoy rejects the routes.
    pub async fn set_header_route(
        &mut self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<()> {
        self.router.set_header_route(rollout, route).await?;
        self.serve().await
    }

    /// Calls SetMirrorRoute, and serves the changed tables.
    ///
    /// # Errors
    /// Returns `Err` if the plugin returns an error, or Envoy rejects the routes.
    pub async fn set_mirror_route(
        &mut self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<()> {
        self.router.set_mirror_route(rollout, route).await?;
        self.serve().await
    }

    /// Ends the rollouts and the plugin, and checks that the file is equal to the owner's, byte for byte.
    ///
    /// # Errors
    /// Returns `Err` if the file differs.
    pub async fn close(mut self, rollouts: &[&Rollout]) -> Result<()> {
        for rollout in rollouts {
            self.router.remove_managed_routes(rollout).await?;
            self.set_weight(rollout, 0, &[]).await?;
        }
        let left = fs::read_to_string(&self.tables)?;
        ensure!(left == self.owners, "the table at rest:\n{left}");
        let ended = self.plugin.quit().await?;
        ensure!(ended.graceful, "the plugin did not end: {}", ended.status);
        Ok(())
    }

    /// Serves the current tables and policies of the directory.
    ///
    /// # Errors
    /// Returns `Err` if a table is not translated, or Envoy rejects the routes.
    pub async fn serve(&mut self) -> Result<()> {
        let translation = self.translate()?;
        Ok(self.gateway.set_routes(&translation).await?)
    }

    /// Serves the tables after `fault` has changed their translation.
    ///
    /// # Errors
    /// Returns `Err` if the fault changes nothing, or Envoy rejects it.
    pub async fn serve_with_fault(&mut self, fault: impl FnOnce(&str) -> String) -> Result<()> {
        let mut translation = self.translate()?;
        let right = translation.route_configuration.to_string();
        let wrong = fault(&right);
        ensure!(right != wrong, "the fault changes nothing: {right}");
        translation.route_configuration = serde_json::from_str(&wrong)?;
        Ok(self.gateway.set_routes(&translation).await?)
    }

    /// Sends `count` requests, and counts the results by version. A header is written as `name: value`.
    pub async fn count(&self, path: &str, headers: &[&str], count: u64) -> Tally {
        let headers = headers.iter().filter_map(|header| header.split_once(": "));
        let target = Target {
            gateway: self.gateway.address(),
            host: HOST.to_owned(),
            path: path.to_owned(),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        };
        Tally::of(&Load::send(&target, RATE, count).await)
    }

    fn translate(&self) -> Result<Translation> {
        let (mut tables, mut mirrors) = (Vec::new(), Vec::new());
        for file in fs::read_dir(self.tables.parent().context("no directory")?)? {
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(&fs::read_to_string(file?.path())?)?;
            for document in documents {
                match document.get("kind").and_then(Value::as_str) {
                    Some("RouteTable") => tables.push(RouteTableDoc::from_value(document)?),
                    Some("MirrorPolicy") => mirrors.push(MirrorPolicyDoc::from_value(document)?),
                    kind => return Err(anyhow!("{kind:?} in the directory of tables")),
                }
            }
        }
        Ok(translate(&Objects {
            tables: &tables,
            mirror_policies: &mirrors,
            // Retries would hide failed requests.
            retries: DefaultRetries::Off,
            ..Objects::default()
        }))
    }
}
