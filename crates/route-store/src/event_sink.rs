//! Kubernetes Events (core/v1): a queue whose callers never wait, and the task that posts from it.
//!
//! `ledger` decides which Events are posted and when; it has no clock. An Event that cannot be posted is counted and
//! dropped.

mod ledger;

use std::fmt;
use std::sync::{Arc, Mutex};

use gloo_types::{ObjectKey, Resource};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use self::ledger::{Ended, Ledger, Next, Posting};
use crate::{StoreError, lock};

/// Longest message of an Event, in characters: the limit of `events.k8s.io/v1`, in which Events can be read too.
const MESSAGE: usize = 1024;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// `type: Normal`.
    Normal,
    /// `type: Warning`.
    Warning,
}

/// The involved object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventObject {
    api_version: String,
    kind: &'static str,
    key: ObjectKey,
    uid: String,
}

/// An Event to post.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The involved object.
    pub about: EventObject,
    /// The type.
    pub severity: Severity,
    /// One word in CamelCase, for programs.
    pub reason: &'static str,
    /// One sentence for people. It is truncated after 1,024 characters.
    pub message: String,
}

/// The result of recording an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// It was created in the cluster.
    Posted,
    /// It raised the count of an equal Event.
    Counted,
    /// The involved object has used up its rate of Events.
    Throttled,
    /// The queue was full, and it was the oldest Event in it.
    Dropped,
    /// The API server did not accept it.
    Failed,
}

/// Writes Events to the cluster of the involved objects.
pub trait EventWriter: Send + Sync + 'static {
    /// Creates an Event from a complete object.
    ///
    /// # Errors
    /// Returns `Err` if the API server does not accept it.
    fn create_event(
        &self,
        key: &ObjectKey,
        event: &Value,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Changes an Event by a JSON Merge Patch.
    ///
    /// # Errors
    /// Returns [`StoreError::NotFound`] if the Event has expired, and other errors if the API server does not accept the patch.
    fn patch_event(
        &self,
        key: &ObjectKey,
        change: &Value,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The queue of Events for one cluster. Clones share it.
///
/// An Event with the object, type, reason and message of one that was posted within the last 10 minutes raises the count of that
/// Event. Each object may have 10 Events at once and one more per minute, all objects together 5 per second. The queue has
/// at most 256 Events; then the oldest is dropped.
#[derive(Clone)]
pub struct EventSink {
    /// `source.component` of each Event.
    component: &'static str,
    ledger: Arc<Mutex<Ledger>>,
    woken: Arc<Notify>,
    /// Called with the reason and the result of each Event.
    count: Arc<dyn Fn(&'static str, EventResult) + Send + Sync>,
}

impl EventSink {
    /// An empty queue for Events of `component`. [`EventSink::post_to`] posts them. `count` is called with the reason and
    /// result of each Event.
    pub fn new(
        component: &'static str,
        count: impl Fn(&'static str, EventResult) + Send + Sync + 'static,
    ) -> Self {
        Self {
            component,
            ledger: Arc::default(),
            woken: Arc::default(),
            count: Arc::new(count),
        }
    }

    /// Queues an Event with the current time. Returns at once.
    pub fn record(&self, event: Event) {
        let ended = lock(&self.ledger).add(event, Timestamp::now());
        self.count(ended);
        self.woken.notify_one();
    }

    /// Posts the queued Events one after the other, until it is cancelled.
    pub async fn post_to(&self, writer: &impl EventWriter) {
        let mut is_refused = false;
        loop {
            let (next, ended) = lock(&self.ledger).next(Instant::now());
            self.count(ended);
            let posting = match next {
                Next::Post(posting) => posting,
                Next::Wait(pause) => {
                    sleep(pause).await;
                    continue;
                }
                Next::Nothing => {
                    self.woken.notified().await;
                    continue;
                }
            };
            let reason = posting.event.reason;
            match self.post(writer, &posting).await {
                Ok(result) => {
                    is_refused = false;
                    self.count([(reason, result)]);
                }
                Err(error) => {
                    lock(&self.ledger).forget(&posting);
                    self.count([(reason, EventResult::Failed)]);
                    // A missing permission affects every Event, so it is logged once until an Event is posted.
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
                // The Event expired or was deleted: create it again.
                Err(StoreError::NotFound { .. }) => {}
                patched => return patched.map(|()| EventResult::Counted),
            }
        }
        let event = posting.event(self.component);
        match writer.create_event(&key, &event).await {
            // An earlier try created it, but its answer was lost.
            Err(StoreError::Conflict(_)) => Ok(EventResult::Posted),
            created => created.map(|()| EventResult::Posted),
        }
    }

    fn count(&self, ended: impl IntoIterator<Item = Ended>) {
        for (reason, result) in ended {
            (self.count)(reason, result);
        }
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSink")
    }
}

impl EventObject {
    /// The object with this kind, name and uid. `kubectl describe` finds Events by the uid.
    #[must_use]
    pub fn new<K: Resource>(key: ObjectKey, uid: &str) -> Self {
        Self {
            api_version: format!("{}/{}", K::GROUP, K::VERSION),
            kind: K::KIND,
            key,
            uid: uid.to_owned(),
        }
    }
}

impl EventResult {
    /// Returns the value of a metric's label.
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
    /// Returns the JSON of the Event. Without `eventTime` the API server applies only the rules of core/v1.
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
            "count": self.series.count,
            "firstTimestamp": seconds(self.series.first),
            "lastTimestamp": seconds(self.last),
        })
    }

    /// Returns the merge patch for another occurrence.
    fn change(&self) -> Value {
        json!({ "count": self.series.count, "lastTimestamp": seconds(self.last) })
    }
}

/// Formats a time like `metav1.Time`: without fractions of a second.
fn seconds(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second());
    whole.unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests;
