//! One small server for each cluster, which answers with the request that it received, and the client that sends requests.
//!
//! Both sides write and read HTTP/1.1 themselves, because a debug build must send some thousands of requests per second.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::served::{PICK, authority};
use super::world::Request;

/// The request header with the number of a request. A copy has the number of its original.
const ID: &str = "x-id";
/// The suffix that Envoy adds to the host of a copy.
const SHADOW: &str = "-shadow";
/// Envoy closes a connection on which a request is waiting when it answers the one before by itself, so each has one at a time.
const CONNECTIONS: usize = 32;
/// How long no copy must arrive before all have arrived.
const QUIET: Duration = Duration::from_millis(40);

/// A request as a server received it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Received {
    pub(super) cluster: String,
    pub(super) method: String,
    pub(super) path: String,
    /// Without the suffix of copies.
    pub(super) host: String,
    pub(super) headers: BTreeMap<String, String>,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) location: String,
    /// The name of Envoy's route.
    pub(super) route: String,
    /// The body, unless an upstream answered.
    pub(super) body: String,
    pub(super) upstream: Option<Received>,
    pub(super) copies: Vec<Received>,
}

/// A request to a virtual host.
#[derive(Clone, Debug)]
pub(super) struct Sent<'a> {
    pub(super) request: &'a Request,
    pub(super) tag: String,
    pub(super) pick: u32,
}

/// Copies by the number of the request.
type Copies = Arc<Mutex<HashMap<u64, Vec<(usize, Vec<u8>)>>>>;

/// The servers of all clusters.
#[derive(Debug)]
pub(super) struct Backends {
    clusters: Vec<String>,
    addresses: Vec<SocketAddr>,
    copies: Copies,
    /// The number of the next request. A late copy must not have the number of another request.
    next: AtomicU64,
    _servers: JoinSet<()>,
}

impl Backends {
    /// Starts a server for each cluster.
    ///
    /// # Errors
    /// Returns `Err` if no port can be opened.
    pub(super) async fn start(clusters: Vec<String>) -> Result<Self> {
        let copies = Copies::default();
        let mut addresses = Vec::new();
        let mut servers = JoinSet::new();
        for index in 0..clusters.len() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            servers.spawn(serve(listener, index, Arc::clone(&copies)));
        }
        Ok(Self {
            clusters,
            addresses,
            copies,
            next: AtomicU64::new(0),
            _servers: servers,
        })
    }

    /// The endpoints of the clusters.
    pub(super) fn endpoints(&self) -> BTreeMap<String, Vec<SocketAddr>> {
        let addresses = self.addresses.iter().map(|address| vec![*address]);
        self.clusters.iter().cloned().zip(addresses).collect()
    }

    /// Sends requests to the gateway, and returns the answers in the same order, with the copies.
    ///
    /// # Errors
    /// Returns `Err` if the gateway closes a connection.
    pub(super) async fn send(&self, gateway: SocketAddr, all: &[Sent<'_>]) -> Result<Vec<Answer>> {
        lock(&self.copies).clear();
        let first = self.next.fetch_add(all.len() as u64, Ordering::Relaxed);
        let share = all.len().div_ceil(CONNECTIONS).max(1);
        let mut lanes = JoinSet::new();
        for (lane, sent) in all.chunks(share).enumerate() {
            let texts = sent.iter().enumerate();
            let texts =
                texts.map(|(index, sent)| text(sent, first + (lane * share + index) as u64));
            lanes.spawn(exchange(gateway, lane, texts.collect()));
        }
        let mut heads = Vec::new();
        while let Some(done) = lanes.join_next().await {
            heads.push(done??);
        }
        heads.sort_by_key(|(lane, _)| *lane);
        self.wait_for_copies().await;
        let heads = heads.into_iter().flat_map(|(_, heads)| heads);
        let mut copies = std::mem::take(&mut *lock(&self.copies));
        let answers = heads.zip(all).enumerate().map(|(index, (raw, sent))| {
            let mut answer = self.answer(&raw, &sent.tag);
            let copies = copies.remove(&(first + index as u64)).unwrap_or_default();
            let copies = copies.iter();
            answer.copies = copies
                .map(|(cluster, head)| {
                    self.received(*cluster, &String::from_utf8_lossy(head), &sent.tag)
                })
                .collect();
            answer.copies.sort();
            answer
        });
        Ok(answers.collect())
    }

    /// Waits until no more copies arrive. Envoy sends a copy when it sends the original, but does not wait for it.
    async fn wait_for_copies(&self) {
        let count = || lock(&self.copies).values().map(Vec::len).sum::<usize>();
        let mut known = count();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            sleep(QUIET / 8).await;
            if count() != known {
                known = count();
                since = Instant::now();
            }
        }
    }

    fn answer(&self, raw: &Raw, tag: &str) -> Answer {
        let head = String::from_utf8_lossy(&raw.head);
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers: HashMap<&str, &str> = lines.filter_map(|line| line.split_once(": ")).collect();
        let header = |name: &str| headers.get(name).copied().unwrap_or_default().to_owned();
        let body = String::from_utf8_lossy(&raw.body).into_owned();
        let received = body.strip_prefix('@').and_then(|body| {
            let (cluster, head) = body.split_once('\n')?;
            Some(self.received(cluster.parse().ok()?, head, tag))
        });
        Answer {
            status: status.and_then(|status| status.parse().ok()).unwrap_or(0),
            location: header("location").replace(&authority(tag, ""), "HOST"),
            route: header("x-route"),
            body: if received.is_some() {
                String::new()
            } else {
                body
            },
            upstream: received,
            copies: Vec::new(),
        }
    }

    /// Parses the head of a request. The host of the gateway becomes `HOST`, so that both sides can be compared.
    fn received(&self, cluster: usize, head: &str, tag: &str) -> Received {
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let mut received = Received {
            cluster: self.clusters.get(cluster).cloned().unwrap_or_default(),
            method: first.next().unwrap_or_default().to_owned(),
            path: first.next().unwrap_or_default().to_owned(),
            ..Received::default()
        };
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            let value = value.replace(&authority(tag, ""), "HOST");
            match name {
                "host" => received.host = value.trim_end_matches(SHADOW).to_owned(),
                // The gateway makes a random id, and tells that a copy comes from itself.
                "x-request-id" | "x-envoy-internal" | "x-forwarded-for" | ID | PICK => {}
                _ => drop(received.headers.insert(name.to_owned(), value)),
            }
        }
        received
    }
}

/// The text of a request.
fn text(sent: &Sent<'_>, id: u64) -> Vec<u8> {
    let Request {
        route,
        method,
        path,
        headers,
    } = sent.request;
    let host = authority(&sent.tag, route);
    let pick = sent.pick;
    let mut text =
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{ID}: {id}\r\n{PICK}: {pick}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if method != "GET" {
        text.push_str("content-length: 0\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Head and body of an answer.
#[derive(Debug)]
struct Raw {
    head: Vec<u8>,
    body: Vec<u8>,
}

/// Sends requests on one connection.
async fn exchange(
    gateway: SocketAddr,
    lane: usize,
    requests: Vec<Vec<u8>>,
) -> Result<(usize, Vec<Raw>)> {
    let mut stream = TcpStream::connect(gateway).await?;
    stream.set_nodelay(true)?;
    let mut answers = Vec::with_capacity(requests.len());
    let mut buffer = Vec::new();
    for request in &requests {
        stream.write_all(request).await?;
        let answer = read(&mut stream, &mut buffer).await;
        answers.push(answer.with_context(|| String::from_utf8_lossy(request).into_owned())?);
    }
    Ok((lane, answers))
}

/// Reads one answer. `buffer` has what was read beyond it.
async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Raw> {
    loop {
        if let Some(end) = end_of_head(buffer) {
            let head = buffer.get(..end).unwrap_or_default().to_vec();
            let text = String::from_utf8_lossy(&head);
            let length = text
                .split("\r\n")
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(Ok(0), str::parse)?;
            if buffer.len() >= end + length {
                let rest = buffer.split_off(end + length);
                let body = buffer.split_off(end);
                *buffer = rest;
                return Ok(Raw { head, body });
            }
        }
        if stream.read_buf(buffer).await? == 0 {
            let left = String::from_utf8_lossy(buffer);
            bail!("the gateway closed a connection: {left}");
        }
    }
}

/// The position behind the empty line.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let position = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
    Some(position + 4)
}

async fn serve(listener: TcpListener, cluster: usize, copies: Copies) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(echo(stream, cluster, Arc::clone(&copies)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers each request with its head.
async fn echo(mut stream: TcpStream, cluster: usize, copies: Copies) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        while let Some(end) = end_of_head(&buffer) {
            let rest = buffer.split_off(end);
            let head = std::mem::replace(&mut buffer, rest);
            if let Some(id) = id_of_copy(&head) {
                lock(&copies)
                    .entry(id)
                    .or_default()
                    .push((cluster, head.clone()));
            }
            let body = [format!("@{cluster}\n").as_bytes(), &head].concat();
            let mut answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
            answer.extend(body);
            stream.write_all(&answer).await.context("an answer")?;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// The number of the request, if it is a copy.
fn id_of_copy(head: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(head);
    let mut is_copy = false;
    let mut id = None;
    for (name, value) in text.split("\r\n").filter_map(|line| line.split_once(": ")) {
        match name {
            "host" => is_copy = value.ends_with(SHADOW),
            ID => id = value.parse().ok(),
            _ => {}
        }
    }
    id.filter(|_| is_copy)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
