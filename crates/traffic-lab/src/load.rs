//! An open-loop load: requests start at a fixed rate and do not wait for earlier ones.

use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::pod::VERSION;

/// Timeout of a request. It is far longer than a request takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of requests in flight, because each uses a file descriptor. Only a machine that hangs reaches it.
const UNDER_WAY: usize = 256;

/// The requests of a load.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address of the gateway.
    pub gateway: SocketAddr,
    /// The host.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status; `None` without an answer.
    pub status: Option<StatusCode>,
    /// The version of the Pod that answered; empty if no Pod answered.
    pub version: String,
    /// The route that matched; empty if none matched.
    pub route: String,
    /// Envoy's response flags: `-` for none, `UH` for no healthy endpoint, `UF` for a failed connection.
    pub flags: String,
    /// The error of a request without an answer.
    pub error: Option<String>,
}

impl Answer {
    /// Returns whether the status is a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.is_success())
    }

    /// Returns the kind of a failure: status and flags, or the error; `None` for a success.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.is_success() {
            return None;
        }
        Some(match (&self.status, &self.error) {
            (Some(status), _) => format!("{} {}", status.as_u16(), self.flags),
            (None, error) => error.clone().unwrap_or_default(),
        })
    }
}

/// A finished request of a load. Times are relative to the start of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When it was sent.
    pub at: Duration,
    /// When its answer was complete.
    pub answered: Duration,
    /// The result.
    pub answer: Answer,
}

/// A load that runs until it is stopped. Dropping it cancels its requests.
#[derive(Debug)]
pub struct Load {
    begun: Instant,
    sent: Arc<Mutex<Vec<Sent>>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Load {
    /// Starts a load of `rate` requests per second.
    #[must_use]
    pub fn start(target: &Target, rate: u32) -> Self {
        Self::begin(target, rate, None)
    }

    /// Sends `count` requests, `rate` per second, and returns all results.
    pub async fn send(target: &Target, rate: u32, count: u64) -> Vec<Sent> {
        let mut load = Self::begin(target, rate, Some(count));
        // Only a panic makes the join fail, and the panic hook has printed it.
        let _ = (&mut load.task).await;
        load.sent()
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the finished requests so far, in the order of their answers.
    #[must_use]
    pub fn sent(&self) -> Vec<Sent> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.clone()
    }

    /// Returns the finished requests since the last call and drops them, for an endless load.
    #[must_use]
    pub fn take(&self) -> Vec<Sent> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut *sent)
    }

    /// Stops sending, waits for all answers, and returns the finished requests.
    pub async fn stop(mut self) -> Vec<Sent> {
        self.stop.send_replace(true);
        let _ = (&mut self.task).await;
        self.sent()
    }

    fn begin(target: &Target, rate: u32, count: Option<u64>) -> Self {
        let sent = Arc::default();
        let stop = watch::Sender::new(false);
        let begun = Instant::now();
        let clients = Clients {
            target: target.clone(),
            client: Client::builder(TokioExecutor::new()).build(connector()),
            begun,
            sent: Arc::clone(&sent),
        };
        let schedule = Schedule {
            begun,
            interval: Duration::from_secs(1) / rate.max(1),
            count,
        };
        let task = tokio::spawn(run(Arc::new(clients), schedule, stop.subscribe()));
        Self {
            begun,
            sent,
            stop,
            task,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Schedule {
    begun: Instant,
    interval: Duration,
    count: Option<u64>,
}

struct Clients {
    target: Target,
    client: Client<HttpConnector, Empty<Bytes>>,
    begun: Instant,
    sent: Arc<Mutex<Vec<Sent>>>,
}

async fn run(clients: Arc<Clients>, schedule: Schedule, mut stop: watch::Receiver<bool>) {
    let mut requests = JoinSet::new();
    let mut due = schedule.begun;
    let mut left = schedule.count;
    while left != Some(0) {
        tokio::select! {
            _ = stop.changed() => break,
            () = sleep_until(due) => {}
        }
        while requests.try_join_next().is_some() {}
        if requests.len() >= UNDER_WAY {
            requests.join_next().await;
        }
        let clients = Arc::clone(&clients);
        requests.spawn(async move { clients.one().await });
        due += schedule.interval;
        left = left.map(|left| left - 1);
    }
    while requests.join_next().await.is_some() {}
}

impl Clients {
    async fn one(&self) {
        let at = self.begun.elapsed();
        let answer = match timeout(PATIENCE, self.ask()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => no_answer(error),
            Err(_) => no_answer(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        let sent = Sent {
            at,
            answered: self.begun.elapsed(),
            answer,
        };
        let mut all = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(sent);
    }

    async fn ask(&self) -> Result<Answer, String> {
        let Target {
            gateway,
            host,
            path,
            headers,
        } = &self.target;
        let mut request = Request::get(format!("http://{gateway}{path}"))
            // With the port, like a browser.
            .header(header::HOST, format!("{host}:{}", gateway.port()));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::new());
        let request = request.map_err(|error| error.to_string())?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| chain(&error))?;
        let (parts, body) = response.into_parts();
        // The connection is reused only after the body was read.
        body.collect().await.map_err(|error| chain(&error))?;
        let text = |name: &str| text(&parts.headers, name);
        Ok(Answer {
            status: Some(parts.status),
            version: text(VERSION.as_str()),
            route: text("x-route"),
            flags: text("x-flags"),
            error: None,
        })
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector
}

fn text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

fn no_answer(error: String) -> Answer {
    Answer {
        status: None,
        version: String::new(),
        route: String::new(),
        flags: String::new(),
        error: Some(error),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
