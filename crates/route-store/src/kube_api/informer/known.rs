//! The objects and watches that an informer knows, without tasks and locks.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gloo_types::ObjectKey;

use super::super::proof::Moment;
use super::super::watch::{Event, Scope};
use super::{InformerStatus, ScopeStatus, Unknown};
use crate::{Change, ChangeKind, FRESH, Kept, StoreError};

/// The cache without tasks and locks. Time is an argument.
///
/// Lists have increasing numbers. Each entry has the number of the last list that contained it, so the end of list 7 removes
/// the entries with a smaller number, except those that this process wrote after list 7 was asked for.
pub(super) struct Known<T> {
    pub(super) objects: BTreeMap<ObjectKey, Entry<T>>,
    pub(super) scopes: BTreeMap<Scope, Watched>,
    /// Number of lists and tasks started so far, which is also the number of the newest one.
    pub(super) begun: u64,
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

impl Written {
    /// Whether the write is newer than the content of a list. `order` compares their versions.
    fn is_after(&self, list: u64, order: Option<Ordering>) -> bool {
        match order {
            // A list counts from its first page on, but the API server may have read it before a write in front of that page.
            Some(Ordering::Greater) => self.list + 1 >= list,
            Some(_) => false,
            None => self.list >= list,
        }
    }
}

/// The watch of a scope.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Number of the task that watches the scope. Events of an earlier task are ignored.
    task: u64,
    /// Number of the current list, or of the last one; 0 before the first page of the first one.
    list: u64,
    /// Whether a list was complete, and a watch open after it, once.
    is_synced: bool,
    /// All changes up to this version are applied; empty before the first page.
    version: String,
    /// The content has all changes up to this moment; `None` before a list was complete.
    proven: Option<Moment>,
    restarts: u64,
    problem: Option<Arc<StoreError>>,
}

impl Watched {
    /// Whether a list was complete, a watch is open, and no request has failed since.
    pub(super) fn is_open(&self) -> bool {
        self.is_synced && self.problem.is_none()
    }

    fn is_forbidden(&self) -> bool {
        matches!(self.problem.as_deref(), Some(StoreError::Forbidden { .. }))
    }

    /// Whether it cannot be expected to open: it never did, or is forbidden now. Otherwise a failed watch continues soon.
    pub(super) fn has_failed(&self) -> bool {
        self.is_forbidden() || !self.is_synced && self.problem.is_some()
    }

    /// The age of the content, at most; `None` before a list was complete and a watch open.
    fn age(&self, now: Moment) -> Option<Duration> {
        let proven = self.proven.filter(|_| self.is_synced);
        proven.map(|proven| now.since(&proven))
    }

    fn check(&self, longest: Duration, now: Moment) -> Result<(), Unknown> {
        let why = match self.age(now) {
            Some(age) if age <= longest => return Ok(()),
            Some(_) => Unknown::Unproven(longest),
            None => Unknown::NoAnswer,
        };
        let problem = self.problem.as_ref();
        Err(problem.map_or(why, |error| Unknown::Failed(Arc::clone(error))))
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            scopes: BTreeMap::new(),
            begun: 0,
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
        let is_left = |key: &ObjectKey| !self.scopes.keys().any(|other| other.has(key));
        let gone = self.objects.extract_if(.., |key, _| is_left(key));
        gone.map(|(_, entry)| deleted(&*entry.kept)).collect()
    }

    /// Applies an event of a task, and returns the changes of objects.
    pub(super) fn apply(&mut self, scope: &Scope, task: u64, event: Event<T>) -> Vec<Change> {
        let watched = self.scopes.get_mut(scope);
        let Some(watched) = watched.filter(|watched| watched.task == task) else {
            return Vec::new();
        };
        watched.problem = None;
        match event {
            Event::Page {
                objects,
                version,
                is_first,
                proven,
            } => {
                if is_first {
                    self.begun += 1;
                    watched.list = self.begun;
                }
                watched.version.clone_from(&version);
                watched.proven = proven.or(watched.proven);
                let list = watched.list;
                let mut changes: Vec<Change> = objects
                    .into_iter()
                    .filter_map(|object| self.listed(object, list))
                    .collect();
                if proven.is_some() {
                    changes.extend(self.sweep(scope, list, &version));
                }
                changes
            }
            Event::Opened => {
                watched.is_synced = true;
                Vec::new()
            }
            Event::Applied(object) => {
                object.version().clone_into(&mut watched.version);
                self.applied(object).into_iter().collect()
            }
            Event::Deleted(object) => {
                object.version().clone_into(&mut watched.version);
                self.deleted(&object).into_iter().collect()
            }
            Event::Proven(version, moment) => {
                (watched.version, watched.proven) = (version, Some(moment));
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
        let watched = self.scopes.get_mut(scope);
        let watched = watched.filter(|watched| watched.task == task)?;
        watched.restarts += 1;
        watched.problem.replace(Arc::new(error))
    }

    /// Applies an object of a list, unless this process wrote a newer version after the list was asked for.
    fn listed(&mut self, object: T, list: u64) -> Option<Change> {
        if let Some(entry) = self.objects.get_mut(object.key()) {
            let order = compare(entry.kept.version(), object.version());
            let written = entry.written.as_ref();
            if written.is_some_and(|written| written.is_after(list, order)) {
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

    fn deleted(&mut self, object: &T) -> Option<Change> {
        let entry = self.objects.get(object.key())?;
        // The event is older than a write of this process, which created the object again.
        if compare(object.version(), entry.kept.version()) == Some(Ordering::Less) {
            return None;
        }
        self.remove(object.key())
    }

    /// Removes the objects that a complete list lacks, except those that were written after it was asked for.
    fn sweep(&mut self, scope: &Scope, list: u64, version: &str) -> Vec<Change> {
        let is_gone = |key: &ObjectKey, entry: &Entry<T>| {
            let is_later = entry.written.as_ref().is_some_and(|written| {
                written.is_after(list, compare(entry.kept.version(), version))
            });
            scope.has(key) && entry.list < list && !is_later
        };
        let gone = self
            .objects
            .extract_if(.., |key, entry| is_gone(key, entry));
        gone.map(|(_, entry)| deleted(&*entry.kept)).collect()
    }

    pub(super) fn put(&mut self, object: T) -> Option<Change> {
        // Without a list or watch, a later deletion of the object would not be seen.
        let own = Scope::Namespace(object.key().namespace.clone());
        let scope = self.scopes.get(&own);
        let scope = scope.or_else(|| self.scopes.get(&Scope::All))?;
        if scope.list == 0 {
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
        let (key, kept) = (object.key().clone(), Arc::new(object));
        let entry = Entry {
            kept: Arc::clone(&kept),
            list,
            written,
        };
        let before = self.objects.insert(key, entry);
        let is_same = before.is_some_and(|before| before.kept.version() == kept.version());
        (!is_same).then(|| change(&*kept, kind))
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Change> {
        let entry = self.objects.remove(key)?;
        Some(deleted(&*entry.kept))
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let entry = self.objects.get(key)?;
        Some(Arc::clone(&entry.kept))
    }

    /// Returns the objects of a namespace, or of all, sorted by key.
    pub(super) fn objects(&self, namespace: Option<&str>) -> Vec<Arc<T>> {
        let first = ObjectKey::new(namespace.unwrap_or_default(), "");
        let objects = self.objects.range(first..);
        let of = objects.take_while(|(key, _)| namespace.is_none_or(|it| it == key.namespace));
        of.map(|(_, entry)| Arc::clone(&entry.kept)).collect()
    }

    pub(super) fn count(&self, scope: &Scope) -> usize {
        self.objects.keys().filter(|key| scope.has(key)).count()
    }

    /// Checks the age of the objects of a namespace, or of all that are watched.
    pub(super) fn check(
        &self,
        namespace: Option<&str>,
        age: Duration,
        now: Moment,
    ) -> Result<(), Unknown> {
        let all = self.scopes.get(&Scope::All);
        let Err(why) = all.map_or(Err(Unknown::NotWatched), |all| all.check(age, now)) else {
            return Ok(());
        };
        let narrow = match namespace {
            Some(namespace) => {
                let scope = Scope::Namespace(namespace.to_owned());
                Vec::from_iter(self.scopes.get(&scope))
            }
            None => self.narrow().collect(),
        };
        match narrow.is_empty() {
            true => Err(why),
            false => narrow.into_iter().try_for_each(|it| it.check(age, now)),
        }
    }

    /// Whether single namespaces are watched in place of this scope.
    pub(super) fn is_replaced(&self, scope: &Scope) -> bool {
        let mut scopes = self.scopes.iter();
        let is_open = |(it, watched): (&Scope, &Watched)| it != scope && watched.is_open();
        scope.namespace().is_none() && scopes.any(is_open)
    }

    /// The watches of single namespaces. One that is forbidden belongs to others, for whom this process is not there.
    fn narrow(&self) -> impl Iterator<Item = &Watched> {
        let narrow = self
            .scopes
            .iter()
            .filter(|(scope, _)| **scope != Scope::All);
        let watched = narrow.map(|(_, watched)| watched);
        watched.filter(|watched| !watched.is_forbidden())
    }

    pub(super) fn status(&self, now: Moment) -> InformerStatus {
        let all = self.scopes.get(&Scope::All);
        let counts_on_all = all.is_some_and(|all| all.check(FRESH, now).is_ok());
        let counts_on_all = counts_on_all || self.narrow().next().is_none();
        let scopes = self.scopes.iter().map(|(scope, watched)| ScopeStatus {
            namespace: scope.namespace().map(str::to_owned),
            is_in_use: match scope {
                Scope::All => counts_on_all,
                Scope::Namespace(_) => !counts_on_all && !watched.is_forbidden(),
            },
            age: watched.age(now),
            restarts: watched.restarts,
            problem: watched.problem.clone(),
        });
        InformerStatus {
            scopes: scopes.collect(),
            objects: self.objects.len(),
            bytes: self.objects.values().map(|it| it.kept.size()).sum(),
        }
    }
}

fn deleted(object: &impl Kept) -> Change {
    change(object, ChangeKind::Deleted)
}

fn change(object: &impl Kept, kind: ChangeKind) -> Change {
    Change {
        key: object.key().clone(),
        uid: object.uid().into(),
        kind,
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
