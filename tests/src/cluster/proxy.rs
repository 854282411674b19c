//! A proxy in front of the API server for one client. It records requests, delays or fails them, and blocks or ends watches.
//!
//! The client uses plain HTTP on loopback without credentials; the proxy adds the credentials of the controller.

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::client_without_retries;
use crate::Cluster;

/// Hop-by-hop headers, which a proxy must not forward.
const HOP_BY_HOP: [header::HeaderName; 4] = [
    header::CONNECTION,
    header::HOST,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

type ProxiedBody = UnsyncBoxBody<Bytes, kube::Error>;

/// A running proxy. Dropping it closes every connection.
pub struct Proxy {
    shared: Arc<Shared>,
    server: JoinHandle<()>,
    kubeconfig: PathBuf,
    _directory: TempDir,
}

/// A request that the proxy received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When it arrived.
    pub at: Instant,
    /// The RBAC verb: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// The resource, such as `routetables`.
    pub resource: String,
}

impl RecordedRequest {
    /// Whether the request changes an object.
    pub fn is_write(&self) -> bool {
        ["create", "update", "patch", "delete"].contains(&self.verb)
    }
}

/// A fault of the API server that the proxy injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiServerFault {
    /// Every second request is answered with 429 and `Retry-After: 5`.
    Overloaded,
    /// Every request is answered with 500.
    Failing,
    /// No request is answered and no watch delivers events until the fault ends.
    Frozen,
    /// Open watches stay open and deliver nothing, like a half-open connection. New watches deliver events.
    SilentWatches,
    /// Every event of a watch is delayed by a random time up to this one.
    LateEvents(Duration),
    /// Every PATCH arrives this much later.
    LatePatches(Duration),
    /// Lists and watches of all namespaces are answered with this status, or not at all.
    ListsOfAll(Option<StatusCode>),
}

struct Shared {
    upstream: Client,
    state: Mutex<State>,
    fault: watch::Sender<Option<ApiServerFault>>,
    /// Notified when all open watches must end.
    expired: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    delay: Duration,
    /// Number of requests so far.
    number: u64,
    requests: Vec<RecordedRequest>,
    /// Number of answers 429 of the API server.
    refused: usize,
    last_patch: Option<(Parts, Bytes)>,
}

impl Proxy {
    /// Starts a proxy in front of the API server of `cluster`, with the permissions of the controller.
    ///
    /// # Errors
    /// Returns `Err` if there is no free port, or the kubeconfig cannot be written.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_as(cluster.controller_kubeconfig()).await
    }

    /// Starts a proxy with the permissions of a kubeconfig.
    ///
    /// # Errors
    /// See [`Proxy::start`].
    pub async fn start_as(kubeconfig: &Path) -> Result<Self> {
        // Its client must see what the API server refuses.
        let upstream = client_without_retries(kubeconfig, None).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let directory = tempfile::Builder::new()
            .prefix("rollouts-proxy-")
            .tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(listener.local_addr()?))?;
        let shared = Arc::new(Shared {
            upstream,
            state: Mutex::default(),
            fault: watch::Sender::new(None),
            expired: watch::Sender::new(()),
        });
        let server = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self {
            shared,
            server,
            kubeconfig,
            _directory: directory,
        })
    }

    /// The kubeconfig of the proxy.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sets the delay of every request. The default is none.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }

    /// Sets the fault of the API server. The default is none.
    pub fn set_fault(&self, fault: Option<ApiServerFault>) {
        self.shared.fault.send_replace(fault);
    }

    /// Returns the requests since the last call, in the order of their arrival.
    pub fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.shared.state().requests)
    }

    /// Returns the number of answers 429 of the API server so far.
    pub fn refused(&self) -> usize {
        self.shared.state().refused
    }

    /// Returns the last PATCH.
    pub fn last_patch(&self) -> Option<Request<Vec<u8>>> {
        let state = self.shared.state();
        let (parts, body) = state.last_patch.clone()?;
        Some(Request::from_parts(parts, body.to_vec()))
    }

    /// Ends every open watch with 410, like an API server that has discarded the history after the watched version. The
    /// client must list again.
    pub fn expire_watches(&self) {
        self.shared.expired.send_replace(());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request, delays it, and forwards it, unless the fault answers it.
    async fn forward(&self, request: Request<Incoming>) -> Response<ProxiedBody> {
        let (mut parts, body) = request.into_parts();
        remove_hop_by_hop(&mut parts.headers);
        let (verb, resource) = describe(&parts.method, &parts.uri);
        let is_of_all =
            ["list", "watch"].contains(&verb) && !parts.uri.path().contains("/namespaces/");
        let fault = *self.fault.borrow();
        let (delay, number) = {
            let mut state = self.state();
            state.number += 1;
            state.requests.push(RecordedRequest {
                at: Instant::now(),
                verb,
                resource,
            });
            (state.delay, state.number)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match fault {
            Some(ApiServerFault::Overloaded) if number % 2 == 0 => {
                let mut response = failure(StatusCode::TOO_MANY_REQUESTS, "too many requests");
                let later = HeaderValue::from_static("5");
                response.headers_mut().insert(header::RETRY_AFTER, later);
                return response;
            }
            Some(ApiServerFault::Failing) => {
                return failure(StatusCode::INTERNAL_SERVER_ERROR, "etcd has no leader");
            }
            Some(ApiServerFault::LatePatches(delay)) if verb == "patch" => {
                tokio::time::sleep(delay).await;
            }
            Some(ApiServerFault::ListsOfAll(status)) if is_of_all => match status {
                Some(status) => return failure(status, "the list failed"),
                None => std::future::pending().await,
            },
            Some(ApiServerFault::Frozen) => {
                let mut fault = self.fault.subscribe();
                let _ = fault
                    .wait_for(|it| *it != Some(ApiServerFault::Frozen))
                    .await;
            }
            _ => {}
        }
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return failure(StatusCode::BAD_GATEWAY, &error.to_string()),
        };
        if verb == "patch" {
            self.state().last_patch = Some((parts.clone(), body.clone()));
        }
        let watching = (self.expired.subscribe(), self.fault.subscribe());
        match self
            .upstream
            .send(Request::from_parts(parts, body.into()))
            .await
        {
            Ok(response) => {
                let is_refused = response.status() == StatusCode::TOO_MANY_REQUESTS;
                self.state().refused += usize::from(is_refused);
                forward_response(response, (verb == "watch").then_some(watching))
            }
            Err(error) => failure(StatusCode::BAD_GATEWAY, &error.to_string()),
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve_connection(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(stream: TcpStream, shared: Arc<Shared>) {
    // Without it, the second part of an answer waits for the acknowledgement of the first.
    let _ = stream.set_nodelay(true);
    let service = service_fn(async |request| Ok::<_, Infallible>(shared.forward(request).await));
    // The client may close the connection.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Returns the answer to a request. A watch ends with an event 410 when the first receiver is notified, and its events are
/// blocked or delayed by the fault in the second one.
fn forward_response(
    response: Response<Body>,
    watching: Option<(watch::Receiver<()>, watch::Receiver<Option<ApiServerFault>>)>,
) -> Response<ProxiedBody> {
    let (mut parts, body) = response.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let Some((mut expired, fault)) = watching else {
        return Response::from_parts(parts, body.boxed_unsync());
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version",
    });
    let event = format!("{}\n", json!({ "type": "ERROR", "object": status }));
    let (end, ended) = tokio::sync::oneshot::channel();
    let until = async move {
        let _ = expired.changed().await;
        let _ = end.send(());
    };
    let last = async move { ended.await.is_ok().then(|| Ok(Bytes::from(event))) };
    let is_silent = |it: &Option<ApiServerFault>| *it == Some(ApiServerFault::SilentWatches);
    let is_new = is_silent(&fault.borrow());
    let events = body.into_data_stream().then(move |chunk| {
        let mut fault = fault.clone();
        async move {
            let now = *fault.borrow();
            if let Some(ApiServerFault::LateEvents(most)) = now {
                tokio::time::sleep(most.mul_f64(fastrand::f64())).await;
            }
            let delivers = |it: &Option<ApiServerFault>| is_new || !is_silent(it);
            let frozen = Some(ApiServerFault::Frozen);
            let _ = fault.wait_for(|it| *it != frozen && delivers(it)).await;
            chunk
        }
    });
    let events = events.take_until(until);
    let events = events.chain(futures::stream::once(last).filter_map(async |event| event));
    let body = StreamBody::new(events.map(|chunk| chunk.map(Frame::data)));
    Response::from_parts(parts, body.boxed_unsync())
}

/// Returns an error in the format of the API server.
fn failure(code: StatusCode, message: &str) -> Response<ProxiedBody> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(), "message": message,
    });
    let text = Full::from(status.to_string()).map_err(|never| match never {});
    let mut response = Response::new(text.boxed_unsync());
    *response.status_mut() = code;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Derives the verb and the resource of a request from its method and path, like the API server.
fn describe(method: &Method, uri: &Uri) -> (&'static str, String) {
    let mut path = uri.path().trim_matches('/').split('/');
    // `api/v1` or `apis/<group>/<version>`.
    let skipped = if path.next() == Some("api") { 1 } else { 2 };
    let rest: Vec<&str> = path.skip(skipped).collect();
    let (resource, name) = match rest.as_slice() {
        ["namespaces", _, resource, name @ ..] => (*resource, name.first()),
        [resource, name @ ..] => (*resource, name.first()),
        [] => ("", None),
    };
    let is_watch = uri.query().is_some_and(|query| query.contains("watch="));
    let verb = match (method.as_str(), name) {
        ("GET", None) if is_watch => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ => "other",
    };
    (verb, resource.to_owned())
}

/// Returns a kubeconfig as JSON, which is valid YAML.
fn kubeconfig_of(address: SocketAddr) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "proxy", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "anybody", "user": {} }],
        "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "anybody" } }],
        "current-context": "proxy",
    })
    .to_string()
}
