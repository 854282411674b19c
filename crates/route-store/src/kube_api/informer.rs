//! A cache of the objects of one kind that watches fill.
//!
//! An [`Informer`] watches one, some or all namespaces, and keeps each object in the form of its [`Keep`]. A read states the
//! maximum age, and returns objects only if the API server has proven that they are not older, so that no decision uses stale
//! objects. A proof is the answer to a request, and as old as the request: the end of a list proves the content as of the
//! time at which the list was asked for, and a bookmark as of the time at which its watch was asked for. Events are no proof: if
//! the process or the connection was paused, they may have waited in a buffer. A watch that opens and ends without events is no
//! proof either: it looks the same if no object changed and if the events were lost.
//!
//! A list is applied page by page. Objects that the list lacks are removed after its last page (mark and sweep), so a
//! partial list never looks like a complete one.
//!
//! A write of this process updates the cache at once ([`Informer::put`]). Until the watch has caught up with the write, older
//! versions of the object are ignored.

mod known;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gloo_types::{ObjectKey, Resource as _};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use self::known::Known;
use super::KubeRouteStore;
use super::proof::Moment;
use super::send::{asked_pause, is_refusal};
use super::watch::{Event, Scope, Source, Watch};
use crate::{Change, Keep, StoreError, lock};

pub(crate) use self::known::compare;

/// Longest pause after an error status of the API server that asks for no other one, in seconds.
const LONGEST_PAUSE: u64 = 15;
/// Longest pause of the list of all namespaces while single ones are watched instead, in seconds. It would fail again, and the
/// audit log shows each try.
const REPLACED_PAUSE: u64 = 120;
/// Longest pause after a request without an answer. It is short, because a refused connection costs the API server nothing,
/// and no drift is repaired while the watch is down.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Number of changes that a subscriber may lag behind.
const BACKLOG: usize = 1024;

/// Why the objects of a namespace are unknown or stale.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unknown {
    /// The namespace is not watched.
    #[error("the namespace is not watched")]
    NotWatched,
    /// The first list has not been answered.
    #[error("no answer yet")]
    NoAnswer,
    /// The API server has not proven that the objects are not older than the maximum age.
    #[error("no watch or list has confirmed them for {} s", .0.as_secs())]
    Unproven(Duration),
    /// The last request failed.
    #[error(transparent)]
    Failed(Arc<StoreError>),
}

impl Unknown {
    /// Returns whether the cause is a stale watch or an API server without an answer, not for example a missing permission.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unproven(_) => true,
            Self::Failed(error) => error.is_unavailable(),
            Self::NotWatched | Self::NoAnswer => false,
        }
    }
}

/// The state of an informer, for metrics.
#[derive(Clone, Debug, Default)]
pub struct InformerStatus {
    /// The watches: of all namespaces, or of some.
    pub scopes: Vec<ScopeStatus>,
    /// Number of cached objects.
    pub objects: usize,
    /// Memory of the cached objects, in bytes.
    pub bytes: usize,
}

/// The state of the watch of one namespace, or of all.
#[derive(Clone, Debug)]
pub struct ScopeStatus {
    /// The namespace; `None` means all.
    pub namespace: Option<String>,
    /// Whether the cache counts on it: on the watch of all namespaces while that is open, or else on those of single ones.
    pub is_in_use: bool,
    /// The age of the objects, at most; `None` before a list was complete and a watch open.
    pub age: Option<Duration>,
    /// Number of lists and watches that ended with an error.
    pub restarts: u64,
    /// The error of the last request, if it failed.
    pub problem: Option<Arc<StoreError>>,
}

/// Watches and caches the objects of one kind. Dropping it ends its watches.
pub struct Informer<K: Keep> {
    shared: Arc<Shared<K>>,
    /// Sets of one task each, which end it when they are dropped.
    tasks: Mutex<BTreeMap<Scope, JoinSet<()>>>,
}

struct Shared<K: Keep> {
    store: Arc<KubeRouteStore>,
    keep: Arc<K>,
    labels: Option<String>,
    known: Mutex<Known<K::Kept>>,
    changes: broadcast::Sender<Change>,
    /// Notified after each event or error of a watch.
    news: watch::Sender<()>,
    all: watch::Sender<All>,
}

/// The watch of all namespaces, on which those of single namespaces depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum All {
    /// There is no answer yet.
    Unknown,
    /// It is open: the others end.
    Open,
    /// It failed, or is not wanted: the others run.
    Replaced,
}

impl<K: Keep> Informer<K> {
    /// An informer without watches yet.
    #[must_use]
    pub fn new(store: Arc<KubeRouteStore>, keep: K) -> Self {
        Self::with_labels(store, keep, None)
    }

    /// An informer of the objects that a label selector selects.
    #[must_use]
    pub fn with_labels(store: Arc<KubeRouteStore>, keep: K, labels: Option<String>) -> Self {
        let (changes, _) = broadcast::channel(BACKLOG);
        let shared = Shared {
            store,
            keep: Arc::new(keep),
            labels,
            known: Mutex::new(Known::default()),
            changes,
            news: watch::Sender::new(()),
            all: watch::Sender::new(All::Unknown),
        };
        Self {
            shared: Arc::new(shared),
            tasks: Mutex::default(),
        }
    }

    /// Watches all namespaces. Until the list is complete, and while it fails, the cache has only the namespaces of
    /// [`Self::watch`] and [`Self::watch_only`].
    ///
    /// Needs a Tokio runtime, like all methods that start a watch.
    pub fn watch_all(&self) {
        self.start(Scope::All);
    }

    /// Watches a namespace while that of all namespaces has failed.
    pub fn watch(&self, namespace: &str) {
        self.start(Scope::Namespace(namespace.to_owned()));
    }

    /// Returns the namespaces that are watched one by one.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let known = lock(&self.shared.known);
        let namespaces = known.scopes.keys().filter_map(Scope::namespace);
        namespaces.map(str::to_owned).collect()
    }

    /// Watches exactly these namespaces, and ends all other watches.
    pub fn watch_only(&self, namespaces: &BTreeSet<String>) {
        let is_other = |scope: &Scope| scope.namespace().is_none_or(|it| !namespaces.contains(it));
        let mut tasks = lock(&self.tasks);
        for (scope, task) in tasks.extract_if(.., |scope, _| is_other(scope)) {
            drop(task);
            self.shared.end(&scope);
        }
        drop(tasks);
        let is_ended = namespaces.is_empty();
        let all = if is_ended {
            All::Unknown
        } else {
            All::Replaced
        };
        self.shared.all.send_replace(all);
        for namespace in namespaces {
            self.watch(namespace);
        }
    }

    /// Starts the task of a scope unless it has one.
    fn start(&self, scope: Scope) {
        let mut tasks = lock(&self.tasks);
        // A task only finishes by a panic; start it again then.
        let running = tasks.get_mut(&scope);
        if running.is_some_and(|task| task.try_join_next().is_none()) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut task = JoinSet::new();
        match &scope {
            Scope::All => task.spawn(run(shared, scope.clone())),
            Scope::Namespace(_) => {
                if *shared.all.borrow() == All::Replaced {
                    // So that the first caller can wait for the list.
                    lock(&shared.known).begin(&scope);
                }
                task.spawn(run_instead_of_all(shared, scope.clone()))
            }
        };
        tasks.insert(scope, task);
    }

    /// Returns a cached object, however stale.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K::Kept>> {
        lock(&self.shared.known).get(key)
    }

    /// Returns all cached objects, sorted by key, however stale.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K::Kept>> {
        lock(&self.shared.known).objects(None)
    }

    /// Returns an object if it is not older than `age`; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns [`Unknown`] otherwise.
    pub fn find(&self, key: &ObjectKey, age: Duration) -> Result<Option<Arc<K::Kept>>, Unknown> {
        let known = lock(&self.shared.known);
        known.check(Some(&key.namespace), age, Moment::now())?;
        Ok(known.get(key))
    }

    /// Returns all objects of a namespace, or of all that are watched, sorted by key, if they are not older than `age`.
    ///
    /// # Errors
    /// Returns [`Unknown`] otherwise.
    pub fn objects(
        &self,
        namespace: Option<&str>,
        age: Duration,
    ) -> Result<Vec<Arc<K::Kept>>, Unknown> {
        let known = lock(&self.shared.known);
        known.check(namespace, age, Moment::now())?;
        Ok(known.objects(namespace))
    }

    /// Returns why the objects of a namespace, or of all that are watched, are not known to be younger than `age`.
    pub(crate) fn check(&self, namespace: Option<&str>, age: Duration) -> Result<(), Unknown> {
        lock(&self.shared.known).check(namespace, age, Moment::now())
    }

    /// Waits until the objects of a namespace, or of all that are watched, are listed and watched for the first time, or the
    /// first try has failed.
    pub async fn settled(&self, namespace: Option<&str>) {
        let mut news = self.shared.news.subscribe();
        let is_pending = || {
            let why = self.check(namespace, Duration::MAX);
            matches!(why, Err(Unknown::NoAnswer | Unknown::NotWatched))
        };
        while is_pending() {
            // Cannot fail: `self` has the sender.
            let _ = news.changed().await;
        }
    }

    /// The decoder of objects.
    pub(crate) fn keeper(&self) -> &K {
        &self.shared.keep
    }

    /// Caches the result of a write of this process, so that the next read returns it. Older versions of the object are
    /// ignored from then on.
    pub fn put(&self, object: K::Kept) {
        let change = lock(&self.shared.known).put(object);
        self.shared.report(change);
    }

    /// Removes an object that this process deleted.
    pub fn remove(&self, key: &ObjectKey) {
        let change = lock(&self.shared.known).remove(key);
        self.shared.report(change);
    }

    /// Subscribes to the changes from now on. After `Lagged` a subscriber has missed changes and must check every object.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.shared.changes.subscribe()
    }

    /// Returns the state of the cache and its watches.
    #[must_use]
    pub fn status(&self) -> InformerStatus {
        lock(&self.shared.known).status(Moment::now())
    }
}

impl<K: Keep> Shared<K> {
    fn end(&self, scope: &Scope) {
        let changes = lock(&self.known).end(scope);
        self.report(changes);
    }

    /// Notifies those who wait for an event or error of a watch.
    fn tell(&self, scope: &Scope) {
        if *scope == Scope::All
            && let Some(watched) = lock(&self.known).scopes.get(scope)
            && (watched.is_open() || watched.has_failed())
        {
            let is_open = watched.is_open();
            let all = if is_open { All::Open } else { All::Replaced };
            self.all
                .send_if_modified(|it| std::mem::replace(it, all) != all);
        }
        self.news.send_replace(());
    }

    fn report(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            // Without subscribers the change is discarded.
            let _ = self.changes.send(change);
        }
    }
}

/// Runs the watch of a namespace whenever that of all namespaces has failed or is not wanted. It ends only when the other one
/// is open, so that no moment is without a watch.
async fn run_instead_of_all<K: Keep>(shared: Arc<Shared<K>>, scope: Scope) {
    let mut all = shared.all.subscribe();
    // Waiting cannot fail: `shared` has the sender.
    loop {
        let _ = all.wait_for(|it| *it == All::Replaced).await;
        // In its own allocation, because most of these tasks only wait.
        let watching = Box::pin(run(Arc::clone(&shared), scope.clone()));
        let is_open = all.wait_for(|it| *it == All::Open);
        futures::future::select(watching, Box::pin(is_open)).await;
        shared.end(&scope);
    }
}

/// Lists and watches a scope until it is cancelled, and backs off after errors.
async fn run<K: Keep>(shared: Arc<Shared<K>>, scope: Scope) {
    let kind = K::Kind::KIND;
    let namespace = scope.namespace().unwrap_or("all namespaces");
    let task = lock(&shared.known).begin(&scope);
    let mut watch = Watch::new(Source {
        store: Arc::clone(&shared.store),
        keep: Arc::clone(&shared.keep),
        scope: scope.clone(),
        labels: shared.labels.clone(),
    });
    let mut failures = 0;
    // Number of consecutive failures that were answers of the API server, or with other watches in place of this one.
    let mut refusals = 0;
    loop {
        match watch.next().await {
            Ok(event) => {
                let is_list = matches!(&event, Event::Page { proven, .. } if proven.is_some());
                let changes = lock(&shared.known).apply(&scope, task, event);
                shared.report(changes);
                if is_list {
                    let count = lock(&shared.known).count(&scope);
                    tracing::info!(kind, %namespace, count, "listed");
                } else if failures > 0 {
                    tracing::info!(kind, %namespace, failures, "watched again");
                }
                (failures, refusals) = (0, 0);
            }
            Err(error) => {
                let problem = error.chain();
                let is_replaced = lock(&shared.known).is_replaced(&scope);
                let pause = if is_refusal(&error) || is_replaced {
                    refusals += 1;
                    let longest = if is_replaced {
                        REPLACED_PAUSE
                    } else {
                        LONGEST_PAUSE
                    };
                    refusal_pause(refusals, longest)
                } else {
                    refusals = 0;
                    RECONNECT_PAUSE
                };
                // Doubled, because the jitter takes up to half of it.
                let longest = Duration::from_secs(LONGEST_PAUSE);
                let asked = asked_pause(&error).unwrap_or_default().min(longest) * 2;
                let pause = pause.max(asked);
                let before = lock(&shared.known).fail(&scope, task, error);
                match before {
                    None => tracing::warn!(kind, %namespace, problem, "a watch failed"),
                    Some(before) if before.chain() == problem => {}
                    Some(_) => {
                        tracing::info!(kind, %namespace, problem, "a watch still fails");
                    }
                }
                shared.tell(&scope);
                tokio::time::sleep(jittered(pause)).await;
                failures += 1;
                continue;
            }
        }
        shared.tell(&scope);
    }
}

/// Returns the pause after this many consecutive errors of the API server: 1 s, 2 s, 4 s ... up to `longest`.
fn refusal_pause(refusals: u32, longest: u64) -> Duration {
    let seconds = 2_u64.saturating_pow(refusals.saturating_sub(1));
    Duration::from_secs(seconds.min(longest))
}

/// Returns a random duration between half of `longest` and `longest`, so that replicas do not retry at the same time.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f32(0.5 + fastrand::f32() / 2.0)
}

#[cfg(test)]
mod tests;
