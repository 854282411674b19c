//! The process of a plugin, and a connection that reads the plugin's yamux frames.

use std::collections::HashSet;
use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rollouts_rpc::goplugin::frames::{FrameKind, Headers};
use rollouts_rpc::host::{AnyClient, CallError, HostSession};
use rollouts_rpc::testing::NoArgument;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader, ReadBuf,
};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Args;

/// How long a plugin may take to write its handshake line.
const START: Duration = Duration::from_secs(60);

/// How long a plugin that closed its connection may take to exit.
const EXIT: Duration = Duration::from_secs(1);

/// How many lines of a log explain a failure.
const LAST_LINES: usize = 4;

/// The variable with the magic cookie.
pub(crate) const COOKIE: &str = "ARGO_ROLLOUTS_RPC_PLUGIN";

gob::gob_struct! {
    /// The reply of most methods.
    pub(crate) struct RpcError as "RpcError" {
        /// Empty for success.
        pub(crate) text: String as "ErrorString",
    }
}

/// A plugin after its handshake line, or after it closed stdout.
pub(crate) struct Plugin {
    child: Child,
    /// The first line on stdout; empty if stdout was closed.
    pub(crate) line: String,
    stdout: JoinHandle<u64>,
    stderr: JoinHandle<()>,
    log: Log,
    /// `TMPDIR` of the plugin, where its socket should be.
    pub(crate) dir: tempfile::TempDir,
}

/// Returns the command that starts the plugin as the controller does.
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
        let log = Log::default();
        let stderr = tokio::spawn({
            let log = log.clone();
            async move {
                let mut lines = BufReader::new(stderr);
                let mut line = Vec::new();
                while lines
                    .read_until(b'\n', &mut line)
                    .await
                    .is_ok_and(|read| read > 0)
                {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    log.push(text);
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
            stderr,
            log,
            dir,
        })
    }

    /// Returns the path of the socket in the handshake line.
    pub(crate) fn socket(&self) -> Seen<PathBuf> {
        let address = self.line.trim().split('|').nth(3);
        let address =
            address.ok_or_else(|| format!("there is no handshake line: {}", quoted(&self.line)))?;
        Ok(PathBuf::from(address))
    }

    /// Opens a session.
    pub(crate) async fn session(&self, args: &Args) -> Seen<(HostSession, Frames)> {
        let socket = UnixStream::connect(self.socket()?).await.map_err(text)?;
        let (sniffer, frames) = Sniffer::new(socket);
        let opened = timeout(args.patience(), HostSession::open(sniffer)).await;
        let session = opened
            .map_err(|_| "the session does not open".to_owned())?
            .map_err(text)?;
        Ok((session, frames))
    }

    pub(crate) fn log(&self) -> Log {
        self.log.clone()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Seen {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw).ok_or("the process exited")?;
        kill_process(id, signal).map_err(text)
    }

    /// Returns the memory of the process in bytes.
    pub(crate) fn memory(&self) -> Seen<u64> {
        let id = self.child.id().ok_or("the process exited")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).map_err(text)?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.ok_or("/proc does not have the memory of the process")? * 1024)
    }

    /// Returns how the process exited, and a line for each of the last lines of its log.
    pub(crate) async fn last_words(mut self) -> String {
        let status = timeout(EXIT, self.child.wait()).await;
        // The last lines of the log can arrive after the exit.
        let _ = timeout(EXIT, self.stderr).await;
        let ended = match status {
            Ok(Ok(status)) => format!("; it ended with {status}"),
            Ok(Err(_)) | Err(_) => String::new(),
        };
        end_of(&self.log.lines())
            .iter()
            .fold(ended, |text, line| text + "\n" + line)
    }

    pub(crate) fn is_running(&mut self) -> Seen<bool> {
        Ok(self.child.try_wait().map_err(text)?.is_none())
    }

    /// Waits for the process to exit, and kills it after `patience`.
    pub(crate) async fn ended(mut self, patience: Duration) -> Seen<Ended> {
        let socket = self.socket();
        let status = match timeout(patience, self.child.wait()).await {
            Ok(status) => Some(status.map_err(text)?),
            Err(_elapsed) => None,
        };
        if status.is_none() {
            self.child.kill().await.map_err(text)?;
        }
        // The last lines of the log can arrive after the exit.
        let _ = timeout(patience, self.stderr).await;
        let stray_stdout = timeout(patience, self.stdout).await;
        let stray_stdout =
            stray_stdout.map_err(|_| "stdout is still open, in a child of the plugin".to_owned());
        // A symbolic link without a target is left too.
        let has_socket = |path: PathBuf| std::fs::symlink_metadata(path).is_ok();
        Ok(Ended {
            status,
            has_socket: socket.is_ok_and(has_socket),
            stray_stdout: stray_stdout?.map_err(text)?,
            files: files(self.dir.path()).map_err(text)?,
        })
    }
}

/// Returns the last lines of a log; after a panic in Rust or Go its first lines, because a trace of the stack follows them.
fn end_of(log: &[String]) -> Vec<String> {
    let starts = ["panic: ", "fatal error: ", "thread '"];
    let panic = log
        .iter()
        .rposition(|line| starts.iter().any(|start| line.starts_with(start)));
    let from = panic.unwrap_or(log.len().saturating_sub(LAST_LINES));
    let lines = log.iter().skip(from).filter(|line| !line.is_empty());
    let printable = |line: &String| {
        let printable = line.chars().filter(|it| !it.is_control());
        printable.take(300).collect()
    };
    lines.take(LAST_LINES).map(printable).collect()
}

/// A plugin with an open session.
pub(crate) struct Serving {
    pub(crate) plugin: Plugin,
    pub(crate) session: HostSession,
    /// The frames that the plugin sends.
    pub(crate) frames: Frames,
}

impl Serving {
    pub(crate) async fn start(args: &Args) -> Seen<Self> {
        let plugin = Plugin::start(args).await?;
        match plugin.session(args).await {
            Ok((session, frames)) => Ok(Self {
                plugin,
                session,
                frames,
            }),
            Err(error) => Err(error + plugin.last_words().await.as_str()),
        }
    }

    /// Starts a plugin, dispenses it and calls InitPlugin.
    pub(crate) async fn initialized(args: &Args) -> Seen<(Self, AnyClient)> {
        let serving = Self::start(args).await?;
        let opened = async {
            let dispensed = serving.session.dispense_any(args.kind.plugin());
            let client = patient(args, dispensed).await?;
            let init = client.call::<_, RpcError>("Plugin.InitPlugin", &None::<NoArgument>);
            patient(args, init).await?;
            Ok(client)
        };
        match opened.await {
            Ok(client) => Ok((serving, client)),
            Err(error) if serving.frames.is_closed() => {
                Err(error + serving.plugin.last_words().await.as_str())
            }
            Err(error) => Err(error),
        }
    }
}

/// How a plugin exited.
pub(crate) struct Ended {
    /// Exit status; `None` if it was killed.
    pub(crate) status: Option<ExitStatus>,
    /// Bytes on stdout after the handshake line.
    pub(crate) stray_stdout: u64,
    /// Whether the announced socket is still there.
    pub(crate) has_socket: bool,
    /// Number of files left in the directory where the socket should have been.
    pub(crate) files: usize,
}

fn files(dir: &Path) -> io::Result<usize> {
    Ok(std::fs::read_dir(dir)?.count())
}

/// Returns a text of the plugin as a report shows it: in quotes, with line breaks and control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_debug())
}

/// The observation of a check; `Err` is the reason of the failure.
pub(crate) type Seen<T = ()> = Result<T, String>;

/// Waits for the outcome of a call, for the time in `--patience`.
pub(crate) async fn patient<T>(
    args: &Args,
    call: impl Future<Output = Result<T, CallError>>,
) -> Seen<T> {
    let outcome = timeout(args.patience(), call).await;
    outcome
        .map_err(|_| format!("no answer within {} s", args.patience))?
        .map_err(|error| of_call(&error))
}

/// Returns the text of an error with its cause.
pub(crate) fn of_call(error: &CallError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The lines that a plugin writes to stderr. It can be read after the plugin exited.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn push(&self, line: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }
}

const ACK: u8 = 2;

/// What the plugin sent: acknowledgements and pongs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames(Arc<Mutex<Sent>>);

#[derive(Debug, Default)]
struct Sent {
    closed: bool,
    acknowledged: HashSet<u32>,
    pongs: usize,
    headers: Headers,
}

impl Frames {
    /// Returns whether the plugin acknowledged the stream.
    pub(crate) fn has_acknowledged(&self, stream: u32) -> bool {
        self.with(|sent| sent.acknowledged.contains(&stream))
    }

    /// Returns the number of the host's pings that the plugin answered.
    pub(crate) fn pongs(&self) -> usize {
        self.with(|sent| sent.pongs)
    }

    /// Returns whether the plugin closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.with(|sent| sent.closed)
    }

    fn with<T>(&self, read: impl FnOnce(&mut Sent) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sent {
    fn scan(&mut self, bytes: &[u8]) {
        self.headers.scan(bytes, |frame| match frame.kind {
            _ if frame.flags & ACK == 0 => {}
            FrameKind::Ping => self.pongs += 1,
            _ => drop(self.acknowledged.insert(frame.stream)),
        });
    }
}

/// A connection that reads the headers of incoming yamux frames.
pub(crate) struct Sniffer<IO> {
    io: IO,
    frames: Frames,
}

impl<IO> Sniffer<IO> {
    pub(crate) fn new(io: IO) -> (Self, Frames) {
        let frames = Frames::default();
        let sniffer = Self {
            io,
            frames: frames.clone(),
        };
        (sniffer, frames)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Sniffer<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.io).poll_read(context, buffer));
        match buffer.filled().get(before..) {
            Some(bytes) if read.is_ok() && !bytes.is_empty() => {
                self.frames.with(|sent| sent.scan(bytes));
            }
            _ => self.frames.with(|sent| sent.closed = true),
        }
        Poll::Ready(read)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Sniffer<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes));
        if written.is_err() {
            self.frames.with(|sent| sent.closed = true);
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_a_panic_or_its_last_lines() {
        let check = |log: &str, expect: &[&str]| {
            let log: Vec<String> = log.lines().map(str::to_owned).collect();
            assert_eq!(end_of(&log), expect, "{log:?}");
        };
        check("", &[]);
        check("a\nb\nc\nd\ne", &["b", "c", "d", "e"]);
        check(
            "a\npanic: no luck\n\ngoroutine 1:\nmain.f()\n\tmain.go:7\nmain.main()",
            &["panic: no luck", "goroutine 1:", "main.f()", "main.go:7"],
        );
        check(
            "a\nthread 'main' panicked at src/main.rs:3:5:\nno luck",
            &["thread 'main' panicked at src/main.rs:3:5:", "no luck"],
        );
    }

    #[test]
    fn acknowledgements_and_pongs_are_found_in_pieces_of_any_size() {
        let bytes = [
            [0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0].as_slice(),
            // A frame with an acknowledgement and three bytes of data that look like a header.
            &[0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3, 0, 1, 0],
            &[0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9],
        ]
        .concat();
        for cut in 1..bytes.len() {
            let frames = Frames::default();
            for piece in bytes.chunks(cut) {
                frames.with(|headers| headers.scan(piece));
            }
            assert!(frames.has_acknowledged(1) && frames.has_acknowledged(3));
            assert!(!frames.has_acknowledged(5));
            assert_eq!(frames.pongs(), 1);
        }
    }
}
