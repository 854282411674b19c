//! A Pod: a small HTTP server on loopback that says which version it is, and ends gracefully.

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
    /// One in so many requests fails.
    fails: Option<u32>,
    answered: AtomicU32,
    requests: Ids,
    copies: Ids,
}

/// What [`Pod::take_ids`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenIds {
    /// The ids of requests, without copies.
    pub requests: BTreeSet<String>,
    /// The ids of the requests of which there was a copy.
    pub copies: BTreeSet<String>,
}

impl Pod {
    /// Starts a Pod of a version, with the labels that subsets select by.
    ///
    /// # Errors
    /// Returns `Err` if there is no port.
    pub async fn start(version: &str, labels: BTreeMap<String, String>) -> Result<Self, LabError> {
        Self::start_failing(version, labels, None).await
    }

    /// The same with a fault: one in `fails` requests is answered with status 500.
    ///
    /// # Errors
    /// Returns `Err` if there is no port.
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

    /// The ids since the last time, which it forgets: for a load without end.
    #[must_use]
    pub fn take_ids(&self) -> TakenIds {
        TakenIds {
            requests: mem::take(&mut *lock(&self.shared.requests)),
            copies: mem::take(&mut *lock(&self.shared.copies)),
        }
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
    async fn a_bad_version_fails_one_in_so_many_requests_and_its_ids_are_taken_once() {
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
    async fn answers_that_were_taken_are_not_kept() {
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
