//! A Rollouts controller of a release with the plugins that it starts, in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use rustix::process::{Pid, Signal, kill_process};

use super::process::Process;
use super::{CONTROLLER_NAMESPACE, free_ports, program};
use crate::{PLUGIN_NAME, eventually, manifest};

/// Without leader election, as one controller of its own runs.
const ALONE: [&str; 1] = ["--leader-elect=false"];
/// With leader election. The Lease is as short as leaves the plugin some seconds to write in, and has enough retries for a
/// busy machine.
pub const SHORT_ELECTION: [&str; 3] = [
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
];

/// Tells the plugin where to serve its metrics.
pub(crate) const METRICS_ADDRESS: &str = "GLOO_PLUGIN_METRICS_ADDRESS";

/// How a controller is run, and what its plugins are.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The names under which the ConfigMap registers the plugin, each with arguments.
    pub plugins: &'a [(&'a str, &'a [&'a str])],
    /// Flags about leader election and whose Rollouts it is for.
    pub flags: &'a [&'a str],
    /// Further environment variables, which the plugins inherit.
    pub variables: &'a [(&'a str, &'a Path)],
    /// Where controller and plugins find the API server, such as behind a [`Proxy`](crate::Proxy).
    pub kubeconfig: Option<&'a Path>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            plugins: &[(PLUGIN_NAME, &[])],
            flags: &ALONE,
            variables: &[],
            kubeconfig: None,
        }
    }
}

/// A running controller. Dropping it kills it, and its plugins end.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    directory: PathBuf,
}

impl Controller {
    /// Starts the controller of a release in a new directory below `parent`.
    pub(crate) fn start(
        release: Release,
        parent: &Path,
        kubeconfig: &Path,
        setup: Setup<'_>,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("controller-")
            .tempdir_in(parent)?
            .keep();
        let sockets = directory.join("tmp");
        fs::create_dir_all(&sockets)?;
        let [metrics, health, plugin] = free_ports()?;
        let mut command = program(&format!("rollouts-controller-{}", release.version()))?;
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--loglevel=info")
            .args(setup.flags)
            // Deprecated since 1.9, and the only name before.
            .arg(format!("--metricsport={metrics}"))
            .arg(format!("--healthzPort={health}"))
            // It copies the plugin below its working directory.
            .current_dir(&directory)
            .env("TMPDIR", sockets)
            .env("POD_NAMESPACE", CONTROLLER_NAMESPACE)
            .env(METRICS_ADDRESS, format!("127.0.0.1:{plugin}"))
            // The plugin finds the cluster as any client does.
            .env("KUBECONFIG", kubeconfig)
            .envs(setup.variables.iter().copied());
        let process = Process::start("rollouts-controller", &directory, &mut command)?;
        Ok(Self { process, directory })
    }

    /// The file with what it and its plugins log.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// Where it has its files and those of its plugins.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The last lines of that.
    pub(crate) fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// The id of the plugin's process.
    ///
    /// # Errors
    /// The processes cannot be listed.
    pub fn plugin(&self) -> Result<Option<i32>> {
        Ok(self.plugins()?.pop())
    }

    /// Kills the plugin, as the kernel does when memory runs out. The controller starts another.
    ///
    /// # Errors
    /// There is none.
    pub async fn kill_plugin(&self) -> Result<()> {
        let plugin = self.plugin()?.context("no plugin is running")?;
        signal(plugin, Signal::KILL)?;
        eventually("the plugin is gone", async || {
            ensure!(self.plugin()? != Some(plugin), "{plugin} is running");
            Ok(())
        })
        .await
    }

    /// Stops the controller and its plugins for a while, as a virtual machine that is paused does.
    ///
    /// # Errors
    /// One of them is not running.
    pub fn freeze(&self) -> Result<()> {
        signal(self.process.id()?, Signal::STOP)?;
        self.signal_plugins(Signal::STOP)
    }

    /// Lets the plugins go on, and not yet the controller.
    ///
    /// # Errors
    /// The processes cannot be listed.
    pub fn thaw_plugins(&self) -> Result<()> {
        self.signal_plugins(Signal::CONT)
    }

    /// Lets the controller go on.
    ///
    /// # Errors
    /// It is not running.
    pub fn thaw(&self) -> Result<()> {
        signal(self.process.id()?, Signal::CONT)
    }

    /// Waits until it has ended by itself, and its plugins with it.
    ///
    /// # Errors
    /// It goes on.
    pub async fn gives_up(&mut self) -> Result<()> {
        eventually("the controller ends", async || {
            let status = self.process.exit_status()?;
            status.with_context(|| format!("it runs:\n{}", self.log_tail()))
        })
        .await?;
        self.plugins_end().await
    }

    /// Kills it and waits for its plugins to notice and end.
    ///
    /// # Errors
    /// A plugin goes on.
    pub async fn stop(mut self) -> Result<()> {
        self.process.kill();
        self.plugins_end().await
    }

    async fn plugins_end(&self) -> Result<()> {
        eventually("the plugins end with the controller", async || {
            let survivors = self.plugins()?;
            ensure!(survivors.is_empty(), "{survivors:?} are running");
            Ok(())
        })
        .await
    }

    /// The ids of the processes of its plugins, one for each name.
    ///
    /// # Errors
    /// The processes cannot be listed.
    pub fn plugins(&self) -> Result<Vec<i32>> {
        plugins_below(&self.directory)
    }

    fn signal_plugins(&self, which: Signal) -> Result<()> {
        self.plugins()?
            .into_iter()
            .try_for_each(|plugin| signal(plugin, which))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // A plugin that is frozen does not notice that its controller has ended.
        let _ = self.thaw_plugins();
    }
}

/// The processes whose programs a controller copied to somewhere below a directory.
pub(crate) fn plugins_below(directory: &Path) -> Result<Vec<i32>> {
    let processes = fs::read_dir("/proc")?.filter_map(Result::ok);
    let plugins = processes.filter_map(|process| {
        let program = fs::read_link(process.path().join("exe")).ok()?;
        let below = program.strip_prefix(directory).ok()?;
        let is_copy = below
            .components()
            .any(|part| part.as_os_str() == "plugin-bin");
        let id = process.file_name().to_str()?.parse().ok()?;
        is_copy.then_some(id)
    });
    Ok(plugins.collect())
}

fn signal(process: i32, which: Signal) -> Result<()> {
    let process = Pid::from_raw(process).context("not a process id")?;
    Ok(kill_process(process, which)?)
}

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
    pub(crate) const fn version(self) -> &'static str {
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

    /// The directory of its manifests, where Go keeps the module.
    pub(crate) fn manifests(self) -> Result<PathBuf> {
        let output = Command::new("go")
            .args(["list", "-m", "-f", "{{.Dir}}"])
            .arg(format!("-modfile={}", self.go_mod()))
            .arg("github.com/argoproj/argo-rollouts")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("go/rollouts"))
            .output()
            .context("cannot run go")?;
        ensure!(
            output.status.success(),
            "go list: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let module = Path::new(str::from_utf8(&output.stdout)?.trim());
        Ok(module.join("manifests"))
    }

    /// The objects in a folder of its manifests.
    pub fn objects(self, folder: &str) -> Result<Vec<DynamicObject>> {
        let mut objects = Vec::new();
        for entry in fs::read_dir(self.manifests()?.join(folder))? {
            let path = entry?.path();
            if !path.ends_with("kustomization.yaml") {
                objects.extend(manifest::parse(&fs::read_to_string(path)?)?);
            }
        }
        Ok(objects)
    }
}
