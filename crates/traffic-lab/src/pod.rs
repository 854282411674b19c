//! A Pod: a small HTTP server on loopback that answers with its version and shuts down gracefully.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::{Endpoint, LabError};

/// The response header with the version of the Pod.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("x-version");
/// The suffix that Envoy adds to the host of a mirrored request.
const SHADOW: &str = "-shadow";

/// A running Pod. Dropping it closes its connections at once, like a crash.
#[derive(Debug)]
pub struct Pod {
    address: SocketAddr,
    labels: BTreeMap<String, String>,
    shared: Arc<Shared>,
    ending: watch::Sender<bool>,
    server: JoinHandle<()>,
}

/// Values of `x-request-id`. A mirrored request has the id of its original.
type Ids = Mutex<BTreeSet<String>>;

#[derive(Debug)]
struct Shared {
    version: HeaderValue,
    /// One in this many requests fails.
    fails: Option<u32>,
    answered: AtomicU32,
    requests: Ids,
    copies: Ids,
}

/// The request ids that [`Pod::take_ids`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenIds {
    /// Ids of requests, without mirrored ones.
    pub requests: BTreeSet<String>,
    /// Ids of mirrored requests.
    pub copies: BTreeSet<String>,
}

impl Pod {
    /// Starts a Pod with a version, and labels for subsets.
    ///
    /// # Errors
    /// Returns `Err` if no port can be opened.
    pub async fn start(version: &str, labels: BTreeMap<String, String>) -> Result<Self, LabError> {
        Self::start_failing(version, labels, None).await
    }

    /// Starts a faulty Pod, which answers one in `fails` requests with status 500.
    ///
    /// # Errors
    /// Returns `Err` if no port can be opened.
    pub async fn start_failing(
        version: &str,
        labels: BTreeMap<String, String>,
        fails: Option<u32>,
    ) -> Result<Self, LabError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(LabError::io("a port for a Pod"))?;
        let address = listener.local_addr().map_err(LabError::io("a Pod"))?;
        let shared = Arc::new(Shared {
            version: HeaderValue::from_str(version)
                .unwrap_or_else(|_| HeaderValue::from_static("invalid")),
            fails,
            answered: AtomicU32::new(0),
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

    /// Returns the endpoint of the Pod in a Service.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            address: self.address,
            labels: self.labels.clone(),
        }
    }

    /// Returns the ids of the requests so far, without mirrored ones.
    #[must_use]
    pub fn requests(&self) -> BTreeSet<String> {
        lock(&self.shared.requests).clone()
    }

    /// Returns the ids of the mirrored requests so far.
    #[must_use]
    pub fn copies(&self) -> BTreeSet<String> {
        lock(&self.shared.copies).clone()
    }

    /// Returns the ids since the last call and drops them, for an endless load.
    #[must_use]
    pub fn take_ids(&self) -> TakenIds {
        TakenIds {
            requests: mem::take(&mut *lock(&self.shared.requests)),
            copies: mem::take(&mut *lock(&self.shared.copies)),
        }
    }

    /// Shuts down gracefully, like a server after SIGTERM: accepts no more connections, answers the requests in flight, and
    /// closes.
    pub async fn end(mut self) {
        self.ending.send_replace(true);
        // Only a panic makes the join fail, and the panic hook has printed it.
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
    // Without it, small answers wait for the client's acknowledgement.
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
    // Envoy adds the suffix before the port.
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
    let nth = shared.answered.fetch_add(1, Ordering::Relaxed);
    if shared
        .fails
        .is_some_and(|fails| nth.is_multiple_of(fails.max(1)))
    {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response
        .headers_mut()
        .insert(VERSION, shared.version.clone());
    Ok(response)
}

fn lock(ids: &Ids) -> MutexGuard<'_, BTreeSet<String>> {
    ids.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::Tally;
    use crate::{Load, Target};

    #[tokio::test]
    async fn a_faulty_pod_fails_some_requests_and_its_ids_are_taken_once() {
        let pod = Pod::start_failing("2", BTreeMap::new(), Some(3)).await;
        let pod = pod.unwrap();
        let target = Target {
            gateway: pod.address,
            host: "shop.example.com".to_owned(),
            path: "/".to_owned(),
            headers: vec![("x-request-id".to_owned(), "a".to_owned())],
        };
        let tally = Tally::of(&Load::send(&target, 500, 9).await);
        assert_eq!((tally.version("2"), tally.failed()), (6, 3), "{tally:?}");
        assert_eq!(pod.take_ids().requests, BTreeSet::from(["a".to_owned()]));
        assert_eq!(pod.take_ids(), TakenIds::default());
    }

    #[tokio::test]
    async fn taken_results_are_not_kept() {
        let pod = Pod::start("1", BTreeMap::new()).await.unwrap();
        let target = Target {
            gateway: pod.address,
            host: "shop.example.com".to_owned(),
            path: "/".to_owned(),
            headers: Vec::new(),
        };
        let load = Load::start(&target, 500);
        let mut taken = Vec::new();
        while taken.len() < 10 {
            taken.extend(load.take());
            tokio::task::yield_now().await;
        }
        let left = load.stop().await;
        let again = left.iter().find(|sent| taken.contains(sent));
        assert_eq!(again, None);
    }
}
