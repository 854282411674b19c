//! The objects of one kind in one namespace, as a watch tells of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gloo_types::{Document, ObjectKey, Resource};
use route_store::{Event, KubeRouteStore, StoreError};
use tokio::task::JoinSet;

use super::lock;

/// How long an answer may be made of what was heard before. A watch tells of itself each minute.
const STALE: Duration = Duration::from_secs(120);
/// Longest pause between two tries to reach the API server, in seconds.
const LONGEST_PAUSE: u64 = 15;

/// A watch, and what is known from it. It ends with this value.
pub(crate) struct Informer<K> {
    known: Arc<Mutex<Known<K>>>,
    /// The one task.
    task: JoinSet<()>,
}

/// What is known of the objects.
struct Known<K> {
    objects: BTreeMap<ObjectKey, Arc<Document<K>>>,
    /// When the API server last told of them; never before it told of all and lets them be watched.
    heard: Option<Instant>,
    /// What has kept it from telling more since.
    problem: Option<String>,
}

impl<K: Resource> Informer<K> {
    /// Follows the objects of a namespace, whatever comes.
    pub(super) fn start(store: &Arc<KubeRouteStore>, namespace: &str) -> Self {
        let known = Arc::new(Mutex::new(Known::default()));
        let mut task = JoinSet::new();
        task.spawn(follow(
            Arc::clone(store),
            namespace.to_owned(),
            Arc::clone(&known),
        ));
        Self { known, task }
    }

    /// Whether it goes on. Only a panic ends it.
    pub(super) fn is_running(&mut self) -> bool {
        self.task.try_join_next().is_none()
    }

    /// All objects, or why they are not known.
    pub(super) fn objects(&self, now: Instant) -> Result<Vec<Arc<Document<K>>>, String> {
        lock(&self.known).objects(now)
    }

    /// Why they have never been known, if so.
    pub(super) fn unseen(&self) -> Option<String> {
        let known = lock(&self.known);
        match known.heard {
            Some(_) => None,
            None => Some(known.why("no answer yet")),
        }
    }
}

async fn follow<K: Resource>(
    store: Arc<KubeRouteStore>,
    namespace: String,
    known: Arc<Mutex<Known<K>>>,
) {
    let mut watch = store.watch::<K>(&namespace);
    let mut failures = 0;
    loop {
        let event = watch.next().await;
        match event {
            Ok(event) => {
                if let Event::Listed(objects) = &event {
                    tracing::info!(kind = K::KIND, namespace, count = objects.len(), "listed");
                } else if failures > 0 {
                    tracing::info!(kind = K::KIND, namespace, failures, "watched again");
                }
                failures = 0;
                lock(&known).learn(event, Instant::now());
            }
            Err(error) => {
                let problem = words::<K>(error);
                if lock(&known).problem.as_ref() != Some(&problem) {
                    tracing::warn!(kind = K::KIND, namespace, problem, "a watch failed");
                }
                lock(&known).problem = Some(problem);
                tokio::time::sleep(pause(failures)).await;
                failures += 1;
            }
        }
    }
}

impl<K> Default for Known<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            heard: None,
            problem: None,
        }
    }
}

impl<K: Resource> Known<K> {
    fn learn(&mut self, event: Event<K>, now: Instant) {
        let entry = |object: Arc<Document<K>>| (object.key().clone(), object);
        let first_list = self.heard.is_none() && matches!(event, Event::Listed(_));
        match event {
            // All at once: an answer between two of them would lack the others.
            Event::Listed(objects) => self.objects = objects.into_iter().map(entry).collect(),
            Event::Applied(object) => self.objects.extend([entry(object)]),
            Event::Deleted(key) => {
                self.objects.remove(&key);
            }
            Event::Quiet => {}
        }
        if !first_list {
            self.heard = Some(now);
        }
        self.problem = None;
    }

    fn objects(&self, now: Instant) -> Result<Vec<Arc<Document<K>>>, String> {
        match self.heard {
            None => Err(self.why("no answer yet")),
            Some(heard) if now.saturating_duration_since(heard) > STALE => {
                let silence = format!("nothing was heard for {} s", STALE.as_secs());
                Err(self.why(&silence))
            }
            Some(_) => Ok(self.objects.values().cloned().collect()),
        }
    }

    fn why(&self, silence: &str) -> String {
        self.problem.clone().unwrap_or_else(|| silence.to_owned())
    }
}

/// `error` in words that help who runs the generator.
fn words<K: Resource>(error: StoreError) -> String {
    match error {
        // The list is there, however empty, if the kind is known.
        StoreError::NotFound { .. } => format!(
            "the API server has no {}.{}/{}: install its CustomResourceDefinition",
            K::PLURAL,
            K::GROUP,
            K::VERSION
        ),
        StoreError::Timeout { verb, what, after } => format!(
            "no answer to {verb} {what} within {} s: check the API server",
            after.as_secs()
        ),
        error => format!("{:#}", anyhow::Error::from(error)),
    }
}

/// How long to wait after so many failures: longer and longer, and not all replicas at once.
fn pause(failures: u32) -> Duration {
    let seconds = 2_u64.saturating_pow(failures).min(LONGEST_PAUSE);
    Duration::from_secs(seconds).mul_f32(0.5 + fastrand::f32() / 2.0)
}

#[cfg(test)]
mod tests {
    use gloo_types::{RouteTable, RouteTableDoc};
    use serde_json::json;

    use super::*;

    fn table(name: &str) -> Arc<RouteTableDoc> {
        let table = json!({"metadata": {"name": name, "namespace": "shop"}});
        Arc::new(RouteTableDoc::from_value(table).unwrap())
    }

    /// What is known `after` seconds.
    fn known(known: &Known<RouteTable>, start: Instant, after: u64) -> String {
        let objects = known.objects(start + Duration::from_secs(after));
        match objects {
            Ok(objects) => {
                let names = objects.iter().map(|table| table.key().name.as_str());
                names.collect::<Vec<_>>().join(" ")
            }
            Err(why) => format!("? {why}"),
        }
    }

    #[test]
    fn all_is_known_once_all_is_listed_and_watched_and_a_list_replaces_all() {
        let start = Instant::now();
        let mut tables = Known::default();
        assert_eq!(known(&tables, start, 0), "? no answer yet");
        tables.problem = Some("forbidden".to_owned());
        assert_eq!(known(&tables, start, 0), "? forbidden");

        tables.learn(Event::Listed(vec![table("b"), table("a")]), start);
        assert_eq!(known(&tables, start, 0), "? no answer yet");
        tables.problem = Some("not allowed to watch".to_owned());
        assert_eq!(known(&tables, start, 0), "? not allowed to watch");
        tables.learn(Event::Quiet, start);
        assert_eq!(known(&tables, start, 0), "a b");
        tables.learn(Event::Applied(table("c")), start);
        tables.learn(Event::Deleted(ObjectKey::new("shop", "a")), start);
        assert_eq!(known(&tables, start, 0), "b c");
        tables.learn(Event::Listed(vec![table("d")]), start);
        assert_eq!(known(&tables, start, 0), "d");
    }

    #[test]
    fn what_is_known_gets_old() {
        let start = Instant::now();
        let mut tables = Known::default();
        tables.learn(Event::Listed(vec![table("a")]), start);
        tables.learn(Event::Quiet, start);
        tables.problem = Some("connection refused".to_owned());
        assert_eq!(known(&tables, start, 120), "a");
        assert_eq!(known(&tables, start, 121), "? connection refused");
        tables.learn(Event::Quiet, start + Duration::from_secs(130));
        assert_eq!(known(&tables, start, 250), "a");
        assert_eq!(known(&tables, start, 251), "? nothing was heard for 120 s");
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        for (failures, most) in [(0, 1), (3, 8), (4, 15), (u32::MAX, 15)] {
            let most = Duration::from_secs(most);
            let pause = pause(failures);
            assert!(most / 2 <= pause && pause <= most, "{failures}: {pause:?}");
        }
    }
}
