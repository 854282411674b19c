//! The objects and watches that an informer knows, without tasks and locks.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gloo_types::ObjectKey;
use tokio::time::Instant;

use super::super::watch::{Event, Scope};
use super::{InformerStatus, ScopeStatus, Unknown};
use crate::{Change, ChangeKind, FRESH, Kept, StoreError};

/// The cache without tasks and locks. Time is an argument.
///
/// Lists have increasing numbers. Each entry has the number of the last list that contained it, so the end of list 7 removes
/// the entries with a smaller number, except those that this process wrote after list 7 started.
pub(super) struct Known<T> {
    pub(super) objects: BTreeMap<ObjectKey, Entry<T>>,
    pub(super) scopes: BTreeMap<Scope, Watched>,
    /// Number of lists and tasks started so far, which is also the number of the newest one.
    pub(super) begun: u64,
    pub(super) bytes: usize,
}

pub(super) struct Entry<T> {
    pub(super) kept: Arc<T>,
    /// Number of the last list that contained it.
    list: u64,
    written: Option<Written>,
}

/// A write of this process that the watch has not reported yet.
#[derive(Debug)]
struct Written {
    /// Value of [`Known::begun`] at the write.
    list: u64,
    /// If versions have no order: events of the object are ignored up to the one with this version.
    until: Option<String>,
}

/// The watch of a scope.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Number of the task that watches the scope. Events of an earlier task are ignored.
    task: u64,
    /// Number of the current list, or of the last one.
    list: u64,
    is_listing: bool,
    /// Whether a list was complete once.
    is_listed: bool,
    /// All changes up to this version are applied; empty before the first page.
    version: String,
    /// When the watch last received something; `None` before a list was complete and a watch open once.
    received: Option<Instant>,
    restarts: u64,
    problem: Option<Arc<StoreError>>,
}

impl Watched {
    /// Whether a list was complete, a watch is open, and no request has failed since.
    pub(super) fn is_open(&self) -> bool {
        self.received.is_some() && self.problem.is_none()
    }

    fn is_forbidden(&self) -> bool {
        matches!(self.problem.as_deref(), Some(StoreError::Forbidden { .. }))
    }

    /// Whether it cannot be expected to open: it never did, or is forbidden now. Otherwise a failed watch continues soon.
    pub(super) fn has_failed(&self) -> bool {
        self.is_forbidden() || self.received.is_none() && self.problem.is_some()
    }

    fn why(&self, silence: Unknown) -> Unknown {
        let problem = self.problem.as_ref();
        problem.map_or(silence, |error| Unknown::Failed(Arc::clone(error)))
    }

    pub(super) fn check(&self, age: Duration, now: Instant) -> Result<(), Unknown> {
        match self.received {
            None => Err(self.why(Unknown::NoAnswer)),
            Some(received) if now.saturating_duration_since(received) > age => {
                Err(self.why(Unknown::Silent(age)))
            }
            Some(_) => Ok(()),
        }
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            scopes: BTreeMap::new(),
            begun: 0,
            bytes: 0,
        }
    }
}

impl<T: Kept> Known<T> {
    /// Adds a scope, and returns the number of the task that watches it.
    pub(super) fn begin(&mut self, scope: &Scope) -> u64 {
        self.begun += 1;
        let watched = self.scopes.entry(scope.clone()).or_default();
        watched.task = self.begun;
        watched.task
    }

    /// Removes a scope, and the objects that no other scope contains.
    pub(super) fn end(&mut self, scope: &Scope) -> Vec<Change> {
        self.scopes.remove(scope);
        let scopes: Vec<&Scope> = self.scopes.keys().collect();
        let is_left = |key: &ObjectKey| !scopes.iter().any(|other| other.has(key));
        let gone = self.objects.keys().filter(|key| is_left(key)).cloned();
        let gone: Vec<ObjectKey> = gone.collect();
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Applies an event of a task, and returns the changes of objects.
    pub(super) fn apply(
        &mut self,
        scope: &Scope,
        task: u64,
        event: Event<T>,
        now: Instant,
    ) -> Vec<Change> {
        let begun = self.begun + 1;
        let Some(watched) = self.scopes.get_mut(scope) else {
            return Vec::new();
        };
        if watched.task != task {
            return Vec::new();
        }
        watched.problem = None;
        match event {
            Event::Page {
                objects,
                version,
                is_first,
                is_last,
            } => {
                if is_first {
                    self.begun = begun;
                    watched.list = begun;
                    watched.is_listing = true;
                }
                watched.version.clone_from(&version);
                let list = watched.list;
                if is_last {
                    watched.is_listing = false;
                    // Only the end of a list proves that all objects are up to date. After the first list, the watch must
                    // open before the objects count as known.
                    if watched.is_listed {
                        watched.received = Some(now);
                    }
                    watched.is_listed = true;
                }
                let mut changes: Vec<Change> = objects
                    .into_iter()
                    .filter_map(|object| self.listed(object, list))
                    .collect();
                if is_last {
                    changes.extend(self.sweep(scope, list, &version));
                }
                changes
            }
            Event::Applied(object) => {
                watched.received = Some(now);
                object.version().clone_into(&mut watched.version);
                self.applied(object).into_iter().collect()
            }
            Event::Deleted(key, version) => {
                watched.received = Some(now);
                watched.version.clone_from(&version);
                self.deleted(&key, &version).into_iter().collect()
            }
            Event::Quiet(version) => {
                watched.received = Some(now);
                watched.version = version;
                Vec::new()
            }
        }
    }

    /// Notes that a request failed. Returns the error of the previous request, if that failed too.
    pub(super) fn fail(
        &mut self,
        scope: &Scope,
        task: u64,
        error: StoreError,
    ) -> Option<Arc<StoreError>> {
        let watched = self.scopes.get_mut(scope)?;
        if watched.task != task {
            return None;
        }
        watched.restarts += 1;
        watched.problem.replace(Arc::new(error))
    }

    /// Applies an object of a list, unless this process wrote a newer version after the list started.
    fn listed(&mut self, object: T, list: u64) -> Option<Change> {
        if let Some(entry) = self.objects.get_mut(object.key()) {
            let is_written = entry
                .written
                .as_ref()
                .is_some_and(|written| written.list >= list);
            let order = compare(object.version(), entry.kept.version());
            if is_written && order != Some(Ordering::Greater) {
                entry.list = list;
                return None;
            }
        }
        self.insert(object, list, None, ChangeKind::Applied)
    }

    /// Applies an object of a watch event. Events are in order, but may be older than a write of this process.
    fn applied(&mut self, object: T) -> Option<Change> {
        let mut list = self.begun;
        if let Some(entry) = self.objects.get_mut(object.key()) {
            list = entry.list;
            if let Some(until) = entry.written.as_ref().and_then(|it| it.until.as_ref()) {
                if until == object.version() {
                    entry.written = None;
                }
                return None;
            }
            let order = compare(object.version(), entry.kept.version());
            if order.is_some_and(Ordering::is_le) {
                return None;
            }
        }
        self.insert(object, list, None, ChangeKind::Applied)
    }

    fn deleted(&mut self, key: &ObjectKey, version: &str) -> Option<Change> {
        let entry = self.objects.get(key)?;
        // The event is older than a write of this process, which created the object again.
        if compare(version, entry.kept.version()) == Some(Ordering::Less) {
            return None;
        }
        self.remove(key)
    }

    /// Removes the objects that a complete list lacks, except those that were written after the list started.
    fn sweep(&mut self, scope: &Scope, list: u64, version: &str) -> Vec<Change> {
        let is_gone = |key: &ObjectKey, entry: &Entry<T>| {
            let is_later = entry.written.as_ref().is_some_and(|written| {
                let order = compare(entry.kept.version(), version);
                written.list >= list && !order.is_some_and(Ordering::is_le)
            });
            scope.has(key) && entry.list < list && !is_later
        };
        let objects = self.objects.iter();
        let gone = objects.filter(|(key, entry)| is_gone(key, entry));
        let gone: Vec<ObjectKey> = gone.map(|(key, _)| key.clone()).collect();
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    pub(super) fn put(&mut self, object: T) -> Option<Change> {
        // Without a list or watch, a later deletion of the object would not be seen.
        let scope = self.scope_of(object.key())?;
        if !scope.is_listing && !scope.is_listed {
            return None;
        }
        let is_reported = compare(object.version(), &scope.version).is_some_and(Ordering::is_le);
        let (mut list, mut until) = (0, None);
        match self.objects.get(object.key()) {
            // The watch has already reported its deletion.
            None if is_reported => return None,
            None => {}
            Some(entry) => {
                list = entry.list;
                match compare(object.version(), entry.kept.version()) {
                    Some(Ordering::Less | Ordering::Equal) => return None,
                    Some(Ordering::Greater) => {}
                    None => until = Some(object.version().to_owned()),
                }
            }
        }
        let written = Written {
            list: self.begun,
            until,
        };
        self.insert(object, list, Some(written), ChangeKind::Written)
    }

    fn insert(
        &mut self,
        object: T,
        list: u64,
        written: Option<Written>,
        kind: ChangeKind,
    ) -> Option<Change> {
        let key = object.key().clone();
        let before = self.objects.get(&key);
        let is_same = before.is_some_and(|before| before.kept.version() == object.version());
        if let Some(before) = before {
            self.bytes = self.bytes.saturating_sub(before.kept.size());
        }
        self.bytes += object.size();
        let entry = Entry {
            kept: Arc::new(object),
            list,
            written,
        };
        self.objects.insert(key.clone(), entry);
        (!is_same).then_some(Change { key, kind })
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Change> {
        let entry = self.objects.remove(key)?;
        self.bytes = self.bytes.saturating_sub(entry.kept.size());
        let (key, kind) = (key.clone(), ChangeKind::Deleted);
        Some(Change { key, kind })
    }

    fn scope_of(&self, key: &ObjectKey) -> Option<&Watched> {
        let namespace = Scope::Namespace(key.namespace.clone());
        let own = self.scopes.get(&namespace);
        own.or_else(|| self.scopes.get(&Scope::All))
    }

    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> {
        let first = ObjectKey::new(namespace, "");
        let objects = self.objects.range(first..);
        objects
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, entry)| &entry.kept)
    }

    pub(super) fn count(&self, scope: &Scope) -> usize {
        match scope {
            Scope::All => self.objects.len(),
            Scope::Namespace(namespace) => self.of(namespace).count(),
        }
    }

    pub(super) fn check(
        &self,
        namespace: Option<&str>,
        age: Duration,
        now: Instant,
    ) -> Result<(), Unknown> {
        let all = self.scopes.get(&Scope::All);
        let all = all.map_or(Err(Unknown::NotWatched), |all| all.check(age, now));
        let (Some(namespace), Err(why)) = (namespace, &all) else {
            let mut in_use = self.in_use(age, now).peekable();
            return match in_use.peek() {
                Some(_) => in_use.try_for_each(|(_, watched)| watched.check(age, now)),
                None => all,
            };
        };
        let scope = Scope::Namespace(namespace.to_owned());
        match self.scopes.get(&scope) {
            Some(watched) => watched.check(age, now),
            None => Err(why.clone()),
        }
    }

    /// Whether single namespaces are watched in place of this scope.
    pub(super) fn is_replaced(&self, scope: &Scope) -> bool {
        let mut scopes = self.scopes.iter();
        let is_open = |(it, watched): (&Scope, &Watched)| it != scope && watched.is_open();
        scope.namespace().is_none() && scopes.any(is_open)
    }

    /// The watches that the cache counts on. That of all namespaces, if nothing else can be watched or it is not older than
    /// `age`. A namespace that is forbidden belongs to others, for whom this process is not there.
    fn in_use(&self, age: Duration, now: Instant) -> impl Iterator<Item = (&Scope, &Watched)> {
        let is_all = |scope: &Scope| scope.namespace().is_none();
        let mut scopes = self.scopes.iter();
        let has_all = scopes.any(|(scope, it)| is_all(scope) && it.check(age, now).is_ok());
        let narrow = move |(scope, it): &(&Scope, &Watched)| !is_all(scope) && !it.is_forbidden();
        let has_narrow = self.scopes.iter().any(|it| narrow(&it));
        self.scopes
            .iter()
            .filter(move |it| match has_all || !has_narrow {
                true => is_all(it.0),
                false => narrow(it),
            })
    }

    pub(super) fn status(&self, now: Instant) -> InformerStatus {
        let in_use: BTreeSet<&Scope> = self.in_use(FRESH, now).map(|(scope, _)| scope).collect();
        let scopes = self.scopes.iter().map(|(scope, watched)| ScopeStatus {
            namespace: scope.namespace().map(str::to_owned),
            is_in_use: in_use.contains(scope),
            is_synced: watched.received.is_some(),
            silence: watched
                .received
                .map(|received| now.saturating_duration_since(received)),
            restarts: watched.restarts,
            problem: watched.problem.clone(),
        });
        InformerStatus {
            scopes: scopes.collect(),
            objects: self.objects.len(),
            bytes: self.bytes,
        }
    }
}

/// Compares two versions of an object; `None` if one of them is not a decimal integer.
///
/// Kubernetes documents since 1.35 that `metadata.resourceVersion` may be compared as an integer (KEP-5504), and Argo
/// Rollouts compares it as one on every release (`utils/resourceversion/compare.go`). An API server with other versions
/// gives no order.
pub(crate) fn compare(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (digits(a)?, digits(b)?);
    Some(a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
}

/// Returns the digits of a version without leading zeros, so that the longer of two is the greater one.
fn digits(version: &str) -> Option<&str> {
    let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| version.trim_start_matches('0'))
}
