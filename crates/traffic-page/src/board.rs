//! The data of the page apart from the state of the canary: requests, shares over time, tables and the log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use traffic_lab::{Load, Target};

use crate::counts::{Counts, PERSONAS};
use crate::tail::Tail;
use crate::view::{LOG, Snapshot};
use crate::{Action, Setting, Switch, Tables, TablesError, Version};

/// Host and path of the requests.
const HOST: &str = "shop.example.com";
const PATH: &str = "/reviews";

/// The state of the canary.
#[derive(Clone, Debug)]
pub struct Live {
    /// Progress of the update.
    pub progress: Progress,
    /// The actions that are possible now.
    pub allowed: Vec<Action>,
    /// Number of Pods of each version.
    pub pods: Vec<(u32, usize)>,
    /// The plugin.
    pub plugin: Plugin,
    /// The switches of the stage, and whether each is on.
    pub switches: Vec<(Switch, bool)>,
}

/// Progress of an update.
#[derive(Clone, Debug)]
pub struct Progress {
    /// `status.phase`, or a text in its place.
    pub phase: String,
    /// What the update waits for.
    pub message: String,
    /// The index of the current step; `None` without an update.
    pub step: Option<usize>,
    /// The stable version.
    pub stable: Version,
    /// The newest version.
    pub current: Version,
    /// A user has paused it.
    pub is_paused: bool,
    /// A user has aborted it.
    pub is_aborted: bool,
}

impl Progress {
    /// Returns the version whose share is measured; `None` at rest.
    #[must_use]
    pub fn canary(&self) -> Option<u32> {
        let is_update = self.current.number != self.stable.number;
        is_update.then_some(self.current.number)
    }
}

/// The plugin's process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plugin {
    /// The process id, if it runs.
    pub id: Option<u32>,
    /// Number of starts.
    pub starts: u32,
    /// Number of the controller's calls to all processes so far.
    pub calls: u64,
}

/// The data of the page.
#[derive(Debug)]
pub struct Board {
    setting: Setting,
    counts: Counts,
    /// One load for each persona.
    loads: Vec<Load>,
    begun: Instant,
    /// The last weight that the controller asked for, in percent.
    pub asked: i32,
    written: f64,
    tables: (usize, Arc<Value>),
    log: Tail<LOG>,
    snapshots: watch::Sender<Arc<Snapshot>>,
}

impl Board {
    /// An empty board. Its time starts now.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        Self {
            setting,
            counts: Counts::default(),
            loads: Vec::new(),
            begun: Instant::now(),
            asked: 0,
            written: 0.0,
            tables: (0, Arc::default()),
            log: Tail::default(),
            snapshots: watch::Sender::default(),
        }
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Starts the loads of all personas.
    pub fn start_load(&mut self, gateway: SocketAddr) {
        for persona in PERSONAS {
            let headers = persona.header.into_iter();
            let target = Target {
                gateway,
                host: HOST.to_owned(),
                path: PATH.to_owned(),
                headers: headers
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            };
            self.loads.push(Load::start(&target, persona.rate));
        }
    }

    /// Counts the answers since the last call, and the mirrored requests of each version in `copies`. `canary` is the version
    /// whose share is measured.
    pub fn count(&mut self, copies: impl IntoIterator<Item = (u32, usize)>, canary: Option<u32>) {
        for (persona, load) in self.loads.iter().enumerate() {
            for sent in load.take() {
                self.counts.add(persona, &sent);
            }
        }
        for (version, copies) in copies {
            self.counts.add_copies(version, copies);
        }
        let load = self.loads.first().map(Load::elapsed);
        let now = load.unwrap_or_default();
        self.counts.tick(now, self.asked, self.written, canary);
    }

    /// Replaces the shown tables.
    ///
    /// # Errors
    /// Returns `Err` if they cannot be decoded.
    pub fn set_tables(&mut self, tables: &Tables) -> Result<(), TablesError> {
        let (lines, share) = (tables.lines()?, tables.share()?);
        self.written = share;
        self.tables = (self.tables.0 + 1, Arc::new(lines));
        Ok(())
    }

    /// Adds an entry to the log.
    pub fn note(&mut self, who: &str, text: &str) {
        self.entry(who, text, json!({}));
    }

    /// Adds an entry with more fields: `ms` (duration), `ok`, `said` (an error), and `changed` (lines).
    pub fn entry(&mut self, who: &str, text: &str, mut more: Value) {
        if let Some(more) = more.as_object_mut() {
            let at = u64::try_from(self.now().as_millis());
            more.insert("at".to_owned(), at.unwrap_or(u64::MAX).into());
            more.insert("who".to_owned(), who.into());
            more.insert("text".to_owned(), text.into());
        }
        self.log.push(more);
    }

    /// Returns the receiver of all snapshots.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Publishes a snapshot of the current state.
    pub(crate) fn show(&mut self, live: &Live) {
        let snapshot = Snapshot {
            setting: Some(self.setting),
            live: self.event(live),
            bubbles: self.counts.take_bubbles(),
            tables: self.tables.clone(),
            log: self.log.clone(),
            points: self.counts.points.clone(),
        };
        self.snapshots.send_replace(Arc::new(snapshot));
    }

    fn event(&self, live: &Live) -> Map<String, Value> {
        let Live {
            progress,
            allowed,
            pods,
            plugin,
            switches,
        } = live;
        let version = |version: Version| json!({"number": version.number, "fails": version.fails});
        let allowed = Action::ALL
            .iter()
            .filter(|(_, action)| allowed.contains(action))
            .map(|(name, _)| *name);
        let switches = Switch::ALL.iter().filter_map(|(name, switch)| {
            let (_, is_on) = switches.iter().find(|(known, _)| known == switch)?;
            Some((*name, *is_on))
        });
        let event = json!({
            "t": u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX),
            "rollout": {
                "phase": progress.phase,
                "message": progress.message,
                "step": progress.step,
                "stable": version(progress.stable),
                "current": version(progress.current),
                "paused": progress.is_paused,
                "aborted": progress.is_aborted,
            },
            "allowed": allowed.collect::<Vec<_>>(),
            "pods": pods,
            "weights": {
                "asked": self.asked,
                "written": self.written,
                "measured": progress.canary().and_then(|it| self.counts.share(it)),
            },
            "totals": self.counts.totals(),
            "personas": self.counts.personas(),
            "plugin": {"id": plugin.id, "starts": plugin.starts, "calls": plugin.calls},
            "switches": switches.collect::<BTreeMap<_, _>>(),
        });
        match event {
            Value::Object(event) => event,
            _ => Map::new(),
        }
    }
}
