//! The stage over RouteTables in files: carries out the commands of the page, and reconciles like the controller.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use tokio::time::Instant;
use traffic_lab::Delays;
use traffic_page::{
    Action, Board, Command, Live, Plugin, Progress, Setting, Stage, StageError, Switch, Version,
};

use crate::rollout::{Call, Model, Pass};
use crate::shop::Shop;

/// Interval of reconciles without an event. The real controller waits for minutes.
const RESYNC: Duration = Duration::from_secs(5);
/// Time until the next reconcile after a failed call.
const RETRY: Duration = Duration::from_secs(1);
/// `scaleDownDelaySeconds`: how long old Pods run after a promotion. The real default is 30 s.
const SCALE_DOWN: Duration = Duration::from_secs(6);
/// Delay of endpoints while the switch "late" is on.
const LATE: Duration = Duration::from_secs(2);
const REPLICAS: usize = 3;

/// A canary over RouteTables in files.
pub(crate) struct FileStage {
    board: Board,
    shop: Shop,
    model: Model,
    /// When the next reconcile is due.
    due: Instant,
    /// Versions whose Pods will end, and when.
    leaving: Vec<(Version, Instant)>,
    old_pods_go_at_once: bool,
    endpoints_are_late: bool,
    calls: u64,
    /// Error of the last reconcile.
    last_error: String,
    /// Last message that the plugin logged.
    last_record: String,
}

impl FileStage {
    /// Starts Envoy, the plugin, the Pods and the load.
    ///
    /// # Errors
    /// Returns `Err` if Envoy or the plugin does not start.
    pub(crate) async fn open(plugin: &Path) -> Result<Self> {
        let mut stage = Self {
            board: Board::new(Setting::Files),
            shop: Shop::open(plugin).await?,
            model: Model::new(),
            due: Instant::now(),
            leaving: Vec::new(),
            old_pods_go_at_once: false,
            endpoints_are_late: false,
            calls: 0,
            last_error: String::new(),
            last_record: String::new(),
        };
        stage.shop.publish()?;
        stage.tables_changed()?;
        stage.reconcile().await;
        stage.shop.world.delivered().await?;
        if stage.shop.starts == 0 {
            bail!("the plugin {} does not start", plugin.display());
        }
        stage.board.start_load(stage.shop.world.address());
        Ok(stage)
    }

    async fn execute(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Act(action) => {
                let before = self.model.current;
                if let Err(refused) = self.model.act(action) {
                    bail!(refused);
                }
                let new = self.model.current;
                let text = action.describe(new, before, self.model.is_paused);
                self.board.note("you", &text);
                if before != new && before != self.model.stable {
                    self.leave(before);
                }
                if action == Action::Abort {
                    self.leave(new);
                }
                self.due = Instant::now();
            }
            Command::Kill => {
                self.shop.kill_plugin().await?;
                self.board
                    .note("fault", "the plugin is killed; the gateway keeps serving");
            }
            Command::Revert => {
                self.shop.revert()?;
                let changed = self.shop.publish()?;
                if changed.is_empty() {
                    bail!("the table is equal to the owner's");
                }
                self.tables_changed()?;
                let text = "GitOps restores the owner's table from Git";
                self.board.entry("fault", text, json!({"changed": changed}));
            }
            Command::Turn(Switch::Away) => {
                self.shop.take_tables_away()?;
                self.board.note(
                    "fault",
                    if self.shop.is_away() {
                        "the tables are no longer readable"
                    } else {
                        "the tables are readable again"
                    },
                );
            }
            Command::Turn(Switch::Late) => {
                self.endpoints_are_late = !self.endpoints_are_late;
                let late = self.endpoints_are_late;
                let endpoints = if late { LATE } else { Duration::ZERO };
                self.shop.world.set_delays(Delays {
                    endpoints,
                    ..Delays::default()
                });
                self.board.note(
                    "fault",
                    if late {
                        "from now on the gateway receives endpoints 2 s late"
                    } else {
                        "the gateway receives endpoints at once"
                    },
                );
            }
            Command::Turn(Switch::AtOnce) => {
                self.old_pods_go_at_once = !self.old_pods_go_at_once;
                self.board.note(
                    "fault",
                    if self.old_pods_go_at_once {
                        "from now on old Pods end at once, as with dynamicStableScale"
                    } else {
                        "old Pods run for 6 s"
                    },
                );
            }
            Command::Turn(Switch::GuardOff | Switch::Deleted) => bail!("this needs an API server"),
        }
        Ok(())
    }

    /// Runs one reconcile and schedules the next one.
    async fn reconcile(&mut self) {
        match self.pass().await {
            Ok(()) => {
                self.last_error.clear();
                let stable = self.model.stable;
                let goes_on = self.model.advance(self.board.now());
                if self.model.stable != stable {
                    self.board.note(
                        "controller",
                        &format!("version {} is stable", self.model.stable.number),
                    );
                    self.leave(stable);
                }
                let wait = if goes_on {
                    Duration::ZERO
                } else {
                    let wakes_in = self.model.wakes_in(self.board.now());
                    wakes_in.map_or(RESYNC, |it| it.min(RESYNC))
                };
                self.due = Instant::now() + wait;
            }
            Err(error) => {
                self.due = Instant::now() + RETRY;
                let error = format!("{error:#}");
                // A repeated error is shown once.
                if self.last_error != error {
                    self.board
                        .note("controller", &format!("retries every second: {error}"));
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
            self.board.note("controller", &text);
        }
        let Pass {
            rollout,
            calls,
            weight,
        } = self.model.pass()?;
        let is_changed = self.board.asked != weight;
        for call in calls {
            self.calls += 1;
            let began = Instant::now();
            let outcome = self.shop.call(&rollout, &call).await;
            let ms = began.elapsed().as_micros() as f64 / 1000.0;
            if matches!(call, Call::SetWeight(_)) && outcome.is_ok() {
                self.board.asked = weight;
            }
            let changed = self.shop.publish()?;
            if !changed.is_empty() {
                self.tables_changed()?;
            }
            for text in self.shop.take_log() {
                if text != self.last_record {
                    self.board.note("plugin", &format!("logs: {text}"));
                    self.last_record = text;
                }
            }
            let (is_ok, said) = match &outcome {
                Ok(said) => (true, (*said).to_owned()),
                Err(error) => (false, format!("{error:#}")),
            };
            // A reconcile without a change is not shown.
            let is_shown = is_changed && matches!(call, Call::SetWeight(_) | Call::VerifyWeight(_));
            let is_known = said == self.last_error;
            if !changed.is_empty() || is_shown || !is_ok && !is_known {
                let more = json!({"ms": ms, "ok": is_ok, "said": said, "changed": changed});
                self.board.entry("call", &call.to_string(), more);
            }
            outcome?;
            if said == "not verified" {
                bail!("the weight is not verified");
            }
        }
        Ok(())
    }

    /// Starts missing Pods, and publishes the endpoints of the Services.
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
            self.board.note(
                "controller",
                &format!("{REPLICAS} Pods of version {}", canary.number),
            );
        }
        self.shop.select("reviews", stable.number)?;
        self.shop.select("reviews-canary", canary.number)
    }

    /// Schedules the end of a version's Pods.
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
            // Not before the reconcile that publishes the new endpoints.
            if at > now || self.due <= now {
                self.leaving.push((version, at));
                continue;
            }
            if self.shop.scale(version, 0).await? {
                self.board.note(
                    "controller",
                    &format!("the Pods of version {} have ended", version.number),
                );
            }
        }
        Ok(())
    }

    /// Returns the version whose share is measured; `None` at rest.
    fn canary(&self) -> Option<u32> {
        let current = self.model.current;
        (current != self.model.stable).then_some(current.number)
    }

    fn tables_changed(&mut self) -> Result<()> {
        Ok(self.board.set_tables(&self.shop.served)?)
    }
}

impl Stage for FileStage {
    fn board(&mut self) -> &mut Board {
        &mut self.board
    }

    async fn carry_out(&mut self, command: Command) -> Result<(), StageError> {
        Ok(self.execute(command).await?)
    }

    async fn tick(&mut self) -> Result<(), StageError> {
        let pods = self.shop.pods();
        let copies = pods.map(|(version, pods)| {
            let copies = pods.iter().map(|pod| pod.take_ids().copies.len());
            (version, copies.sum())
        });
        let copies: Vec<(u32, usize)> = copies.collect();
        let canary = self.canary();
        self.board.count(copies, canary);
        self.end_old_pods().await?;
        if Instant::now() >= self.due {
            self.reconcile().await;
        }
        Ok(())
    }

    fn live(&self) -> Live {
        let model = &self.model;
        let (phase, message) = model.phase();
        let pods = self.shop.pods();
        let actions = Action::ALL.into_iter().map(|(_, action)| action);
        Live {
            progress: Progress {
                phase: phase.to_owned(),
                message,
                step: model.is_updating().then_some(model.step),
                stable: model.stable,
                current: model.current,
                is_paused: model.is_paused,
                is_aborted: model.is_aborted,
            },
            allowed: actions
                .filter(|action| model.clone().act(*action).is_ok())
                .collect(),
            pods: pods.map(|(version, pods)| (version, pods.len())).collect(),
            plugin: Plugin {
                id: self.shop.plugin(),
                starts: self.shop.starts,
                calls: self.calls,
            },
            switches: vec![
                (Switch::Away, self.shop.is_away()),
                (Switch::Late, self.endpoints_are_late),
                (Switch::AtOnce, self.old_pods_go_at_once),
            ],
        }
    }

    async fn close(self) -> Result<(), StageError> {
        Ok(self.shop.close().await?)
    }
}
