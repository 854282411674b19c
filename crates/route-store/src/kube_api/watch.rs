//! List and watch of the objects of a kind: a list, page by page, then every change.
//!
//! The watcher of kube-runtime does not report bookmarks. Without them, a namespace without changes cannot be distinguished
//! from a dead connection, and the age of cached objects is unknown.
//!
//! [`Keep`] decodes objects directly from the text of an answer into their cached form. The answer is never parsed to a tree
//! of values, which takes four times the memory of the text for tables.

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::marker::PhantomData;
use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use gloo_types::{Document, ObjectKey, Resource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::WatchEvent;
use kube::core::params::{ListParams, WatchParams};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::KubeRouteStore;
use super::proof::Moment;
use super::send::{Call, answered_code};
use crate::{Keep, Kept, Priority, StoreError, with_priority};

/// The [`Keep`] of whole documents, without `metadata.managedFields`.
#[derive(Debug)]
pub struct WholeDocuments<K>(PhantomData<K>);

impl<K> Default for WholeDocuments<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K: Resource> Keep for WholeDocuments<K> {
    type Kind = K;
    type Kept = Document<K>;

    fn keep(&self, object: &str) -> Result<Document<K>, Box<dyn Error + Send + Sync>> {
        let object: Value = serde_json::from_str(object)?;
        Ok(Document::from_value(object)?.without_managed_fields())
    }
}

impl<K: Resource> Kept for Document<K> {
    fn key(&self) -> &ObjectKey {
        self.key()
    }

    fn version(&self) -> &str {
        self.resource_version().unwrap_or_default()
    }
}

/// `timeoutSeconds` of a watch, after which the API server closes the connection and the next one is opened. The bookmark
/// before its end proves the content of the cache as of its beginning, so the age stays below two rounds.
const ROUND: u32 = 25;
/// How long a watch is open without an event until the version of the kind is asked for. An API server sends a bookmark only if
/// it knows a newer version than the one with which the watch began, and this request lets API servers from 1.34 on learn one.
const PROBE_AFTER: Duration = Duration::from_secs(12);
/// The age of the content from which on a watch is not opened again, and a list proves the content instead, because no bookmark
/// has come. The last list must have ended as long ago, because a list that takes longer than this would be followed by the next
/// one for ever.
const LIST_AFTER: Duration = Duration::from_secs(50);
/// The minimum time between the openings of two connections, because a proxy may close each of them at once, and between a
/// list and the next one if the watch expires. A connection that was open for longer is reopened without a pause, in which
/// changes would be seen late.
const PAUSE: Duration = Duration::from_secs(1);

/// The scope of a list and watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// All namespaces.
    All,
    /// One namespace.
    Namespace(String),
}

/// A list of the objects in a scope, followed by a watch, as in "Efficient detection of changes" of the Kubernetes API
/// documentation.
pub(super) struct Watch<K> {
    source: Source<K>,
    state: State,
}

/// The parameters of the list and the watch.
pub(super) struct Source<K> {
    pub(super) store: Arc<KubeRouteStore>,
    pub(super) keep: Arc<K>,
    pub(super) scope: Scope,
    /// Label selector.
    pub(super) labels: Option<String>,
}

enum State {
    /// The next request is a list: its next page, or the first one.
    Listing(Option<Continued>),
    /// The next request is a watch. All changes up to the position's version have been reported.
    Watching(Position),
}

/// A list that has further pages.
struct Continued {
    /// When the first page was asked for.
    asked: Moment,
    /// The token of the next page.
    token: String,
}

struct Position {
    /// When the list was complete.
    listed: Moment,
    version: String,
    /// The content is proven as of this moment.
    proven: Moment,
    open: Option<Open>,
}

/// An open watch.
struct Open {
    /// When it was asked for.
    asked: Moment,
    /// Whether there was no event yet.
    is_quiet: bool,
    events: BoxStream<'static, kube::Result<WatchEvent<Box<RawValue>>>>,
}

/// An event of a [`Watch`].
#[derive(Debug, PartialEq)]
pub(super) enum Event<T> {
    /// A page of the list of all objects.
    Page {
        objects: Vec<T>,
        /// The version of the list, the same on each page.
        version: String,
        /// Whether it is the first page. A list that cannot be continued starts again.
        is_first: bool,
        /// On the last page: when the first page was asked for. The list has all changes up to then.
        proven: Option<Moment>,
    },
    /// A watch is open. It may be silent, or send only what it has sent long ago.
    Opened,
    /// An object was added or changed.
    Applied(T),
    /// An object was deleted. Its version is that of the deletion.
    Deleted(T),
    /// A bookmark: all changes up to this version are reported, and all up to the moment at which the watch was asked for.
    Proven(String, Moment),
}

impl<K: Keep> Watch<K> {
    /// A watch that has not sent a request yet.
    pub(super) fn new(source: Source<K>) -> Self {
        let state = State::Listing(None);
        Self { source, state }
    }

    /// Waits for the next event. After an error, back off and call it again: it continues at the same position. A version that
    /// the API server no longer has is not an error, because an API server that restarted has none of the old ones: the list
    /// follows at once.
    ///
    /// # Errors
    /// Returns [`StoreError::NotFound`] if the API server has no such resource, and other errors if it does not answer or
    /// forbids the request, or if the version of a new list expires at once.
    pub(super) async fn next(&mut self) -> Result<Event<K::Kept>, StoreError> {
        let error = match self.request().await {
            Ok(event) => return Ok(event),
            Err(error) => error,
        };
        // The version or the token of the request has expired.
        let is_expired = answered_code(&error) == Some(410);
        let mut is_old = false;
        if let State::Watching(position) = &mut self.state {
            position.open = None;
            is_old = Moment::now().since(&position.listed) >= PAUSE;
        }
        if is_expired {
            self.state = State::Listing(None);
            if is_old {
                return self.request().await;
            }
        }
        Err(error)
    }

    async fn request(&mut self) -> Result<Event<K::Kept>, StoreError> {
        loop {
            let position = match &mut self.state {
                State::Watching(position) => position,
                State::Listing(continued) => {
                    let (page, next) = self.source.page(continued.as_ref()).await?;
                    self.state = next;
                    return Ok(page);
                }
            };
            let Some(open) = &mut position.open else {
                let now = Moment::now();
                let is_long_ago = |moment| now.since(moment) >= LIST_AFTER;
                if is_long_ago(&position.proven) && is_long_ago(&position.listed) {
                    self.state = State::Listing(None);
                    continue;
                }
                position.open = Some(self.source.open(&position.version).await?);
                return Ok(Event::Opened);
            };
            let Some(event) = self.source.event(open).await? else {
                sleep_until(open.asked.monotonic + PAUSE).await;
                position.open = None;
                continue;
            };
            match &event {
                Event::Applied(object) | Event::Deleted(object) => {
                    object.version().clone_into(&mut position.version);
                }
                Event::Proven(version, moment) => {
                    position.version.clone_from(version);
                    position.proven = *moment;
                }
                Event::Page { .. } | Event::Opened => {}
            }
            return Ok(event);
        }
    }
}

impl<K: Keep> Source<K> {
    /// Asks for the next page of a list, or for the first one of a new list.
    async fn page(
        &self,
        continued: Option<&Continued>,
    ) -> Result<(Event<K::Kept>, State), StoreError> {
        let call = self.call("list");
        let asked = continued.map_or_else(Moment::now, |list| list.asked);
        let params = ListParams {
            label_selector: self.labels.clone(),
            continue_token: continued.map(|list| list.token.clone()),
            ..ListParams::default().limit(K::PAGE)
        };
        let request = call.path.list(&params);
        let answer = self.store.send_for_bytes(&call, request);
        let answer = with_priority(Priority::List, answer).await?;
        let page: Page<'_> = serde_json::from_slice(&answer)
            .map_err(|error| call.failed(kube::Error::SerdeError(error)))?;
        let objects = page.items.iter().map(|item| self.keep(&call, item));
        let objects = objects.collect::<Result<_, _>>()?;
        let version = page.metadata.resource_version.unwrap_or_default();
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        let page = Event::Page {
            objects,
            version: version.clone(),
            is_first: continued.is_none(),
            proven: token.is_none().then_some(asked),
        };
        let next = match token {
            Some(token) => State::Listing(Some(Continued { asked, token })),
            None => State::Watching(Position {
                listed: Moment::now(),
                version,
                proven: asked,
                open: None,
            }),
        };
        Ok((page, next))
    }

    /// Opens a watch of the changes after this version.
    async fn open(&self, version: &str) -> Result<Open, StoreError> {
        let call = self.call("watch");
        let params = WatchParams {
            label_selector: self.labels.clone(),
            ..WatchParams::default().timeout(ROUND)
        };
        let request = call.path.watch(&params, version);
        let request = request.map_err(|error| call.unreachable(error))?;
        let asked = Moment::now();
        let opened = self.store.within(&call, Duration::ZERO, async {
            let client = self.store.client().await;
            let client = client.map_err(|error| call.unreachable(error))?;
            let end = asked.monotonic + self.store.access.request_timeout;
            let opened = client.request_events(call.until(end, request)).await;
            opened.map_err(|error| call.failed(error))
        });
        let events = opened.await?.boxed();
        Ok(Open {
            asked,
            is_quiet: true,
            events,
        })
    }

    /// Waits for the next event of a watch; `None` at its end.
    async fn event(&self, open: &mut Open) -> Result<Option<Event<K::Kept>>, StoreError> {
        let call = self.call("watch");
        let round = Duration::from_secs(ROUND.into());
        let (opened, is_quiet) = (open.asked.monotonic, open.is_quiet);
        let next = async { Ok(open.events.next().await) };
        let event = tokio::select! {
            biased;
            event = self.store.within(&call, round, next) => event?,
            never = self.probe(opened), if is_quiet => match never {},
        };
        open.is_quiet = false;
        let event = match event {
            None => return Ok(None),
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                sleep_until(opened + PAUSE).await;
                return Err(call.failed(error));
            }
        };
        if !matches!(event, WatchEvent::Error(_)) {
            self.store.gate.answered();
        }
        Ok(Some(match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                Event::Applied(self.keep(&call, &object)?)
            }
            WatchEvent::Deleted(object) => Event::Deleted(self.keep(&call, &object)?),
            WatchEvent::Bookmark(bookmark) => {
                Event::Proven(bookmark.metadata.resource_version, open.asked)
            }
            WatchEvent::Error(status) => return Err(call.failed(kube::Error::Api(status))),
        }))
    }

    /// Asks for the version of the kind, some time after a watch was opened. Runs beside the watch, and never ends.
    async fn probe(&self, opened: Instant) -> Infallible {
        sleep_until(opened + PROBE_AFTER).await;
        if self.store.begins_probe(K::Kind::KIND, opened) {
            let call = self.call("list");
            let request = call.path.list(&ListParams::default().limit(1));
            let answer = self.store.send_for_bytes(&call, request);
            drop(with_priority(Priority::List, answer).await);
        }
        pending().await
    }

    fn keep(&self, call: &Call, object: &RawValue) -> Result<K::Kept, StoreError> {
        let kept = self.keep.keep(object.get());
        kept.map_err(|error| StoreError::unreadable::<K::Kind>(&call.what, error))
    }

    fn call(&self, verb: &'static str) -> Call {
        Call::many::<K::Kind>(verb, self.scope.namespace())
    }
}

impl Scope {
    /// Returns the namespace; `None` for all.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Namespace(namespace) => Some(namespace),
        }
    }

    /// Returns whether the scope contains an object.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.namespace()
            .is_none_or(|namespace| namespace == key.namespace)
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}
