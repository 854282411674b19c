//! A plugin's process, with the calls of the controller, and its CPU time and memory from `/proc`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::{PluginProcess, RouterClient};
use rollouts_rpc::{PodHashes, Rollout, Verification};
use tokio::process::Command;

use crate::world::{NEW_HASH, OLD_HASH};

/// The unit of times in `/proc/<pid>/stat`: Linux reports 100 ticks per second to user space.
const TICK: Duration = Duration::from_millis(10);
/// Indices of user and system time in `/proc/<pid>/stat`, from the field after the name.
const TIMES: [usize; 2] = [11, 12];

/// A running plugin.
pub(crate) struct Plugin {
    process: PluginProcess,
    router: RouterClient,
}

impl Plugin {
    pub(crate) async fn start(
        binary: &Path,
        kubeconfig: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        command.env("KUBECONFIG", kubeconfig);
        command.envs(variables.iter().copied());
        let process = PluginProcess::start(command, PluginKind::TrafficRouter, drop)
            .await
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let router = process.session().dispense_router().await?;
        router.init_plugin().await?;
        Ok(Self { process, router })
    }

    /// Makes the calls of a reconcile for a Rollout at rest.
    pub(crate) async fn steady_pass(&self, rollout: &Rollout) -> Result<()> {
        self.router.remove_managed_routes(rollout).await?;
        let hashes = PodHashes {
            canary: NEW_HASH.into(),
            stable: NEW_HASH.into(),
        };
        self.router.update_hash(rollout, &hashes, &[]).await?;
        self.set_weight(rollout, 0).await?;
        let verification = self.router.verify_weight(rollout, 0, &[]).await?;
        ensure!(
            verification != Verification::NotVerified,
            "weight 0 is not verified"
        );
        Ok(())
    }

    pub(crate) async fn set_weight(&self, rollout: &Rollout, weight: i32) -> Result<()> {
        Ok(self.router.set_weight(rollout, weight, &[]).await?)
    }

    /// Sets another weight during an update, and returns the duration of SetWeight.
    pub(crate) async fn change(&self, rollout: &Rollout, weight: i32) -> Result<Duration> {
        let hashes = PodHashes {
            canary: NEW_HASH.into(),
            stable: OLD_HASH.into(),
        };
        self.router.update_hash(rollout, &hashes, &[]).await?;
        let begin = Instant::now();
        self.set_weight(rollout, weight).await?;
        Ok(begin.elapsed())
    }

    /// Returns the CPU time of the process so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = self.read("stat")?;
        // The name is in parentheses and may contain spaces.
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let mut ticks = 0_u32;
        for index in TIMES {
            let field = fields.get(index).context("stat is too short")?;
            ticks += field.parse::<u32>()?;
        }
        Ok(TICK * ticks)
    }

    /// Returns the peak memory of the process, in KiB.
    pub(crate) fn peak_memory(&self) -> Result<u64> {
        let status = self.read("status")?;
        let mut lines = status.lines();
        let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(peak.context("no VmHWM in status")?.parse()?)
    }

    /// Ends the process like the controller.
    pub(crate) async fn quit(self) -> Result<()> {
        drop(self.router);
        self.process.quit().await?;
        Ok(())
    }

    fn read(&self, file: &str) -> Result<String> {
        let id = self.process.id().context("the plugin has ended")?;
        Ok(fs::read_to_string(format!("/proc/{id}/{file}"))?)
    }
}
