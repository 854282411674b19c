//! Following the objects of a namespace.
//!
//! kube's own watcher keeps two things to itself: that a watch has been opened again, and bookmarks. Without them a
//! namespace where nothing happens looks like a connection on which nothing arrives any more.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use gloo_types::{Document, ObjectKey, Resource};
use kube::core::params::{ListParams, WatchParams};
use kube::core::{Status, WatchEvent};
use serde_json::Value;
use tokio::time::Instant;

use super::{Call, KubeRouteStore, resource};
use crate::{Outcome, StoreError};

/// How long one connection lasts, in seconds: the API server then ends it, and the next one begins.
const ROUND: u32 = 60;
/// How long to wait between two connections: something in between may end each of them at once.
const PAUSE: Duration = Duration::from_secs(1);

/// The objects of a kind in a namespace, and then every change to them.
///
/// List and watch as the Kubernetes API describes them under "efficient detection of changes".
pub struct Watch<'s, K> {
    store: &'s KubeRouteStore,
    namespace: String,
    /// After which version changes are still to come; `None` before everything is listed.
    version: Option<String>,
    events: Option<BoxStream<'static, kube::Result<WatchEvent<Value>>>>,
    kind: PhantomData<K>,
}

/// What a [`Watch`] hears of. Objects are without `metadata.managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<K> {
    /// These are all objects there are. It comes first, and again when changes were missed.
    Listed(Vec<Arc<Document<K>>>),
    /// An object came, or changed.
    Applied(Arc<Document<K>>),
    /// An object went.
    Deleted(ObjectKey),
    /// Nothing happened up to now.
    Quiet,
}

impl KubeRouteStore {
    /// Follows the objects of a namespace. As long as the API server answers there is an event each minute, if only
    /// [`Event::Quiet`].
    #[must_use]
    pub fn watch<K: Resource>(&self, namespace: &str) -> Watch<'_, K> {
        Watch {
            store: self,
            namespace: namespace.to_owned(),
            version: None,
            events: None,
            kind: PhantomData,
        }
    }
}

impl<K: Resource> Watch<'_, K> {
    /// Waits for the next event. After an error it can be called again, and should be after a while.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the API server has no such resource, otherwise whatever kept it from answering.
    pub async fn next(&mut self) -> Result<Event<K>, StoreError> {
        let next = self.step().await;
        if next.is_err() {
            self.events = None;
        }
        next
    }

    async fn step(&mut self) -> Result<Event<K>, StoreError> {
        let namespace = Some(self.namespace.as_str());
        let Some(version) = &self.version else {
            let listed = self.store.list_at::<K>(namespace, ListParams::default());
            let (objects, version) = listed.await?;
            self.version = Some(version);
            return Ok(Event::Listed(objects.into_iter().map(shared).collect()));
        };
        let call = Call::many::<K>("watch", namespace);
        let Some(events) = &mut self.events else {
            let params = WatchParams::default().timeout(ROUND);
            let request = resource::<K>(namespace).watch(&params, version);
            let request = request.map_err(|error| call.unreachable(error))?;
            let opened = self.store.within(&call, Duration::ZERO, async {
                let client = self.store.client().await;
                let client = client.map_err(|error| call.unreachable(error))?;
                let end = Instant::now() + self.store.access.request_timeout;
                let mut sent = self.store.sent(&call, end);
                let events = client.request_events(request).await;
                sent.outcome = Some(match &events {
                    Ok(_) => Outcome::Answered(200),
                    Err(kube::Error::Api(status)) => Outcome::Answered(status.code),
                    Err(_) => Outcome::Connection,
                });
                Ok(events.map(StreamExt::boxed))
            });
            match opened.await? {
                Ok(events) => self.events = Some(events),
                Err(error) => return Err(self.failed(&call, error)),
            }
            return Ok(Event::Quiet);
        };
        let round = Duration::from_secs(ROUND.into());
        let event = async { Ok(events.next().await) };
        match self.store.within(&call, round, event).await? {
            None => {
                self.events = None;
                tokio::time::sleep(PAUSE).await;
                Ok(Event::Quiet)
            }
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                let object: Document<K> = call.parse(object)?;
                self.version = object.resource_version().map(str::to_owned);
                Ok(Event::Applied(shared(object)))
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                let object: Document<K> = call.parse(object)?;
                self.version = object.resource_version().map(str::to_owned);
                Ok(Event::Deleted(object.key().clone()))
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                self.version = Some(bookmark.metadata.resource_version);
                Ok(Event::Quiet)
            }
            Some(Ok(WatchEvent::Error(status))) => {
                Err(self.failed(&call, kube::Error::Api(status)))
            }
            Some(Err(error)) => Err(self.failed(&call, error)),
        }
    }

    /// An API server that no longer knows what came after the version has to be asked for everything.
    fn failed(&mut self, call: &Call, error: kube::Error) -> StoreError {
        if matches!(&error, kube::Error::Api(status) if is_expired(status)) {
            self.version = None;
        }
        call.failed(error)
    }
}

fn shared<K: Resource>(object: Document<K>) -> Arc<Document<K>> {
    Arc::new(object.without_managed_fields())
}

fn is_expired(status: &Status) -> bool {
    status.code == 410
}
