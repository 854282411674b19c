//! The one task that does everything: it carries out what the page asks for, reconciles, counts, and shows the outcome.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use traffic_lab::{Delays, Load, Target};

use crate::counts::{Counts, PERSONAS};
use crate::rollout::{Call, Deed, Model, Pass, Version};
use crate::shop::Shop;
use crate::tables::Tables;
use crate::tail::Tail;
use crate::view::{LOG, Snapshot};

/// Events each second are ten.
const TICK: Duration = Duration::from_millis(100);
/// The controller reconciles when something happens, and this long after that in any case. The real one waits for minutes.
const RESYNC: Duration = Duration::from_secs(5);
/// After a call that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How long old Pods stay: `scaleDownDelaySeconds`, whose default is 30.
const SCALE_DOWN: Duration = Duration::from_secs(6);
/// How late the gateway hears of endpoints when they are late.
const LATE: Duration = Duration::from_secs(2);
const REPLICAS: usize = 3;

/// What the page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Act(Deed),
    Kill,
    Revert,
    /// On or off.
    Away,
    /// On or off.
    Late,
    /// On or off.
    AtOnce,
}

impl Order {
    /// The order of this name; `None` if there is none.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let faults = [
            ("kill", Self::Kill),
            ("revert", Self::Revert),
            ("away", Self::Away),
            ("late", Self::Late),
            ("at_once", Self::AtOnce),
        ];
        let deeds = Deed::ALL.map(|(name, deed)| (name, Self::Act(deed)));
        let mut all = deeds.into_iter().chain(faults);
        all.find(|(known, _)| *known == name)
            .map(|(_, order)| order)
    }
}

/// An order, and whom to tell what became of it.
pub(crate) type Ordered = (Order, oneshot::Sender<Result<(), String>>);

pub(crate) struct Stage {
    shop: Shop,
    model: Model,
    counts: Counts,
    loads: Vec<Load>,
    begun: Instant,
    /// When the next reconcile is due.
    due: Instant,
    /// Versions that go, and when.
    leaving: Vec<(Version, Instant)>,
    old_pods_go_at_once: bool,
    endpoints_are_late: bool,
    asked: i32,
    written: f64,
    tables: (usize, Arc<Value>),
    log: Tail<LOG>,
    calls: u64,
    /// Of the last reconcile.
    last_error: String,
    /// The last one that the plugin logged.
    last_record: String,
    snapshots: watch::Sender<Arc<Snapshot>>,
}

impl Stage {
    /// Starts everything; the first request is sent.
    ///
    /// # Errors
    /// Returns `Err` if Envoy or the plugin does not start.
    pub(crate) async fn open(plugin: &Path) -> Result<Self> {
        let mut stage = Self {
            shop: Shop::open(plugin).await?,
            model: Model::new(),
            counts: Counts::default(),
            loads: Vec::new(),
            begun: Instant::now(),
            due: Instant::now(),
            leaving: Vec::new(),
            old_pods_go_at_once: false,
            endpoints_are_late: false,
            asked: 0,
            written: 0.0,
            tables: (0, Arc::default()),
            log: Tail::default(),
            calls: 0,
            last_error: String::new(),
            last_record: String::new(),
            snapshots: watch::Sender::default(),
        };
        stage.shop.publish()?;
        stage.tables_changed();
        stage.reconcile().await;
        stage.shop.world.heard().await?;
        if stage.shop.starts == 0 {
            bail!("the plugin {} does not start", plugin.display());
        }
        for persona in PERSONAS {
            let headers = persona.header.into_iter();
            let target = Target {
                gateway: stage.shop.world.address(),
                host: "shop.example.com".to_owned(),
                path: "/reviews".to_owned(),
                headers: headers
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            };
            stage.loads.push(Load::start(&target, persona.rate));
        }
        stage.show();
        Ok(stage)
    }

    /// The states, ten each second.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Runs until it is told to stop, or `stop` is dropped.
    ///
    /// # Errors
    /// Returns `Err` if the gateway has stopped.
    pub(crate) async fn run(
        mut self,
        mut orders: mpsc::Receiver<Ordered>,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<()> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut stop => return self.shop.close().await,
                Some((order, reply)) = orders.recv() => {
                    let outcome = self.carry_out(order).await;
                    self.show();
                    // A page that was closed does not wait for the answer.
                    let _ = reply.send(outcome.map_err(|error| error.to_string()));
                }
                _ = ticks.tick() => {
                    self.count();
                    self.end_old_pods().await?;
                    if Instant::now() >= self.due {
                        self.reconcile().await;
                    }
                    self.show();
                }
            }
        }
    }

    async fn carry_out(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Act(deed) => {
                let before = self.model.current;
                if let Err(refused) = self.model.act(deed) {
                    bail!(refused);
                }
                let (new, old) = (self.model.current, before.number);
                let text = match deed {
                    Deed::NewVersion { fails: false } => format!("deploy version {}", new.number),
                    Deed::NewVersion { fails: true } => {
                        format!(
                            "deploy version {}, which fails every third request",
                            new.number
                        )
                    }
                    Deed::Promote => format!("promote version {old}"),
                    Deed::PromoteFully => format!("promote version {old}, skip the steps"),
                    Deed::Abort => format!("abort version {old}"),
                    Deed::Retry => format!("retry version {old}"),
                    Deed::Pause if self.model.is_paused => "pause".to_owned(),
                    Deed::Pause => "go on".to_owned(),
                };
                self.note("you", &text);
                if before != new && before != self.model.stable {
                    self.leave(before);
                }
                if deed == Deed::Abort {
                    self.leave(new);
                }
                self.due = Instant::now();
            }
            Order::Kill => {
                self.shop.kill_plugin().await?;
                self.note("fault", "the plugin is killed; the gateway serves on");
            }
            Order::Revert => {
                self.shop.revert()?;
                let changed = self.shop.publish()?;
                if changed.is_empty() {
                    bail!("the table is as its owner wrote it");
                }
                self.tables_changed();
                let text = "Git has another table: it is written over the plugin's";
                self.entry("fault", text, json!({"changed": changed}));
            }
            Order::Away => {
                self.shop.take_tables_away()?;
                self.note(
                    "fault",
                    if self.shop.is_away() {
                        "the tables cannot be read any more"
                    } else {
                        "the tables can be read again"
                    },
                );
            }
            Order::Late => {
                self.endpoints_are_late = !self.endpoints_are_late;
                let late = self.endpoints_are_late;
                let endpoints = if late { LATE } else { Duration::ZERO };
                self.shop.world.set_delays(Delays {
                    endpoints,
                    ..Delays::default()
                });
                self.note(
                    "fault",
                    if late {
                        "from now on the gateway hears of endpoints 2 s late"
                    } else {
                        "the gateway hears of endpoints at once"
                    },
                );
            }
            Order::AtOnce => {
                self.old_pods_go_at_once = !self.old_pods_go_at_once;
                self.note(
                    "fault",
                    if self.old_pods_go_at_once {
                        "from now on old Pods go at once, as with dynamicStableScale"
                    } else {
                        "old Pods stay for 6 s"
                    },
                );
            }
        }
        Ok(())
    }

    /// One reconcile of the controller, as far as the plugin is concerned.
    async fn reconcile(&mut self) {
        match self.pass().await {
            Ok(()) => {
                self.last_error.clear();
                let stable = self.model.stable;
                let goes_on = self.model.advance(self.now());
                if self.model.stable != stable {
                    self.note(
                        "controller",
                        &format!("version {} is stable", self.model.stable.number),
                    );
                    self.leave(stable);
                }
                let wait = if goes_on {
                    Duration::ZERO
                } else {
                    let wakes_in = self.model.wakes_in(self.now());
                    wakes_in.map_or(RESYNC, |it| it.min(RESYNC))
                };
                self.due = Instant::now() + wait;
            }
            Err(error) => {
                self.due = Instant::now() + RETRY;
                let error = format!("{error:#}");
                // It may be the same for a while.
                if self.last_error != error {
                    self.note("controller", &format!("tries again every second: {error}"));
                    self.last_error = error;
                }
            }
        }
    }

    async fn pass(&mut self) -> Result<()> {
        self.arrange_pods().await?;
        let is_first = self.shop.starts == 0;
        if self.shop.start_plugin().await? {
            let (pid, took) = (self.shop.plugin().unwrap_or_default(), self.shop.start_took);
            let again = if is_first { "" } else { " again" };
            let text = format!(
                "the plugin is started{again} in {} ms, process {pid}",
                took.as_millis()
            );
            self.note("controller", &text);
        }
        let Pass {
            rollout,
            calls,
            weight,
        } = self.model.pass()?;
        let is_news = self.asked != weight;
        for call in calls {
            self.calls += 1;
            let began = Instant::now();
            let outcome = self.shop.call(&rollout, &call).await;
            let ms = began.elapsed().as_micros() as f64 / 1000.0;
            if matches!(call, Call::SetWeight(_)) && outcome.is_ok() {
                self.asked = weight;
            }
            let changed = self.shop.publish()?;
            if !changed.is_empty() {
                self.tables_changed();
            }
            for text in self.shop.take_said() {
                if text != self.last_record {
                    self.note("plugin", &format!("logs: {text}"));
                    self.last_record = text;
                }
            }
            let (is_ok, said) = match &outcome {
                Ok(said) => (true, (*said).to_owned()),
                Err(error) => (false, format!("{error:#}")),
            };
            // A reconcile that finds everything as it should be is no news.
            let is_shown = is_news && matches!(call, Call::SetWeight(_) | Call::VerifyWeight(_));
            let is_known = said == self.last_error;
            if !changed.is_empty() || is_shown || !is_ok && !is_known {
                let more = json!({"ms": ms, "ok": is_ok, "said": said, "changed": changed});
                self.entry("call", &call.to_string(), more);
            }
            outcome?;
            if said == "not verified" {
                bail!("the weight is not verified");
            }
        }
        Ok(())
    }

    /// Starts the Pods that are missing, and turns the Services to theirs.
    async fn arrange_pods(&mut self) -> Result<()> {
        let (stable, current) = (self.model.stable, self.model.current);
        self.shop.scale(stable, REPLICAS).await?;
        let canary = if self.model.is_updating() {
            current
        } else {
            stable
        };
        self.leaving
            .retain(|(version, _)| *version != stable && *version != canary);
        if self.shop.scale(canary, REPLICAS).await? {
            self.note(
                "controller",
                &format!("{REPLICAS} Pods of version {}", canary.number),
            );
        }
        self.shop.select("reviews", stable.number)?;
        self.shop.select("reviews-canary", canary.number)
    }

    /// The Pods of a version end, soon or at once.
    fn leave(&mut self, version: Version) {
        let delay = if self.old_pods_go_at_once {
            Duration::ZERO
        } else {
            SCALE_DOWN
        };
        self.leaving.push((version, Instant::now() + delay));
    }

    async fn end_old_pods(&mut self) -> Result<()> {
        let now = Instant::now();
        let leaving = std::mem::take(&mut self.leaving);
        for (version, at) in leaving {
            // Services lead elsewhere first.
            if at > now || self.due <= now {
                self.leaving.push((version, at));
                continue;
            }
            if self.shop.scale(version, 0).await? {
                self.note(
                    "controller",
                    &format!("the Pods of version {} are gone", version.number),
                );
            }
        }
        Ok(())
    }

    fn count(&mut self) {
        for (persona, load) in self.loads.iter().enumerate() {
            for sent in load.take() {
                self.counts.add(persona, &sent);
            }
        }
        for (version, pods) in self.shop.pods() {
            let copies = pods.iter().map(|pod| pod.take_ids().copies.len()).sum();
            self.counts.add_copies(version, copies);
        }
        let (asked, written) = (self.asked, self.written);
        let load = self.loads.first().map(Load::elapsed);
        let now = load.unwrap_or_default();
        let canary = self.canary();
        self.counts.tick(now, asked, written, canary);
    }

    /// The version whose share is measured; none at rest.
    fn canary(&self) -> Option<u32> {
        let current = self.model.current;
        (current != self.model.stable).then_some(current.number)
    }

    fn tables_changed(&mut self) {
        let tables: &Tables = &self.shop.served;
        if let (Ok(lines), Ok(share)) = (tables.lines(), tables.share()) {
            self.written = share;
            self.tables = (self.tables.0 + 1, Arc::new(lines));
        }
    }

    fn show(&mut self) {
        let snapshot = Snapshot {
            live: self.live(),
            bubbles: self.counts.take_bubbles(),
            tables: self.tables.clone(),
            log: self.log.clone(),
            points: self.counts.points.clone(),
        };
        self.snapshots.send_replace(Arc::new(snapshot));
    }

    fn live(&self) -> Map<String, Value> {
        let model = &self.model;
        let version = |version: Version| json!({"number": version.number, "fails": version.fails});
        let (phase, message) = model.phase();
        let pods = self.shop.pods();
        let pods: Vec<_> = pods
            .map(|(version, pods)| json!([version, pods.len()]))
            .collect();
        let allowed = Deed::ALL
            .into_iter()
            .filter(|(_, deed)| model.clone().act(*deed).is_ok());
        let allowed: Vec<&str> = allowed.map(|(name, _)| name).collect();
        let live = json!({
            "t": self.now().as_millis() as u64,
            "rollout": {
                "phase": phase,
                "message": message,
                "step": model.is_updating().then_some(model.step),
                "stable": version(model.stable),
                "current": version(model.current),
                "paused": model.is_paused,
                "aborted": model.is_aborted,
            },
            "allowed": allowed,
            "pods": pods,
            "weights": {
                "asked": self.asked,
                "written": self.written,
                "measured": self.canary().and_then(|it| self.counts.share(it)),
            },
            "totals": self.counts.totals(),
            "personas": self.counts.personas(),
            "plugin": {"id": self.shop.plugin(), "starts": self.shop.starts, "calls": self.calls},
            "switches": {
                "away": self.shop.is_away(),
                "late": self.endpoints_are_late,
                "at_once": self.old_pods_go_at_once,
            },
        });
        match live {
            Value::Object(live) => live,
            _ => Map::new(),
        }
    }

    fn note(&mut self, who: &str, text: &str) {
        self.entry(who, text, json!({}));
    }

    fn entry(&mut self, who: &str, text: &str, mut more: Value) {
        if let Some(more) = more.as_object_mut() {
            more.insert("at".to_owned(), (self.now().as_millis() as u64).into());
            more.insert("who".to_owned(), who.into());
            more.insert("text".to_owned(), text.into());
        }
        self.log.push(more);
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}
