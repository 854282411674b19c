//! Events (core/v1) about objects: a queue that never makes its caller wait, and the task that posts from it.
//!
//! `ledger` decides what is posted and when; it knows no clock. No caller waits for an Event, so a failing request is counted
//! and forgotten.

mod ledger;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gloo_types::{Document, ObjectKey, Resource};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::{info, warn};

use self::ledger::{Ledger, Next, Posting};
use crate::StoreError;

/// Longest message of an Event, in characters. `events.k8s.io/v1`, as which Events can be read too, allows no more.
const MESSAGE: usize = 1024;

/// Whether an Event is about something that needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// `type: Normal`.
    Normal,
    /// `type: Warning`.
    Warning,
}

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventObject {
    api_version: String,
    kind: &'static str,
    key: ObjectKey,
    uid: String,
}

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it happened to.
    pub about: EventObject,
    /// Whether it needs attention.
    pub severity: Severity,
    /// One word in CamelCase, which programs compare.
    pub reason: &'static str,
    /// One sentence for people. More than 1,024 characters are cut.
    pub message: String,
}

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// It is in the cluster.
    Posted,
    /// The Event of an earlier occurrence is in the cluster, and its count was raised.
    Counted,
    /// Its object has had too many Events.
    Throttled,
    /// The queue was full, and it was the oldest.
    Dropped,
    /// The API server did not accept it.
    Failed,
}

/// Where Events are written. The cluster is the one in which the objects are.
pub trait EventWriter: Send + Sync + 'static {
    /// Creates an Event from a whole object.
    ///
    /// # Errors
    /// Whatever kept the API server from writing it.
    fn create_event(
        &self,
        key: &ObjectKey,
        event: &Value,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Changes an Event by a JSON Merge Patch.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the Event has expired, otherwise whatever kept the API server from writing it.
    fn patch_event(
        &self,
        key: &ObjectKey,
        change: &Value,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Is told the reason of each Event, and what became of it.
pub type CountEvent = dyn Fn(&'static str, EventResult) + Send + Sync;

/// The queue of the Events for one cluster. Clones share it.
///
/// An occurrence with the object, reason and message of one that was posted within the last 10 minutes raises the count of
/// that Event. Each object has a budget of 10 Events at once and one more per minute, all of them together 5 per second.
/// 256 wait at most; then the oldest is dropped.
#[derive(Clone)]
pub struct EventSink(Arc<Shared>);

struct Shared {
    /// `source.component` of each Event.
    component: &'static str,
    ledger: Mutex<Ledger>,
    woken: Notify,
    count: Box<CountEvent>,
}

impl EventSink {
    /// An empty queue for Events of `component`. Nothing is posted until [`EventSink::post_to`] runs.
    pub fn new(
        component: &'static str,
        count: impl Fn(&'static str, EventResult) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            component,
            ledger: Mutex::default(),
            woken: Notify::new(),
            count: Box::new(count),
        }))
    }

    /// Takes an Event that happens now. Returns at once: nothing is sent here.
    pub fn record(&self, event: Event) {
        let now = (clock(), Timestamp::now());
        let ended = self.ledger().add(event, now);
        self.count(ended);
        self.0.woken.notify_one();
    }

    /// Posts what is recorded, one Event after the other, until it is cancelled.
    pub async fn post_to(&self, writer: &impl EventWriter) {
        let mut is_refused = false;
        loop {
            let (next, ended) = self.ledger().next(clock());
            for (reason, result) in ended {
                (self.0.count)(reason, result);
            }
            let posting = match next {
                Next::Post(posting) => posting,
                Next::Wait(pause) => {
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Next::Nothing => {
                    self.0.woken.notified().await;
                    continue;
                }
            };
            let reason = posting.reason();
            match self.post(writer, &posting).await {
                Ok(result) => {
                    is_refused = false;
                    (self.0.count)(reason, result);
                }
                Err(error) => {
                    self.ledger().forget(&posting);
                    (self.0.count)(reason, EventResult::Failed);
                    // A missing permission is the same for each Event: one line until it is there.
                    if matches!(error, StoreError::Forbidden { .. }) {
                        if !std::mem::replace(&mut is_refused, true) {
                            warn!("Events are not posted: {error}");
                        }
                    } else {
                        info!(reason, "an Event is not posted: {error}");
                    }
                }
            }
        }
    }

    async fn post(
        &self,
        writer: &impl EventWriter,
        posting: &Posting,
    ) -> Result<EventResult, StoreError> {
        let key = posting.key();
        if posting.is_repeat {
            match writer.patch_event(&key, &posting.change()).await {
                // It expired, or was deleted.
                Err(StoreError::NotFound { .. }) => {}
                patched => return patched.map(|()| EventResult::Counted),
            }
        }
        let event = posting.event(self.0.component);
        match writer.create_event(&key, &event).await {
            // The answer to an earlier try was lost.
            Err(StoreError::Conflict(_)) => Ok(EventResult::Posted),
            created => created.map(|()| EventResult::Posted),
        }
    }

    fn count(&self, ended: Option<(&'static str, EventResult)>) {
        if let Some((reason, result)) = ended {
            (self.0.count)(reason, result);
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSink")
    }
}

impl EventObject {
    /// An object by its kind and name. `kubectl describe` finds the Event by the uid.
    #[must_use]
    pub fn new<K: Resource>(key: ObjectKey, uid: &str) -> Self {
        Self {
            api_version: format!("{}/{}", K::GROUP, K::VERSION),
            kind: K::KIND,
            key,
            uid: uid.to_owned(),
        }
    }

    /// The object that was read.
    #[must_use]
    pub fn of<K: Resource>(document: &Document<K>) -> Self {
        let uid = document.raw().pointer("/metadata/uid");
        let uid = uid.and_then(Value::as_str).unwrap_or_default();
        Self::new::<K>(document.key().clone(), uid)
    }
}

impl EventResult {
    /// As a label of a metric.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Counted => "counted",
            Self::Throttled => "throttled",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

impl Posting {
    /// The Event as the API server takes it. Without `eventTime` it is held to the rules of core/v1 only.
    fn event(&self, component: &str) -> Value {
        let Event {
            about,
            severity,
            reason,
            message,
        } = &self.event;
        let involved = json!({
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.key.namespace,
            "name": about.key.name,
            "uid": about.uid,
        });
        let key = self.key();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "namespace": key.namespace, "name": key.name },
            "involvedObject": involved,
            "type": match severity { Severity::Normal => "Normal", Severity::Warning => "Warning" },
            "reason": reason,
            "message": message,
            "source": { "component": component },
            "count": self.count,
            "firstTimestamp": seconds(self.first),
            "lastTimestamp": seconds(self.last),
        })
    }

    /// What a further occurrence changes in it.
    fn change(&self) -> Value {
        json!({ "count": self.count, "lastTimestamp": seconds(self.last) })
    }
}

/// As `metav1.Time` is written: without fractions of a second.
fn seconds(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second());
    whole.unwrap_or(time).to_string()
}

/// The clock of tests can be paused.
fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests;
