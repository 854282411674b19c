//! A Pod: a small HTTP server on loopback that says which version it is, and ends gracefully.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::{Endpoint, LabError};

/// The header of an answer with the version of the Pod.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("x-version");
/// What Envoy adds to the host of a copied request.
const SHADOW: &str = "-shadow";

/// A running Pod. Dropping it cuts its connections, as a crash does.
#[derive(Debug)]
pub struct Pod {
    address: SocketAddr,
    labels: BTreeMap<String, String>,
    shared: Arc<Shared>,
    ending: watch::Sender<bool>,
    server: JoinHandle<()>,
}

/// What Envoy calls a request; a copy has the id of its original.
type Ids = Mutex<BTreeSet<String>>;

#[derive(Debug)]
struct Shared {
    version: HeaderValue,
    requests: Ids,
    copies: Ids,
}

impl Pod {
    /// Starts a Pod of a version, with the labels that subsets select by.
    ///
    /// # Errors
    /// Returns `Err` if there is no port.
    pub async fn start(version: &str, labels: BTreeMap<String, String>) -> Result<Self, LabError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(LabError::io("a port for a Pod"))?;
        let address = listener.local_addr().map_err(LabError::io("a Pod"))?;
        let shared = Arc::new(Shared {
            version: HeaderValue::from_str(version)
                .unwrap_or_else(|_| HeaderValue::from_static("invalid")),
            requests: Ids::default(),
            copies: Ids::default(),
        });
        let ending = watch::Sender::new(false);
        let server = tokio::spawn(serve(listener, Arc::clone(&shared), ending.subscribe()));
        Ok(Self {
            address,
            labels,
            shared,
            ending,
            server,
        })
    }

    /// The Pod as a Service lists it.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            address: self.address,
            labels: self.labels.clone(),
        }
    }

    /// The ids of the requests that it got, without copies.
    #[must_use]
    pub fn requests(&self) -> BTreeSet<String> {
        lock(&self.shared.requests).clone()
    }

    /// The ids of the requests of which it got a copy.
    #[must_use]
    pub fn copies(&self) -> BTreeSet<String> {
        lock(&self.shared.copies).clone()
    }

    /// Ends it as SIGTERM ends a well-behaved server: it takes no more connections, answers the requests it has, and closes.
    pub async fn end(mut self) {
        self.ending.send_replace(true);
        // The task only ends early by a panic, which its own output reports.
        let _ = (&mut self.server).await;
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut ending: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let ending_of_connections = ending.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, Arc::clone(&shared), ending_of_connections.clone()));
                }
            }
            _ = ending.changed() => break,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, mut ending: watch::Receiver<bool>) {
    // Small answers would wait for the client's acknowledgement otherwise.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, &shared));
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let mut is_ending = false;
    loop {
        tokio::select! {
            _ = served.as_mut() => return,
            _ = ending.changed(), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: &Shared,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    // Envoy keeps the port behind the name.
    let name = host.split(':').next().unwrap_or_default();
    let ids = if name.ends_with(SHADOW) {
        &shared.copies
    } else {
        &shared.requests
    };
    let id = request.headers().get("x-request-id");
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    lock(ids).insert(id.to_owned());
    let mut response = Response::new(Full::new(Bytes::from_static(b"ok")));
    response
        .headers_mut()
        .insert(VERSION, shared.version.clone());
    Ok(response)
}

fn lock(ids: &Ids) -> MutexGuard<'_, BTreeSet<String>> {
    ids.lock().unwrap_or_else(PoisonError::into_inner)
}
