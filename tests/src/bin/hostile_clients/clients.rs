//! The callers: the honest ones, whose latency counts, and the attackers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::attacks::Call;

/// The timeout of an honest call, and of a probe.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause of an attacker between two calls, so that the attackers leave CPU time to the generator.
const PAUSE: Duration = Duration::from_millis(20);
/// How often something happened, by its name.
pub(crate) type Tally = BTreeMap<String, usize>;

/// What an honest caller repeats.
#[derive(Clone, Copy)]
pub(crate) struct Errand {
    pub(crate) to: SocketAddr,
    pub(crate) request: &'static str,
    pub(crate) answer: &'static str,
    pub(crate) every: Duration,
    /// Whether the connection is used again, as Argo CD does.
    pub(crate) keeps: bool,
}

impl Errand {
    pub(crate) fn call(to: SocketAddr, keeps: bool) -> Self {
        Self {
            to,
            request: "POST /profiles/honest/api/v1/getparams.execute HTTP/1.1\r\nhost: a\r\nauthorization: Bearer honest\r\ncontent-length: 12\r\n\r\n{\"input\":{}}",
            answer: r#"{"output":{"parameters":[{"key1":"val1"}]}}"#,
            every: Duration::from_millis(50),
            keeps,
        }
    }

    pub(crate) fn probe(to: SocketAddr) -> Self {
        Self {
            to,
            request: "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
            answer: "ok\n",
            every: Duration::from_millis(100),
            keeps: false,
        }
    }
}

/// What happened to an honest caller.
#[derive(Default)]
pub(crate) struct Met {
    took: Vec<Duration>,
    /// The number of calls, with those that failed.
    calls: usize,
    failed: Tally,
}

impl Met {
    /// Adds a latency, and those of the calls that were due meanwhile: they would have waited for the same reason.
    fn took(&mut self, mut latency: Duration, every: Duration) {
        self.calls += 1;
        self.took.push(latency);
        while latency > every {
            latency -= every;
            self.took.push(latency);
        }
    }

    /// Returns p50, p99 and maximum in milliseconds, and the failures. A call that was refused or closed has no latency.
    pub(crate) fn figures(mut self) -> ([String; 3], String) {
        self.took.sort();
        let at = |percent: usize| {
            let index = self.took.len().saturating_sub(1) * percent / 100;
            let took = self.took.get(index);
            took.map_or("-".to_owned(), |took| {
                format!("{:.1}", took.as_secs_f64() * 1000.0)
            })
        };
        let failed: usize = self.failed.values().sum();
        let why: Vec<&str> = self.failed.keys().map(String::as_str).collect();
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" ({})", why.join(", "))
        };
        (
            [at(50), at(99), at(100)],
            format!("{failed}/{}{why}", self.calls),
        )
    }
}

/// Runs an errand until `end`. If a kept connection is closed, the call is made again, and its latency includes both tries.
pub(crate) async fn honest(errand: Errand, end: Instant) -> Met {
    let mut met = Met::default();
    let mut kept: Option<TcpStream> = None;
    let mut next = Instant::now();
    while next < end {
        sleep_until(next).await;
        next += errand.every;
        let started = Instant::now();
        let answered = timeout(PATIENCE, async {
            if let Some(mut stream) = kept.take()
                && exchange(&mut stream, &errand).await.is_ok()
            {
                return Ok(stream);
            }
            let mut stream = TcpStream::connect(errand.to).await?;
            exchange(&mut stream, &errand).await?;
            anyhow::Ok(stream)
        });
        match answered.await {
            Ok(Ok(stream)) => {
                met.took(started.elapsed(), errand.every);
                kept = errand.keeps.then_some(stream);
            }
            Ok(Err(error)) => {
                met.calls += 1;
                let io = error.downcast_ref::<std::io::Error>();
                let why = io.map_or(error.to_string(), |_| "closed".to_owned());
                *met.failed.entry(why).or_default() += 1;
            }
            Err(_elapsed) => {
                met.took(PATIENCE, errand.every);
                *met.failed.entry("10 s".to_owned()).or_default() += 1;
            }
        }
        next = next.max(Instant::now());
    }
    met
}

async fn exchange(stream: &mut TcpStream, errand: &Errand) -> Result<()> {
    stream.write_all(errand.request.as_bytes()).await?;
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            bail!("closed");
        }
        let text = String::from_utf8_lossy(&read);
        match text.get(9..12) {
            Some("200") | None => {}
            Some(other) => bail!("{other}"),
        }
        // The second form is an answer in chunks.
        if text.contains(errand.answer)
            && (text.ends_with(errand.answer) || text.ends_with("\r\n0\r\n\r\n"))
        {
            return Ok(());
        }
    }
}

/// What the attackers share.
pub(crate) struct Attackers {
    pub(crate) api: SocketAddr,
    pub(crate) ops: SocketAddr,
    pub(crate) calls: Vec<Call>,
    /// The answers by status.
    pub(crate) answers: Mutex<Tally>,
}

impl Attackers {
    fn count(&self, what: &str) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(what.to_owned()).or_default() += 1;
    }

    /// Makes one call after the other until it is aborted. Each caller begins with another call.
    pub(crate) async fn repeat(self: Arc<Self>, caller: usize) {
        for number in 0.. {
            let Some(call) = self.calls.get((caller + number) % self.calls.len()) else {
                return;
            };
            let body = call.numbered(caller * 10_000 + number);
            let token = call.tokens.get(caller % call.tokens.len());
            match self.attack(call, token.unwrap_or(&"hostile"), &body).await {
                Ok(status) => self.count(&status),
                Err(_) => {
                    self.count("none");
                    sleep(Duration::from_millis(500)).await;
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Makes one call and reads the answer to its end. Returns its status.
    async fn attack(&self, call: &Call, token: &str, body: &str) -> Result<String> {
        let (mut read, mut write) = TcpStream::connect(self.api).await?.into_split();
        let profile = call.profile;
        let framing = if call.is_chunked {
            "transfer-encoding: chunked".to_owned()
        } else {
            format!("content-length: {}", body.len())
        };
        let head = format!(
            "POST /profiles/{profile}/api/v1/getparams.execute HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {token}\r\n{framing}\r\n\r\n"
        );
        let sent = async {
            write.write_all(head.as_bytes()).await?;
            write.write_all(body.as_bytes()).await
        };
        let answered = async {
            let mut buffer = vec![0; 64 << 10];
            let mut status = None;
            loop {
                let count = read.read(&mut buffer).await?;
                let text = buffer.get(9..12).map(String::from_utf8_lossy);
                let text = text.map(std::borrow::Cow::into_owned);
                match status.take().or(text.filter(|_| count > 12)) {
                    Some(status) if count == 0 => return anyhow::Ok(status),
                    None => bail!("closed"),
                    known => status = known,
                }
                if call.is_slow {
                    sleep(Duration::from_millis(100)).await;
                }
            }
        };
        // A server that refuses the head answers before it has read the body.
        let (_sent, answered) = tokio::join!(sent, answered);
        answered
    }

    /// Sends a body byte by byte until the server closes the connection, again and again.
    pub(crate) async fn trickle(self: Arc<Self>) {
        let head = "POST /profiles/many/api/v1/getparams.execute HTTP/1.1\r\nhost: a\r\nauthorization: Bearer hostile\r\ncontent-length: 1000000\r\n\r\n{";
        loop {
            if let Ok(mut stream) = TcpStream::connect(self.api).await
                && stream.write_all(head.as_bytes()).await.is_ok()
            {
                let mut read = [0; 1024];
                loop {
                    match timeout(Duration::from_secs(1), stream.read(&mut read)).await {
                        Err(_elapsed) if stream.write_all(b" ").await.is_ok() => {}
                        Ok(Ok(count)) if count > 12 => {
                            let status = read.get(9..12).map(String::from_utf8_lossy);
                            self.count(&status.unwrap_or_default());
                            break;
                        }
                        _ => break,
                    }
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Holds connections that are not calls, one after the other. One in four is to the ops port.
    pub(crate) async fn annoy(self: Arc<Self>, slot: u32) {
        // Spreads the first connections over a second.
        sleep(Duration::from_millis(u64::from(slot % 1000))).await;
        let port = if slot % 16 < 4 { self.ops } else { self.api };
        loop {
            if let Ok(stream) = connect(slot, port).await {
                hold(slot, stream).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
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

/// Holds a connection until the server closes it. Of four, one sends nothing, one a head byte by byte, one 400 KiB of a head, and
/// one a call without its body.
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
