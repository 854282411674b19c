//! The environment of the demo: the plugin's process, its directory of tables, the Pods and the gateway.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::{PluginProcess, RouterClient};
use rollouts_rpc::{PodHashes, Rollout, Verification, error_chain};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use traffic_lab::{Delays, Envoy, Gateway, Pod, ServiceName, World, envoy_binary};
use traffic_page::{FILE, OWNERS, Tables, Version};

use crate::rollout::Call;

const NAMESPACE: &str = "shop";
/// A failing version fails every third request.
const BAD: u32 = 3;

/// The plugin and its environment.
pub(crate) struct Shop {
    program: PathBuf,
    plugin: Option<Plugin>,
    /// Number of starts of the plugin.
    pub(crate) starts: u32,
    /// Duration of the last start.
    pub(crate) start_took: Duration,
    /// Messages of the plugin's log since [`Shop::take_log`].
    said: Arc<Mutex<Vec<String>>>,
    tables: PathBuf,
    /// The directory of tables is moved here while it must not be readable.
    away: PathBuf,
    pub(crate) world: World,
    pods: BTreeMap<u32, Vec<Pod>>,
    /// The version and the number of Pods behind each Service, as last published.
    services: BTreeMap<&'static str, (u32, usize)>,
    /// The tables that were last sent to the gateway.
    pub(crate) served: Tables,
    _directory: TempDir,
}

struct Plugin {
    process: PluginProcess,
    router: RouterClient,
}

impl Shop {
    /// Starts Envoy and writes the owner's table.
    ///
    /// # Errors
    /// Returns `Err` if Envoy does not start.
    pub(crate) async fn open(program: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let tables = directory.path().join("tables");
        fs::create_dir(&tables)?;
        fs::write(tables.join(FILE), OWNERS)?;
        let gateway = Gateway::new(Envoy::start(&envoy_binary()?).await?);
        Ok(Self {
            program: program.to_owned(),
            plugin: None,
            starts: 0,
            start_took: Duration::ZERO,
            said: Arc::default(),
            away: directory.path().join("away"),
            tables,
            world: World::new(gateway, Delays::default()),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            served: Tables::default(),
            _directory: directory,
        })
    }

    /// Returns the id of the plugin's process, if it runs.
    pub(crate) fn plugin(&self) -> Option<u32> {
        self.plugin.as_ref().and_then(|plugin| plugin.process.id())
    }

    /// Returns the messages that the plugin logged since the last call.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts the plugin if it does not run. Returns whether it was started.
    ///
    /// # Errors
    /// Returns `Err` if it does not start.
    pub(crate) async fn start_plugin(&mut self) -> Result<bool> {
        if self.plugin.is_some() {
            return Ok(false);
        }
        let mut command = Command::new(&self.program);
        command
            .args(["--log-level", "warn", "--route-tables-dir"])
            .arg(&self.tables);
        let began = Instant::now();
        let said = Arc::clone(&self.said);
        let process = PluginProcess::start(command, PluginKind::TrafficRouter, move |line| {
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            said.push(message(&line));
        });
        let process = process.await?;
        let router = process.session().dispense_router().await?;
        router.init_plugin().await?;
        self.start_took = began.elapsed();
        self.starts += 1;
        self.plugin = Some(Plugin { process, router });
        Ok(true)
    }

    /// Kills the plugin, like the kernel when memory runs out.
    ///
    /// # Errors
    /// Returns `Err` if it does not run.
    pub(crate) async fn kill_plugin(&mut self) -> Result<()> {
        let plugin = self.plugin.take().context("the plugin does not run")?;
        Ok(plugin.process.kill().await?)
    }

    /// Ends the plugin like the controller.
    pub(crate) async fn close(mut self) -> Result<()> {
        if let Some(plugin) = self.plugin.take() {
            plugin.process.quit().await?;
        }
        Ok(())
    }

    /// Makes a call of the controller. Returns the answer to VerifyWeight as text.
    ///
    /// # Errors
    /// Returns `Err` with the plugin's error, or if the plugin does not run.
    pub(crate) async fn call(&mut self, rollout: &Rollout, call: &Call) -> Result<&'static str> {
        let Some(Plugin { router, process }) = &self.plugin else {
            bail!("the plugin does not run");
        };
        let outcome = match call {
            Call::RemoveManagedRoutes => router.remove_managed_routes(rollout).await,
            Call::SetHeaderRoute(route) => router.set_header_route(rollout, route).await,
            Call::SetMirrorRoute(route) => router.set_mirror_route(rollout, route).await,
            Call::UpdateHash => {
                let hashes = PodHashes {
                    canary: rollout.status.current_pod_hash.clone(),
                    stable: rollout.status.stable_rs.clone(),
                };
                router.update_hash(rollout, &hashes, &[]).await
            }
            Call::SetWeight(weight) => router.set_weight(rollout, *weight, &[]).await,
            Call::VerifyWeight(weight) => {
                match router.verify_weight(rollout, *weight, &[]).await {
                    Ok(Verification::Verified) => return Ok("verified"),
                    // At rest there is no weight to verify.
                    Ok(Verification::NotImplemented) => return Ok("nothing to verify"),
                    Ok(_) => return Ok("not verified"),
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = outcome {
            let text = error_chain(&error);
            if process.session().ping().await.is_err() {
                self.plugin = None;
            }
            bail!(text);
        }
        Ok("")
    }

    /// Sends the tables to the gateway if they have changed. Returns the changed lines.
    ///
    /// # Errors
    /// Returns `Err` if the tables cannot be read, or Envoy has rejected an update.
    pub(crate) fn publish(&mut self) -> Result<Vec<String>> {
        if self.is_away() {
            return Ok(Vec::new());
        }
        let tables = read_tables(&self.tables)?;
        if tables == self.served {
            return Ok(Vec::new());
        }
        // Not awaited: the curve of measured shares shows when the routes are served.
        drop(self.world.publish_routes(tables.translate()?)?);
        let changed = tables.changed_since(&self.served)?;
        self.served = tables;
        Ok(changed)
    }

    /// Restores the owner's table, like a GitOps tool that reverts drift.
    ///
    /// # Errors
    /// Returns `Err` if it cannot be written.
    pub(crate) fn revert(&self) -> Result<()> {
        if self.is_away() {
            bail!("the tables were taken away");
        }
        // Written to another file and renamed, so that no reader sees a partial file.
        let beside = self.tables.join("from-git");
        fs::write(&beside, OWNERS)?;
        Ok(fs::rename(beside, self.tables.join(FILE))?)
    }

    /// Moves the directory of tables away, or back.
    ///
    /// # Errors
    /// Returns `Err` if it cannot be moved.
    pub(crate) fn take_tables_away(&self) -> Result<()> {
        let (from, to) = if self.is_away() {
            (&self.away, &self.tables)
        } else {
            (&self.tables, &self.away)
        };
        Ok(fs::rename(from, to)?)
    }

    /// Returns whether the directory of tables is moved away.
    pub(crate) fn is_away(&self) -> bool {
        self.away.exists()
    }

    /// Starts or ends Pods of a version until there are `count`. Returns whether the number changed.
    ///
    /// # Errors
    /// Returns `Err` if no port can be opened.
    pub(crate) async fn scale(&mut self, version: Version, count: usize) -> Result<bool> {
        let pods = self.pods.entry(version.number).or_default();
        let before = pods.len();
        while pods.len() < count {
            let name = version.number.to_string();
            let fails = version.fails.then_some(BAD);
            pods.push(Pod::start_failing(&name, BTreeMap::new(), fails).await?);
        }
        for pod in pods.split_off(count) {
            // Requests in flight may take a while.
            tokio::spawn(pod.end());
        }
        Ok(before != count)
    }

    /// Returns the Pods of each version that has some.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (u32, &Vec<Pod>)> {
        let pods = self.pods.iter().filter(|(_, pods)| !pods.is_empty());
        pods.map(|(version, pods)| (*version, pods))
    }

    /// Publishes the Pods of a version as the endpoints of a Service.
    ///
    /// # Errors
    /// Returns `Err` if Envoy has rejected an update.
    pub(crate) fn select(&mut self, service: &'static str, version: u32) -> Result<()> {
        let pods = self
            .pods
            .get(&version)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let now = (version, pods.len());
        if self.services.get(service) != Some(&now) {
            let endpoints = pods.iter().map(Pod::endpoint).collect();
            let name = ServiceName::new(NAMESPACE, service);
            self.world.publish_endpoints(name, endpoints)?;
            self.services.insert(service, now);
        }
        Ok(())
    }
}

/// Reads the tables of a directory.
///
/// # Errors
/// Returns `Err` if the directory or a file cannot be read.
fn read_tables(directory: &Path) -> Result<Tables> {
    let files = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let paths: Result<Vec<PathBuf>, std::io::Error> = files.map(|file| Ok(file?.path())).collect();
    let mut paths = paths?;
    // Ignores the temporary files that the plugin renames.
    paths.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    let files = paths.into_iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok((name.into_owned(), text))
    });
    Ok(Tables::new(OWNERS, files.collect::<Result<_>>()?))
}

/// Returns the message of a log record of the plugin.
fn message(line: &str) -> String {
    let record: Option<Value> = serde_json::from_str(line).ok();
    let text = record.as_ref().and_then(|it| it.get("@message")?.as_str());
    text.unwrap_or(line).to_owned()
}
