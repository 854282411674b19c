//! The delays after which a gateway receives routes and endpoints.
//!
//! Routes and endpoints take two separate paths. Each path keeps the order of its changes; between the paths there is no order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use envoy_routes::Translation;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::gateway::Part;
use crate::{Endpoint, Gateway, LabError, ServiceName};

/// The delays between a change and the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From a change of a RouteTable to Envoy's routes.
    pub routes: Duration,
    /// From a change of a Service's endpoints to Envoy's endpoints.
    pub endpoints: Duration,
}

/// A gateway that receives all changes with a delay. Dropping its last world ends the gateway.
#[derive(Debug)]
pub struct World {
    gateway: Arc<AsyncMutex<Gateway>>,
    address: SocketAddr,
    /// Number of worlds that the gateway has had.
    parts: Arc<AtomicUsize>,
    delays: Mutex<Delays>,
    changes: [mpsc::UnboundedSender<Due>; 2],
    /// Number of pending changes, or the error that stopped them.
    progress: watch::Sender<Progress>,
    _paths: JoinSet<()>,
}

#[derive(Clone, Debug, Default)]
struct Progress {
    pending: usize,
    stopped: Option<Arc<LabError>>,
}

/// A change, the time at which the gateway receives it, and the sender that reports it as served.
#[derive(Debug)]
struct Due {
    at: Instant,
    change: Change,
    served: oneshot::Sender<()>,
}

#[derive(Debug)]
enum Change {
    Routes(Box<Translation>),
    Endpoints(ServiceName, Vec<Endpoint>),
}

impl World {
    /// A world around a gateway.
    #[must_use]
    pub fn new(gateway: Gateway, delays: Delays) -> Self {
        let address = gateway.address();
        let gateway = Arc::new(AsyncMutex::new(gateway));
        Self::at(gateway, address, Arc::default(), delays)
    }

    /// Another world at the same gateway, with separate RouteTables, Services, delays and hosts.
    #[must_use]
    pub fn with_same_gateway(&self, delays: Delays) -> Self {
        let gateway = Arc::clone(&self.gateway);
        Self::at(gateway, self.address, Arc::clone(&self.parts), delays)
    }

    fn at(
        gateway: Arc<AsyncMutex<Gateway>>,
        address: SocketAddr,
        parts: Arc<AtomicUsize>,
        delays: Delays,
    ) -> Self {
        let part = Part(parts.fetch_add(1, Ordering::Relaxed));
        let progress = watch::Sender::new(Progress::default());
        let mut paths = JoinSet::new();
        let changes = [(); 2].map(|()| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let gateway = Arc::clone(&gateway);
            paths.spawn(follow(gateway, part, receiver, progress.clone()));
            sender
        });
        Self {
            gateway,
            address,
            parts,
            delays: Mutex::new(delays),
            changes,
            progress,
            _paths: paths,
        }
    }

    /// The address of the gateway.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the delays of later changes.
    pub fn set_delays(&self, delays: Delays) {
        *self.delays.lock().unwrap_or_else(PoisonError::into_inner) = delays;
    }

    /// Publishes a change of the RouteTables. The receiver is notified when the gateway serves them.
    ///
    /// # Errors
    /// Returns `Err` if an earlier change stopped the gateway.
    pub fn publish_routes(
        &self,
        translation: Translation,
    ) -> Result<oneshot::Receiver<()>, LabError> {
        let delay = self.delays().routes;
        self.publish(0, delay, Change::Routes(Box::new(translation)))
    }

    /// Publishes a change of the Pods behind a Service.
    ///
    /// # Errors
    /// Returns `Err` if an earlier change stopped the gateway.
    pub fn publish_endpoints(
        &self,
        service: ServiceName,
        endpoints: Vec<Endpoint>,
    ) -> Result<(), LabError> {
        let delay = self.delays().endpoints;
        self.publish(1, delay, Change::Endpoints(service, endpoints))
            .map(drop)
    }

    /// Waits until the gateway has received all changes.
    ///
    /// # Errors
    /// Returns `Err` if a change stopped the gateway.
    pub async fn delivered(&self) -> Result<(), LabError> {
        let mut progress = self.progress.subscribe();
        let done = progress.wait_for(|it| it.pending == 0 || it.stopped.is_some());
        let done = done.await.map(|it| it.stopped.clone()).unwrap_or_default();
        match done {
            Some(error) => Err(LabError::Stopped(error.to_string())),
            None => Ok(()),
        }
    }

    /// Returns the gateway, for changes without delay.
    pub async fn gateway(&self) -> MutexGuard<'_, Gateway> {
        self.gateway.lock().await
    }

    fn delays(&self) -> Delays {
        *self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(
        &self,
        path: usize,
        delay: Duration,
        change: Change,
    ) -> Result<oneshot::Receiver<()>, LabError> {
        if let Some(error) = &self.progress.borrow().stopped {
            return Err(LabError::Stopped(error.to_string()));
        }
        self.progress.send_modify(|it| it.pending += 1);
        let (served, receiver) = oneshot::channel();
        if let Some(sender) = self.changes.get(path) {
            let at = Instant::now() + delay;
            // The receiver only ends after an error, which the next call returns.
            let _ = sender.send(Due { at, change, served });
        }
        Ok(receiver)
    }
}

async fn follow(
    gateway: Arc<AsyncMutex<Gateway>>,
    part: Part,
    mut changes: mpsc::UnboundedReceiver<Due>,
    progress: watch::Sender<Progress>,
) {
    while let Some(Due { at, change, served }) = changes.recv().await {
        sleep_until(at).await;
        let mut gateway = gateway.lock().await;
        let outcome = match change {
            Change::Routes(translation) => gateway.set_part(part, &translation).await,
            Change::Endpoints(service, endpoints) => {
                gateway.set_endpoints(&service, endpoints).await
            }
        };
        drop(gateway);
        progress.send_modify(|it| it.pending = it.pending.saturating_sub(1));
        if let Err(error) = outcome {
            progress.send_modify(|it| it.stopped = Some(Arc::new(error)));
            return;
        }
        // The publisher may have dropped the receiver.
        let _ = served.send(());
    }
}
