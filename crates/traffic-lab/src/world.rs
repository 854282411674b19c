//! How late a gateway hears of routes and of endpoints: on two paths, in order on each of them.

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

/// How late the gateway hears of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From the RouteTable to its routes.
    pub routes: Duration,
    /// From a Service's endpoints to the cluster's.
    pub endpoints: Duration,
}

/// A gateway that hears of everything late. Dropping the last one ends the gateway.
#[derive(Debug)]
pub struct World {
    gateway: Arc<AsyncMutex<Gateway>>,
    address: SocketAddr,
    /// How many worlds the gateway has had.
    parts: Arc<AtomicUsize>,
    delays: Mutex<Delays>,
    changes: [mpsc::UnboundedSender<Due>; 2],
    /// How many changes are under way, or what stopped them.
    progress: watch::Sender<Progress>,
    _paths: JoinSet<()>,
}

#[derive(Clone, Debug, Default)]
struct Progress {
    pending: usize,
    stopped: Option<Arc<LabError>>,
}

/// A change, when the gateway hears of it, and whom to tell.
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

    /// Another world at the same gateway, with RouteTables, Services and delays of its own. Its hosts must be its own, too.
    #[must_use]
    pub fn beside(&self, delays: Delays) -> Self {
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

    /// Where the gateway serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how late later changes are heard of.
    pub fn set_delays(&self, delays: Delays) {
        *self.delays.lock().unwrap_or_else(PoisonError::into_inner) = delays;
    }

    /// The RouteTables have changed. The receiver hears when the gateway serves them.
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

    /// The Pods behind a Service have changed.
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

    /// Waits until the gateway has heard of everything.
    ///
    /// # Errors
    /// Returns `Err` if a change stopped the gateway.
    pub async fn heard(&self) -> Result<(), LabError> {
        let mut progress = self.progress.subscribe();
        let done = progress.wait_for(|it| it.pending == 0 || it.stopped.is_some());
        let done = done.await.map(|it| it.stopped.clone()).unwrap_or_default();
        match done {
            Some(error) => Err(LabError::Stopped(error.to_string())),
            None => Ok(()),
        }
    }

    /// The gateway itself, for what happens without delay.
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
            // The receiver ends after an error only, which the next call reports.
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
        // Not everyone who tells of a change waits for it.
        let _ = served.send(());
    }
}
