//! The process under attack.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::process::{Child, Command};

use crate::attacks;

/// The process under attack. Dropping it ends the process.
pub(crate) struct Generator {
    process: Child,
    id: u32,
    pub(crate) api: SocketAddr,
    pub(crate) ops: SocketAddr,
    dir: tempfile::TempDir,
}

impl Generator {
    /// Starts `binary`. An allocation above `limit` bytes ends the process, as the limit of a container would. Each line of the log
    /// is read after `pause`.
    pub(crate) fn start(binary: &str, limit: u64, pause: Duration) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("config.yaml"), attacks::config(None)?)?;
        let tokens = dir.path().join("tokens");
        std::fs::create_dir(&tokens)?;
        for token in ["honest"].iter().chain(&attacks::HOSTILE) {
            std::fs::write(tokens.join(token), token)?;
        }
        let objects = dir.path().join("objects");
        std::fs::create_dir(&objects)?;
        std::fs::write(objects.join("workspaces.yaml"), attacks::workspaces())?;
        let path =
            std::fs::canonicalize(binary).with_context(|| format!("{binary} does not exist"))?;
        let (log, stderr) = std::io::pipe()?;
        let process = Command::new(path)
            .args(["--listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"])
            .args(["--config=config.yaml", "--tokens-dir=tokens"])
            .arg("--objects-dir=objects")
            .current_dir(dir.path())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{binary} cannot be started"))?;
        let id = process.id().context("the generator ended")?;
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        prlimit(pid, Resource::Data, limit).context("its memory cannot be limited")?;
        let mut lines = BufReader::new(log).lines();
        let mut found = (None, None);
        while let Some(line) = lines.next() {
            let record: serde_json::Value = serde_json::from_str(&line?).unwrap_or_default();
            let address = record
                .get("address")
                .and_then(|it| it.as_str()?.parse().ok());
            match record.get("role").and_then(|it| it.as_str()) {
                Some("api") => found.0 = address,
                Some("ops") => found.1 = address,
                _ => {}
            }
            if let (Some(api), Some(ops)) = found {
                // On a thread, which does not wait for the attackers: a full pipe would block the process.
                std::thread::spawn(move || lines.for_each(|_line| std::thread::sleep(pause)));
                return Ok(Self {
                    process,
                    id,
                    api,
                    ops,
                    dir,
                });
            }
        }
        bail!("{binary} ended before it listened")
    }

    /// The path of the configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("config.yaml")
    }

    /// Returns how the process ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok()??;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        Some(signal.map_or("ended".to_owned(), |signal| format!("signal {signal}")))
    }

    /// The id of the process.
    pub(crate) const fn id(&self) -> u32 {
        self.id
    }
}

/// Returns a value of `/proc/<pid>/status` in MiB, as long as the process runs.
pub(crate) fn memory(pid: u32, key: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib >> 10)
}
