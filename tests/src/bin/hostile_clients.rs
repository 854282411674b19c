//! `cargo run -p e2e-tests --bin hostile_clients -- BINARY [CONNECTIONS] [SECONDS]`: measures the memory of the ApplicationSet
//! generator, and the latency of well-behaved callers, while many clients hold idle connections. It prints measurements and checks
//! nothing.
//!
//! A quarter of the hostile clients each sends nothing, sends a head byte by byte, sends 400 KiB of a head and stops, and sends
//! a call without its body. One in four connects to the ops port. Each reconnects a second after the server closed its
//! connection. Meanwhile one well-behaved caller opens a connection for each call, and another one reuses its connection, like
//! Argo CD.

#![allow(clippy::print_stdout, reason = "prints measurements")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const CONFIG: &str = "static: {hello: {sets: [{key1: val1}]}}";
const CALL: &str = "POST /api/v1/getparams.execute HTTP/1.1\r\nhost: a\r\nauthorization: Bearer t\r\ncontent-length: 12\r\n\r\n{\"input\":{}}";
const ANSWER: &[u8] = br#"{"output":{"parameters":[{"key1":"val1"}]}}"#;
/// Timeout of a well-behaved call.
const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let binary = args.next().context("name the generator's binary")?;
    let mut number = |default| args.next().map_or(Ok(default), |text| text.parse::<u32>());
    let (connections, seconds) = (number(10_000)?, number(60)?);
    allow_many_files()?;

    let generator = Generator::start(&binary).await?;
    let idle = generator.memory("VmRSS")?;
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let closed = Arc::new(AtomicU64::new(0));
    let mut hostile = JoinSet::new();
    for slot in 0..connections {
        let port = if slot % 16 < 4 {
            generator.ops
        } else {
            generator.api
        };
        hostile.spawn(annoy(slot, port, Arc::clone(&closed)));
    }
    let (fresh, kept) = tokio::join!(
        well_behaved(generator.api, false, end),
        well_behaved(generator.api, true, end)
    );
    println!("{connections} hostile connections for {seconds} s: {binary}");
    println!(
        "the server closed {} of them",
        closed.load(Ordering::Relaxed)
    );
    println!("memory before: {:.1} MiB", mib(idle));
    println!("peak memory: {:.1} MiB", mib(generator.memory("VmHWM")?));
    println!("a well-behaved caller with a connection for each call: {fresh}");
    println!("a well-behaved caller that reuses its connection:      {kept}");
    hostile.shutdown().await;
    Ok(())
}

/// The process under attack. Dropping it ends the process.
struct Generator {
    process: Child,
    api: SocketAddr,
    ops: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Generator {
    async fn start(binary: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("config.yaml"), CONFIG)?;
        std::fs::write(dir.path().join("token"), "t")?;
        let path =
            std::fs::canonicalize(binary).with_context(|| format!("{binary} does not exist"))?;
        let mut process = Command::new(path)
            .args(["--listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"])
            .args(["--config=config.yaml", "--token-file=token"])
            .current_dir(dir.path())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{binary} cannot be started"))?;
        let stderr = process.stderr.take().context("no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut found = (None, None);
        while let Some(line) = lines.next_line().await? {
            let record: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            let address = record
                .get("address")
                .and_then(|it| it.as_str()?.parse().ok());
            match record.get("role").and_then(|it| it.as_str()) {
                Some("api") => found.0 = address,
                Some("ops") => found.1 = address,
                _ => {}
            }
            if let (Some(api), Some(ops)) = found {
                // Drains the log, because a full pipe would block the process.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Self {
                    process,
                    api,
                    ops,
                    _dir: dir,
                });
            }
        }
        bail!("{binary} ended before it listened")
    }

    /// Returns a value of `/proc/<pid>/status` in bytes.
    fn memory(&self, key: &str) -> Result<u64> {
        let pid = self.process.id().context("the generator ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with(key));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(kib.context("no such line")?.parse::<u64>()? << 10)
    }
}

fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0
}

fn allow_many_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, most).context("the limit of open files cannot be raised")
}

/// Runs one hostile client until it is aborted.
async fn annoy(slot: u32, port: SocketAddr, closed: Arc<AtomicU64>) {
    // Spreads the first connections over a second.
    sleep(Duration::from_millis(u64::from(slot % 1000))).await;
    loop {
        if let Ok(stream) = connect(slot, port).await {
            hold(slot, stream).await;
            closed.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Connects from one of many source addresses, because each has a limited number of ports.
async fn connect(slot: u32, port: SocketAddr) -> std::io::Result<TcpStream> {
    let [_, _, high, low] = (slot / 100).to_be_bytes();
    let source = IpAddr::V4(Ipv4Addr::new(127, 1, high, low));
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(port).await
}

/// Holds a connection until the server closes it.
async fn hold(slot: u32, mut stream: TcpStream) {
    let head = "POST /api/v1/getparams.execute HTTP/1.1\r\nhost: a\r\n";
    let begun = match slot % 4 {
        0 => String::new(),
        1 => "P".to_owned(),
        2 => format!("{head}x: {}", "1".repeat(400 << 10)),
        _ => format!("{head}content-length: 1000000\r\n\r\n{{"),
    };
    if stream.write_all(begun.as_bytes()).await.is_err() {
        return;
    }
    let mut read = [0; 1024];
    loop {
        match timeout(Duration::from_secs(1), stream.read(&mut read)).await {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(_)) => {}
            Err(_elapsed) if slot % 4 == 1 => {
                if stream.write_all(b"O").await.is_err() {
                    return;
                }
            }
            Err(_elapsed) => {}
        }
    }
}

/// The results of a well-behaved caller.
struct Met {
    took: Vec<Duration>,
    failed: usize,
}

impl std::fmt::Display for Met {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut took = self.took.clone();
        took.sort();
        let at = |percent: usize| {
            let found: Option<&Duration> = took.get(took.len().saturating_sub(1) * percent / 100);
            found.map_or(0.0, |took| took.as_secs_f64() * 1000.0)
        };
        let (count, failed) = (took.len(), self.failed);
        let (p50, p99, most) = (at(50), at(99), at(100));
        write!(
            f,
            "{count} answered, {failed} failed; p50 {p50:.1} ms, p99 {p99:.1} ms, max {most:.1} ms"
        )
    }
}

/// Makes a call each 50 ms. If the reused connection is closed, the call is made again, and its latency includes both tries.
async fn well_behaved(api: SocketAddr, keeps: bool, end: Instant) -> Met {
    let mut met = Met {
        took: Vec::new(),
        failed: 0,
    };
    let mut kept: Option<TcpStream> = None;
    let mut next = Instant::now();
    while next < end {
        sleep_until(next).await;
        next += Duration::from_millis(50);
        let started = Instant::now();
        let answered = timeout(PATIENCE, async {
            if let Some(mut stream) = kept.take()
                && call(&mut stream).await.is_ok()
            {
                return Ok(stream);
            }
            let mut stream = TcpStream::connect(api).await?;
            call(&mut stream).await?;
            anyhow::Ok(stream)
        });
        match answered.await {
            Ok(Ok(stream)) => {
                met.took.push(started.elapsed());
                kept = keeps.then_some(stream);
            }
            Ok(Err(_)) | Err(_) => met.failed += 1,
        }
        next = next.max(Instant::now());
    }
    met
}

async fn call(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(CALL.as_bytes()).await?;
    let mut read = Vec::new();
    while !read.ends_with(ANSWER) {
        if stream.read_buf(&mut read).await? == 0 {
            bail!("closed after {} bytes", read.len());
        }
    }
    Ok(())
}
