//! A cluster in which everything waits until a seeded scheduler lets it go: requests and their answers, events of watches,
//! and what the controller, the owner and the Lease do. Time is paused, and passes only between two steps of the scheduler.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use futures::FutureExt as _;
use gloo_types::RouteTableDoc;
use json_patch::Patch;
use route_store::{MemoryRouteStore, RouteStore as _};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep};

use super::super::*;
use super::process::Process;

/// How long a Lease lasts after its last renewal, and how long it must last after a fence was asked.
const LEASE: Duration = Duration::from_secs(15);
const MARGIN: Duration = Duration::from_secs(5);

/// What a seed chooses before anything happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Number of Rollouts, and of tables that all of them select.
    pub(super) rollouts: usize,
    pub(super) tables: usize,
    /// Whether a process before this one has left marks.
    pub(super) is_marked: bool,
    /// Whether requests fail, hang, or lose their answers.
    pub(super) is_faulty: bool,
    /// Whether there are endpoints, so that promotions are held.
    pub(super) has_pods: bool,
    /// Whether another controller becomes the leader.
    pub(super) loses_lease: bool,
    pub(super) collect_after: Duration,
    pub(super) request_timeout: Duration,
}

impl Setup {
    pub(super) fn of(random: &mut fastrand::Rng) -> Self {
        let is_faulty = random.u8(0..2) == 0;
        Self {
            rollouts: random.usize(1..3),
            tables: random.usize(1..3),
            is_marked: random.u8(0..3) == 0,
            is_faulty,
            has_pods: random.bool(),
            loses_lease: random.u8(0..4) == 0,
            collect_after: Duration::from_secs(if random.bool() { 2 } else { 30 }),
            request_timeout: Duration::from_secs(3),
        }
    }
}

pub(super) struct World {
    pub(super) api: MemoryRouteStore,
    pub(super) setup: Setup,
    state: Mutex<State>,
    /// Notified when something begins to wait.
    waits: Notify,
    /// The process of the leader; `None` while there is no leader.
    pub(super) leader: watch::Sender<Option<Arc<GlooRouter<Process>>>>,
}

struct State {
    random: fastrand::Rng,
    waiting: Vec<Waiting>,
    number: u64,
    mode: Mode,
    begun: Instant,
    trace: Vec<String>,
    violation: Option<String>,
    expect: BTreeMap<String, Expect>,
    /// The tables as their owner means them.
    owners: BTreeMap<ObjectKey, Value>,
    processes: Vec<Arc<Process>>,
    /// When another controller may be the leader.
    lost_at: Option<Instant>,
}

/// What the scheduler does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing waits.
    Free,
    /// It chooses who goes on, and what fails.
    Chooses,
    /// It lets everything go, and nothing fails.
    Drains,
}

/// What the tables must have for a Rollout.
#[derive(Clone, Copy, Debug, Default)]
struct Expect {
    /// The last answered weight; `None` while a call is running, and before the first one.
    weight: Option<i32>,
    /// Whether an abort, a rollback or a deletion was answered: no share may grow until the next call for a higher weight.
    is_over: bool,
    is_deleted: bool,
}

struct Waiting {
    label: String,
    number: u64,
    /// Not let go before.
    from: Instant,
    what: What,
}

pub(super) enum What {
    /// A task, which gets whether its request succeeds.
    Turn(oneshot::Sender<bool>),
    /// A write that was sent, so its sender cannot recall it.
    Write {
        process: &'static str,
        table: ObjectKey,
        patch: Patch,
        answer: oneshot::Sender<Result<RouteTableDoc, StoreError>>,
    },
    /// The next event of a watch, or the first lists.
    Tables(Arc<Process>),
    Rollouts(Arc<Process>),
    Lists(Arc<Process>),
}

impl World {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let mut random = fastrand::Rng::with_seed(seed);
        let setup = Setup::of(&mut random);
        Self::with(setup, random)
    }

    pub(super) fn with(setup: Setup, random: fastrand::Rng) -> Arc<Self> {
        let names = ["a", "b"].into_iter().take(setup.rollouts);
        let routes: Vec<Value> = names.clone().map(route_to).collect();
        let tables = tables(setup).map(|name| table(name, routes.clone()));
        let tables: Vec<Value> = tables.collect();
        let owners = tables.iter().map(|table| {
            let name = table["metadata"]["name"].as_str().unwrap();
            (ObjectKey::new("mesh", name), table.clone())
        });
        let state = State {
            random,
            waiting: Vec::new(),
            number: 0,
            mode: Mode::Free,
            begun: Instant::now(),
            trace: vec![format!("{setup:?}")],
            violation: None,
            expect: names.map(|it| (it.to_owned(), Expect::default())).collect(),
            owners: owners.collect(),
            processes: Vec::new(),
            lost_at: None,
        };
        Arc::new(Self {
            api: MemoryRouteStore::new(tables).unwrap(),
            setup,
            state: Mutex::new(state),
            waits: Notify::new(),
            leader: watch::Sender::new(None),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.state().mode = mode;
        self.waits.notify_one();
    }

    pub(super) fn add(&self, process: &Arc<Process>) {
        self.state().processes.push(Arc::clone(process));
    }

    /// The processes so far have ended.
    pub(super) fn remove_processes(&self) {
        self.state().processes.clear();
    }

    /// Forgets everything: what waits refers to processes, which refer to the world.
    pub(super) fn clear(&self) -> (Option<String>, Vec<String>) {
        self.leader.send_replace(None);
        let mut state = self.state();
        state.waiting.clear();
        state.processes.clear();
        (state.violation.take(), std::mem::take(&mut state.trace))
    }

    pub(super) fn fork(&self) -> fastrand::Rng {
        self.state().random.fork()
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        self.state().note(text.into());
    }

    pub(super) fn violation(&self, text: impl Into<String>) {
        self.state().violated(text.into());
    }

    /// Waits until the scheduler chooses this task. Returns whether its request succeeds.
    pub(super) async fn turn(&self, label: impl Into<String>) -> bool {
        let (sender, chosen) = oneshot::channel();
        self.wait(label.into(), What::Turn(sender));
        chosen.await.unwrap_or_default()
    }

    /// Adds something that the scheduler lets go later.
    pub(super) fn wait(&self, label: String, what: What) {
        let free = {
            let mut state = self.state();
            if state.mode == Mode::Free {
                Some(what)
            } else {
                state.number += 1;
                let waiting = Waiting {
                    from: state.from(self.setup.is_faulty),
                    label,
                    number: state.number,
                    what,
                };
                state.waiting.push(waiting);
                None
            }
        };
        if let Some(what) = free {
            self.go(what, true);
        }
        self.waits.notify_one();
    }

    /// Returns the share of each Rollout's canary in a table.
    pub(super) fn shares(&self, table: &ObjectKey) -> Vec<i64> {
        let table = self.api.table(table).unwrap();
        let names: Vec<String> = self.state().expect.keys().cloned().collect();
        names.iter().map(|name| share(&table, name)).collect()
    }

    /// Lets one thing go, without the scheduler.
    #[track_caller]
    pub(super) fn let_go(&self, label: &str) {
        let waiting = {
            let waiting = &mut self.state().waiting;
            let index = waiting.iter().position(|it| it.label == label);
            let index = index.unwrap_or_else(|| panic!("{label} does not wait"));
            waiting.remove(index)
        };
        self.go(waiting.what, true);
    }

    /// Returns what waits, in the order in which it began.
    pub(super) fn waiting(&self) -> Vec<String> {
        let state = self.state();
        state.waiting.iter().map(|it| it.label.clone()).collect()
    }

    /// Lets one thing go after another. Does not end.
    pub(super) async fn schedule(self: Arc<Self>) {
        loop {
            let pause = self.state().pause();
            match pause {
                Some(pause) => {
                    sleep(pause).await;
                    self.step();
                }
                None => self.waits.notified().await,
            }
        }
    }

    fn step(&self) {
        let chosen = self.state().choose();
        let Some(Waiting { label, what, .. }) = chosen else {
            return;
        };
        let dice = {
            let mut state = self.state();
            let fails = self.setup.is_faulty && state.mode == Mode::Chooses;
            if fails { state.random.u8(0..100) } else { 100 }
        };
        match (what, dice) {
            (What::Write { answer, .. }, 0..4) => {
                self.note(format!("{label}: refused"));
                let _ = answer.send(Err(unreachable("patch")));
            }
            (
                What::Write {
                    process,
                    table,
                    patch,
                    ..
                },
                4..8,
            ) => {
                self.note(format!("{label}: its answer is lost"));
                let _ = self.write(process, &table, &patch);
            }
            (What::Turn(sender), 0..4) if label.contains(':') && !label.ends_with("answered") => {
                self.note(format!("{label}: fails"));
                let _ = sender.send(false);
            }
            (what, _) => {
                self.note(label);
                self.go(what, true);
            }
        }
    }

    fn go(&self, what: What, succeeds: bool) {
        match what {
            What::Turn(sender) => {
                // Its task may have given up.
                let _ = sender.send(succeeds);
            }
            What::Write {
                process,
                table,
                patch,
                answer,
            } => {
                let _ = answer.send(self.write(process, &table, &patch));
            }
            What::Tables(process) => process.see_tables(),
            What::Rollouts(process) => process.see_rollouts(),
            What::Lists(process) => process.list(),
        }
    }

    /// Applies a patch of a process to a table.
    fn write(
        &self,
        process: &str,
        table: &ObjectKey,
        patch: &Patch,
    ) -> Result<RouteTableDoc, StoreError> {
        let before = self.api.table(table).unwrap_or_default();
        let written = self.api.patch(table, patch).now_or_never();
        let written = written.expect("the store in memory never waits");
        match &written {
            Ok(after) => {
                let after = after.raw();
                let mut state = self.state();
                state.note(format!("  {process} writes {}", show(after)));
                state.check_revision(process, &before, after);
                drop(state);
                self.publish_table(after);
            }
            Err(error) => self.note(format!("  {process}: {error}")),
        }
        written
    }

    /// Writes a table as its owner. `means` is what the owner wants from now on, if that changes.
    pub(super) fn put_table(&self, name: &str, table: Value, means: Option<Value>) {
        let key = self.api.put(table).unwrap();
        let stored = self.api.table(&key).unwrap();
        self.note(format!("  owner: {name}: {}", show(&stored)));
        if let Some(means) = means {
            self.state().owners.insert(key.clone(), means);
        }
        self.publish_table(&stored);
    }

    pub(super) fn owners(&self, key: &ObjectKey) -> Value {
        self.state().owners[key].clone()
    }

    fn publish_table(&self, table: &Value) {
        let processes = self.state().processes.clone();
        for process in processes {
            process.table_changed(table);
        }
    }

    /// Stores a Rollout, or removes it.
    pub(super) fn put_rollout(&self, key: &ObjectKey, rollout: Option<Value>) {
        match rollout {
            Some(rollout) => {
                self.api.put_rollout(rollout).unwrap();
            }
            None => self.api.remove_rollout(key),
        }
        let processes = self.state().processes.clone();
        for process in processes {
            process.rollout_changed(key);
        }
    }

    /// Notes that SetWeight is called.
    pub(super) fn asked(&self, rollout: &str, weight: i32) {
        let mut state = self.state();
        state.note(format!("{rollout}: SetWeight {weight}"));
        let expect = state.expect.get_mut(rollout).unwrap();
        expect.weight = None;
        expect.is_deleted = false;
        expect.is_over &= weight == 0;
    }

    /// Notes that SetWeight is answered. After a promotion, traffic may stay on the canary's Service for some time.
    pub(super) fn answered(&self, rollout: &str, weight: i32, is_promoted: bool) {
        let mut state = self.state();
        state.note(format!("{rollout}: SetWeight {weight} is answered"));
        let expect = state.expect.get_mut(rollout).unwrap();
        expect.weight = Some(weight);
        expect.is_over = weight == 0 && !is_promoted;
    }

    pub(super) fn deleted(&self, rollout: &str) {
        let mut state = self.state();
        let expect = state.expect.get_mut(rollout).unwrap();
        expect.weight = Some(0);
        expect.is_deleted = true;
    }

    /// Notes that a table of a deleted Rollout was restored.
    pub(super) fn collected(&self, rollout: &str) {
        let mut state = self.state();
        if let Some(expect) = state.expect.get_mut(rollout) {
            // It may have been created again.
            expect.is_over |= expect.is_deleted && self.setup.tables == 1;
        }
    }

    /// Whether a fence allows a write now; `None` if the Lease is not renewed in time.
    pub(super) fn is_fence_open(&self, process: &str) -> Option<bool> {
        let now = Instant::now();
        let is_late = self.fails(12);
        match self.state().lost_at {
            Some(at) if process == FIRST && now > at => Some(false),
            Some(at) if process == FIRST => (now + MARGIN <= at).then_some(true),
            _ => (!is_late).then_some(true),
        }
    }

    /// Whether the cache of a process is too old for a call or a repair.
    pub(super) fn has_stale_cache(&self) -> bool {
        self.fails(8)
    }

    /// Whether something fails that does so once in `times` times.
    fn fails(&self, times: u8) -> bool {
        let mut state = self.state();
        let may_fail = self.setup.is_faulty && state.mode == Mode::Chooses;
        may_fail && state.random.u8(0..times) == 0
    }

    /// From now on the Lease is not renewed. Returns when another controller becomes the leader.
    pub(super) fn lose_lease(&self) -> Instant {
        let mut state = self.state();
        state.note("the Lease is not renewed".to_owned());
        let at = Instant::now() + LEASE;
        state.lost_at = Some(at);
        drop(state);
        self.leader.send_replace(None);
        at
    }

    /// Checks the tables when nothing happens any more.
    pub(super) fn check_rest(&self) {
        let mut state = self.state();
        let expect = state.expect.clone();
        let is_rest = expect.values().all(|it| it.weight == Some(0));
        for (key, owners) in state.owners.clone() {
            let Some(mut live) = self.api.table(&key) else {
                continue;
            };
            let text = show(&live);
            live["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("resourceVersion");
            if is_rest && live != owners {
                state.violated(format!("at rest {text} is not its owner's text: {live}"));
            }
            for (route, (rollout, expect)) in expect.iter().enumerate() {
                let Some(weight) = expect.weight else {
                    continue;
                };
                let at = &live["spec"]["http"][route];
                let is_right = match weight {
                    0 => *at == owners["spec"]["http"][route],
                    _ => share(&live, rollout) == i64::from(weight),
                };
                if !is_right {
                    state.violated(format!("at rest {text}, but {rollout} is at {weight}"));
                }
            }
        }
    }
}

/// Name of the first process.
pub(super) const FIRST: &str = "one";

/// Returns the names of the tables.
pub(super) fn tables(setup: Setup) -> impl Iterator<Item = &'static str> {
    ["shop", "shop-2"].into_iter().take(setup.tables)
}

pub(super) fn unreachable(verb: &'static str) -> StoreError {
    StoreError::Unreachable {
        verb,
        what: "it".to_owned(),
        source: "the connection broke".into(),
    }
}

impl State {
    fn note(&mut self, text: String) {
        let after = self.begun.elapsed().as_millis();
        self.trace.push(format!("{after:>7} ms  {text}"));
    }

    fn violated(&mut self, text: String) {
        self.note(format!("VIOLATION: {text}"));
        self.violation.get_or_insert(text);
    }

    /// Returns when something that begins to wait may go on at the earliest.
    fn from(&mut self, is_faulty: bool) -> Instant {
        let longest = if is_faulty { 6000 } else { 2000 };
        let hangs = self.mode == Mode::Chooses && self.random.u8(0..12) == 0;
        let wait = if hangs {
            self.random.u64(0..longest)
        } else {
            0
        };
        Instant::now() + Duration::from_millis(wait)
    }

    /// Returns the time until the next step; `None` if nothing waits.
    fn pause(&mut self) -> Option<Duration> {
        let first = self.waiting.iter().map(|it| it.from).min()?;
        let pause = match (self.mode, self.random.u8(0..20)) {
            (Mode::Drains, _) | (_, 0..14) => 1,
            (_, 14..18) => self.random.u64(1..60),
            _ => self.random.u64(1..800),
        };
        let pause = Duration::from_millis(pause);
        Some(match self.mode {
            Mode::Drains => pause,
            _ => pause.max(first.saturating_duration_since(Instant::now())),
        })
    }

    fn choose(&mut self) -> Option<Waiting> {
        self.waiting.retain(|it| match &it.what {
            What::Turn(sender) => !sender.is_closed(),
            // The router cannot know of a write that lands after its caller has given up, so none does.
            What::Write { answer, .. } => !answer.is_closed(),
            What::Tables(_) | What::Rollouts(_) | What::Lists(_) => true,
        });
        let now = Instant::now();
        let ready = self.waiting.iter().enumerate();
        let ready = ready.filter(|(_, it)| self.mode == Mode::Drains || it.from <= now);
        let mut ready: Vec<usize> = ready.map(|(index, _)| index).collect();
        // Tasks begin to wait in an order that is not the same in each run.
        let order = |a: &usize, b: &usize| -> Ordering {
            let (a, b) = (&self.waiting[*a], &self.waiting[*b]);
            (&a.label, a.number).cmp(&(&b.label, b.number))
        };
        ready.sort_by(order);
        if ready.is_empty() {
            return None;
        }
        let index = ready[self.random.usize(0..ready.len())];
        Some(self.waiting.remove(index))
    }

    /// Checks a revision that a process wrote.
    fn check_revision(&mut self, process: &str, before: &Value, after: &Value) {
        let is_lost = self.lost_at.is_some_and(|at| Instant::now() > at);
        if is_lost && process == FIRST {
            self.violated(format!("{process} writes beside another leader"));
        }
        for (rollout, expect) in self.expect.clone() {
            let (was, is) = (share(before, &rollout), share(after, &rollout));
            if expect.is_over && is > was {
                self.violated(format!(
                    "{process} raises the share of {rollout} from {was} to {is}"
                ));
            }
        }
        for route in after["spec"]["http"].as_array().unwrap() {
            let sum: i64 = destinations(route).map(|(_, weight)| weight).sum();
            if sum != 100 {
                self.violated(format!("{process} writes weights of {sum}"));
            }
        }
    }
}

/// Returns name and weight of each destination of a route.
fn destinations(route: &Value) -> impl Iterator<Item = (&str, i64)> {
    let list = route["forwardTo"]["destinations"].as_array().unwrap();
    list.iter().map(|it| {
        let weight = it.get("weight").map_or(Some(100), Value::as_i64);
        (it["ref"]["name"].as_str().unwrap(), weight.unwrap())
    })
}

/// Returns the share of a Rollout's canary.
fn share(table: &Value, rollout: &str) -> i64 {
    let routes = table["spec"]["http"].as_array().into_iter().flatten();
    let of_canary = routes
        .flat_map(destinations)
        .filter(|(name, _)| name.strip_suffix("-canary") == Some(rollout));
    of_canary.map(|(_, weight)| weight).sum()
}

/// Returns what a table says, in one line.
fn show(table: &Value) -> String {
    let routes = table["spec"]["http"].as_array().unwrap().iter();
    let routes = routes.map(|route| {
        let list = destinations(route).map(|(name, weight)| format!("{name} {weight}"));
        list.collect::<Vec<_>>().join(" ")
    });
    let marks = table["metadata"].get("annotations").is_some();
    format!(
        "{} v{}: {}{}",
        table["metadata"]["name"].as_str().unwrap(),
        table["metadata"]["resourceVersion"].as_str().unwrap(),
        routes.collect::<Vec<_>>().join(" | "),
        if marks { ", marked" } else { "" },
    )
}
