//! Following the objects of a kind: a list, page by page, and then every change.
//!
//! kube's own watcher does not report bookmarks and watches that were opened again. Without them a namespace where nothing
//! changes looks like a connection on which nothing arrives any more, and cached content could not tell its age.
//!
//! Objects are decoded straight from the text of an answer into what is kept of them. An answer is never built as a tree
//! of values: for tables that takes four times the memory of the text.

use std::error::Error;
use std::marker::PhantomData;
use std::{fmt, sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use gloo_types::{Document, ObjectKey, Resource};
use kube::core::WatchEvent;
use kube::core::params::{ListParams, WatchParams};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::KubeRouteStore;
use super::send::{Answered, Call, resource};
use crate::{Outcome, Priority, RequestContext, StoreError, with_context};

/// What an [`Informer`](super::Informer) keeps of the objects of a kind.
pub trait Keep: Send + Sync + 'static {
    /// The kind.
    type Kind: Resource;
    /// What is kept of one object.
    type Kept: Kept;
    /// How many objects one list request asks for.
    const PAGE: u32;

    /// Decodes an object as the API server writes it.
    ///
    /// # Errors
    /// If it is no object of the kind. The whole list fails then: which objects there are would not be known.
    fn keep(&self, object: &str) -> Result<Self::Kept, Box<dyn Error + Send + Sync>>;
}

/// What is kept of one object.
pub trait Kept: Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> &ObjectKey;

    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;

    /// Takes over from the state before what only the sequence of states tells.
    fn follows(&mut self, _before: &Self) {}

    /// Memory that it takes, in bytes, as far as it is known without looking at each part.
    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// Keeps whole documents, without `metadata.managedFields`.
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
    const PAGE: u32 = super::PAGE;

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

/// How long one connection lasts, in seconds: the API server then ends it, and the next one begins.
const ROUND: u32 = 60;
/// The least time from the opening of one connection to that of the next: a proxy in between may end each of them at once.
/// A connection that lasted is followed by the next one without a pause, in which changes would go unnoticed.
const PAUSE: Duration = Duration::from_secs(1);

/// Which objects of a kind are followed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Those of all namespaces.
    All,
    /// Those of one namespace.
    Namespace(String),
}

/// The objects of a kind within a scope, and then every change to them.
///
/// List and watch as the Kubernetes API describes them under "efficient detection of changes".
pub(super) struct Watch<K> {
    source: Source<K>,
    state: State,
}

/// What is listed and watched.
struct Source<K> {
    store: Arc<KubeRouteStore>,
    keep: Arc<K>,
    scope: Scope,
    /// Label selector of the list and the watch.
    labels: Option<String>,
}

enum State {
    /// The next request lists: from the beginning, or the page behind a token.
    Listing(Option<String>),
    /// Everything up to a version has been reported.
    Watching(Position),
}

struct Position {
    version: String,
    open: Option<Open>,
}

/// A connection on which events arrive.
struct Open {
    since: Instant,
    events: BoxStream<'static, kube::Result<WatchEvent<Box<RawValue>>>>,
}

/// What a [`Watch`] reports.
#[derive(Debug, PartialEq)]
pub(super) enum Event<T> {
    /// A part of the list of all objects.
    Page {
        objects: Vec<T>,
        /// The version of the collection that is listed, the same on each page.
        version: String,
        /// Whether a list begins with it. A list that could not be continued begins again.
        is_first: bool,
        /// Whether the list ends with it.
        is_last: bool,
    },
    /// An object was added or changed.
    Applied(T),
    /// An object was deleted; its last version.
    Deleted(ObjectKey, String),
    /// Nothing happened up to the version.
    Quiet(String),
}

impl<K: Keep> Watch<K> {
    /// A watch that has sent nothing yet.
    pub(super) fn new(
        store: Arc<KubeRouteStore>,
        keep: Arc<K>,
        scope: Scope,
        labels: Option<String>,
    ) -> Self {
        Self {
            source: Source {
                store,
                keep,
                scope,
                labels,
            },
            state: State::Listing(None),
        }
    }

    /// Waits for the next event. As long as the API server answers there is one each minute, if only [`Event::Quiet`].
    /// After an error it can be called again, and should be after a while.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the API server has no such resource, otherwise whatever kept it from answering.
    pub(super) async fn next(&mut self) -> Result<Event<K::Kept>, StoreError> {
        let next = match &mut self.state {
            State::Listing(token) => match self.source.page(token.clone()).await {
                Ok((page, next)) => {
                    self.state = next;
                    Ok(page)
                }
                Err(error) => Err(error),
            },
            State::Watching(position) => self.source.event(position).await,
        };
        if let Err(error) = &next {
            match &mut self.state {
                // The API server no longer knows what came after the version, or what the other pages are.
                state if is_expired(error) => *state = State::Listing(None),
                State::Watching(position) => position.open = None,
                State::Listing(_) => {}
            }
        }
        next
    }
}

impl<K: Keep> Source<K> {
    async fn page(&self, token: Option<String>) -> Result<(Event<K::Kept>, State), StoreError> {
        let call = self.call("list");
        let is_first = token.is_none();
        let params = ListParams {
            label_selector: self.labels.clone(),
            continue_token: token,
            ..ListParams::default().limit(K::PAGE)
        };
        let request = resource::<K::Kind>(self.scope.namespace()).list(&params);
        let context = RequestContext {
            priority: Priority::List,
            ..RequestContext::default()
        };
        let answer = with_context(context, self.store.send_for_bytes(&call, request)).await?;
        let page: Page<'_> = serde_json::from_slice(&answer)
            .map_err(|error| call.failed(kube::Error::SerdeError(error)))?;
        let objects = page.items.iter().map(|item| self.keep(&call, item));
        let objects = objects.collect::<Result<_, _>>()?;
        let version = page.metadata.resource_version;
        let token = page.metadata.next.filter(|token| !token.is_empty());
        let is_last = token.is_none();
        let next = match token {
            Some(token) => State::Listing(Some(token)),
            None => State::Watching(Position {
                version: version.clone(),
                open: None,
            }),
        };
        let page = Event::Page {
            objects,
            version,
            is_first,
            is_last,
        };
        Ok((page, next))
    }

    async fn event(&self, position: &mut Position) -> Result<Event<K::Kept>, StoreError> {
        let call = self.call("watch");
        let Position { version, open } = position;
        let Some(Open { since, events }) = open else {
            let params = WatchParams {
                label_selector: self.labels.clone(),
                ..WatchParams::default().timeout(ROUND)
            };
            let request = resource::<K::Kind>(self.scope.namespace()).watch(&params, version);
            let request = request.map_err(|error| call.unreachable(error))?;
            let since = Instant::now();
            let opened = self.store.within(&call, Duration::ZERO, async {
                let client = self.store.client().await;
                let client = client.map_err(|error| call.unreachable(error))?;
                let end = Instant::now() + self.store.access.request_timeout;
                let mut sent = self.store.sent(&call, end);
                let opened = client.request_events(request).await;
                sent.outcome = Some(match &opened {
                    Ok(_) => Outcome::Answered(200),
                    Err(kube::Error::Api(status)) => Outcome::Answered(status.code),
                    Err(_) => Outcome::Connection,
                });
                opened.map_err(|error| call.failed(error))
            });
            let events = opened.await?.boxed();
            *open = Some(Open { since, events });
            self.store.gate.heard();
            return Ok(Event::Quiet(version.clone()));
        };
        let round = Duration::from_secs(ROUND.into());
        let next = async { Ok(events.next().await) };
        let Some(event) = self.store.within(&call, round, next).await? else {
            let next = *since + PAUSE;
            *open = None;
            sleep_until(next).await;
            return Ok(Event::Quiet(version.clone()));
        };
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                sleep_until(*since + PAUSE).await;
                return Err(call.failed(error));
            }
        };
        if !matches!(event, WatchEvent::Error(_)) {
            self.store.gate.heard();
        }
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let object = self.keep(&call, &object)?;
                object.version().clone_into(version);
                Ok(Event::Applied(object))
            }
            WatchEvent::Deleted(object) => {
                let deleted: Deleted = serde_json::from_str(object.get())
                    .map_err(|error| StoreError::unreadable::<K::Kind>(&call.what, error))?;
                let Meta {
                    namespace,
                    name,
                    resource_version,
                } = deleted.metadata;
                version.clone_from(&resource_version);
                let key = ObjectKey::new(namespace, name);
                Ok(Event::Deleted(key, resource_version))
            }
            WatchEvent::Bookmark(bookmark) => {
                *version = bookmark.metadata.resource_version;
                Ok(Event::Quiet(version.clone()))
            }
            WatchEvent::Error(status) => Err(call.failed(kube::Error::Api(status))),
        }
    }

    fn keep(&self, call: &Call, object: &RawValue) -> Result<K::Kept, StoreError> {
        let kept = self.keep.keep(object.get());
        kept.map_err(|source| StoreError::Unreadable {
            what: call.what.clone(),
            kind: K::Kind::KIND,
            source,
        })
    }

    fn call(&self, verb: &'static str) -> Call {
        Call::many::<K::Kind>(verb, self.scope.namespace())
    }
}

/// Whether the API server says that it no longer knows the version or the token of a request.
fn is_expired(error: &StoreError) -> bool {
    Answered::of(error).is_some_and(|answered| answered.code == 410)
}

impl Scope {
    /// The namespace, if it is one.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Namespace(namespace) => Some(namespace),
        }
    }

    /// Whether an object belongs to it.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.namespace()
            .is_none_or(|namespace| namespace == key.namespace)
    }
}

/// `all namespaces`, or the name of the namespace.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.namespace().unwrap_or("all namespaces"))
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Deleted {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    /// Objects of the cluster have none.
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    resource_version: String,
}
