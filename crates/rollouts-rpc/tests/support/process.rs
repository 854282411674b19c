//! A plugin as a process, without the host half.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::raw::Raw;

/// How long a test waits for a plugin to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the path of an example. Cargo builds examples with the tests of a package, but not with a single test.
pub(crate) fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let example = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.exists(), "build it: cargo build --examples");
    example
}

/// A plugin that was started as a host starts it, with the changes of a test.
pub(crate) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Reads stderr until it ends, as a host does.
    stderr: JoinHandle<String>,
    dir: TempDir,
}

/// How a plugin exited, and the files that it left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// The output after the handshake line, or all output if there was no handshake line.
    pub(crate) stdout: String,
    /// The log without times, with `DIR` in place of the socket's directory.
    pub(crate) log: Vec<String>,
    /// Number of files in the socket's directory.
    pub(crate) files: usize,
}

impl Process {
    /// Starts an example with the environment of a controller, changed by `env`. `None` removes a variable.
    pub(crate) fn start(name: &str, env: &[(&str, Option<&str>)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(example(name));
        command
            .env_clear()
            .env("ARGO_ROLLOUTS_RPC_PLUGIN", "trafficrouter")
            .env("PLUGIN_PROTOCOL_VERSIONS", "1")
            .env("PLUGIN_MIN_PORT", "10000")
            .env("PLUGIN_MAX_PORT", "25000")
            .env("TMPDIR", dir.path())
            // A fixed number, because the allocator keeps memory for each thread.
            .env("TOKIO_WORKER_THREADS", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for (name, value) in env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let stderr = tokio::spawn(async move {
            let mut log = String::new();
            stderr.read_to_string(&mut log).await.unwrap();
            log
        });
        Self {
            child,
            stdout,
            stderr,
            dir,
        }
    }

    /// Reads the handshake line and connects.
    pub(crate) async fn connect(&mut self) -> Raw<UnixStream> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).await.unwrap();
        let socket = line.split('|').nth(3).expect("a handshake line").to_owned();
        Raw {
            io: UnixStream::connect(socket).await.unwrap(),
        }
    }

    /// Opens another connection.
    pub(crate) async fn connect_again(&self) -> Raw<UnixStream> {
        let mut files = std::fs::read_dir(self.dir.path()).unwrap();
        let socket = files.next().unwrap().unwrap().path();
        Raw {
            io: UnixStream::connect(socket).await.unwrap(),
        }
    }

    /// Returns the peak memory of the process in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let id = self.child.id().expect("the plugin runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    /// Waits for the plugin to exit.
    pub(crate) async fn ended(self) -> Ended {
        let Self {
            mut child,
            mut stdout,
            stderr,
            dir,
        } = self;
        let mut rest = String::new();
        let closed = timeout(EXIT_TIMEOUT, stdout.read_to_string(&mut rest)).await;
        closed.expect("the plugin does not exit").unwrap();
        let log = stderr.await.unwrap();
        Ended {
            code: child.wait().await.unwrap().code(),
            stdout: rest,
            log: log.lines().map(|line| plain(line, dir.path())).collect(),
            files: std::fs::read_dir(dir.path()).unwrap().count(),
        }
    }
}

/// Returns a record without the parts that differ from run to run.
fn plain(line: &str, dir: &Path) -> String {
    let Ok(mut record) = serde_json::from_str::<serde_json::Value>(line) else {
        return line.to_owned();
    };
    let fields = record.as_object_mut().unwrap();
    fields.shift_remove("@timestamp").expect("a time");
    record.to_string().replace(dir.to_str().unwrap(), "DIR")
}
