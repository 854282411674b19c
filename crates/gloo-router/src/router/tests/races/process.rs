//! A process of the plugin: its requests wait in the [`World`], and its cache knows what its watches have reported so far.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::sync::{Mutex, MutexGuard};

use gloo_types::{MirrorPolicyDoc, RouteTableDoc, RouteTableSelector, ServicePort};
use json_patch::Patch;
use rollouts_rpc::rollout::RolloutFacts;
use route_planner::involved;
use route_store::{
    CachedRollout, Change, ChangeKind, Endpoint, EndpointStream, Freshness, Keep as _, Permit,
    RequestContext, RolloutDoc, RolloutKeeper, RolloutReader, RouteStore, Selection,
};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

use super::super::*;
use super::world::{What, World, unreachable};
use crate::background::{self, Presence, Settings, Watched};
use crate::collect::Part;

/// How long a call waits for the first lists after the start.
const START: Duration = Duration::from_secs(1);

pub(super) struct Process {
    world: Arc<World>,
    name: &'static str,
    keeper: RolloutKeeper,
    cache: Mutex<Cache>,
    started: Instant,
    is_filled: watch::Sender<bool>,
    tables: broadcast::Sender<Change>,
    policies: broadcast::Sender<Change>,
    rollouts: broadcast::Sender<Change>,
}

#[derive(Default)]
struct Cache {
    tables: BTreeMap<ObjectKey, RouteTableDoc>,
    /// The marks of each table.
    marks: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    rollouts: BTreeMap<ObjectKey, Arc<CachedRollout>>,
    /// Events that the watches have not reported yet.
    table_events: VecDeque<RouteTableDoc>,
    rollout_events: VecDeque<(ObjectKey, Option<Arc<CachedRollout>>)>,
}

impl Cache {
    fn know(&mut self, table: RouteTableDoc) {
        let marks = involved(&table).unwrap_or_default();
        self.marks.insert(table.key().clone(), marks);
        self.tables.insert(table.key().clone(), table);
    }
}

fn policy() -> Policy {
    Policy {
        plugin_names: vec!["solo-io/glooplatform".into()],
        ..Policy::default()
    }
}

/// Starts a process, with the work between the calls.
pub(super) fn start(world: &Arc<World>, name: &'static str) -> Arc<GlooRouter<Process>> {
    let process = Arc::new(Process {
        world: Arc::clone(world),
        name,
        keeper: rollout_keeper(policy()),
        cache: Mutex::default(),
        started: Instant::now(),
        is_filled: watch::Sender::new(false),
        tables: broadcast::channel(64).0,
        policies: broadcast::channel(64).0,
        rollouts: broadcast::channel(64).0,
    });
    world.add(&process);
    let router = GlooRouter::new(Arc::clone(&process), policy());
    let router = router.with_call_timeout(Duration::from_secs(5));
    let router = Arc::new(router.with_observer(process.clone()));
    let settings = Settings {
        repair: true,
        collect_after: world.setup.collect_after,
        request_timeout: world.setup.request_timeout,
    };
    let fence = Arc::new(Lease(Arc::clone(&process)));
    let (runs, watched, fenced) = (router.clone(), process.clone(), fence);
    router.spawn(async move { background::run(settings, &runs, watched, fenced).await });
    let (forgets, watched) = (router.clone(), process.clone());
    router.spawn(async move { background::forget_deleted(&forgets, &*watched).await });
    world.wait(format!("{name} lists"), What::Lists(process));
    router
}

impl Process {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap()
    }

    async fn filled(&self) {
        let mut filled = self.is_filled.subscribe();
        // The sender is in `self`.
        let _ = filled.wait_for(|is_filled| *is_filled).await;
    }

    fn is_filled(&self) -> bool {
        *self.is_filled.borrow()
    }

    /// The first lists are answered.
    pub(super) fn list(&self) {
        let rollouts = ["a", "b", "another"].map(|name| ObjectKey::new("shop", name));
        let mut told = Vec::new();
        {
            let mut cache = self.cache();
            for table in self.world.api.tables().unwrap() {
                told.push(table.key().clone());
                cache.know(table);
            }
            for rollout in rollouts {
                if let Some(facts) = self.facts(&rollout) {
                    cache.rollouts.insert(rollout, facts);
                }
            }
        }
        self.is_filled.send_replace(true);
        for key in told {
            tell(&self.tables, change(key, ChangeKind::Applied));
        }
    }

    /// Returns the facts of a Rollout as it is stored now.
    fn facts(&self, rollout: &ObjectKey) -> Option<Arc<CachedRollout>> {
        let live = futures::FutureExt::now_or_never(self.world.api.rollout(rollout));
        let live = live.expect("the store in memory never waits").unwrap()?;
        let facts = self.keeper.keep(&live.raw().to_string()).unwrap();
        Some(Arc::new(facts))
    }

    /// A table changed in the cluster, which the watch reports later.
    pub(super) fn table_changed(self: &Arc<Self>, table: &Value) {
        if !self.is_filled() {
            return;
        }
        let table = RouteTableDoc::from_value(table.clone()).unwrap();
        let is_first = {
            let mut cache = self.cache();
            cache.table_events.push_back(table);
            cache.table_events.len() == 1
        };
        if is_first {
            let label = format!("{} sees tables", self.name);
            self.world.wait(label, What::Tables(Arc::clone(self)));
        }
    }

    pub(super) fn rollout_changed(self: &Arc<Self>, rollout: &ObjectKey) {
        if !self.is_filled() {
            return;
        }
        let facts = self.facts(rollout);
        let is_first = {
            let mut cache = self.cache();
            cache.rollout_events.push_back((rollout.clone(), facts));
            cache.rollout_events.len() == 1
        };
        if is_first {
            let label = format!("{} sees Rollouts", self.name);
            self.world.wait(label, What::Rollouts(Arc::clone(self)));
        }
    }

    /// The watch of tables reports the next event. Now and then it was closed in between: it then reports only the last state.
    pub(super) fn see_tables(self: &Arc<Self>) {
        let mut events: Vec<RouteTableDoc> = Vec::new();
        let has_more = {
            let mut cache = self.cache();
            let count = self.reported(cache.table_events.len());
            for event in cache.table_events.drain(..count) {
                events.retain(|it| it.key() != event.key());
                events.push(event);
            }
            !cache.table_events.is_empty()
        };
        for table in events {
            self.know(table, ChangeKind::Applied);
        }
        if has_more {
            let label = format!("{} sees tables", self.name);
            self.world.wait(label, What::Tables(Arc::clone(self)));
        }
    }

    pub(super) fn see_rollouts(self: &Arc<Self>) {
        let (told, has_more) = {
            let mut cache = self.cache();
            let count = self.reported(cache.rollout_events.len());
            let events: BTreeMap<_, _> = cache.rollout_events.drain(..count).collect();
            let mut told = Vec::new();
            for (key, facts) in events {
                if let Some(facts) = facts {
                    let uid = facts.facts.uid.clone();
                    cache.rollouts.insert(key.clone(), facts);
                    told.push((key, uid, ChangeKind::Applied));
                } else if let Some(facts) = cache.rollouts.remove(&key) {
                    told.push((key, facts.facts.uid.clone(), ChangeKind::Deleted));
                }
            }
            (told, !cache.rollout_events.is_empty())
        };
        for (key, uid, kind) in told {
            tell(&self.rollouts, Change { key, uid, kind });
        }
        if has_more {
            let label = format!("{} sees Rollouts", self.name);
            self.world.wait(label, What::Rollouts(Arc::clone(self)));
        }
    }

    fn reported(&self, events: usize) -> usize {
        if self.world.fork().u8(0..5) == 0 {
            events
        } else {
            events.min(1)
        }
    }

    /// Caches a table unless a newer version is known.
    fn know(&self, table: RouteTableDoc, kind: ChangeKind) {
        let key = table.key().clone();
        {
            let mut cache = self.cache();
            let known = cache.tables.get(&key);
            if known.is_some_and(|known| version(known) >= version(&table)) {
                return;
            }
            cache.know(table);
        }
        tell(&self.tables, change(key, kind));
    }

    /// Sends a request that reads, or asks for the Lease.
    async fn ask<T>(
        &self,
        verb: &'static str,
        what: &str,
        answer: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let label = format!("{}: {verb} {what}", self.name);
        self.within(verb, async {
            if !self.world.turn(&label).await {
                return Err(unreachable(verb));
            }
            let answer = answer.await;
            self.world.turn(format!("{label} is answered")).await;
            Ok(answer)
        })
        .await
    }

    /// Waits for a request until it times out, or its caller has no time left.
    async fn within<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let after = self.world.setup.request_timeout;
        let end = Instant::now() + after;
        let deadline = RequestContext::current().deadline.unwrap_or(end);
        let what = "it".to_owned();
        timeout_at(end.min(deadline), request)
            .await
            .unwrap_or_else(|_| {
                let text = format!("{}: {verb} times out", self.name);
                self.world.note(text);
                Err(if deadline < end {
                    StoreError::CallEnded { verb, what }
                } else {
                    StoreError::Timeout { verb, what, after }
                })
            })
    }

    /// Reads each table, some of which may not be answered.
    async fn confirm(&self, known: Selection) -> Selection {
        let mut selection = Selection::default();
        for table in known.tables {
            match self.read(table.key()).await {
                Ok(table) => selection.tables.push(table),
                Err(error) => selection.errors.push(error),
            }
        }
        selection
    }

    fn marks(&self) -> BTreeSet<Part> {
        let cache = self.cache();
        let marks = cache.marks.iter();
        let parts = marks.flat_map(|(table, rollouts)| {
            rollouts.iter().map(|rollout| Part {
                table: table.clone(),
                rollout: rollout.clone(),
            })
        });
        parts.collect()
    }
}

fn version(table: &RouteTableDoc) -> Option<u64> {
    table.resource_version().and_then(|it| it.parse().ok())
}

fn tell(to: &broadcast::Sender<Change>, change: Change) {
    // Nobody may listen.
    let _ = to.send(change);
}

/// A change of a table, of which only the key is used.
fn change(key: ObjectKey, kind: ChangeKind) -> Change {
    let uid = "".into();
    Change { key, uid, kind }
}

/// The controller's Lease, as a process reads it.
pub(super) struct Lease(pub(super) Arc<Process>);

impl Fence for Lease {
    async fn allows(&self) -> Option<bool> {
        let Process { world, name, .. } = &*self.0;
        let asked = self.0.ask("get", "the Lease", async {}).await;
        let allows = asked.ok().and_then(|()| world.is_fence_open(name));
        world.note(format!("  {name}: the fence is open: {allows:?}"));
        allows
    }
}

impl Observer for Process {
    fn observe(&self, report: &Report) {
        let name = self.name;
        match report {
            Report::Repair { outcome, .. } => {
                self.world.note(format!("  {name}: repair {outcome:?}"));
            }
            Report::Restored { rollout, .. } => {
                self.world
                    .note(format!("  {name}: collected after {rollout}"));
                self.world.collected(&rollout.name);
            }
            Report::Held { .. } => self.world.note(format!("  {name}: held")),
            Report::Released { end, .. } => {
                let end = end.as_str();
                self.world.note(format!("  {name}: released, {end}"));
            }
            _ => {}
        }
    }
}

impl Watched for Process {
    async fn run(&self) {
        pending::<()>().await;
    }

    async fn first_marks(&self) -> BTreeSet<ObjectKey> {
        self.filled().await;
        let marks = self.marks().into_iter();
        marks.map(|it| it.rollout).collect()
    }

    fn table(&self, table: &ObjectKey) -> Option<RouteTableDoc> {
        self.cache().tables.get(table).cloned()
    }

    fn version(&self, table: &ObjectKey) -> Option<String> {
        let table = self.table(table)?;
        table.resource_version().map(str::to_owned)
    }

    fn unseen(&self, _table: &ObjectKey) -> Option<String> {
        None
    }

    fn table_changes(&self) -> broadcast::Receiver<Change> {
        self.tables.subscribe()
    }

    fn policy_changes(&self) -> broadcast::Receiver<Change> {
        self.policies.subscribe()
    }

    fn rollout_changes(&self) -> broadcast::Receiver<Change> {
        self.rollouts.subscribe()
    }

    fn marked(&self) -> Option<BTreeSet<Part>> {
        self.is_filled().then(|| self.marks())
    }

    fn unreadable(&self) -> Vec<(About, String)> {
        Vec::new()
    }

    fn presence(&self, rollout: &ObjectKey) -> Presence {
        let cache = self.cache();
        let cached = cache.rollouts.get(rollout);
        match cached {
            _ if !self.is_filled() => Presence::Unknown,
            None => Presence::Absent,
            Some(cached) => Presence::Exists {
                uses_plugin: cached.plugin.is_some(),
            },
        }
    }

    fn deselects(&self, _rollout: &ObjectKey, _table: &ObjectKey) -> bool {
        false
    }

    fn rollouts(&self) -> usize {
        self.cache().rollouts.len()
    }
}

impl RouteStore for Process {
    async fn select(&self, selector: &RouteTableSelector, freshness: Freshness) -> Selection {
        if freshness == Freshness::Cached && self.is_filled() {
            let mut tables: Vec<_> = self.cache().tables.clone().into_values().collect();
            tables.retain(|it| selector.matches(it.key(), it.labels()));
            let errors = Vec::new();
            let known = Selection { tables, errors };
            return match self.world.has_stale_cache() {
                true => self.confirm(known).await,
                false => known,
            };
        }
        let selection = self.world.api.select(selector, Freshness::Live);
        let selection = self.ask("list", "tables", selection).await;
        selection.unwrap_or_else(|error| Selection {
            tables: Vec::new(),
            errors: vec![error],
        })
    }

    async fn marked(&self, rollout: &ObjectKey) -> Selection {
        if self.is_filled() {
            return Selection {
                tables: self.cache().tables.clone().into_values().collect(),
                errors: Vec::new(),
            };
        }
        let marked = self.world.api.marked(rollout);
        let marked = self.ask("list", "marked tables", marked).await;
        marked.unwrap_or_default()
    }

    async fn is_starting(&self) -> bool {
        let _ = timeout_at(self.started + START, self.filled()).await;
        !self.is_filled()
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        let read = self.world.api.read(key);
        self.ask("get", &key.name, read).await?
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let label = format!("{}: patch {}", self.name, key.name);
        let written = self.within("patch", async {
            let permit = Permit::current();
            tokio::select! {
                biased;
                () = permit.withdrawn() => {
                    self.world.note(format!("{label} is withdrawn"));
                    let what = key.to_string();
                    return Err(StoreError::Withdrawn { verb: "patch", what });
                }
                sent = self.world.turn(format!("{label} is sent")) => {
                    if !sent {
                        return Err(unreachable("patch"));
                    }
                }
            }
            let (answer, answered) = tokio::sync::oneshot::channel();
            let write = What::Write {
                process: self.name,
                table: key.clone(),
                patch: patch.clone(),
                answer,
            };
            self.world.wait(label.clone(), write);
            let Ok(answer) = answered.await else {
                // The answer is lost.
                return pending().await;
            };
            self.world.turn(format!("{label} is answered")).await;
            answer
        });
        let written = written.await?;
        self.know(written.clone(), ChangeKind::Written);
        Ok(written)
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.ask("list", "policies", async { Vec::new() }).await
    }

    fn last_known_policies(&self) -> Option<Vec<MirrorPolicyDoc>> {
        Some(Vec::new())
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        self.world.api.create_policy(policy).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.world.api.patch_policy(key, patch).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        self.world.api.delete_policy(policy).await
    }
}

impl RolloutReader for Process {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        let read = self.world.api.rollout(key);
        let what = format!("Rollout {}", key.name);
        self.ask("get", &what, read).await?
    }

    async fn newer_rollout(
        &self,
        key: &ObjectKey,
        version: &str,
    ) -> Result<Option<RolloutFacts>, StoreError> {
        let known = |facts: &RolloutFacts| {
            let number = |text: &str| text.parse::<u64>().ok();
            number(&facts.version) > number(version)
        };
        let cached = self.cache().rollouts.get(key).cloned();
        Ok(cached.map(|it| it.facts.clone()).filter(known))
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        self.world.api.service_ports(key).await
    }

    async fn endpoints(
        &self,
        namespace: &str,
        services: &[&str],
    ) -> Result<Option<Vec<Endpoint>>, StoreError> {
        let read = self.world.api.endpoints(namespace, services);
        self.ask("list", "endpoints", read).await?
    }

    fn watch_endpoints(&self, namespace: &str, services: &[&str]) -> EndpointStream<'_> {
        self.world.api.watch_endpoints(namespace, services)
    }

    async fn pods_of_version(
        &self,
        namespace: &str,
        hash: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        let read = self.world.api.pods_of_version(namespace, hash);
        self.ask("list", "Pods", read).await?
    }
}
