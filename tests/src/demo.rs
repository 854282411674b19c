//! The demo with the web page as a process, and a client of its server without a browser.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::{DEADLINE, plugin_binary};

const INTERVAL: Duration = Duration::from_millis(20);

/// A running demo. Dropping it ends the demo and the processes that it has started.
pub struct Demo {
    child: Child,
    port: u16,
}

/// An answer of the demo's server.
#[derive(Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

/// The stream of events of the demo's server.
pub struct Events {
    lines: BufReader<TcpStream>,
}

impl Demo {
    /// Starts the program in `$EXAMPLES_DIR` on a free port, for a number of seconds.
    ///
    /// # Errors
    /// Returns `Err` if the program does not exist, or exits before it serves.
    pub async fn start(seconds: u64) -> Result<Self> {
        let directory = env::var_os("EXAMPLES_DIR").map(PathBuf::from);
        let program = directory
            .context("EXAMPLES_DIR is not set")?
            .join("traffic");
        let mut command = Command::new(program);
        command.arg(plugin_binary()?);
        Self::start_program(command, seconds).await
    }

    /// Starts another program with the same page.
    ///
    /// # Errors
    /// Returns `Err` if the program exits before it serves.
    pub async fn start_program(mut command: Command, seconds: u64) -> Result<Self> {
        let mut child = command
            .args(["--port", "0", "--for", &seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await?;
        let port = line
            .strip_prefix("http://127.0.0.1:")
            .and_then(|rest| rest.split_once('/'));
        let (port, _) = port.with_context(|| format!("the demo printed {line:?}"))?;
        Ok(Self {
            child,
            port: port.parse()?,
        })
    }

    /// The address of the page.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits until the demo has ended.
    ///
    /// # Errors
    /// Returns `Err` if it keeps running.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let ended = timeout(DEADLINE, self.child.wait()).await;
        Ok(ended.context("the demo keeps running")??)
    }

    /// Returns the ids of the child processes.
    ///
    /// # Errors
    /// Returns `Err` if `/proc` cannot be read.
    pub fn children(&self) -> Result<Vec<u32>> {
        let id = self.child.id().context("the demo has ended")?;
        let mut ids = Vec::new();
        // Each thread has a list of the processes that it started.
        for thread in fs::read_dir(format!("/proc/{id}/task"))? {
            let children = thread?.path().join("children");
            ids.extend(
                fs::read_to_string(children)?
                    .split_whitespace()
                    .map(str::to_owned),
            );
        }
        ids.iter().map(|id| Ok(id.parse()?)).collect()
    }

    /// Sends a request with these header lines, and reads the whole answer.
    ///
    /// # Errors
    /// Returns `Err` if there is no answer.
    pub async fn request(&self, line: &str, headers: &[&str], body: &str) -> Result<Response> {
        let mut stream = self.send(line, headers, body).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
        let status = head.split(' ').nth(1).context("no status")?;
        Ok(Response {
            status: status.parse()?,
            head: head.to_lowercase(),
            body: body.to_owned(),
        })
    }

    /// Sends an order like the page.
    ///
    /// # Errors
    /// Returns `Err` if the server refuses it.
    pub async fn order(&self, what: &str) -> Result<()> {
        let own = format!("127.0.0.1:{}", self.port);
        let headers = [
            &format!("host: {own}"),
            &format!("origin: http://{own}"),
            "content-type: application/json",
        ];
        let answer = self
            .request("POST /do", &headers, &json!({"what": what}).to_string())
            .await?;
        ensure!(answer.status == 204, "{what}: {answer:?}");
        Ok(())
    }

    /// Opens the stream of events.
    ///
    /// # Errors
    /// Returns `Err` if the server refuses it.
    pub async fn events(&self) -> Result<Events> {
        let host = format!("host: 127.0.0.1:{}", self.port);
        let stream = self.send("GET /events", &[&host], "").await?;
        Ok(Events {
            lines: BufReader::new(stream),
        })
    }

    async fn send(&self, line: &str, headers: &[&str], body: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let headers: String = headers
            .iter()
            .map(|header| format!("{header}\r\n"))
            .collect();
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(stream)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // SIGTERM, not SIGKILL: a killed demo does not end its Envoy.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < DEADLINE && matches!(self.child.try_wait(), Ok(None)) {
            sleep(INTERVAL);
        }
    }
}

impl Events {
    /// Waits for the next event.
    ///
    /// # Errors
    /// Returns `Err` if the stream has ended.
    pub async fn next(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).await? == 0 {
                bail!("the stream of events has ended");
            }
            // Other lines have the length of a chunk.
            if let Some(data) = line.strip_prefix("data: ") {
                return Ok(serde_json::from_str(data)?);
            }
        }
    }
}
