//! A plugin as a child process: starts it, reads its handshake line and stops it, as go-plugin's `client.go` does.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::session::HostSession;
use crate::goplugin::env::COOKIE_VARIABLE;
use crate::goplugin::handshake::PluginKind;
use crate::netrpc::client::CallError;

/// How long a plugin may take to write its handshake line.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a plugin may take to exit after Quit.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A running plugin with an open session. Dropping it kills the process.
pub struct PluginProcess {
    session: HostSession,
    child: Child,
    stdout: AbortOnDropHandle<io::Result<u64>>,
    _stderr: AbortOnDropHandle<()>,
}

/// Why a plugin did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program could not be started, or its pipes or socket failed.
    #[error("cannot start the plugin")]
    Io(#[from] io::Error),
    /// It exited before its handshake line; its log should have the reason.
    #[error("the plugin exited before it wrote a handshake line: {0}")]
    Exited(ExitStatus),
    /// It did not write a handshake line within a minute.
    #[error("the plugin did not write a handshake line within {} s", START_TIMEOUT.as_secs())]
    Timeout,
    /// Its first line is not a handshake line.
    #[error("the plugin's first line is not a handshake line")]
    Handshake(#[from] LineError),
    /// The session could not be opened.
    #[error("the session with the plugin did not open")]
    Session(#[from] CallError),
}

impl PluginProcess {
    /// Starts `command` as a plugin of `kind` and opens a session. `on_log` receives every line that the plugin writes to stderr.
    ///
    /// # Errors
    ///
    /// Returns [`StartError`] and kills the process.
    pub async fn start(
        mut command: Command,
        kind: PluginKind,
        mut on_log: impl FnMut(String) + Send + 'static,
    ) -> Result<Self, StartError> {
        command
            .env(COOKIE_VARIABLE, kind.cookie())
            .env("PLUGIN_MIN_PORT", "10000")
            .env("PLUGIN_MAX_PORT", "25000")
            .env("PLUGIN_PROTOCOL_VERSIONS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let (stdout, stderr) = (piped(child.stdout.take())?, piped(child.stderr.take())?);
        let stderr = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                on_log(line);
            }
        }));

        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let read = timeout(START_TIMEOUT, stdout.read_line(&mut line))
            .await
            .map_err(|_| StartError::Timeout)?;
        if read? == 0 {
            return Err(StartError::Exited(child.wait().await?));
        }
        let socket = announced_socket(&line)?;
        let stdout = AbortOnDropHandle::new(tokio::spawn(drain(stdout)));
        let session = HostSession::open(UnixStream::connect(socket).await?).await?;
        Ok(Self {
            session,
            child,
            stdout,
            _stderr: stderr,
        })
    }

    /// Returns the session with the plugin.
    #[must_use]
    pub fn session(&self) -> &HostSession {
        &self.session
    }

    /// Returns the process id, or `None` after the process was waited for.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Calls Quit, waits two seconds for the plugin to exit, and then kills it.
    ///
    /// # Errors
    ///
    /// Returns `Err` if waiting for the process fails.
    pub async fn quit(self) -> io::Result<Ended> {
        let acknowledged = self.session.quit().await.is_ok();
        let ended = self.wait().await?;
        Ok(Ended {
            acknowledged,
            ..ended
        })
    }

    /// Closes the connection without Quit, as a controller that crashes, and waits two seconds for the plugin to exit.
    ///
    /// # Errors
    ///
    /// Returns `Err` if waiting for the process fails.
    pub async fn hang_up(self) -> io::Result<Ended> {
        self.wait().await
    }

    async fn wait(mut self) -> io::Result<Ended> {
        drop(self.session);
        let in_time = match timeout(QUIT_TIMEOUT, self.child.wait()).await {
            Ok(status) => Some(status?),
            Err(_elapsed) => None,
        };
        let status = match in_time {
            Some(status) => status,
            None => {
                self.child.kill().await?;
                self.child.wait().await?
            }
        };
        let stray_stdout = self.stdout.await.map_err(io::Error::other)??;
        Ok(Ended {
            status,
            acknowledged: false,
            graceful: in_time.is_some(),
            stray_stdout,
        })
    }

    /// Kills the plugin.
    ///
    /// # Errors
    ///
    /// Returns `Err` if the process cannot be killed, for example because it exited.
    pub async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }
}

/// How a plugin exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// Whether the reply to Quit arrived. If not, a controller kills the process at once.
    ///
    /// go-plugin's own server does not guarantee the reply: `rpc_server.go` signals the process to exit before it replies.
    pub acknowledged: bool,
    /// Whether it exited in time, without a kill.
    pub graceful: bool,
    /// Number of bytes on stdout after the handshake line; it should be 0.
    pub stray_stdout: u64,
}

async fn drain(mut stdout: BufReader<ChildStdout>) -> io::Result<u64> {
    let mut buffer = [0; 1024];
    let mut total = 0;
    loop {
        match stdout.read(&mut buffer).await? {
            0 => return Ok(total),
            n => total += n as u64,
        }
    }
}

fn piped<T: AsyncRead>(pipe: Option<T>) -> io::Result<T> {
    pipe.ok_or_else(|| io::Error::other("the child has no pipe"))
}

/// Why a first line on stdout is not an acceptable handshake line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line has fewer than four fields.
    #[error("unrecognized plugin message \"{}\"", .0.escape_debug())]
    Unrecognized(String),
    /// A field has a value that this host, like the controller, does not accept.
    #[error("the plugin announced {field} \"{}\" where the host accepts {expected}", found.escape_debug())]
    Unacceptable {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The value that the host accepts.
        expected: &'static str,
    },
}

/// Returns the socket in a handshake line.
///
/// # Errors
///
/// Returns [`LineError`] in the same cases in which the controller refuses the plugin.
pub fn announced_socket(line: &str) -> Result<PathBuf, LineError> {
    let fields: Vec<_> = line.trim().split('|').collect();
    let &[core, version, network, address, ref rest @ ..] = fields.as_slice() else {
        return Err(LineError::Unrecognized(line.to_owned()));
    };
    expect("core protocol", core, "1")?;
    expect("protocol version", version, "1")?;
    expect("network", network, "unix")?;
    expect("protocol", rest.first().unwrap_or(&"netrpc"), "netrpc")?;
    expect("certificate", rest.get(1).unwrap_or(&""), "")?;
    Ok(address.into())
}

fn expect(field: &'static str, found: &str, expected: &'static str) -> Result<(), LineError> {
    if found == expected {
        return Ok(());
    }
    Err(LineError::Unacceptable {
        field,
        found: found.to_owned(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expect: &str) {
        let said = match announced_socket(line) {
            Ok(socket) => socket.display().to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said, expect);
    }

    #[test]
    fn a_line_is_read_as_the_controller_reads_it() {
        check("1|1|unix|/tmp/p|netrpc|\n", "/tmp/p");
        check("1|1|unix|/tmp/p|netrpc||true", "/tmp/p");
        check("1|1|unix|/tmp/p", "/tmp/p");
    }

    #[test]
    fn what_the_controller_refuses_is_refused() {
        check("hello", "unrecognized plugin message \"hello\"");
        check(
            "2|1|unix|/p|netrpc|",
            "the plugin announced core protocol \"2\" where the host accepts 1",
        );
        check(
            "1|2|unix|/p|netrpc|",
            "the plugin announced protocol version \"2\" where the host accepts 1",
        );
        check(
            "1|1|unix|/p|grpc|",
            "the plugin announced protocol \"grpc\" where the host accepts netrpc",
        );
        check(
            "1|1|tcp|[::1]:1|netrpc|",
            "the plugin announced network \"tcp\" where the host accepts unix",
        );
        check(
            "1|1|unix|/p|netrpc|MII",
            "the plugin announced certificate \"MII\" where the host accepts ",
        );
    }
}
