//! A plugin's process, watched from outside.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollouts_rpc::host::HostSession;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Args;
use crate::report::Seen;
use crate::sniffer::{Frames, Sniffer};

/// How long a plugin has for its handshake line.
const START: Duration = Duration::from_secs(60);

/// The variable with the cookie.
pub(crate) const COOKIE: &str = "ARGO_ROLLOUTS_RPC_PLUGIN";

/// A plugin that was started and has announced itself, or ended.
pub(crate) struct Plugin {
    child: Child,
    /// The first line on stdout; empty if stdout ended before.
    pub(crate) line: String,
    stdout: JoinHandle<u64>,
    log: Arc<Mutex<Vec<String>>>,
    /// Where its socket should be.
    pub(crate) dir: tempfile::TempDir,
}

/// A command as the controller makes it; `change` may undo that.
pub(crate) fn command(args: &Args) -> Command {
    let mut command = Command::new(&args.binary);
    command
        .args(&args.arguments)
        .env(COOKIE, args.kind.plugin().cookie())
        .env("PLUGIN_MIN_PORT", "10000")
        .env("PLUGIN_MAX_PORT", "25000")
        .env("PLUGIN_PROTOCOL_VERSIONS", "1")
        .env_remove("PLUGIN_UNIX_SOCKET_DIR")
        .env_remove("PLUGIN_UNIX_SOCKET_GROUP")
        .env_remove("PLUGIN_CLIENT_CERT")
        .env_remove("PLUGIN_MULTIPLEX_GRPC")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl Plugin {
    pub(crate) async fn start(args: &Args) -> Seen<Self> {
        Self::start_with(command(args)).await
    }

    pub(crate) async fn start_with(mut command: Command) -> Seen<Self> {
        let dir = tempfile::Builder::new()
            .prefix("check")
            .tempdir()
            .map_err(text)?;
        let mut child = command.env("TMPDIR", dir.path()).spawn().map_err(text)?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let stderr = child.stderr.take().ok_or("no stderr")?;
        let log = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn({
            let log = Arc::clone(&log);
            async move {
                let mut lines = BufReader::new(stderr);
                let mut line = Vec::new();
                while lines
                    .read_until(b'\n', &mut line)
                    .await
                    .is_ok_and(|read| read > 0)
                {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    log.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(text);
                    line.clear();
                }
            }
        });
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let read = timeout(START, stdout.read_line(&mut line)).await;
        read.map_err(|_| format!("nothing on stdout within {} s", START.as_secs()))?
            .map_err(text)?;
        let stdout = tokio::spawn(async move {
            let mut rest = Vec::new();
            let _ = stdout.read_to_end(&mut rest).await;
            rest.len() as u64
        });
        Ok(Self {
            child,
            line,
            stdout,
            log,
            dir,
        })
    }

    /// The address in the handshake line.
    pub(crate) fn socket(&self) -> Seen<PathBuf> {
        let address = self.line.trim().split('|').nth(3);
        let address = address.ok_or_else(|| format!("no handshake line: {:?}", self.line))?;
        Ok(PathBuf::from(address))
    }

    /// Opens a session; `Frames` sees what the plugin sends.
    pub(crate) async fn session(&self, args: &Args) -> Seen<(HostSession, Frames)> {
        let socket = UnixStream::connect(self.socket()?).await.map_err(text)?;
        let (sniffer, frames) = Sniffer::new(socket);
        let opened = timeout(args.patience(), HostSession::open(sniffer)).await;
        let session = opened
            .map_err(|_| "the session does not open".to_owned())?
            .map_err(text)?;
        Ok((session, frames))
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Seen {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw).ok_or("it has ended")?;
        kill_process(id, signal).map_err(text)
    }

    /// Bytes of memory that are in use.
    pub(crate) fn memory(&self) -> Seen<u64> {
        let id = self.child.id().ok_or("it has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).map_err(text)?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.ok_or("the system does not say")? * 1024)
    }

    pub(crate) fn is_running(&mut self) -> Seen<bool> {
        Ok(self.child.try_wait().map_err(text)?.is_none())
    }

    /// Waits for its end, as long as `patience`, and kills it then.
    pub(crate) async fn ended(mut self, patience: Duration) -> Seen<Ended> {
        let status = match timeout(patience, self.child.wait()).await {
            Ok(status) => Some(status.map_err(text)?),
            Err(_elapsed) => None,
        };
        if status.is_none() {
            self.child.kill().await.map_err(text)?;
        }
        let stray_stdout = timeout(patience, self.stdout).await;
        let stray_stdout =
            stray_stdout.map_err(|_| "a child of the plugin keeps its stdout open".to_owned());
        Ok(Ended {
            status,
            stray_stdout: stray_stdout?.map_err(text)?,
            files: files(self.dir.path()).map_err(text)?,
        })
    }
}

/// How a plugin ended.
pub(crate) struct Ended {
    /// `None` if it had to be killed.
    pub(crate) status: Option<ExitStatus>,
    /// Bytes on stdout behind the handshake line.
    pub(crate) stray_stdout: u64,
    /// What is left of its sockets.
    pub(crate) files: usize,
}

fn files(dir: &Path) -> io::Result<usize> {
    Ok(std::fs::read_dir(dir)?.count())
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a plugin writes to stderr, also after its end.
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Plugin {
    pub(crate) fn log_handle(&self) -> Log {
        Log(Arc::clone(&self.log))
    }
}
