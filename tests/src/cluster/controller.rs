//! A Rollouts controller of a release, with the plugins that it starts, in a separate directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use rustix::process::{Pid, Signal, kill_process};

use super::process::Process;
use super::{CONTROLLER_NAMESPACE, free_ports, program};
use crate::{PLUGIN_NAME, eventually, manifest};

/// Flags of a single controller: without leader election.
const ALONE: [&str; 1] = ["--leader-elect=false"];
/// With leader election. The Lease is as short as leaves the plugin some seconds to write in, and has enough retries for a
/// busy machine.
pub const SHORT_ELECTION: [&str; 3] = [
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
];

/// The environment variable with the plugin's metrics address.
pub(crate) const METRICS_ADDRESS: &str = "GLOO_PLUGIN_METRICS_ADDRESS";

/// The plugins, flags and environment of a controller.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The names of the plugin in the ConfigMap, each with its arguments.
    pub plugins: &'a [(&'a str, &'a [&'a str])],
    /// Flags for leader election and the instance id.
    pub flags: &'a [&'a str],
    /// Additional environment variables, which the plugins inherit.
    pub variables: &'a [(&'a str, &'a Path)],
    /// The program of the plugins, instead of `$PLUGIN_BINARY`.
    pub program: Option<&'a Path>,
    /// Where controller and plugins find the API server, such as behind a [`Proxy`](crate::Proxy).
    pub kubeconfig: Option<&'a Path>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            plugins: &[(PLUGIN_NAME, &[])],
            flags: &ALONE,
            variables: &[],
            program: None,
            kubeconfig: None,
        }
    }
}

/// A running controller. Dropping it kills the controller, and its plugins end.
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
            // Deprecated since 1.9, but earlier releases only know this name.
            .arg(format!("--metricsport={metrics}"))
            .arg(format!("--healthzPort={health}"))
            // The controller copies the plugin to its working directory.
            .current_dir(&directory)
            .env("TMPDIR", sockets)
            .env("POD_NAMESPACE", CONTROLLER_NAMESPACE)
            .env(METRICS_ADDRESS, format!("127.0.0.1:{plugin}"))
            // Inherited by the plugin.
            .env("KUBECONFIG", kubeconfig)
            .envs(setup.variables.iter().copied());
        let process = Process::start("rollouts-controller", &directory, &mut command)?;
        Ok(Self { process, directory })
    }

    /// The file with the log of the controller and its plugins.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// The directory with the files of the controller and its plugins.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Returns the id of the plugin's process; `None` if there is none.
    ///
    /// # Errors
    /// Returns `Err` if the processes cannot be listed.
    pub fn plugin(&self) -> Result<Option<i32>> {
        Ok(self.plugins()?.pop())
    }

    /// Kills the plugin, like the kernel when memory runs out. The controller starts another one.
    ///
    /// # Errors
    /// Returns `Err` if no plugin runs.
    pub async fn kill_plugin(&self) -> Result<()> {
        let plugin = self.plugin()?.context("no plugin is running")?;
        signal(plugin, Signal::KILL)?;
        eventually("the plugin is gone", async || {
            ensure!(self.plugin()? != Some(plugin), "{plugin} is running");
            Ok(())
        })
        .await
    }

    /// Suspends the controller and its plugins, like a paused virtual machine.
    ///
    /// # Errors
    /// Returns `Err` if one of them does not run.
    pub fn freeze(&self) -> Result<()> {
        signal(self.process.id()?, Signal::STOP)?;
        self.signal_plugins(Signal::STOP)
    }

    /// Resumes the plugins, but not the controller.
    ///
    /// # Errors
    /// Returns `Err` if the processes cannot be listed.
    pub fn thaw_plugins(&self) -> Result<()> {
        self.signal_plugins(Signal::CONT)
    }

    /// Resumes the controller.
    ///
    /// # Errors
    /// Returns `Err` if it does not run.
    pub fn thaw(&self) -> Result<()> {
        signal(self.process.id()?, Signal::CONT)
    }

    /// Waits until the controller has exited and its plugins have ended.
    ///
    /// # Errors
    /// Returns `Err` if it keeps running.
    pub async fn exits(&mut self) -> Result<()> {
        eventually("the controller ends", async || {
            let status = self.process.exit_status()?;
            status.with_context(|| format!("it still runs:\n{}", self.log_tail()))
        })
        .await?;
        self.plugins_end().await
    }

    /// Kills the controller, and waits until its plugins have ended.
    ///
    /// # Errors
    /// Returns `Err` if a plugin does not end.
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

    /// Returns the process ids of its plugins, one for each name in the ConfigMap.
    ///
    /// # Errors
    /// Returns `Err` if the processes cannot be listed.
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
        // A suspended plugin would not end with its controller.
        let _ = self.thaw_plugins();
    }
}

/// Returns the ids of the processes whose program a controller copied below a directory.
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
    /// The first release with traffic router plugins.
    V1_5,
    /// The release that most clusters run.
    V1_9,
    /// The first release with mirror steps and ping-pong for plugins.
    V1_10,
    /// Another version, whose controller the caller has built. Its CRDs and roles are those of [`Release::V1_10`].
    Other(&'static str),
}

impl Release {
    /// Returns the version without `v`.
    #[must_use]
    pub const fn version(self) -> &'static str {
        match self {
            Self::V1_5 => "1.5.1",
            Self::V1_9 => "1.9.3",
            Self::V1_10 => "1.10.2",
            Self::Other(version) => version,
        }
    }

    /// The Go module file that pins the release and its manifests, relative to `go/rollouts`.
    fn go_mod(self) -> String {
        match self {
            Self::V1_9 => "go.mod".to_owned(),
            Self::V1_5 | Self::V1_10 => format!("versions/{}.mod", self.version()),
            Self::Other(_) => Self::V1_10.go_mod(),
        }
    }

    /// Returns the directory of its manifests in Go's module cache.
    pub(crate) fn manifests(self) -> Result<PathBuf> {
        let output = Command::new("go")
            .args(["list", "-m", "-f", "{{.Dir}}"])
            .arg(format!("-modfile={}", self.go_mod()))
            .arg("github.com/argoproj/argo-rollouts")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("go/rollouts"))
            .env("GOTOOLCHAIN", "auto")
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

    /// Reads the objects in a folder of its manifests.
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
